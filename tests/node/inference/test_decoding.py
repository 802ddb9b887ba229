"""Continuous batching: who decodes together, and what nobody notices of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from node.inference import decoding, engine, prompts
from node.inference.decoding import TorchDecoder
from node.inference.engine import Completion, FinishedSequence, GenerationRequest
from node.inference.errors import EngineError
from node.inference.language_model import LanguageModel
from node.inference.prefilling import Prefiller
from tests.node.inference.models import CONFIGURATIONS, VOCABULARY, engine_model, transformers_model

END = frozenset({0})


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return engine_model(transformers_model(CONFIGURATIONS["qwen3"], torch.float32, "sdpa"))


def requests(count: int, most: int = 16) -> list[GenerationRequest]:
    random = np.random.default_rng(5)
    return [
        GenerationRequest(random.integers(1, VOCABULARY, size=random.integers(1, 20)).tolist(), random.random(most))
        for _ in range(count)
    ]


def run(decoder: TorchDecoder, asked: list[GenerationRequest]) -> list[Completion]:
    numbers = [decoder.submit(request) for request in asked]
    done: dict[int, Completion] = {}
    while len(decoder):
        done |= dict(decoder.step())
    return [done[number] for number in numbers]


def alone(model: LanguageModel, asked: list[GenerationRequest]) -> list[list[int]]:
    return [run(TorchDecoder(model, END, 1 << 15, 1.0), [request])[0].output for request in asked]


@pytest.fixture(scope="module")
def by_themselves(model: LanguageModel) -> list[list[int]]:
    """What each of eight sequences comes to that decodes alone."""
    return alone(model, requests(8))


class Passes:
    """The model, with the rows of every step."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.rows: list[int] = []
        self.prompts: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def step(self, cache: Any, tokens: Any, *rest: Any) -> torch.Tensor:
        self.rows.append(len(tokens))
        return self._model.step(cache, tokens, *rest)

    def chunk(self, cache: Any, first: int, start: int, batch: Any, *rest: Any) -> torch.Tensor:
        self.prompts += map(len, batch)
        return self._model.chunk(cache, first, start, batch, *rest)


def test_rows_are_refilled_as_sequences_end(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MOST_ROWS", 4)
    random = np.random.default_rng(6)
    asked = [GenerationRequest([3, 4], random.random(n)) for n in (30, 5, 5, 5, 5, 5, 5, 5, 5, 5)]
    seen: Any = Passes(model)
    made = run(TorchDecoder(seen, frozenset(), 1 << 15, 1.0), asked)
    assert [len(one.output) for one in made] == [30, *[5] * 9]
    assert len(seen.rows) == 29, "the long one is never waited for, nor does it wait"
    assert seen.rows[:10] == [4, 4, 4, 4, 1] * 2, "a first token comes from the pass over the prompt"


@pytest.mark.parametrize("budget", [1 << 15, 100])
def test_a_sequence_is_the_same_whoever_decodes_beside_it(
    model: LanguageModel, by_themselves: list[list[int]], budget: int
) -> None:
    """With the small budget, sequences wait half way and begin anew."""
    asked = requests(8)
    made = run(TorchDecoder(model, END, budget, 1.0), asked)
    assert [one.output for one in made] == by_themselves
    checked = Prefiller(model, 1024).prefill(
        [FinishedSequence(r.prompt, c.output) for r, c in zip(asked, made, strict=True)], 1.0
    )
    for request, one, prefill in zip(asked, made, checked, strict=True):
        u = request.uniforms[: len(one.output)]
        assert ((prefill.lo - 1e-6 <= u) & (u <= prefill.hi + 1e-6)).all()
        assert (one.heads == prefill.heads).mean() > 0.95, "both round to bf16"


def test_the_cache_never_has_more_tokens_than_its_budget(model: LanguageModel) -> None:
    decoder = TorchDecoder(model, frozenset(), 100, 1.0)
    for request in requests(8):
        decoder.submit(request)
    while len(decoder):
        decoder.step()
        assert decoder._cache.rows * decoder._cache.span <= 100


def test_equal_prompts_go_through_the_model_once(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MOST_ROWS", 3)
    random = np.random.default_rng(7)
    asked = [GenerationRequest([5, 6, 7, 8], random.random(n)) for n in (9, 4, 9, 9, 9)] + [
        GenerationRequest([9], random.random(4))
    ]
    seen: Any = Passes(model)
    made = run(TorchDecoder(seen, frozenset(), 1 << 15, 1.0), asked)
    assert seen.prompts == [4, 1]
    assert [one.output for one in made] == [
        run(TorchDecoder(model, frozenset(), 1 << 15, 1.0), [r])[0].output for r in asked
    ]


def test_a_long_prompt_goes_through_in_chunks(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(3)
    expected = alone(model, asked)
    monkeypatch.setattr(model, "pass_tokens", 4)
    monkeypatch.setattr(prompts, "CHUNK_TOKENS", 3)
    seen: Any = Passes(model)
    assert [one.output for one in run(TorchDecoder(seen, END, 1 << 15, 1.0), asked)] == expected
    assert max(seen.prompts) == 4 and 3 in seen.prompts


def test_who_is_cancelled_is_forgotten_and_the_others_go_on(model: LanguageModel) -> None:
    asked = requests(6)
    decoder = TorchDecoder(model, frozenset(), 100, 1.0)
    numbers = [decoder.submit(request) for request in asked]
    decoder.step()
    decoder.cancel(numbers[0])
    decoder.cancel(numbers[5])
    decoder.cancel(12345)
    assert len(decoder) == 4
    done: dict[int, Completion] = {}
    while len(decoder):
        done |= dict(decoder.step())
    assert sorted(done) == numbers[1:5]
    assert [done[number].output for number in numbers[1:5]] == [
        run(TorchDecoder(model, frozenset(), 100, 1.0), [request])[0].output for request in asked[1:5]
    ]


def failing(times: int, real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    left = [times]

    def fail(*arguments: Any) -> torch.Tensor:
        if left[0] and arguments[0].rows > 1:
            left[0] -= 1
            raise torch.OutOfMemoryError("out of memory")
        return real(*arguments)

    return fail


def test_where_memory_runs_out_fewer_decode_at_a_time(
    model: LanguageModel, by_themselves: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests(8)
    monkeypatch.setattr(model, "step", failing(2, model.step))
    said: list[dict[str, Any]] = []
    monkeypatch.setattr("node.inference.out_of_memory._log.warning", lambda event, **told: said.append({event: told}))
    assert [one.output for one in run(TorchDecoder(model, END, 1 << 15, 1.0), asked)] == by_themselves
    assert [one["engine.smaller_batch"]["next"] for one in said] == [4, 2]


def test_the_last_of_many_has_the_memory_that_was_theirs(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(8)
    asked = [GenerationRequest([3, 4], random.random(n)) for n in (2, 2, 2, 9)]
    wanted = run(TorchDecoder(model, frozenset(), 1 << 15, 1.0), asked)
    real, rows = model.step, list[int]()

    def fail(cache: Any, tokens: Any, *rest: Any) -> torch.Tensor:
        if len(tokens) == 1:
            rows.append(cache.rows)
            if cache.rows > 1:
                raise torch.OutOfMemoryError("out of memory")
        return real(cache, tokens, *rest)

    monkeypatch.setattr(model, "step", fail)
    made = run(TorchDecoder(model, frozenset(), 1 << 15, 1.0), asked)
    assert [one.output for one in made] == [one.output for one in wanted]
    assert rows[0] == 4 and rows[1:] == [1] * len(rows[1:])


def test_memory_for_not_even_one_sequence_is_an_error(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(model, "chunk", fail)
    with pytest.raises(EngineError, match="too little memory"):
        run(TorchDecoder(model, END, 1 << 15, 1.0), requests(2))


@pytest.mark.parametrize(
    "request_",
    [
        GenerationRequest([], np.ones(1)),
        GenerationRequest([1], np.ones(0)),
        GenerationRequest([VOCABULARY], np.ones(1)),
    ],
)
def test_what_cannot_be_decoded_is_refused_at_once(model: LanguageModel, request_: GenerationRequest) -> None:
    with pytest.raises(EngineError):
        TorchDecoder(model, END, 1 << 15, 1.0).submit(request_)


def test_a_decoder_takes_so_many_and_no_more(
    model: LanguageModel, by_themselves: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "MOST_IN_FLIGHT", 3)
    monkeypatch.setattr(engine, "MOST_IN_FLIGHT", 3)
    decoder = TorchDecoder(model, END, 1 << 15, 1.0)
    for request in requests(3):
        decoder.submit(request)
    with pytest.raises(EngineError, match="too many"):
        decoder.submit(requests(1)[0])

    class Engine:
        def decoder(self, temperature: float) -> TorchDecoder:
            return TorchDecoder(model, END, 1 << 15, temperature)

    asked = requests(5)
    made = engine.generate(Engine(), asked, 1.0)  # type: ignore[arg-type]
    assert [one.output for one in made] == by_themselves[:5]
