"""Batch-invariant arithmetic: decoding in any batch, and reading in any pass, give the same bits."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from node.calibration.thresholds import hard_thresholds
from node.inference import decoding, fixed
from node.inference.engine import Completion, FinishedSequence, GenerationRequest
from node.inference.errors import EngineError
from node.inference.fixed import FixedModel, model_for
from node.inference.language_model import LanguageModel
from node.inference.prefilling import Prefiller
from protocol.checks import check_activations, check_sampling
from protocol.decision import SampleStatistics
from protocol.engines import is_exact, pair
from protocol.run import RunSpec
from protocol.sampling import distance
from protocol.thresholds import EXACT
from protocol.toploc import ProofErrors
from tests.node.inference.models import CONFIGURATIONS, VOCABULARY, kernel_of, transformers_model
from tests.pretended_cuda import pretended_cuda

HERE = "x86_64-avx2/bfloat16/fixed/ieee/tp1/torch-2.13.0"


def model(name: str, dtype: torch.dtype, kernel: str = "fixed", device: str = "cpu") -> LanguageModel:
    theirs = transformers_model(CONFIGURATIONS[name], dtype, kernel_of(name))
    ours = model_for(theirs, device, dtype, kernel)
    with torch.no_grad():
        ours.load(dict(theirs.named_parameters()))
    return ours


def requests(count: int = 6, most: int = 16) -> list[GenerationRequest]:
    """Prompts on both sides of a block's end."""
    random = np.random.default_rng(5)
    return [
        GenerationRequest(random.integers(1, VOCABULARY, size=random.integers(1, 80)).tolist(), random.random(most))
        for _ in range(count)
    ]


def run(ours: LanguageModel, asked: list[GenerationRequest], budget: int = 1 << 15) -> list[Completion]:
    decoder = decoding.TorchDecoder(ours, frozenset({0}), budget, 1.0)
    numbers, done = [decoder.submit(request) for request in asked], dict[int, Completion]()
    while len(decoder):
        done |= dict(decoder.step())
    return [done[number] for number in numbers]


def differing(some: list[Completion], others: list[Completion]) -> int:
    """Rows that are not equal to the bit, of answers that are."""
    assert [one.output for one in some] == [one.output for one in others]
    return sum(int((one.heads != other.heads).any(1).sum()) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize(
    ("name", "dtype"), [("llama", torch.bfloat16), ("qwen3", torch.float32), ("qwen3_5_text", torch.bfloat16)]
)
def test_a_row_is_the_same_whoever_is_beside_it_and_however_it_came(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Token by token in a row: few tokens show it.
    few = CONFIGURATIONS[name].model_type == "qwen3_5_text"
    ours, asked = model(name, dtype), requests(3, 6) if few else requests()
    together = run(ours, asked)
    for most in (1, 5):
        monkeypatch.setattr(decoding, "MOST_ROWS", most)
        assert differing(run(ours, asked), together) == 0
    monkeypatch.setattr(decoding, "MOST_ROWS", 256)
    assert differing(run(ours, asked, budget=300), together) == 0, "some waited and began anew"
    finished = [FinishedSequence(request.prompt, one.output) for request, one in zip(asked, together, strict=True)]
    for tokens in (96,) if few else (1024, 96, 16):
        for request, one, seen in zip(asked, together, Prefiller(ours, tokens).prefill(finished, 1.0), strict=True):
            assert (seen.heads == one.heads).all()
            far = distance(request.uniforms[: len(one.output)], seen.lo, seen.hi)
            assert check_sampling(far, EXACT) is None


def test_the_ordinary_kind_is_not_like_that() -> None:
    """Else the tests above could not fail."""
    ours, asked = model("qwen3", torch.bfloat16, "sdpa"), requests()
    made = run(ours, asked)
    finished = [FinishedSequence(request.prompt, one.output) for request, one in zip(asked, made, strict=True)]
    seen = Prefiller(ours, 1024).prefill(finished, 1.0)
    assert sum(int((one.heads != other.heads).any(1).sum()) for one, other in zip(made, seen, strict=True)) > 0


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_it_computes_the_same_model(name: str) -> None:
    asked = requests(3, 4)
    made = run(model(name, torch.float32), asked)
    reference = run(model(name, torch.float32, "sdpa"), asked)
    assert [one.output for one in made] == [one.output for one in reference]
    assert np.mean([(one.heads == other.heads).mean() for one, other in zip(made, reference, strict=True)]) > 0.95


def test_a_pretended_gpu_computes_it_in_tiles_and_waits_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed, "TILE", fixed.CPU_TILE)
    monkeypatch.setattr(fixed, "BLOCK", fixed.CPU_BLOCK)
    asked = requests(4, 3)
    wanted = run(model("llama", torch.float32), asked)
    with pretended_cuda() as gpu:
        ours = model("llama", torch.float32, device="cuda")
        assert differing(run(ours, asked), wanted) == 0
        decoder = decoding.TorchDecoder(ours, frozenset(), 1 << 15, 1.0)
        for request in asked:
            decoder.submit(request)
        gpu.waits.clear()
        for _ in range(3):
            decoder.step()
        assert gpu.waits == {"a copy to the CPU": 3}


def test_kernels_that_are_not_invariant_are_found_when_weights_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    real = FixedModel._pass

    def uneven(ours: FixedModel, *arguments: Any) -> torch.Tensor:
        hidden = real(ours, *arguments)
        hidden[3] *= 1 + 2.0**-7
        return hidden

    monkeypatch.setattr(FixedModel, "_pass", uneven)
    with pytest.raises(EngineError, match="does not compute alike"):
        model("llama", torch.float32)


# What a run makes of the class


def test_only_one_class_with_itself_is_exact(tiny_run: RunSpec) -> None:
    other = HERE.replace("avx2", "avx512")
    assert is_exact(HERE, HERE) and not is_exact(HERE, other)
    assert not is_exact(HERE.replace("fixed", "sdpa"), HERE.replace("fixed", "sdpa"))
    assert not is_exact("nonsense", "nonsense")
    rules = msgspec.structs.replace(tiny_run.verification, engines=("*/*/fixed",))
    assert rules.thresholds(HERE, HERE) == EXACT and rules.thresholds(HERE, other) != EXACT
    assert check_activations([ProofErrors(0, 0.0, 0.0)], EXACT) is None
    assert check_activations([ProofErrors(0, 1 / 128, 0.0)], EXACT) is not None
    assert check_activations([ProofErrors(1, 0.0, 0.0)], EXACT) is not None


def test_a_calibration_takes_the_class_at_its_word_and_refuses_it_otherwise(tiny_run: RunSpec) -> None:
    def seen(mantissa: float, far: float) -> dict[str, list[SampleStatistics]]:
        return {
            pair(HERE, HERE): [
                SampleStatistics((ProofErrors(0, mantissa, 0.0),), np.full(8, far), group) for group in range(8)
            ]
        }

    assert hard_thresholds(tiny_run, seen(0.0, 0.0), 0).thresholds(HERE, HERE) == EXACT
    for mantissa, far in ((1 / 128, 0.0), (0.0, 1e-6)):
        with pytest.raises(EngineError, match="not what it says"):
            hard_thresholds(tiny_run, seen(mantissa, far), 0)
