"""What several sequences begin with is in the cache once, and nobody notices."""

from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from node.inference import decoding, graphs
from node.inference.architectures import DELTA
from node.inference.attention import Beginnings
from node.inference.decoding import TorchDecoder
from node.inference.engine import Completion, FinishedSequence, GenerationRequest
from node.inference.fixed import model_for
from node.inference.language_model import LanguageModel
from node.inference.prefilling import Prefiller
from tests.node.inference.models import CONFIGURATIONS, VOCABULARY, engine_model, kernel_of, transformers_model
from tests.pretended_cuda import pretended_cuda

END = frozenset({0})
GROUPS = ((90, 5), (70, 4), (66, 1), (9, 3))
"""Tokens of a prompt, and how many answers it gets: two are shared."""


@pytest.fixture(autouse=True)
def _short_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SHARED_TOKENS", 64)


def model_of(name: str) -> LanguageModel:
    return engine_model(transformers_model(CONFIGURATIONS[name], torch.float32, kernel_of(name)))


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return model_of("qwen3")


def requests(groups: tuple[tuple[int, int], ...] = GROUPS, most: int = 24) -> list[GenerationRequest]:
    random = np.random.default_rng(5)
    prompts = [(random.integers(1, VOCABULARY, size=length).tolist(), count) for length, count in groups]
    return [
        GenerationRequest(prompt, random.random(random.integers(4, most)))
        for prompt, count in prompts
        for _ in range(count)
    ]


class Watched:
    """A decoder, with the most tokens that its caches had room for, and the bytes of both at the end of each step."""

    def __init__(self, model: LanguageModel, budget: int = 1 << 15, eos: frozenset[int] = END) -> None:
        self.decoder = TorchDecoder(model, eos, budget, 1.0)
        self.tokens, self.bytes, self.shared = 0, 0, 0
        self.made: list[Completion] = []

    def run(self, asked: list[GenerationRequest]) -> list[Completion]:
        numbers, done = [self.decoder.submit(request) for request in asked], dict[int, Completion]()
        while len(self.decoder):
            done |= dict(self.decoder.step())
            caches = self.decoder._cache, self.decoder._prompts.cache
            tensors = [one for cache in caches for one in (*cache.keys, *cache.values)]
            self.bytes = max(self.bytes, sum(one.numel() * one.element_size() for one in tensors))
            self.tokens = max(self.tokens, sum(cache.rows * cache.span for cache in caches))
            self.shared = max(self.shared, len(self.decoder._prompts.shared))
        self.made = [done[number] for number in numbers]
        return self.made


def apart(
    model: LanguageModel, asked: list[GenerationRequest], monkeypatch: pytest.MonkeyPatch, eos: frozenset[int] = END
) -> Watched:
    """The same with a copy of its prompt for each."""
    with monkeypatch.context() as patched:
        patched.setattr(decoding, "SHARED_TOKENS", 1 << 20)
        watched = Watched(model, eos=eos)
        watched.run(asked)
    return watched


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_is_decoded_is_what_a_copy_for_each_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With windows, caps, sinks and experts, too; and a validator's pass agrees. A state is of its row alone: nothing
    is shared there."""
    model, asked = model_of(name), requests(most=10)
    watched, expected = Watched(model), apart(model, asked, monkeypatch)
    made = watched.run(asked)
    has_state = DELTA in (getattr(CONFIGURATIONS[name], "layer_types", None) or ())
    assert watched.shared == (0 if has_state else 2) and expected.shared == 0
    assert [one.output for one in made] == [one.output for one in expected.made]
    equal = [(one.heads == other.heads).mean() for one, other in zip(made, expected.made, strict=True)]
    assert np.mean(equal) > 0.95, "both round to bf16"
    finished = [FinishedSequence(r.prompt, c.output, experts=c.experts) for r, c in zip(asked, made, strict=True)]
    for request, one, seen in zip(asked, made, Prefiller(model, 1024).prefill(finished, 1.0), strict=True):
        u = request.uniforms[: len(one.output)]
        assert ((seen.lo - 1e-6 <= u) & (u <= seen.hi + 1e-6)).all()
        assert seen.experts is None or (seen.experts == one.experts).all()
    prompts = watched.decoder._prompts
    assert not prompts.shared and prompts.cache.rows == 0, "their memory is given back"


@torch.inference_mode()
def test_hidden_states_are_those_of_whole_rows(model: LanguageModel) -> None:
    tokens = np.random.default_rng(1).integers(1, VOCABULARY, size=(4, 60)).tolist()
    tokens[2][:40], lengths = tokens[0][:40], [40, 25]
    whole = model.sequences(tokens)
    prompts, own = model.cache(), model.cache()
    prompts.resize(3, 44, 0, 0)
    own.resize(5, 60, 0, 0)
    model.chunk(prompts, 0, 0, [tokens[0][:40]])
    model.chunk(prompts, 1, 0, [tokens[1][:25]])
    model.chunk(own, 3, 0, [tokens[3][:33]])
    of, at = [0, 1, 0, -1], [40, 25, 40, 33]
    for _ in range(12):
        fed = [row[place] for row, place in zip(tokens, at, strict=True)]
        found = model.step(own, fed, at, None, Beginnings(prompts, of, lengths))
        expected = torch.stack([whole[row, place] for row, place in enumerate(at)])
        assert torch.allclose(found, expected, atol=1e-6)
        at = [place + 1 for place in at]


def test_a_groups_prompt_takes_its_bytes_once(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = requests(((400, 16),), most=25)
    watched, expected = Watched(model, eos=frozenset()), apart(model, asked, monkeypatch, frozenset())
    watched.run(asked)
    of_token = 2 * 2 * 2 * 32 * 4  # keys and values of two layers, two heads of 32 numbers of four bytes
    assert expected.bytes >= 16 * 424 * of_token
    assert watched.bytes <= (400 + 16 * (64 + 25)) * of_token < expected.bytes / 3


@pytest.mark.parametrize("budget", [300, 460])
def test_a_budget_holds_more_rows_where_prompts_are_shared(
    model: LanguageModel, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rows have to wait and begin anew, as well."""
    monkeypatch.setattr(decoding, "_FIRST_GUESS", 8)
    asked = requests(((150, 8), (70, 3)), most=20)
    watched = Watched(model, budget)
    made = watched.run(asked)
    assert watched.tokens <= budget and watched.shared >= 1
    assert [one.output for one in made] == [one.output for one in apart(model, asked, monkeypatch).made]


def test_a_long_prompt_after_many_short_ones_takes_room_for_itself(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for as many of its length as there were short ones."""
    decoder = TorchDecoder(model, frozenset(), 1 << 15, 1.0)
    asked = requests(((64, 2),) * 6 + ((300, 2),), most=12)
    numbers, done = [decoder.submit(request) for request in asked[:12]], dict[int, Completion]()
    while len(decoder._prompts.shared) != 1:
        done |= dict(decoder.step())
    numbers += [decoder.submit(request) for request in asked[12:]]
    while len(decoder):
        done |= dict(decoder.step())
        assert decoder._prompts.cache.rows * decoder._prompts.cache.span <= max(6 * 64, 2 * 300)
    expected = apart(model, asked, monkeypatch, frozenset()).made
    assert [done[number].output for number in numbers] == [one.output for one in expected]


def test_who_is_cancelled_leaves_the_beginning_to_the_others(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests(((80, 3), (70, 3)))
    expected = apart(model, asked, monkeypatch).made
    decoder = TorchDecoder(model, END, 1 << 15, 1.0)
    numbers, done = [decoder.submit(request) for request in asked], dict[int, Completion]()
    done |= dict(decoder.step())
    for number in numbers[:3]:
        decoder.cancel(number)
    assert [one.length for one in decoder._prompts.shared] == [70] or not decoder._prompts.shared
    late = decoder.submit(asked[3])
    while len(decoder):
        done |= dict(decoder.step())
    kept = [done[number].output for number in (*numbers[3:], late)]
    assert kept == [expected[place].output for place in (3, 4, 5, 3)]


def test_where_memory_runs_out_beginnings_are_let_go_of_too(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = requests()
    expected = apart(model, asked, monkeypatch).made
    watched, real, calls = Watched(model), model.step, count(1)

    def step(*said: Any) -> torch.Tensor:
        if next(calls) in (3, 10):
            raise MemoryError
        return real(*said)

    monkeypatch.setattr(model, "step", step)
    assert [one.output for one in watched.run(asked)] == [one.output for one in expected]


def test_captured_steps_share_and_wait_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a pretended GPU: rows are filled up, and groups come and go."""
    monkeypatch.setattr(decoding, "MOST_ROWS", 4)
    monkeypatch.setattr(graphs, "LEAST_SPAN", 16)
    asked = requests(((90, 2), (70, 2), (9, 1), (80, 2)), most=10)
    theirs = transformers_model(CONFIGURATIONS["gemma3_text"], torch.float32, "sdpa")
    with pretended_cuda() as gpu:
        ours, plain = (model_for(theirs, "cuda", torch.float32, "sdpa") for _ in range(2))
        with torch.no_grad():
            ours.load(dict(theirs.named_parameters()))
            plain.load(dict(theirs.named_parameters()))
        plain.graphs.works = False
        captured, expected = Watched(ours), Watched(plain)
        captured.run(asked)
        expected.run(asked)
        assert ours.graphs.works and captured.shared == expected.shared >= 2
        assert [one.output for one in captured.made] == [one.output for one in expected.made]
        decoder = TorchDecoder(ours, frozenset(), 1 << 15, 1.0)
        for request in requests(((90, 3), (70, 2)), most=25):
            decoder.submit(request)
        decoder.step()
        decoder.step()
        gpu.waits.clear()
        decoder.step()
        assert gpu.waits == {"a copy to the CPU": 1} and len(decoder._prompts.cache.captured) == 1


def test_batch_invariant_arithmetic_shares_nothing() -> None:
    theirs = transformers_model(CONFIGURATIONS["qwen3"], torch.float32, "sdpa")
    assert not model_for(theirs, "cpu", torch.float32, "fixed").shares
