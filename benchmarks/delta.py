"""Patches between successive policies: their size beside the entropy bound, and MB/s of image beside memcpy and zstd-1.

    python -m benchmarks.delta [--quick] [--json FILE]

Simulated steps: weights N(0, sd), as fp32 masters, and one Adam-like update of N(0, 0.5) * lr, both rounded to bf16.
Real ones: the policies of a short demo that this program runs by itself (not with --quick).

Bound, bits per weight: H2(p) + p * v, where p is the share of weights that changed, H2 the binary entropy, and v the
entropy of the changes in units in the last place: what a coder needs that knows both distributions and no more. With
v = 1.1 (a sign, and now and then a larger step) it is the stricter bound of the design notes; both ratios are shown.
Speeds are MB of image per second of CPU time on one core, best of several runs; a row's all come from one run.

Written: what a follower's store counts a step beside the image's size, with a real publisher and follower and a wire in
memory. Weights change by one unit in the last place. Beside it the same with every image a snapshot, which writes each
of them whole, and the same where an engine's copy in memory compares (here in this process, and counted).

Chains: CPU seconds for each GB of image that one more step costs a node whose policy rests on so many patches, until
its weights are copied into an engine's matrices, in bfloat16. Beside the copy in memory stands what is done without
one: the follower puts the policy together to compare it, and the engine does to load it.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import trio
import zstandard
from blake3 import blake3

from benchmarks.command import parser_of, save
from node.weights.images import describe_image, write_patch
from protocol.delta import apply_patch, encode_patch
from protocol.policy import bf16_bits, decode_image, policy_root

BLOCK = 4_000_000
RUNS = 5
Pair = tuple[np.ndarray, np.ndarray]


def simulated(count: int, sd: float, lr: float, steps: int = 1) -> Pair:
    """bf16 bits before and after: uint16[count] each."""
    random = np.random.default_rng(1)
    before, after = np.empty(count, np.uint16), np.empty(count, np.uint16)
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        weights = random.standard_normal(size, dtype=np.float32) * np.float32(sd)
        before[start : start + size] = bf16_bits(weights)
        for _ in range(steps):
            weights += random.standard_normal(size, dtype=np.float32) * np.float32(0.5 * lr)
        after[start : start + size] = bf16_bits(weights)
    return before, after


def bound_bits(pair: Pair) -> tuple[float, float, float, float]:
    """(share changed, share of those by one unit, bound in bits per weight, the bound with v = 1.1)."""
    before, after = pair
    places = np.flatnonzero(before != after)
    share = places.size / before.size
    if not places.size:
        return 0.0, 0.0, 0.0, 0.0
    steps = ordered(after[places]) - ordered(before[places])
    _, counts = np.unique(steps, return_counts=True)
    chances = counts / places.size
    value = float(-(chances * np.log2(chances)).sum())
    binary = 0.0 if share == 1 else float(-(share * np.log2(share) + (1 - share) * np.log2(1 - share)))
    return share, float((np.abs(steps) == 1).mean()), binary + share * value, binary + share * 1.1


def ordered(bits: np.ndarray) -> np.ndarray:
    """bf16 bits -> integers in the order of the numbers, computed another way than the codec does."""
    signed = bits.astype(np.int32)
    return np.where(signed >= 0x8000, 0x7FFF - signed, signed)


def best(work: Callable[[], Any], runs: int) -> float:
    """CPU seconds of the fastest run: what one core needs, whoever else uses the machine."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return max(min(times), 1e-9)


def sizes(pair: Pair, size: int) -> dict[str, Any]:
    """Of a patch of so many bytes, beside the whole and the bounds."""
    weights, whole = pair[0].size, pair[0].nbytes
    share, single, bits, strict = bound_bits(pair)
    return {
        "weights": weights,
        "changed": share,
        "one_ulp": single,
        "bytes": size,
        "of_full": size / whole,
        "bound_ratio": 8 * size / weights / bits if bits else None,
        "strict_ratio": 8 * size / weights / strict if strict else None,
    }


def measure(name: str, pair: Pair, runs: int) -> dict[str, Any]:
    """Sizes and speeds of one tensor's patch."""
    before, after = pair
    patch = encode_patch(before, after)
    if not np.array_equal(apply_patch(before, patch), after):
        raise SystemExit(f"{name}: the patch is not lossless")
    room = np.empty_like(before)
    megabytes = before.nbytes / 1e6
    rates = {
        "memcpy": lambda: np.copyto(room, before),
        "zstd1": lambda: zstandard.ZstdCompressor(level=1).compress(after.data),
        "blake3": lambda: blake3(after.view(np.uint8)).digest(),
        "encode": lambda: encode_patch(before, after),
        "apply": lambda: apply_patch(before, patch, out=room),
    }
    frame = len(zstandard.ZstdCompressor(level=1).compress(after.data))
    return {
        "name": name,
        **sizes(pair, len(patch)),
        "zstd1_of_full": frame / before.nbytes,
        "mb_per_s": {key: round(megabytes / best(work, runs)) for key, work in rates.items()},
    }


def real_images(directory: Path) -> list[Path]:
    """Successive images of a run: a spool's, or those that a node holds, oldest first."""
    from node.weights.records import PolicyRecords

    spool = sorted(directory.glob("**/policy-*.safetensors"))
    records = PolicyRecords(directory / "weights" / "held").read()
    held = [directory / "blobs" / "complete" / record.manifest.image_root.hex() for record in records]
    return [path for path in held if path.is_file()] or spool


def demo_images(directory: Path, steps: int) -> list[Path]:
    """The newest images of a real, short demo: a chain, a trainer, workers, verified rollouts."""
    command = [sys.executable, "-m", "cli", "demo", "--dir", str(directory / "demo"), "--steps", str(steps)]
    print(f"\nrunning {' '.join(command[1:])} ...", flush=True)
    subprocess.run([*command, "--no-view", "--no-cheat"], check=True, stdout=subprocess.DEVNULL, timeout=600)
    return real_images(directory / "demo" / "nodes" / "trainer")


def measure_policies(old: Path, new: Path, work: Path) -> dict[str, Any]:
    """A whole policy's patch, as a trainer publishes it (a file, written in `work`)."""
    infos = [describe_image(path).tensors for path in (old, new)]
    roots = policy_root(0, infos[0]), policy_root(1, infos[1])
    seconds = best(lambda: write_patch(old, infos[0], new, infos[1], work, 1 << 40, roots=roots), 3)
    size = work.stat().st_size
    before, after = (decode_image(path.read_bytes()) for path in (old, new))
    pair = tuple(np.concatenate([tensors[name].reshape(-1) for name in sorted(tensors)]) for tensors in (before, after))
    return {
        "name": f"{old.stem[-6:]} -> {new.stem[-6:]}",
        **sizes((pair[0], pair[1]), size),
        "encode_mb_per_s": round(pair[0].nbytes / 1e6 / seconds),
    }


def drift(bits: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    """A share of the weights one unit in the last place up or down."""
    moved = bits.copy()
    places = random.choice(bits.size, int(share * bits.size), replace=False)
    moved[places] += random.choice(np.array([1, 0xFFFF], np.uint16), places.size)
    return moved


async def follow(
    folder: Path, share: float, steps: int, count: int, snapshot_every: int, with_copy: bool
) -> dict[str, Any]:
    """What a follower writes of so many steps after its first image."""
    from tests.node.weights import little_swarm as swarm

    wire, random = swarm.Wire(), np.random.default_rng(1)
    trainer = swarm.Origin(wire, folder / "trainer", swarm.NodeKey.generate(), snapshot_every=snapshot_every)
    engine = swarm.Comparing() if with_copy else None
    peer = swarm.Peer(wire, folder / "peer", trainer.key.address, quota=1 << 34, limit=1 << 34, engine=engine)
    bits = bf16_bits(random.standard_normal(count, dtype=np.float32) * np.float32(0.02))
    before, seconds = 0, 0.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.follower.run)
        for step in range(steps + 1):
            await trainer.publish(step, {f"layer.{at}": part for at, part in enumerate(np.array_split(bits, 4))})
            began = time.process_time()
            while (newest := peer.policy_cache.newest) is None or newest.step < step:
                await trio.sleep(0.001)
            seconds += time.process_time() - began if step else 0.0
            before = before or peer.store.written
            bits = drift(bits, share, random)
        nursery.cancel_scope.cancel()
    size = newest.manifest.image_size
    return {
        "changed": share,
        "steps": steps,
        "of_image": (peer.store.written - before) / steps / size,
        "cpu_s_per_gb": seconds / steps / size * 1e9,
    }


def written(quick: bool) -> list[dict[str, Any]]:
    """Both ways for each share of changed weights."""
    import node.logs
    from tests.node.weights import little_swarm

    node.logs.print_logs(40)
    little_swarm.QUOTA = 1 << 34
    rows: list[dict[str, Any]] = []
    for share, steps in ((0.01, 88), (0.05, 24)):
        for name, every, with_copy in (
            ("each image whole", 1, False),
            ("base and patches", 50, False),
            ("with a copy in memory", 50, True),
        ):
            most, count = min(steps, 8) if every == 1 else steps, 1 << (19 if quick else 23)
            with tempfile.TemporaryDirectory() as folder:
                found = trio.run(follow, Path(folder), share, most, count, every, with_copy)
            rows.append({"name": name, **found})
            print(
                f"{name:26}{found['changed']:9.2%} changed: {found['of_image']:8.2%} of the image written a step, "
                f"{found['cpu_s_per_gb']:.2f} s CPU a GB ({found['steps']} steps)"
            )
    return rows


def chain_on_disk(folder: Path, bits: np.ndarray, share: float, length: int) -> tuple[Path, list[Any], list[bytes]]:
    """(base, patches, digests of the last two policies) of a model of sixteen tensors."""
    from node.inference.layers import PatchFile
    from protocol.policy import describe_tensors, encode_image
    from protocol.policy_patch import framed, policy_patch_header

    random, patches = np.random.default_rng(2), list[PatchFile]()
    split = lambda whole: {f"layer.{at:02}": part for at, part in enumerate(np.array_split(whole, 16))}
    base, digests = folder / "base", [b"", b""]
    base.write_bytes(encode_image(split(bits)))
    for at in range(length):
        new = drift(bits, share, random)
        roots = bytes([at]) * 32, bytes([at + 1]) * 32
        parts = [
            part
            for old, moved in zip(split(bits).values(), split(new).values(), strict=True)
            for part in framed(encode_patch(old, moved))
        ]
        patches.append(PatchFile(str(folder / f"patch-{at}"), *roots))
        Path(patches[-1].path).write_bytes(policy_patch_header(*roots, 16) + b"".join(parts))
        bits = new
        if at >= length - 2:
            digests = [digests[1], b"".join(info.digest for info in describe_tensors(split(bits)))]
    return base, patches, digests


def chain_cost(folder: Path, bits: np.ndarray, share: float, length: int) -> dict[str, float]:
    """CPU seconds of one step more, of each part."""
    import torch

    from node.inference.host_copy import HostCopy
    from node.inference.image import ImageFile, PatchedWeights, one_by_one
    from node.inference.layers import LayeredImage

    base, patches, (before, digests) = chain_on_disk(folder, bits, share, length)
    image, last = LayeredImage(base, patches, digests), LayeredImage(base, patches[:-1], before)
    room = {name: torch.empty(part.size, dtype=torch.bfloat16) for name, part in LayeredImage(base).items()}
    copy = HostCopy(lambda size: True)

    def load(weights: Any) -> None:
        for part, tensor in zip(room.values(), one_by_one(weights, list(room)), strict=True):
            part.copy_(tensor)

    def become(policy: LayeredImage) -> None:
        with copy.at(policy):
            pass

    def load_copy() -> None:
        with copy.at(image) as there:
            assert there is not None  # it was told that there is room
            load(ImageFile(there.path, image.weights_root))

    found = {"compare": [], "load": [], "move": [], "load_copy": []}
    for _ in range(1 if length > 8 else 3):
        found["compare"].append(best(image.root, 1))
        found["load"].append(best(lambda: load(PatchedWeights(str(base), patches, digests)), 1))
    for _ in range(3):
        if length > 1:
            become(last)
        else:
            copy._policy = None  # as behind a snapshot: its memory is there, and it is of another base
        found["move"].append(best(lambda: become(image), 1))
        found["load_copy"].append(best(load_copy, 1))
    return {what: min(seconds) for what, seconds in found.items()}


def chains(quick: bool) -> list[dict[str, Any]]:
    """For each share of changed weights and each length."""
    import torch

    torch.set_num_threads(1)
    count = 1 << (21 if quick else 25)
    bits = bf16_bits(np.random.default_rng(1).standard_normal(count, dtype=np.float32) * np.float32(0.02))
    rows: list[dict[str, Any]] = []
    for share in (0.01, 0.05):
        for length in (1, 16) if quick else (1, 16, 64):
            with tempfile.TemporaryDirectory() as folder:
                found = chain_cost(Path(folder), bits, share, length)
            costs = {f"{what}_s_per_gb": seconds / (2 * count) * 1e9 for what, seconds in found.items()}
            rows.append({"changed": share, "patches": length, **costs})
            compare, load, move, load_copy = costs.values()
            print(
                f"{share:7.0%} changed, {length:2} patches: {compare:5.2f} to compare and {load:5.2f} to load from the "
                f"base; {move:.2f} to move the copy and {load_copy:.2f} to load it, s CPU a GB"
            )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    titles = f"{'changed':>9}{'1 ulp':>7}{'of full':>9}{'/bound':>8}{'/strict':>8}"
    print(f"{'simulated step':26}{titles}  MB/s of image, one core")
    for row in rows:
        rates = row["mb_per_s"]
        speeds = "  ".join(f"{key} {value}" for key, value in rates.items())
        print(
            f"{row['name']:26}{row['changed']:9.2%}{row['one_ulp']:7.0%}{row['of_full']:9.2%}"
            f"{row['bound_ratio']:8.3f}{row['strict_ratio']:8.3f}  {speeds}"
        )


def show_real(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'real step':26}{'changed':>9}{'1 ulp':>7}{'of full':>9}{'/bound':>8}{'weights':>12}{'encode MB/s':>13}")
    for row in rows:
        ratio = f"{row['bound_ratio']:8.3f}" if row["bound_ratio"] else f"{'-':>8}"
        print(
            f"{row['name']:26}{row['changed']:9.2%}{row['one_ulp']:7.0%}{row['of_full']:9.2%}{ratio}"
            f"{row['weights']:12,}{row['encode_mb_per_s']:13,}"
        )


def cases(quick: bool) -> Iterator[tuple[str, float, float, int]]:
    """(name, sd, lr, steps)."""
    for lr in (1e-6, 3e-6, 1e-5):
        yield f"sd 0.02, lr {lr:g}", 0.02, lr, 1
        if not quick:
            yield f"sd 0.05, lr {lr:g}", 0.05, lr, 1
    if not quick:
        yield "sd 0.02, lr 1e-06, 8 steps", 0.02, 1e-6, 8


def main() -> None:
    parser = parser_of(__doc__, "fewer cases and runs, 8 million weights")
    options = parser.parse_args()
    count, runs = (8_000_000, 3) if options.quick else (40_000_000, RUNS)
    rows = [measure(name, simulated(count, sd, lr, steps), runs) for name, sd, lr, steps in cases(options.quick)]
    show(rows)
    with tempfile.TemporaryDirectory() as folder:
        images = [] if options.quick else demo_images(Path(folder), steps=12)
        real = [
            measure_policies(old, new, Path(folder) / "patch") for old, new in zip(images, images[1:], strict=False)
        ]
    if real:
        show_real(real)
    print()
    save(
        options.json,
        {"simulated": rows, "real": real, "written": written(options.quick), "chains": chains(options.quick)},
    )


if __name__ == "__main__":
    main()
