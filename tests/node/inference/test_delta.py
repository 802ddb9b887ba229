"""Layers that remember instead of attending: however tokens are cut up, and whoever decodes beside them, a row's
numbers are those of one pass over it."""

import numpy as np
import pytest
import torch

from node.inference import decoding
from node.inference.architectures import DeltaShape
from node.inference.decoding import TorchDecoder
from node.inference.delta import DeltaState, DeltaWeights, Fed, mixed
from node.inference.engine import Completion, FinishedSequence, GenerationRequest
from node.inference.language_model import LanguageModel
from node.inference.prefilling import Prefiller
from node.inference.room import LEAST_TOKENS, ModelSize, NoRoom, plan
from protocol.sampling import distance
from tests.node.inference.models import CONFIGURATIONS, VOCABULARY, engine_model, transformers_model

NAME = "qwen3_5_text"
SHAPE = DeltaShape(key_heads=2, heads=4, key_dim=8, value_dim=6, kernel=4)
WEIGHTS = DeltaWeights(
    *(torch.randn(*size, generator=torch.Generator().manual_seed(3)) for size in ((56, 1, 4), (4,), (4,)))
)


def fed(rows: int, length: int) -> Fed:
    random = torch.Generator().manual_seed(length)
    of = lambda width: torch.randn(rows, length, width, generator=random)
    return Fed(of(SHAPE.channels), of(24).unflatten(-1, (4, 6)), of(4), of(4))


def cut(whole: Fed, start: int, stop: int) -> Fed:
    return Fed(*(one[:, start:stop] for one in whole))


def by_definition(whole: Fed) -> torch.Tensor:
    """Token by token as the paper writes it, in float64."""
    found = []
    for qkv, rate, decay in zip(whole.qkv.double(), whole.rate.double(), whole.decay.double(), strict=True):
        seen = torch.cat((torch.zeros(3, SHAPE.channels).double(), qkv))
        taps = WEIGHTS.conv[:, 0].double()
        memory, outs = torch.zeros(4, 8, 6).double(), []
        for at in range(len(qkv)):
            x = torch.nn.functional.silu((seen[at : at + 4] * taps.T).sum(0))
            q, k, v = x[:16].view(2, 8), x[16:32].view(2, 8), x[32:].view(4, 6)
            q, k = (
                (one / (one.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(2, 0) for one in (q, k)
            )
            kept = (-WEIGHTS.log_decay.double().exp() * torch.log1p((decay[at] + WEIGHTS.bias.double()).exp())).exp()
            memory = memory * kept[:, None, None]
            change = (v - (k[:, None] @ memory)[:, 0]) * rate[at].sigmoid()[:, None]
            memory = memory + k[:, :, None] * change[:, None]
            outs.append((q[:, None] @ memory)[:, 0] / 8**0.5)
        found.append(torch.stack(outs))
    return torch.stack(found)


def test_chunks_and_single_tokens_are_what_the_definition_says() -> None:
    whole = fed(2, 150)
    expected = by_definition(whole)
    at_once, behind = mixed(SHAPE, whole, WEIGHTS)
    assert (at_once - expected).abs().max() < 1e-5 * expected.abs().max()
    state, parts = None, []
    for start, stop in ((0, 70), (70, 71), (71, 140), *((at, at + 1) for at in range(140, 150))):
        # One token changes the matrix where it is, so it gets a copy.
        state = None if state is None else DeltaState(*(part.clone() for part in state))
        out, state = mixed(SHAPE, cut(whole, start, stop), WEIGHTS, state)
        parts.append(out)
    assert (torch.cat(parts, 1) - at_once).abs().max() < 1e-5
    assert state is not None and all(
        torch.allclose(one, other, atol=1e-5) for one, other in zip(state, behind, strict=True)
    )


def test_padding_changes_nothing_of_what_a_row_remembers() -> None:
    whole, lengths = fed(3, 100), [100, 2, 64]
    out, behind = mixed(SHAPE, whole, WEIGHTS, None, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        one = Fed(*(part[row : row + 1, :length] for part in whole))
        alone, state = mixed(SHAPE, one, WEIGHTS)
        assert torch.allclose(out[row, :length], alone[0], atol=1e-6)
        assert all(torch.allclose(some[row], other[0], atol=1e-6) for some, other in zip(behind, state, strict=True))
    # A part of a pass in which a row has nothing leaves it as it was.
    _, still = mixed(SHAPE, fed(3, 5), WEIGHTS, behind, torch.tensor([0, 0, 0]))
    assert all(torch.equal(one, other) for one, other in zip(still, behind, strict=True))


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return engine_model(transformers_model(CONFIGURATIONS[NAME], torch.float32, "sdpa"))


def asked() -> list[GenerationRequest]:
    """Some begin alike, and one prompt is longer than a chunk."""
    random = np.random.default_rng(5)
    prompts = [random.integers(1, VOCABULARY, size=size).tolist() for size in (3, 90, 17, 150)]
    return [GenerationRequest(prompts[at % 4], random.random(20)) for at in range(9)]


def run(model: LanguageModel, requests: list[GenerationRequest], budget: int = 1 << 15) -> list[Completion]:
    decoder, done = TorchDecoder(model, frozenset({0}), budget, 1.0), dict[int, Completion]()
    numbers = [decoder.submit(request) for request in requests]
    while len(decoder):
        done |= dict(decoder.step())
    return [done[number] for number in numbers]


def test_a_sequence_is_the_same_whoever_decodes_beside_it(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = asked()
    alone = [run(model, [request])[0].output for request in requests]
    assert len(set(map(tuple, alone))) > 4
    assert [one.output for one in run(model, requests)] == alone
    monkeypatch.setattr(decoding, "MOST_ROWS", 3)
    assert [one.output for one in run(model, requests)] == alone, "who enters later begins with nobody's state"
    assert [one.output for one in run(model, requests, budget=340)] == alone, "some waited and began anew"
    monkeypatch.setattr(model, "pass_tokens", 32)
    assert [one.output for one in run(model, requests)] == alone, "prompts went through in parts"


@pytest.mark.parametrize("name", ["qwen3", NAME])
def test_what_was_decoded_is_found_again(name: str) -> None:
    """A worker goes token by token, a validator in chunks. The same bound holds of a model that only attends."""
    model, requests = engine_model(transformers_model(CONFIGURATIONS[name], torch.float32, "sdpa")), asked()
    made = run(model, requests)
    finished = [FinishedSequence(request.prompt, one.output) for request, one in zip(requests, made, strict=True)]
    for tokens in (1024, 48):
        for request, one, seen in zip(requests, made, Prefiller(model, tokens).prefill(finished, 1.0), strict=True):
            assert distance(request.uniforms[: len(one.output)], seen.lo, seen.hi).max() < 1e-6
            # Rows are rounded to bf16: of two numbers a last bit apart in float32 one may be the next one there.
            assert (seen.heads == one.heads).mean() > 0.99


def test_what_rows_remember_is_counted(model: LanguageModel) -> None:
    config = CONFIGURATIONS[NAME]
    size = ModelSize.of(config, 100_000)
    cache = model.cache()
    cache.resize(3, 5, 0, 0)
    remembered = sum(part[0].numel() for state in cache.states.values() for part in state)
    assert (
        size.remembered == remembered
        and size.layers == 1
        and size.cached == sum(kept.shape[1] * kept.shape[3] for kept in (*cache.keys, *cache.values) if kept.shape[2])
    )
    row = size.row_tokens("float32")
    assert (row - 1) * size.cached < remembered <= row * size.cached
    fits = plan(size, 1 << 28, "float32", gpu=False)
    assert fits.row_tokens == row
    with pytest.raises(NoRoom):
        # A cache of the fewest tokens, but no row.
        plan(size, fits.weights + fits.passes + fits.logits + LEAST_TOKENS * size.cached * 5, "float32", gpu=False)
    model.row_tokens, before = row, model.row_tokens
    try:
        decoder = TorchDecoder(model, frozenset(), 4 * (row + 25), 1.0)
        for _ in range(12):
            decoder.submit(GenerationRequest([1, 2], np.full(20, 0.5)))
        while len(decoder):
            decoder.step()
            assert decoder._cache.rows * (decoder._cache.span + row) <= 4 * (row + 25)
    finally:
        model.row_tokens = before
