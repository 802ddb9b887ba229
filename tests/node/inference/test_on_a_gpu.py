"""The torch engine on a pretended GPU: what it computes, how often it waits, and what it does when memory runs out."""

import io
import weakref
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from node.calibration import calibrate
from node.environments.base import Tokenizer
from node.environments.registry import load_environment
from node.hardware.multiply import serve
from node.hardware.orders import Multiply, Show
from node.inference import device_sampling
from node.inference.engine import Completion, Engine, FinishedSequence, GenerationRequest, generate
from node.inference.errors import EngineError
from node.inference.room import GIB, MOST_TOKENS, NoRoom
from node.inference.settings import EngineSettings
from node.inference.tokenizer import LocalTokenizer
from node.inference.torch_engine import TorchEngine
from protocol import sampling
from protocol.engines import is_exact, pair, with_arithmetic
from protocol.freivalds import Challenge, check_product, chosen_rows, decode_digests, decode_rows
from protocol.lora import tensors_of
from protocol.run import RunSpec
from protocol.sampling import distance
from tests.node.inference.engine_kinds import outputs, requests, write_image
from tests.node.inference.test_device_sampling import chosen_by_torch
from tests.pretended_cuda import PretendedGPU, pretended_cuda

LENGTHS = [4, 9, 2, 7]
LITTLE = 20
"""Tokens in the cache: some sequences wait half-way, rows move, and longer ones are looked at in chunks."""
CHALLENGE = Challenge(bytes(range(32)), 1088)


@pytest.fixture
def gpu() -> Iterator[PretendedGPU]:
    with pretended_cuda() as gpu:
        yield gpu


def engine_on(
    device: str, assets: Path, dtype: str = "float32", attention: str = "sdpa", room: int = 1 << 15
) -> Engine:
    engine = TorchEngine(assets / "model", EngineSettings(device, dtype, attention, room))
    engine.load(engine.read(str(assets / "model" / "model.safetensors")))
    return engine


def finished(asked: list[GenerationRequest], made: list[Completion]) -> list[FinishedSequence]:
    return [FinishedSequence(request.prompt, one.output) for request, one in zip(asked, made, strict=True)]


# What is pretended


def test_what_cuda_refuses_is_refused(gpu: PretendedGPU) -> None:
    there = torch.ones(3, 4, device="cuda")
    assert there.device == torch.device("cuda", 0) and there.is_cuda and there.to("cuda") is there
    for wrong in (lambda: there + torch.ones(4), lambda: there @ torch.ones(4, 2), lambda: torch.ones(3)[there.long()]):
        with pytest.raises(RuntimeError, match="same device"):
            wrong()
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    assert (there + torch.tensor(1.0))[torch.tensor([0])].tolist() == [[2.0] * 4]


def test_a_view_of_a_view_is_the_tensor_itself(gpu: PretendedGPU) -> None:
    with torch.inference_mode():
        kept = torch.zeros(4, 6, device="cuda")
        kept[1:][:2, 3:].add_(1)
        kept[torch.tensor([0, 3], device="cuda"), 0] = 5.0
    assert kept.sum().item() == 16 and kept[2, 4].item() == 1


def test_a_copy_that_nobody_waited_for_has_not_arrived(gpu: PretendedGPU) -> None:
    there = torch.arange(3.0, device="cuda")
    here = there.to("cpu", non_blocking=True)
    assert here.isnan().all() and not gpu.waits
    torch.cuda.synchronize()
    assert here.tolist() == [0, 1, 2]
    source = torch.zeros(3).pin_memory()
    source.to("cuda", non_blocking=True)
    source[0] = 1
    with pytest.raises(AssertionError, match="written to"):
        torch.cuda.synchronize()


# The engine


@pytest.mark.parametrize("arithmetic", [("float32", "sdpa"), ("float32", "eager"), ("bfloat16", "sdpa")])
def test_an_engine_computes_on_a_gpu_what_it_does_on_a_cpu(
    arithmetic: tuple[str, str], tiny_assets: Path, gpu: PretendedGPU
) -> None:
    asked = requests(LENGTHS, 6)
    here, there = (engine_on(device, tiny_assets, *arithmetic, room=LITTLE) for device in ("cpu", "cuda"))
    assert there.name == with_arithmetic(here.name, arithmetic).replace(here.name.partition("/")[0], "cuda-sm90")
    wanted, made = generate(here, asked, 0.9), generate(there, asked, 0.9)
    if arithmetic[0] == "float32":
        assert [one.output for one in made] == [one.output for one in wanted]
    for request, one, seen in zip(asked, made, there.prefill(finished(asked, made), 0.9), strict=True):
        far = distance(request.uniforms[: len(one.output)], seen.lo, seen.hi)
        assert far.max() < (1e-6 if arithmetic[0] == "float32" else 0.05)
        assert (one.heads == seen.heads).mean() > 0.9
    assert gpu.score_tables == 0


def test_a_step_waits_once_for_the_gpu_and_so_does_a_pass_that_looks(tiny_assets: Path, gpu: PretendedGPU) -> None:
    asked = requests(LENGTHS, 6)
    engine = engine_on("cuda", tiny_assets)
    generate(engine, asked[:1], 0.9)  # tables are made
    decoder = engine.decoder(0.9)
    for request in asked:
        decoder.submit(request)
    steps, done = 0, dict[int, Completion]()
    gpu.waits.clear()
    while len(decoder):
        done |= decoder.step()
        steps += 1
    assert gpu.waits == {"a copy to the CPU": steps, "a capture": 1, "aten.equal": 1}, "one more, once: see graphs"
    gpu.waits.clear()
    engine.prefill(finished(asked, [done[number] for number in sorted(done)]), 0.9)
    assert gpu.waits == {"a copy to the CPU": 1}


def test_numbers_on_an_edge_fall_on_a_gpu_where_the_reference_puts_them(gpu: PretendedGPU) -> None:
    logits = np.random.default_rng(1).standard_normal((1, 130)).astype(np.float32).repeat(130, 0)
    _, edges, _ = sampling.interval(logits, np.arange(130), 1.0)
    u = edges.clip(0, np.nextafter(1, 0))
    there = torch.from_numpy(logits).to("cuda"), torch.from_numpy(u).to("cuda")
    assert (device_sampling.draw(*there, 1.0).cpu() == device_sampling.OPEN).any()
    assert chosen_by_torch(*there, 1.0).tolist() == sampling.choose(logits, u, 1.0).tolist()


@pytest.mark.parametrize("at", [33, 240, 331])
def test_sequences_are_the_same_when_a_gpus_memory_runs_out_on_the_way(
    at: int, tiny_assets: Path, gpu: PretendedGPU
) -> None:
    asked = requests(LENGTHS, 5)
    engine = engine_on("cuda", tiny_assets)
    wanted, left = outputs(engine, asked), [at]

    def run_out(name: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("CUDA error: out of memory") if at % 2 else torch.OutOfMemoryError("CUDA out of memory.")

    gpu.before_memory = run_out
    assert outputs(engine, asked) == wanted
    assert left[0] < 0, "it never ran out"


def test_a_gpu_without_room_for_another_engine_has_none(tiny_assets: Path, gpu: PretendedGPU) -> None:
    engine, made = engine_on("cuda", tiny_assets), list[str]()

    def run_out(name: str) -> None:
        made.append(name)
        if len(made) == 9:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    gpu.before_memory = run_out
    assert engine.sibling("bfloat16", "sdpa") is None
    assert engine.sibling("bfloat16", "fixed-108") is None, "of another GPU"
    exact = engine.sibling("bfloat16", "fixed-132")
    assert exact is not None and "/bfloat16/fixed-132/" in exact.name and is_exact(exact.name, exact.name)
    sibling = engine.sibling("bfloat16", "sdpa")
    assert sibling is not None and sibling.name.startswith("cuda-sm90/bfloat16/sdpa/ieee/tp1/torch-")


def test_the_cache_is_as_large_as_the_gpu_has_room_for(tiny_assets: Path, gpu: PretendedGPU) -> None:
    gpu.free_memory = 8 * GIB
    assert f"room for {MOST_TOKENS:,} tokens" in engine_on("cuda", tiny_assets, room=0).description
    gpu.free_memory = 640 << 20
    small = engine_on("cuda", tiny_assets, room=0)
    tokens = int(small.description.rpartition("room for ")[2].partition(" ")[0].replace(",", ""))
    assert 2048 <= tokens < MOST_TOKENS
    gpu.free_memory = 512 << 20
    with pytest.raises(NoRoom, match="does not fit"):
        engine_on("cuda", tiny_assets, room=0)
    assert small.sibling("bfloat16", "sdpa") is None


def test_an_engine_takes_no_more_of_a_gpu_than_it_was_given(tiny_assets: Path, gpu: PretendedGPU) -> None:
    gpu.free_memory = 3 * GIB
    with pytest.raises(NoRoom, match="does not fit"):
        TorchEngine(tiny_assets / "model", EngineSettings("cuda", leave=3 * GIB))


def test_a_policy_that_is_an_adapter_is_loaded_and_another_after_it(
    tiny_assets: Path, tmp_path: Path, gpu: PretendedGPU
) -> None:
    a, b = tensors_of("model.layers.1.mlp.down_proj.weight")
    here, there = (engine_on(device, tiny_assets) for device in ("cpu", "cuda"))
    image = here.read(str(tiny_assets / "model" / "model.safetensors"))
    rows, columns = image["model.layers.1.mlp.down_proj.weight"].shape
    torch.manual_seed(0)  # some adapters change no token of so few
    adapter = {a: torch.randn(2, columns).bfloat16(), b: torch.randn(rows, 2).bfloat16()}
    write_image(tmp_path / "adapter", adapter)
    first, asked = outputs(there, requests([4, 9], 6)), requests([4, 9], 6)
    for engine in (here, there):
        engine.load(engine.read(str(tmp_path / "adapter")))
    assert outputs(there, asked) == outputs(here, asked) != first
    there.load(image)
    assert outputs(there, asked) == first


def test_broken_weights_are_found_on_a_gpu_too(tiny_assets: Path, gpu: PretendedGPU) -> None:
    engine = engine_on("cuda", tiny_assets)
    image = dict(engine.read(str(tiny_assets / "model" / "model.safetensors")))
    engine.load(image | {"model.norm.weight": torch.full_like(image["model.norm.weight"], torch.nan)})
    with pytest.raises(EngineError, match="not finite"):
        generate(engine, requests([4], 3), 1.0)
    with pytest.raises(EngineError, match="not finite"):
        engine.prefill([FinishedSequence([4, 5], [6, 7])], 1.0)


# What else computes there


def test_a_gpu_and_a_cpu_are_calibrated_beside_each_other(
    tiny_run: RunSpec, tiny_assets: Path, gpu: PretendedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One engine at a time: a GPU may have no memory for two."""
    real, made = calibrate.make_engine, list[weakref.ref[Engine]]()

    def make_engine(model: Path, settings: EngineSettings) -> tuple[Engine, Tokenizer]:
        assert not any(one() for one in made)
        engine, tokenizer = real(model, settings)
        made.append(weakref.ref(engine))
        return engine, tokenizer

    monkeypatch.setattr(calibrate, "make_engine", make_engine)
    environment = load_environment(tiny_run.environment, tiny_assets, LocalTokenizer(tiny_assets / "model"))
    run = msgspec.structs.replace(tiny_run, rollout=msgspec.structs.replace(tiny_run.rollout, max_output_tokens=6))
    plan = calibrate.CalibrationPlan([EngineSettings("cuda"), EngineSettings()], samples=4)
    looks = calibrate.look_at_honest_work(run, tiny_assets / "model", environment, plan, lambda *_: None)
    assert len(looks) == 4 and pair(EngineSettings("cuda").name, EngineSettings().name) in looks
    assert max(one.distances.max() for seen in looks.values() for one in seen) < 1e-5


def test_a_gpu_multiplies_for_a_challenge(gpu: PretendedGPU) -> None:
    asked, said = chosen_rows(CHALLENGE.size, b"r" * 32), io.BytesIO()
    orders = b"".join(msgspec.json.encode(order) + b"\n" for order in (Multiply(CHALLENGE), Show(asked)))
    with torch.inference_mode():
        serve(io.BytesIO(orders), said, "cuda")
    bodies, data = [], said.getvalue()
    while data:
        size = 8 + int.from_bytes(data[:8], "little")
        bodies.append(data[8:size])
        data = data[size:]
    digests, rows = decode_digests(bodies[1], CHALLENGE.size), decode_rows(bodies[2], CHALLENGE.size, len(asked))
    check_product(CHALLENGE, digests, asked, rows, b"v" * 32)
