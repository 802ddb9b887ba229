"""Models with experts: who computed a token is written down, and computes it again."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from node.inference import decoding, experts
from node.inference.engine import Completion, FinishedSequence, GenerationRequest
from node.inference.errors import EngineError
from node.inference.fixed import model_for
from node.inference.language_model import LanguageModel
from node.inference.prefilling import Prefiller
from node.training.batch import BatchRow
from node.training.experts import describe_experts
from protocol.routing import Routing, load_of, objection
from tests.node.inference.models import CONFIGURATIONS, VOCABULARY, engine_model, kernel_of, transformers_model
from tests.pretended_cuda import pretended_cuda

NAMES = ["qwen3_moe", "qwen3_moe, in part", "gpt_oss", "glm4_moe", "qwen3_next", "olmoe"]
END = frozenset({0})


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return engine_model(transformers_model(CONFIGURATIONS["qwen3_moe"], torch.float32, "sdpa"))


def requests(count: int = 5, most: int = 10) -> list[GenerationRequest]:
    random = np.random.default_rng(5)
    return [
        GenerationRequest(random.integers(1, VOCABULARY, size=random.integers(1, 20)).tolist(), random.random(most))
        for _ in range(count)
    ]


def run(model: LanguageModel, asked: list[GenerationRequest], budget: int = 1 << 15) -> list[Completion]:
    decoder = decoding.TorchDecoder(model, END, budget, 1.0)
    numbers, done = [decoder.submit(request) for request in asked], dict[int, Completion]()
    while len(decoder):
        done |= dict(decoder.step())
    return [done[number] for number in numbers]


def finished(asked: list[GenerationRequest], made: list[Completion]) -> list[FinishedSequence]:
    return [FinishedSequence(r.prompt, c.output, experts=c.experts) for r, c in zip(asked, made, strict=True)]


def chosen(one: Completion) -> np.ndarray:
    assert one.experts is not None
    return one.experts


def shortfall(model: LanguageModel, sequence: FinishedSequence, tokens: int = 1024) -> np.ndarray:
    (found,) = Prefiller(model, tokens).prefill([sequence], 1.0)
    assert found.routing is not None
    return found.routing


def others(experts: np.ndarray, count: int) -> np.ndarray:
    """Lines of two experts, the higher of which is the next one that is not in it."""
    changed = experts.copy().reshape(-1, 2)
    for line in changed:
        line[:] = sorted({int(line[0]), next(e for e in range(count) if e not in line)})
    return changed.reshape(experts.shape)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [1 << 15, 60])
def test_what_was_recorded_computes_it_again(name: str, budget: int) -> None:
    """With the small budget, sequences wait half way and begin anew."""
    model, asked = engine_model(transformers_model(CONFIGURATIONS[name], torch.float32, kernel_of(name))), requests()
    asked += [asked[0], asked[0]]  # share a prompt's pass
    made = run(model, asked, budget)
    assert model.routing is not None
    for request, one in zip(asked, made, strict=True):
        assert not objection(chosen(one).tobytes(), len(request.prompt) + len(one.output) - 1, model.routing)
    for tokens in (1024, 16):
        for request, one, seen in zip(
            asked, made, Prefiller(model, tokens).prefill(finished(asked, made), 1.0), strict=True
        ):
            u = request.uniforms[: len(one.output)]
            assert ((seen.lo - 1e-6 <= u) & (u <= seen.hi + 1e-6)).all()
            assert seen.experts is not None and (seen.experts == chosen(one)).all()
            assert seen.routing is not None and seen.routing.max() < 1e-5
            assert (one.heads == seen.heads).mean() > 0.95, "both round to bf16"


def test_other_experts_are_computed_with_and_seen(model: LanguageModel) -> None:
    (request,) = asked = requests(1)
    (one,) = run(model, asked)
    honest = FinishedSequence(request.prompt, one.output, experts=chosen(one))
    forged = FinishedSequence(request.prompt, one.output, experts=others(chosen(one), 6))
    for tokens in (1024, 8):
        right, wrong = Prefiller(model, tokens).prefill([honest, forged], 1.0)
        assert (right.heads == one.heads).mean() > 0.95 and (wrong.heads == one.heads).mean() < 0.5
        assert shortfall(model, honest, tokens).max() < 1e-5 < 0.1 < shortfall(model, forged, tokens).max()


def test_a_single_wrong_choice_is_seen_at_its_token(model: LanguageModel) -> None:
    (request,) = asked = requests(1)
    (one,) = run(model, asked)
    experts = chosen(one).copy()
    experts[3, 2:] = others(experts[3:4, 2:], 6)
    found = shortfall(model, FinishedSequence(request.prompt, one.output, experts=experts))
    assert found.argmax() == 3 and found[3] > 0.01 and np.delete(found, 3).max() < 1e-5


def test_a_turn_goes_on_with_the_experts_of_the_last(model: LanguageModel) -> None:
    """Else what a validator replays would not be what the second turn was drawn from."""
    (request,) = asked = requests(1)
    (one,) = run(model, asked)
    forced = others(chosen(one), 6)
    prompt = [*request.prompt, *one.output, 5, 6]
    (free,) = run(model, [GenerationRequest(prompt, np.full(4, 0.5))])
    (held,) = run(model, [GenerationRequest(prompt, np.full(4, 0.5), forced)])
    assert (chosen(held)[: len(forced)] == forced).all() and len(chosen(held)) == len(prompt) + len(held.output) - 1
    assert (chosen(free)[: len(forced)] == chosen(one)).all()
    assert not (held.heads == free.heads).all()
    too_many = np.zeros((len(prompt) + 1, forced.shape[1]), dtype=np.uint8)
    with pytest.raises(EngineError, match="experts of more tokens"):
        run(model, [GenerationRequest(prompt, np.full(4, 0.5), too_many)])


def test_what_is_no_record_is_refused_before_it_is_computed_with(model: LanguageModel) -> None:
    for record in (np.zeros((3, 4), np.uint8), np.full((4, 4), 7, np.uint8), np.zeros((4, 4), np.uint8)):
        with pytest.raises(EngineError, match="cannot be checked"):
            Prefiller(model, 64).prefill([FinishedSequence([1, 2], [3, 4, 5], experts=record)], 1.0)


@torch.no_grad()
def test_a_router_that_sends_all_tokens_to_one_expert_works_and_is_told() -> None:
    theirs: Any = transformers_model(CONFIGURATIONS["qwen3_moe"], torch.float32, "sdpa")
    theirs.model.embed_tokens.weight[:, 0] = 50.0  # outweighs all that layers add
    for layer in theirs.model.layers:
        layer.post_attention_layernorm.weight[0] = 1.0
        layer.mlp.gate.weight[4, 0] = 1000.0
    ours, asked = engine_model(theirs), requests()
    fed = [asked[0].prompt]
    expected = theirs.base_model(input_ids=torch.tensor(fed)).last_hidden_state
    assert torch.allclose(ours.sequences(fed), expected, atol=1e-5)
    made = run(ours, asked)
    rows = [
        BatchRow(0, list(r.prompt), c.output, [-1.0] * len(c.output), 0.0, 0, experts=chosen(c).tobytes())
        for r, c in zip(asked, made, strict=True)
    ]
    assert ours.routing is not None
    assert (load_of(b"".join(row.experts for row in rows), ours.routing)[:, 4] == sum(row.fed for row in rows)).all()
    assert describe_experts(rows, ours.routing)["busiest_expert"] == 1.0
    usual = run(engine_model(transformers_model(CONFIGURATIONS["qwen3_moe"], torch.float32, "sdpa")), asked)
    told = [
        msgspec.structs.replace(row, experts=chosen(c).tobytes(), output=c.output)
        for row, c in zip(rows, usual, strict=True)
    ]
    assert describe_experts(told, ours.routing)["busiest_expert"] < 0.8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_batch_invariant_arithmetic_stays_that(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = transformers_model(CONFIGURATIONS[name], dtype, kernel_of(name))
    ours, asked = model_for(theirs, "cpu", dtype, "fixed"), requests(4, 8)
    with torch.no_grad():
        ours.load(dict(theirs.named_parameters()))
    made = run(ours, asked)
    monkeypatch.setattr(decoding, "MOST_ROWS", 2)
    for one, other in zip(made, run(ours, asked), strict=True):
        assert one.output == other.output
        assert (one.heads == other.heads).all() and (chosen(one) == chosen(other)).all()
    for one, seen in zip(made, Prefiller(ours, 24).prefill(finished(asked, made), 1.0), strict=True):
        assert (one.heads == seen.heads).all() and seen.routing is not None and seen.routing.max() == 0
    ordinary = run(engine_model(theirs, dtype), asked)
    assert [one.output for one in ordinary] == [one.output for one in made] or dtype == torch.bfloat16


def test_experts_are_computed_in_groups_without_a_wait_and_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a pretended GPU, whose grouped product is the CPU's."""

    def computed(name: str, grouped: bool) -> tuple[torch.Tensor, int, int]:
        monkeypatch.setattr(experts, "groups", lambda x, weight: grouped)
        with pretended_cuda() as gpu, torch.no_grad():
            theirs = transformers_model(CONFIGURATIONS[name], torch.bfloat16, kernel_of(name))
            ours = LanguageModel(theirs, "cuda", torch.bfloat16, "sdpa")
            ours.load(dict(theirs.named_parameters()))
            ours.sequences(tokens)
            gpu.launches = 0
            gpu.waits.clear()
            hidden = ours.sequences(tokens)
            launches, waits = gpu.launches, gpu.waits.total()
            return hidden.cpu(), launches, waits

    tokens = np.random.default_rng(1).integers(1, VOCABULARY, size=(4, 30)).tolist()
    for name, layers in (("qwen3_moe", 2), ("gpt_oss", 2), ("glm4_moe", 1), ("qwen3_next", 2)):
        (one, launches, waits), (other, fewer, none) = computed(name, False), computed(name, True)
        # A bias is added to what was rounded, as transformers does it; a token may then go to other experts.
        near = (one - other).abs() < 2e-2
        assert torch.equal(one, other) or (name == "gpt_oss" and near.float().mean() > 0.95)
        assert waits == 2 * layers and none == 0
        assert fewer < launches and (name != "qwen3_next" or fewer < launches / 4), (launches, fewer)


def test_grouped_products_are_for_gpus_that_have_them() -> None:
    odd, even = torch.zeros(2, 12, 8, dtype=torch.bfloat16), torch.zeros(2, 16, 8, dtype=torch.bfloat16)
    x = torch.zeros(3, 8, dtype=torch.bfloat16)
    assert not experts.groups(x, even)
    with pretended_cuda():
        assert experts.groups(x.to("cuda"), even) and not experts.groups(x.to("cuda"), odd)
        assert not experts.groups(x.to("cuda").float(), even.float())


def test_a_record_is_bounded_and_has_one_spelling() -> None:
    routing = Routing(layers=2, experts=6, chosen=2)
    good = bytes([0, 5, 1, 2] * 3)
    assert not objection(good, 3, routing) and not objection(b"", 5, None)
    assert "12 bytes of experts where 2 tokens of this model have 8" in objection(good, 2, routing)
    assert "have 0" in objection(good, 3, None) and "12" in objection(b"", 3, routing)
    assert objection(bytes([0, 6, 1, 2]), 1, routing) == "expert 6 of 6"
    assert "ascend" in objection(bytes([5, 0, 1, 2]), 1, routing) and "ascend" in objection(bytes(4), 1, routing)
    assert load_of(good, routing).tolist() == [[3, 0, 0, 0, 0, 3], [0, 3, 3, 0, 0, 0]]
    many = Routing(layers=1, experts=512, chosen=2)
    pairs = bytes([1, 1, 255, 1])  # 257 and 511, the lower byte first
    assert not objection(pairs, 1, many) and load_of(pairs, many)[0].nonzero()[0].tolist() == [257, 511]
    assert objection(bytes([1, 1, 0, 2]), 1, many) == "expert 512 of 512" and "have 4" in objection(bytes(2), 1, many)
    assert "ascend" in objection(bytes([1, 1, 2, 0]), 1, many)
