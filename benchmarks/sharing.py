"""What do several runs that train adapters of one model cost a machine, each with an engine of its own or all with one?

Real engines in processes of their own, as daemons have them. Each run's daemon asks for files under an adapter of its
own; counted are the memory of all engines' processes (what several have in common once) and sampled tokens a second.
"""

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
import torch
import trio

from benchmarks.command import parser_of, save, silence_logs, tell
from benchmarks.gpu.models import SIZES, Size, directory
from node.inference.client import EngineProcess
from node.inference.start_weights import StartWeights
from node.inference.torch_engine import bf16_bits
from node.inference.wire import LoadPolicy, Produce, Produced
from protocol.engines import LORA
from protocol.lora import WEIGHT, Lora, tensors_of
from protocol.policy import encode_image
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec, VerificationSpec, encode_run

SIZES["100m"] = Size(
    {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 8}, 49152, tied=True
)
RANK = 16
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """memory: bytes; seconds, tokens: of all files together."""

    way: str
    runs: int
    memory: int
    seconds: float
    tokens: int


def run_of(number: int, tokens: int) -> RunSpec:
    return RunSpec(
        name=f"run-{number}",
        environment=EnvironmentSpec(name="sort", args={"digits": 4, "held_back": 64}),
        rollout=RolloutSpec(
            group_size=8, prompts_per_step=8, prompts_per_file=4, max_prompt_tokens=16, max_output_tokens=tokens
        ),
        recipe=Recipe(lora=Lora(rank=RANK)),
        verification=VerificationSpec(engines=(f"*/float32/{LORA}",)),
    )


def adapter(model: Path, path: Path, seed: int) -> Path:
    """A random one beside all projections, as a policy's image."""
    start, random = StartWeights(model), torch.Generator().manual_seed(seed)
    made = {}
    for name in start:
        if name.endswith(f"_proj{WEIGHT}"):
            rows, columns = start[name].shape
            for tensor, shape in zip(tensors_of(name), ((RANK, columns), (rows, RANK)), strict=True):
                made[tensor] = bf16_bits((0.02 * torch.randn(shape, generator=random)).to(torch.bfloat16))
    path.write_bytes(encode_image(made))
    return path


async def measure(way: str, model: Path, runs: int, tokens: int, files: int) -> Found:
    program = (
        ["node.inference.shared", f"--runs={runs}", "--linger=1"] if way == "shared" else ["node.inference.process"]
    )
    command = [sys.executable, "-m", *program, "--dtype", "float32", "--attention", LORA, "--device", "cpu"]
    specs = [run_of(number, tokens) for number in range(runs)]
    engines = [EngineProcess(command, encode_run(spec), model.parent) for spec in specs]
    counted: list[int] = []

    async def work(number: int) -> None:
        image = adapter(model, model.parent / f"adapter-{number}", number)
        policy = LoadPolicy(policy_root=bytes([number]) * 32, step=0, path=str(image))
        for index in range(files):
            out = str(model.parent / f"out-{number}")
            order = Produce(policy_root=policy.policy_root, node="0x" + "11" * 20, pool=1, index=index, out_path=out)
            made = await engines[number].ask(order, timeout=3600, policy=policy)
            counted.append(made.units if isinstance(made, Produced) else 0)

    async with trio.open_nursery() as nursery:
        for engine in engines:
            await nursery.start(engine.run)
        started = trio.current_time()
        async with trio.open_nursery() as working:
            for number in range(runs):
                working.start_soon(work, number)
        seconds, memory = trio.current_time() - started, await trio.to_thread.run_sync(memory_of_engines)
        nursery.cancel_scope.cancel()
    return Found(way, runs, memory, seconds, sum(counted))


def memory_of_engines() -> int:
    """Of every process below this one, and of our host, whose parent has ended: proportional shares."""
    family, ours = psutil.Process().children(recursive=True), os.environ["XDG_RUNTIME_DIR"]
    hosts = [one for one in psutil.process_iter(["cmdline"]) if ours in " ".join(one.info["cmdline"] or [])]
    return sum(one.memory_full_info().pss for one in {*family, *hosts})


def main() -> None:
    parser = parser_of(__doc__, "a tiny model, two runs")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 2, 4])
    given = parser.parse_args()
    silence_logs()
    runs, size, tokens, files = ([2], "tiny", 8, 1) if given.quick else (given.runs, "100m", 32, 2)
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_RUNTIME_DIR"] = scratch
        assets = Path(scratch, "assets")
        assets.mkdir()
        (assets / "model").symlink_to(directory(Path(scratch), size, "cpu"))
        for count in runs:
            for way in ("own", "shared"):
                tell(f"{count} runs, {way}")
                found.append(trio.run(measure, way, assets / "model", count, tokens, files))
    print(f"{size}, float32, adapters of rank {RANK}; {files} files of 32 answers of up to {tokens} tokens a run")
    for one in found:
        print(f"{one.runs} runs, {one.way:6} {one.memory / MIB:7,.0f} MiB  {one.tokens / one.seconds:7,.0f} tokens/s")
    save(given.json, msgspec.to_builtins(found))


if __name__ == "__main__":
    main()
