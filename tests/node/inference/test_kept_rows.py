"""Of a rollout's rows only their points are kept while it is made, and proofs are what they were."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from node.environments.base import Problem
from node.inference.decoding import TorchDecoder
from node.inference.engine import Completion, GenerationRequest
from node.inference.errors import EngineError
from node.inference.language_model import LanguageModel
from node.inference.proofs import ProofRows, prove_all, unproven
from node.inference.turns import Bounds, play
from node.inference.vllm.hooks import NOT_A_NUMBER, ActivationRecorder
from tests.node.inference.models import CONFIGURATIONS, VOCABULARY, engine_model, transformers_model
from tests.node.inference.test_turns import Counts

K, BATCH = 8, 4
END = frozenset({0})


def heads_of(count: int, seed: int = 0, hidden: int = 48) -> np.ndarray:
    """Few different values, so that there are ties."""
    return np.random.default_rng(seed).integers(0x3F00, 0x3F20, size=(count, hidden)).astype(np.uint16)


@pytest.mark.parametrize("count", [1, 2, 4, 5, 8, 9, 12, 13, 70, 700])
def test_proofs_are_those_of_rows_that_were_kept_whole(count: int) -> None:
    heads, kept = heads_of(count), ProofRows(K, BATCH)
    for place, head in enumerate(heads):
        kept.put(place, head)
        assert len(kept.open) < 2 * BATCH
    assert kept.count == count
    assert prove_all([kept, heads[1:]], K, BATCH) == prove_all([heads[1:]], K, BATCH) * 2
    assert len(kept._points) == max(0, (count - 1) // BATCH - 1)


def test_rows_that_come_again_take_the_place_of_those_before() -> None:
    heads, other, kept = heads_of(30), heads_of(30, seed=1), ProofRows(K, BATCH)
    kept.extend(heads[:20])
    kept.put(17, other[17])
    kept.extend(other[18:])
    wanted = np.concatenate((heads[1:17], other[17:]))
    assert prove_all([kept], K, BATCH) == prove_all([wanted], K, BATCH)
    kept.cut(27)
    assert prove_all([kept], K, BATCH) == prove_all([wanted[:26]], K, BATCH)
    for place in (3, 29):
        with pytest.raises(EngineError, match="cannot be proven"):
            kept.put(place, heads[0])
    with pytest.raises(EngineError, match="cannot be proven"):
        kept.cut(5)


def test_a_row_is_no_view_of_those_of_others() -> None:
    step, kept = heads_of(256), ProofRows(K, BATCH)
    kept.extend(step[:3])
    assert all(one.base is None for one in kept._open)


def model() -> LanguageModel:
    return engine_model(transformers_model(CONFIGURATIONS["qwen3"], torch.float32, "sdpa"))


def drawn(requests: Sequence[GenerationRequest], temperature: float = 1.0) -> list[Completion]:
    decoder = TorchDecoder(model(), END, 300, temperature)
    numbers, done = [decoder.submit(one) for one in requests], dict[int, Completion]()
    while len(decoder):
        done |= dict(decoder.step())
    return [done[number] for number in numbers]


def test_the_engine_keeps_points_where_it_is_asked_to_also_of_rows_that_wait() -> None:
    random = np.random.default_rng(5)
    plain = [
        GenerationRequest(random.integers(3, VOCABULARY, size=n).tolist(), random.random(60)) for n in (30, 3, 40, 7)
    ]
    asked = [GenerationRequest(one.prompt, one.uniforms, rows=ProofRows(K, BATCH)) for one in plain]
    whole, kept = drawn(plain), drawn(asked)
    assert [one.output for one in kept] == [one.output for one in whole] and max(len(one.output) for one in whole) > 12
    assert all(len(one.heads) == 0 for one in kept)
    assert [one.kept.count for one in kept if one.kept] == [len(one.output) for one in whole]
    assert prove_all([one.kept for one in kept if one.kept], K, BATCH) == prove_all([o.rows for o in whole], K, BATCH)
    (none,) = drawn([GenerationRequest(plain[2].prompt, plain[2].uniforms, rows=unproven())])
    assert (
        none.kept is not None and none.kept.count == len(none.output) and not none.kept._open and not none.kept._points
    )


@pytest.mark.parametrize("able", [True, False])
def test_rows_go_on_over_turns_whoever_keeps_them(able: bool) -> None:
    """An engine may have kept them whole all the same."""
    made = iter([heads_of(9), heads_of(6, seed=1), heads_of(11, seed=2)])
    said: list[np.ndarray] = []

    def engine(requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
        heads = next(made)
        said.append(heads)
        output, rows = [5] * (len(heads) - 1) + [1], requests[0].rows
        if not able or rows is None:
            return [Completion(output, True, heads)]
        rows.extend(heads)
        return [Completion(output, True, heads[:0], kept=rows)]

    environment: Any = Counts()
    problem = Problem(problem_id="p", prompt="x", answer=("y",))
    request = GenerationRequest([9], np.zeros(40))
    (rollout,) = play(engine, environment, [problem], [request], 1.0, Bounds(3, 10), keep=lambda: ProofRows(K, BATCH))
    assert rollout.sampled == 26 and isinstance(rollout.rows, ProofRows)
    assert prove_all([rollout.rows], K, BATCH) == prove_all([np.concatenate(said)[1:]], K, BATCH)


def test_vllms_recorder_keeps_points_and_does_not_lose_a_row_without_numbers() -> None:
    heads, recorder = heads_of(40), ActivationRecorder()
    for place in (*range(20), 18, *range(19, 40)):  # a place that comes again
        recorder.add([(5, place, (K, BATCH)), (6, place, None)], heads[[place, place]])
    kept = recorder.take(5, 39)
    whole = recorder.take(6, 39)
    assert isinstance(kept, ProofRows) and not isinstance(whole, ProofRows)
    assert prove_all([kept], K, BATCH) == prove_all([whole[1:]], K, BATCH)
    bad = np.full_like(heads[:1], NOT_A_NUMBER)
    for place in range(30):
        recorder.add([(7, place, (K, BATCH))], bad if place == 3 else heads[place : place + 1])
    found = recorder.take(7, 30)
    assert not isinstance(found, ProofRows) and (found == NOT_A_NUMBER).all(axis=1).any()
