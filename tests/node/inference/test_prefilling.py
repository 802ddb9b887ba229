"""A validator's prefill: the same numbers whatever is cut into chunks."""

from typing import Any

import numpy as np
import pytest
import torch

from node.inference import device_sampling, prefilling
from node.inference.engine import FinishedSequence, Prefill
from node.inference.errors import EngineError
from node.inference.language_model import LanguageModel
from node.inference.prefilling import Prefiller
from tests.node.inference.models import CONFIGURATIONS, VOCABULARY, engine_model, transformers_model


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return engine_model(transformers_model(CONFIGURATIONS["qwen2"], torch.float32, "sdpa"))


def sequences() -> list[FinishedSequence]:
    """The second has two turns: 9 tokens sampled, 7 said by somebody else, 14 sampled."""
    random = np.random.default_rng(8)
    tokens = [random.integers(0, VOCABULARY, size=n).tolist() for n in (5, 20, 9, 30, 3, 1)]
    return [
        FinishedSequence(tokens[0], tokens[1]),
        FinishedSequence(tokens[2], tokens[3], (9, 7, 14)),
        FinishedSequence(tokens[4], tokens[5]),
    ]


def assert_equal(one: Prefill, other: Prefill) -> None:
    assert np.allclose(one.lo, other.lo, atol=1e-6) and np.allclose(one.hi, other.hi, atol=1e-6)
    assert np.allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert (one.heads == other.heads).mean() > 0.95, "both round to bf16"


def test_chunks_give_what_one_pass_gives(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Prefiller(model, 1024).prefill(sequences(), 0.8)
    assert [len(one.lo) for one in whole] == [20, 23, 1]
    monkeypatch.setattr(prefilling, "CHUNK_TOKENS", 7)
    for one, other in zip(whole, Prefiller(model, pass_tokens=8).prefill(sequences(), 0.8), strict=True):
        assert_equal(one, other)


def test_the_head_sees_only_what_was_sampled_and_few_rows_at_a_time(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "logit_cells", 6 * VOCABULARY)
    rows: list[int] = []
    real = device_sampling.interval

    def counted(logits: torch.Tensor, *others: Any) -> tuple[torch.Tensor, ...]:
        rows.append(len(logits))
        return real(logits, *others)

    monkeypatch.setattr(device_sampling, "interval", counted)
    Prefiller(model, 1024).prefill(sequences(), 1.0)
    assert max(rows) == 6 and sum(rows) == 20 + 23 + 1


def test_where_memory_runs_out_passes_become_smaller(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Prefiller(model, 1024).prefill(sequences(), 1.0)
    real = model.sequences

    def fail(batch: list[list[int]], *rest: Any) -> torch.Tensor:
        if sum(map(len, batch)) > 16:
            raise torch.OutOfMemoryError("out of memory")
        return real(batch, *rest)

    monkeypatch.setattr(model, "sequences", fail)
    prefiller = Prefiller(model, pass_tokens=64)
    for one, other in zip(whole, prefiller.prefill(sequences(), 1.0), strict=True):
        assert_equal(one, other)
    assert prefiller.pass_tokens == 16


def test_tokens_outside_the_vocabulary_are_refused(model: LanguageModel) -> None:
    for output in ([1, VOCABULARY], [-1, 1]):
        with pytest.raises(EngineError, match="outside the vocabulary"):
            Prefiller(model, 1024).prefill([FinishedSequence([1], output)], 1.0)
