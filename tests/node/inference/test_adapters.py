"""Adapters beside one base: rows of several policies in one batch, each as if its policy were alone."""

import gc
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from node.inference import adapters, decoding
from node.inference.decoding import TorchDecoder
from node.inference.engine import Completion, FinishedSequence, GenerationRequest, generate
from node.inference.engines import torch_engine
from node.inference.errors import EngineError, ModelError
from node.inference.fixed import model_for
from node.inference.image import open_layers
from node.inference.language_model import LanguageModel
from node.inference.lora import merged
from node.inference.prefilling import Prefiller
from node.inference.produce import produce
from node.inference.room import NoRoom, adapter_columns, room_for_adapters
from node.inference.scheduler import EngineHandle, EnginePolicy, EngineScheduler, RequestContext
from node.inference.session import EngineSession, EngineSet, KeptPolicy
from node.inference.settings import EngineSettings
from node.inference.start_weights import StartWeights
from node.inference.torch_engine import TorchEngine
from node.inference.wire import Inspect, Inspected, Produce, Produced
from protocol.checks import Reason
from protocol.engines import LORA, arithmetic
from protocol.identity import NodeKey
from protocol.lora import WEIGHT, tensors_of
from protocol.run import RunSpec
from protocol.sampling import distance
from protocol.statements import VerdictOutcome
from tests.node.inference.engine_kinds import write_image
from tests.node.inference.launches import count
from tests.node.inference.models import CONFIGURATIONS, VOCABULARY, transformers_model
from tests.node.inference.work import put, seen_by
from tests.pretended_cuda import PretendedGPU, pretended_cuda

NODE = NodeKey(b"\x07" * 32).address
END = frozenset({0})
NAMES = (b"a" * 32, b"b" * 32, b"c" * 32)
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj")


def adapter(
    weights: Mapping[str, Tensor], seed: int, rank: int, targets: tuple[str, ...] = TARGETS, size: float = 0.1
) -> dict[str, Tensor]:
    """Random, and large enough to be seen in every token."""
    random = torch.Generator().manual_seed(seed)
    made: dict[str, Tensor] = {}
    for name in weights:
        if name.endswith(tuple(f"{one}{WEIGHT}" for one in targets)) and weights[name].dim() == 2:
            rows, columns = weights[name].shape
            for tensor, shape in zip(tensors_of(name), ((rank, columns), (rows, rank)), strict=True):
                made[tensor] = (size * torch.randn(shape, generator=random)).to(torch.bfloat16)
    return made


def some_of(weights: Mapping[str, Tensor], size: float = 0.1) -> dict[bytes, dict[str, Tensor]]:
    """Of several ranks, and one with a part in few layers only."""
    given = ((1, 3, TARGETS), (2, 5, TARGETS), (3, 2, ("o_proj", "v_proj", "qkv_proj")))
    made = [adapter(weights, seed, rank, targets, size) for seed, rank, targets in given]
    return dict(zip(NAMES, made, strict=True))


def model_of(name: str, kernel: str, device: str = "cpu") -> tuple[LanguageModel, dict[str, Tensor]]:
    theirs = transformers_model(CONFIGURATIONS[name], torch.float32, "sdpa")
    with torch.no_grad():
        ours = model_for(theirs, device, torch.float32, kernel)
        weights = {name: tensor.detach() for name, tensor in theirs.named_parameters()}
        ours.load(weights)
    return ours, weights


def held_by(model: LanguageModel) -> adapters.Adapters:
    assert model.adapters is not None
    return model.adapters


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "gemma2", "qwen3_moe", "smollm3", "qwen3_next", "glm4_moe"])
def test_each_row_of_a_batch_has_its_own_policys_states(name: str) -> None:
    model, weights = model_of(name, LORA)
    held, tokens = some_of(weights), [[5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15], [5, 6, 7, 8]]
    for one, tensors in held.items():
        held_by(model).hold(one, tensors)
    owners = [*NAMES, b""]
    with torch.inference_mode():
        model.of(owners)
        routes = model.routes(tokens)
        found = model.sequences(tokens, routes)
        chosen = None if routes is None else routes.chosen.view(4, 4, -1).numpy()
        for row, owner in enumerate(owners):
            whole, _ = model_of(name, "sdpa")
            whole.load(merged(weights, held[owner]) if owner else weights)
            fixed = None if chosen is None else [chosen[row, : len(tokens[row])]]
            wanted = whole.sequences([tokens[row]], whole.routes([tokens[row]], fixed) if fixed else None)
            assert torch.allclose(found[row, : len(tokens[row])], wanted[0], atol=1e-4), owner
    assert not torch.allclose(found[0], found[3], atol=1e-2), "the adapters of this test say something"


def asked_of(
    model_size: int, names: tuple[bytes, ...], lengths: tuple[int, ...], limit: int = 20
) -> list[GenerationRequest]:
    random = np.random.default_rng(5)
    return [
        GenerationRequest(
            random.integers(3, model_size, size=size).tolist(), random.random(limit), adapter=names[i % len(names)]
        )
        for i, size in enumerate(lengths)
    ]


def run(model: LanguageModel, asked: list[GenerationRequest], budget: int = 1 << 15) -> list[Completion]:
    decoder = TorchDecoder(model, END, budget, 1.0)
    numbers, done = [decoder.submit(request) for request in asked], dict[int, Completion]()
    while len(decoder):
        done |= dict(decoder.step())
    return [done[number] for number in numbers]


@pytest.mark.parametrize("budget", [1 << 15, 300])
def test_a_policys_answers_do_not_depend_on_whose_are_beside_them(budget: int) -> None:
    """Equal prompts are in there, of which no pass may be shared between policies; with the small budget rows wait."""
    model, weights = model_of("qwen3", LORA)
    held = some_of(weights)
    for one, tensors in held.items():
        held_by(model).hold(one, tensors)
    first = asked_of(VOCABULARY, (*NAMES, b""), (30, 7, 12, 5, 3, 9, 20, 4))
    asked = [*first, *(GenerationRequest(first[0].prompt, one.uniforms, adapter=one.adapter) for one in first[:4])]
    together = run(model, asked, budget)
    for owner in (*NAMES, b""):
        alone, _ = model_of("qwen3", LORA)
        if owner:
            held_by(alone).hold(owner, held[owner])
        own = [i for i, one in enumerate(asked) if one.adapter == owner]
        wanted = run(alone, [asked[i] for i in own])
        assert [together[i].output for i in own] == [one.output for one in wanted]
        looked = Prefiller(alone, 1024).prefill(
            [FinishedSequence(asked[i].prompt, together[i].output, adapter=owner) for i in own], 1.0
        )
        for i, seen in zip(own, looked, strict=True):
            count = len(together[i].output)
            assert distance(asked[i].uniforms[:count], seen.lo, seen.hi).max() < 1e-5
            assert (together[i].heads == seen.heads).mean() > 0.95, "both round to bf16"
    assert together[0].output != together[8 + 1].output


def test_a_long_prompt_that_two_policies_have_is_kept_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SHARED_TOKENS", 64)
    model, weights = model_of("qwen3", LORA)
    held = some_of(weights)
    for one, tensors in held.items():
        held_by(model).hold(one, tensors)
    random = np.random.default_rng(3)
    prompt = random.integers(3, VOCABULARY, size=90).tolist()
    asked = [GenerationRequest(prompt, random.random(20), adapter=NAMES[i % 2]) for i in range(6)]
    decoder = TorchDecoder(model, END, 1 << 15, 1.0)
    numbers = [decoder.submit(one) for one in asked]
    done = dict(decoder.step())
    assert len(decoder._prompts.shared) == 2
    while len(decoder):
        done |= dict(decoder.step())
    monkeypatch.setattr(decoding, "SHARED_TOKENS", 1 << 20)
    assert [done[number].output for number in numbers] == [one.output for one in run(model, asked)]


def test_a_slot_that_is_given_on_has_nothing_of_who_had_it() -> None:
    model, weights = model_of("qwen3", LORA)
    held, ours = some_of(weights), held_by(model)
    ours.hold(NAMES[1], held[NAMES[1]])
    ours.drop(NAMES[1])
    with pytest.raises(EngineError, match="not loaded"):
        model.of([NAMES[1]])
    ours.hold(NAMES[2], held[NAMES[2]])
    assert ours.names == [NAMES[2]] and ours.slots == 1
    fresh, _ = model_of("qwen3", LORA)
    held_by(fresh).hold(NAMES[2], held[NAMES[2]])
    with torch.inference_mode():
        rows = []
        for one in (model, fresh):
            one.of([NAMES[2]])
            rows.append(one.sequences([[4, 5, 6]]))
    assert torch.allclose(*rows, atol=1e-5)


def test_one_policys_infinities_are_not_anothers() -> None:
    """Finite numbers whose sums overflow: only the rows of who published them are lost."""
    model, weights = model_of("qwen3", LORA)
    held, ours = some_of(weights), held_by(model)
    huge = {name: torch.full_like(tensor, 3e38) for name, tensor in held[NAMES[0]].items()}
    ours.hold(NAMES[0], huge)
    ours.hold(NAMES[1], held[NAMES[1]])
    with torch.inference_mode():
        model.of([NAMES[0], NAMES[1]])
        found = model.sequences([[4, 5, 6], [4, 5, 6]])
    assert not found[0].isfinite().all() and found[1].isfinite().all()


def test_what_cannot_be_kept_apart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights = model_of("qwen3", LORA)
    held, ours = some_of(weights), held_by(model)
    a, _ = tensors_of("model.layers.1.mlp.down_proj.weight")
    broken = {**held[NAMES[0]], a: torch.full_like(held[NAMES[0]][a], torch.nan)}
    with pytest.raises(ModelError, match="not finite"):
        ours.hold(NAMES[0], broken)
    with pytest.raises(ModelError, match="kept whole"):
        ours.hold(NAMES[0], adapter(weights, 1, 2, ("embed_tokens",)))
    assert not ours.names
    monkeypatch.setattr(adapters, "MOST_ADAPTERS", 1)
    ours.hold(NAMES[0], held[NAMES[0]])
    ours.hold(NAMES[0], held[NAMES[0]])
    with pytest.raises(EngineError, match="too many"):
        ours.hold(NAMES[1], held[NAMES[1]])
    plain, _ = model_of("qwen3", "sdpa")
    with pytest.raises(EngineError, match="merged"):
        plain.of([NAMES[0]])


@pytest.fixture
def gpu() -> Iterator[PretendedGPU]:
    with pretended_cuda() as gpu:
        yield gpu


def test_captured_steps_give_each_row_its_policy_also_after_others_came(gpu: PretendedGPU) -> None:
    asked = asked_of(VOCABULARY, (*NAMES, b""), (9, 3, 20, 4, 7), 6)
    made: list[list[list[int]]] = []
    for graphs in (True, False):
        model, weights = model_of("qwen3", LORA, "cuda")
        model.graphs.works = graphs
        held = some_of(weights)
        outputs: list[list[int]] = []
        for known in (1, 3):  # a slot, then four: what was captured before reads what is gone
            for one in NAMES[:known]:
                held_by(model).hold(one, held[one])
            outputs += [
                one.output for one in run(model, [one for one in asked if one.adapter in (*NAMES[:known], b"")])
            ]
        assert model.graphs.works == graphs
        made.append(outputs)
    assert made[0] == made[1]


def test_launches_do_not_depend_on_how_many_adapters_there_are(gpu: PretendedGPU) -> None:
    one, several = (count(gpu, 1, graphs=False, rows=8, adapters=many) for many in (1, 5))
    plain = count(gpu, 1, graphs=False, rows=8)
    assert one["launches"] == several["launches"] and one["waits"] == several["waits"] == plain["waits"] == 1
    assert plain["launches"] < one["launches"] <= plain["launches"] + 15 + 4, "15 a layer"
    assert count(gpu, 1, graphs=True, rows=8, adapters=5)["launches"] < 100


# One engine, several policies and runs


@pytest.fixture
def alone() -> Iterator[None]:
    """The garbage collector sees only what a test makes: to look through all else takes it seconds."""
    gc.freeze()
    yield
    gc.unfreeze()


def held_bytes() -> int:
    gc.collect()
    tensors: list[Tensor] = [one for one in gc.get_objects() if type(one) in (Tensor, torch.nn.Parameter)]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())


def test_the_base_is_in_memory_once(tiny_assets: Path, alone: None) -> None:
    start = StartWeights(tiny_assets / "model")
    weights = {name: start[name] for name in start}
    held = [adapter(weights, seed, 2) for seed in range(8)]
    engine = TorchEngine(tiny_assets / "model", EngineSettings(attention=LORA))
    engine.hold(b"0", held[0])
    before = held_bytes()
    for number, one in enumerate(held[1:], 1):
        engine.hold(str(number).encode(), one, [str(i).encode() for i in range(number)])
    size = 4 * sum(tensor.numel() for tensor in held[0].values())
    assert before + 7 * size <= held_bytes() <= before + 7 * size + 4096, "float32 of seven more, and nothing else"
    assert size < engine.parameters and engine.adapter_bytes == 8 * size
    shapes = [tensor.shape for name, tensor in engine._names.items() if name.endswith(WEIGHT)]
    assert 8 * size <= room_for_adapters(shapes, adapter_columns(8, 2), "float32") <= 10 * size, "heads have none"
    engine.hold(b"new", held[0], [b"1"])
    assert engine._model.adapters is not None and set(engine._model.adapters.names) == {b"1", b"new"}


def test_of_more_policies_than_there_are_slots_one_that_nobody_uses_makes_room(
    tiny_assets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("adapters", "torch_engine"):
        monkeypatch.setattr(f"node.inference.{place}.MOST_ADAPTERS", 2)
    start = StartWeights(tiny_assets / "model")
    held = [adapter(start, seed, 2) for seed in range(4)]
    engine = TorchEngine(tiny_assets / "model", EngineSettings(attention=LORA))
    kept, decoder = [b"0", b"1", b"2", b"3"], engine.decoder(1.0)
    engine.hold(b"0", held[0], kept)
    decoder.submit(GenerationRequest([3, 4], np.full(5, 0.5), adapter=b"0"))
    for name, weights in zip(kept[1:3], held[1:3], strict=True):
        engine.hold(name, weights, kept)
    assert engine._model.adapters is not None and set(engine._model.adapters.names) == {b"0", b"2"}
    decoder.submit(GenerationRequest([3, 4], np.full(5, 0.5), adapter=b"2"))
    with pytest.raises(EngineError, match="too many"):
        engine.hold(b"3", held[3], kept)


def test_an_engine_leaves_room_for_as_many_adapters_as_will_be_there(
    tiny_assets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.inference.torch_engine.free_memory", lambda *_: 70 << 20)

    def tokens(attention: str, count: int) -> int:
        columns = adapter_columns(count, 8)
        return TorchEngine(tiny_assets / "model", EngineSettings(attention=attention, columns=columns))._batch_tokens

    assert tokens(LORA, 0) == tokens("sdpa", 60) > tokens(LORA, 60) == tokens(LORA, 64), "slots are a power of two"
    with pytest.raises(NoRoom):
        tokens(LORA, 4096)


def test_an_engine_takes_a_whole_policy_or_one_adapter_as_ever(tiny_assets: Path) -> None:
    start = StartWeights(tiny_assets / "model")
    weights = {name: start[name] for name in start}
    one, seen = adapter(weights, 1, 2), [FinishedSequence([3, 4, 5], [6, 7, 1])]
    engine, plain = (TorchEngine(tiny_assets / "model", EngineSettings(attention=how)) for how in (LORA, "sdpa"))
    found = []
    for given in (one, weights, one):
        engine.load(given)
        plain.load(given)
        found.append([made.prefill(seen, 1.0)[0].logprobs for made in (engine, plain)])
    assert all(np.allclose(*pair, atol=1e-4) for pair in found) and not np.allclose(found[0][0], found[1][0], atol=1e-2)
    with pytest.raises(EngineError, match="merges"):
        plain.hold(b"x", one)
    with pytest.raises(EngineError, match="no adapter"):
        engine.hold(b"x", weights)
    decoder = engine.decoder(1.0)
    decoder.submit(GenerationRequest([3, 4], np.full(5, 0.5)))
    engine.hold(b"x", one)
    assert np.allclose(
        engine.prefill([FinishedSequence([3, 4, 5], [6, 7, 1], adapter=b"x")], 1.0)[0].logprobs, found[0][0]
    )
    with pytest.raises(EngineError, match="in flight"):
        engine.load(weights)


def test_an_adapter_that_cannot_be_held_leaves_nobody_with_the_start_models_weights(tiny_assets: Path) -> None:
    start = StartWeights(tiny_assets / "model")
    whole = {name: start[name] * 1.5 for name in start}
    engine = TorchEngine(tiny_assets / "model", EngineSettings(attention=LORA))
    bench, seen = EngineSet(engine, engine.tokenizer), [FinishedSequence([3, 4, 5], [6, 7, 1])]
    kept = KeptPolicy(whole, open_layers(str(tiny_assets / "model" / "model.safetensors")))
    bench.load(engine, kept, dict)
    expected = engine.prefill(seen, 1.0)[0].logprobs
    broken = {name: torch.full_like(one, torch.nan) for name, one in adapter(start, 1, 2).items()}
    with pytest.raises(ModelError, match="not finite"):
        bench.hold(engine, engine.name, ROOTS[1], lambda: broken, [ROOTS[1]])
    bench.load(engine, kept, dict)
    assert np.array_equal(engine.prefill(seen, 1.0)[0].logprobs, expected)


ROOTS = (bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32)


class Office:
    """One owner over one engine of the kernel `lora`, for three policies of a run."""

    def __init__(self, run: RunSpec, assets: Path, folder: Path) -> None:
        start = StartWeights(assets / "model")
        weights = {name: start[name] for name in start}
        self.engine = TorchEngine(assets / "model", EngineSettings(attention=LORA))
        self.images = [folder / f"{number}.safetensors" for number in range(3)]
        for number, path in enumerate(self.images):
            write_image(path, adapter(weights, number, 2 + number, size=0.3))
        self.session = EngineSession(run, assets, lambda model: (self.engine, self.engine.tokenizer))
        self.decoders: list[int] = []
        for root, path in zip(ROOTS, self.images, strict=True):
            self.session.keep(root, str(path))
        self.owner = EngineScheduler()
        self._made = self.engine.decoder
        self.engine.decoder = self._decoder  # type: ignore[method-assign]

    def _decoder(self, temperature: float):
        decoder = self._made(temperature)
        assert isinstance(decoder, TorchDecoder)
        self.decoders.append(0)
        real = decoder.step

        def step() -> list[tuple[int, Completion]]:
            self.decoders[-1] = max(self.decoders[-1], len(decoder.adapters))
            return real()

        decoder.step = step  # type: ignore[method-assign]
        return decoder

    def produce(self, folder: Path) -> dict[bytes, Produced]:
        """A file of each policy at the same time."""
        made: dict[bytes, Produced] = {}

        def work(number: int, root: bytes) -> None:
            desk = EngineHandle(self.owner, RequestContext(number, "rollout" if number else "task"))
            order = Produce(policy_root=root, node=NODE, pool=3, index=5, out_path=str(folder / root.hex()))
            made[root] = produce(self.session.at(order, desk), order)
            self.owner.wake()

        jobs = [threading.Thread(target=work, args=(i, root), daemon=True) for i, root in enumerate(ROOTS)]
        for job in jobs:
            job.start()
        while self.owner._inbox.qsize() < 3:  # the engine begins when all have asked
            assert all(job.is_alive() for job in jobs)
        while len(made) < 3:
            self.owner.turn()
        for job in jobs:
            job.join(20)
        return made


def judged(run: RunSpec, assets: Path, image: Path, root: bytes, made: Produced) -> Inspected:
    """By a validator of its own, whose engine merges."""
    validator = EngineSession(run, assets, torch_engine)
    validator.keep(root, str(image))
    order = Inspect(
        policy_root=root,
        node=NODE,
        pool=3,
        index=5,
        units=made.units,
        path=made.path,
        report_path=f"{made.path}.report",
    )
    return seen_by(validator, order)


def test_policies_share_a_decoder_and_validators_accept_each(
    tiny_run: RunSpec, tiny_assets: Path, tmp_path: Path
) -> None:
    office = Office(tiny_run, tiny_assets, tmp_path)
    made = office.produce(tmp_path)
    assert office.decoders == [3], "one decoder had rows of all three policies at a time"
    for root, image in zip(ROOTS, office.images, strict=True):
        seen = judged(tiny_run, tiny_assets, image, root, made[root])
        assert (seen.outcome, seen.reason, seen.detail) == (VerdictOutcome.ACCEPT, Reason.NONE, "")
        assert arithmetic(seen.verifier)[1] == LORA
    stale = judged(tiny_run, tiny_assets, office.images[1], ROOTS[0], made[ROOTS[0]])
    assert stale.outcome == VerdictOutcome.REJECT and stale.reason in (Reason.ACTIVATIONS, Reason.SAMPLING)


def test_a_policy_that_cannot_be_held_fails_alone(tiny_run: RunSpec, tiny_assets: Path, tmp_path: Path) -> None:
    office = Office(tiny_run, tiny_assets, tmp_path)
    results: dict[int, object] = {}

    def draw(number: int, root: bytes) -> None:
        load = partial(put, office.session, root)
        policy, requests = (
            EnginePolicy(office.engine, root, load, beside=True),
            [GenerationRequest([3, 4], np.full(6, 0.4))] * 3,
        )
        try:
            results[number] = office.owner.draw(RequestContext(number, "rollout"), policy, requests, 1.0)
        except EngineError as error:
            results[number] = error
        office.owner.wake()

    jobs = [
        threading.Thread(target=draw, args=(i, root), daemon=True) for i, root in enumerate((ROOTS[0], b"?", ROOTS[1]))
    ]
    for job in jobs:
        job.start()
    while len(results) < 3:
        office.owner.turn()
    for job in jobs:
        job.join(20)
    assert isinstance(results[1], EngineError) and "not loaded" in results[1].what
    for number, root in ((0, ROOTS[0]), (2, ROOTS[1])):
        put(office.session, root)
        expected = generate(office.engine, [GenerationRequest([3, 4], np.full(6, 0.4), adapter=root)], 1.0)[0].output
        found = results[number]
        assert isinstance(found, list) and [one.output for one in found] == [expected] * 3
