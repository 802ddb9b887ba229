"""Decoding steps that are captured once and replayed: the same tokens and rows, few launches, one wait a step."""

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from node.inference import attention, graphs
from node.inference.decoding import TorchDecoder
from node.inference.engine import Completion, GenerationRequest
from node.inference.fixed import model_for
from node.inference.graphs import LEAST_SPAN, row_bucket, span_bucket
from node.inference.language_model import LanguageModel
from tests.node.inference.launches import count
from tests.node.inference.models import CONFIGURATIONS, VOCABULARY, transformers_model
from tests.pretended_cuda import PretendedGPU, pretended_cuda

END = frozenset({0, 1, 2})


@pytest.fixture
def gpu() -> Iterator[PretendedGPU]:
    with pretended_cuda() as gpu:
        yield gpu


def model(kernel: str = "sdpa") -> LanguageModel:
    theirs = transformers_model(CONFIGURATIONS["qwen3"], torch.float32, "sdpa")
    ours = model_for(theirs, "cuda", torch.float32, kernel)
    with torch.no_grad():
        ours.load(dict(theirs.named_parameters()))
    return ours


def requests() -> list[GenerationRequest]:
    """Sequences that end at different times, on both sides of a bucket's end."""
    random = np.random.default_rng(5)
    return [
        GenerationRequest(random.integers(3, VOCABULARY, size=size).tolist(), random.random(limit))
        for size, limit in ((120, 12), (3, 5), (124, 9), (40, 7), (7, 12))
    ]


def run(ours: LanguageModel, asked: list[GenerationRequest], budget: int = 1 << 15) -> list[Completion]:
    decoder = TorchDecoder(ours, END, budget, 1.0)
    numbers, done = [decoder.submit(request) for request in asked], dict[int, Completion]()
    while len(decoder):
        done |= dict(decoder.step())
    return [done[number] for number in numbers]


@pytest.fixture(scope="module")
def wanted() -> list[Completion]:
    """What steps give that are not captured."""
    with pretended_cuda():
        plain = model()
        plain.graphs.works = False
        return run(plain, requests())


def test_buckets_hold_what_is_put_into_them_and_little_more() -> None:
    assert [row_bucket(n, 100) for n in (1, 2, 3, 5, 64, 65, 100)] == [1, 2, 4, 8, 64, 100, 100]
    spans = [span_bucket(n, 1 << 20) for n in range(1, 5000)]
    assert all(n <= span <= max(LEAST_SPAN, 1.25 * n) for n, span in enumerate(spans, 1))
    assert len(set(spans)) < 30 and span_bucket(700, 704) == 704


@pytest.mark.parametrize("budget", [1 << 15, 300])
def test_replayed_steps_give_what_steps_give(budget: int, wanted: list[Completion], gpu: PretendedGPU) -> None:
    """With the small budget rows wait, others take their place, and the cache is made anew."""
    ours = model()
    made = run(ours, requests(), budget)
    assert ours.graphs.works and [one.output for one in made] == [one.output for one in wanted]
    assert len({len(one.output) for one in made}) > 2, "rows ended at different times"
    same = [(one.heads == other.heads).mean() for one, other in zip(made, wanted, strict=True)]
    assert np.mean(same) > 0.98, "a longer span is summed in another order"


def test_a_step_is_a_few_launches_and_one_wait_whatever_the_layers(gpu: PretendedGPU) -> None:
    before, after = ([count(gpu, layers, graphs=graphs) for layers in (1, 3)] for graphs in (False, True))
    assert before[1]["launches"] - before[0]["launches"] > 2 * 20
    assert after[0] == after[1] and after[0]["launches"] < 100
    assert {one["waits"] for one in (*before, *after)} == {1}


def test_without_a_capture_decoding_goes_on(
    wanted: list[Completion], gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waiting(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None, **more: bool) -> torch.Tensor:
        assert q.sum().item() is not None
        return attention.sdpa(q, k, v, mask, **more)

    monkeypatch.setitem(attention.KERNELS, "sdpa", waiting)
    ours = model()
    assert [one.output for one in run(ours, requests())] == [one.output for one in wanted]
    assert not ours.graphs.works


def test_a_replay_that_is_wrong_ends_graphs(
    wanted: list[Completion], gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = model()
    real = graphs.Captured.replay
    monkeypatch.setattr(graphs.Captured, "replay", lambda one: real(one) + 1)
    assert [one.output for one in run(ours, requests())] == [one.output for one in wanted]
    assert not ours.graphs.works


def test_steps_are_captured_again_after_all_that_were_are_gone(gpu: PretendedGPU) -> None:
    """A cache that grew, another decoder, a new cache after memory ran out: torch closes a pool with its last graph."""
    ours = model()
    with torch.inference_mode():
        for rows in (1, 2):
            cache = ours.cache()
            cache.resize(8, 512, 0, 0)
            ours.step(cache, [3] * rows, [5] * rows)
            kept = weakref.ref(cache.keys[0])
            del cache
            assert kept() is None, "its memory does not wait for the garbage collector"
    assert ours.graphs.works


def test_what_was_captured_is_bounded_and_goes_with_the_cache(
    gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_CAPTURED", 2)
    ours = model()
    with torch.inference_mode():
        cache = ours.cache()
        cache.resize(8, 512, 0, 0)
        for rows in (1, 2, 4, 8):
            ours.step(cache, [3] * rows, [5] * rows)
        assert list(cache.captured) == [(4, 128), (8, 128)]
        cache.resize(8, 600, 0, 0)
    assert not cache.captured
