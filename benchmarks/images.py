"""Policy images at size: what a step costs a trainer and a follower, in CPU seconds, memory and bytes written.

    python -m benchmarks.images [--quick] [--gigabytes 1,2,4] [--lr 1e-6] [--dir DIR] [--json FILE]

A model's tensors (an embedding of 151,936 rows among them) as N(0, 0.02) and one Adam-like update of it, in bf16. Each
row is a size; each figure comes from a process of its own, so that its peak memory is its own.

  describe   a trainer hashes a new image's tensors
  patch      it encodes the patch from the image before
  build      a follower makes the new image of the old one and the patch: patched, hashed, checked and written
  codec      the same patches applied in memory, without checks or files: what `build` cannot beat
  verify     every tensor of an image against its manifest
  publish    what a trainer does with a new image: describe, take it into the store, write the patch
  follow     what a follower does with a patch: build, take it into the store
  fetch      a whole image as a blob from one store to another, both in one process, without a line between them, and
             verified

Written: what the kernel was given for the disk (write_bytes in /proc/self/io).

MB are 10^6 bytes of image. Memory: the peak of the process above what it has after its imports, MiB, and how much of
that is its own: a mapped file's pages are the kernel's to take back. What 64 GB would take: these rates, and this
memory, because both follow the stretch and not the image; --gigabytes 1,2,4 checks that they do.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import structlog
import trio

from node.blobs.exchange import BlobExchange
from node.blobs.store import BlobStore
from node.network.heap import keep_freed_blocks
from node.network.memory import MemoryHub, MemoryNetwork
from node.weights.images import build_image, describe_image, mapped, verify_file, write_patch
from protocol.blobs import BlobInfo
from protocol.delta import patched
from protocol.identity import NodeKey
from protocol.policy import (
    PolicyManifest,
    PolicyPatch,
    TensorInfo,
    bf16_bits,
    decode_image,
    image_header,
    image_size,
    policy_root,
)
from protocol.policy_patch import split_policy_patch

HIDDEN, VOCABULARY, LAYER = 1024, 151_936, 12 * 1024 * 1024
BLOCK = 4_000_000
TASKS = ("describe", "patch", "build", "codec", "verify", "publish", "follow", "fetch")


def shapes(size: int) -> list[tuple[str, tuple[int, ...]]]:
    """Tensors of about `size` bytes: an embedding, and layers of 25 MB."""
    layers = max(1, (size - 2 * HIDDEN * VOCABULARY) // (2 * LAYER))
    return [
        ("embedding", (VOCABULARY, HIDDEN)),
        *((f"layer.{i:05d}", (LAYER // HIDDEN, HIDDEN)) for i in range(layers)),
    ]


def write_pair(size: int, lr: float, directory: Path) -> None:
    """`before` and `after`: two images."""
    random = np.random.default_rng(1)
    forms = shapes(size)
    with (directory / "before").open("wb") as before, (directory / "after").open("wb") as after:
        for file in (before, after):
            file.write(image_header(forms))
        for _, shape in forms:
            count = int(np.prod(shape))
            for start in range(0, count, BLOCK):
                weights = random.standard_normal(min(BLOCK, count - start), dtype=np.float32) * np.float32(0.02)
                before.write(bf16_bits(weights).data)
                weights += random.standard_normal(weights.size, dtype=np.float32) * np.float32(0.5 * lr)
                after.write(bf16_bits(weights).data)


def manifest_of(infos: tuple[TensorInfo, ...], step: int) -> PolicyManifest:
    return PolicyManifest(bytes(32), step, policy_root(step, infos), infos, bytes(32), image_size(infos))


def prepare(size: int, lr: float, directory: Path) -> None:
    write_pair(size, lr, directory)
    both = [describe_image(directory / name).tensors for name in ("before", "after")]
    _patch(directory, both)
    (directory / "infos.json").write_text(
        json.dumps([[[info.name, info.shape, info.digest.hex()] for info in infos] for infos in both])
    )


def _infos(directory: Path) -> list[tuple[TensorInfo, ...]]:
    both = json.loads((directory / "infos.json").read_text())
    return [tuple(TensorInfo(name, tuple(shape), bytes.fromhex(root)) for name, shape, root in infos) for infos in both]


def _patch(directory: Path, both: list[tuple[TensorInfo, ...]]) -> None:
    roots = (policy_root(0, both[0]), policy_root(1, both[1]))
    most = image_size(both[1])
    write_patch(directory / "before", both[0], directory / "after", both[1], directory / "patch", most, roots=roots)


def _build(directory: Path, both: list[tuple[TensorInfo, ...]]) -> BlobInfo:
    roots = (policy_root(0, both[0]), policy_root(1, both[1]))
    path = directory / "patch"
    patch = PolicyPatch(1, *roots, bytes(32), path.stat().st_size)
    return build_image(manifest_of(both[1], 1), directory / "before", [(patch, path)], directory / "built")


def _codec(directory: Path, both: list[tuple[TensorInfo, ...]]) -> None:
    roots = (policy_root(0, both[0]), policy_root(1, both[1]))
    tensors = decode_image(mapped(directory / "before"))
    parts = split_policy_patch(mapped(directory / "patch"), *roots, both[1])
    for info, part in zip(both[1], parts, strict=True):
        for _ in patched(tensors[info.name], [part]):
            continue


async def _publish(directory: Path, both: list[tuple[TensorInfo, ...]]) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        store, image = BlobStore(Path(folder), quota=1 << 40), Path(folder) / "new"
        image.hardlink_to(directory / "after")
        found = await trio.to_thread.run_sync(describe_image, image)
        await store.add(image, move=True, known=found.blob)
        await trio.to_thread.run_sync(_patch, directory, both)


async def _follow(directory: Path, both: list[tuple[TensorInfo, ...]]) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        built = await trio.to_thread.run_sync(_build, directory, both)
        info = await BlobStore(Path(folder), quota=1 << 40).add(directory / "built", move=True, known=built)
        if info.size != (directory / "after").stat().st_size:
            raise RuntimeError("the follower has another image")


async def _fetch(directory: Path, both: list[tuple[TensorInfo, ...]]) -> None:
    """The origin's store holds a link to the image: only what the follower writes is counted."""
    hub, keys = MemoryHub(), (NodeKey.generate(), NodeKey.generate())
    networks = [MemoryNetwork(key, hub) for key in keys]
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        stores = [BlobStore(Path(folder) / name, quota=1 << 40) for name in ("origin", "follower")]
        exchanges = [BlobExchange(each, store) for each, store in zip(networks, stores, strict=True)]
        image = Path(folder) / "image"
        image.hardlink_to(directory / "after")
        info = await stores[0].add(image, move=True)
        async with trio.open_nursery() as nursery:
            for each in networks:
                await nursery.start(each.run)
            for each in networks:
                each.set_contacts({key.address: other.contacts()[0] for key, other in zip(keys, networks, strict=True)})
            path = await exchanges[1].fetch(info.root, [keys[0].address], timeout=3600)
            await trio.to_thread.run_sync(verify_file, manifest_of(both[1], 1), path, stores[1].info(info.root))
            nursery.cancel_scope.cancel()


def measure(task: str, directory: Path) -> dict[str, float]:
    """One task in this process. cpu: seconds; memory: MiB above the imports; written: bytes."""
    both = _infos(directory)
    works: dict[str, Any] = {
        "describe": lambda: describe_image(directory / "after"),
        "patch": lambda: _patch(directory, both),
        "build": lambda: _build(directory, both),
        "codec": lambda: _codec(directory, both),
        "verify": lambda: verify_file(manifest_of(both[1], 1), directory / "after"),
        "publish": lambda: trio.run(_publish, directory, both),
        "follow": lambda: trio.run(_follow, directory, both),
        "fetch": lambda: trio.run(_fetch, directory, both),
    }
    keep_freed_blocks()  # as a daemon does
    base, written = _status("VmHWM"), _written()
    with _Watch() as watch:
        start, wall = time.process_time(), time.monotonic()
        works[task]()
        cpu, seconds = time.process_time() - start, time.monotonic() - wall
    memory = _status("VmHWM") - base
    return {"cpu": cpu, "seconds": seconds, "memory": memory, "own": watch.most, "written": _written() - written}


class _Watch:
    """The most memory that is no file's, MiB above what there was, looked at 50 times a second from a thread."""

    def __enter__(self) -> "_Watch":
        self._base, self.most, self._done = _status("RssAnon"), 0.0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.02):
            self.most = max(self.most, _status("RssAnon") - self._base)


def _written() -> int:
    """Bytes that this process gave the kernel for the disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("write_bytes")).split()[1])


def _status(field: str) -> float:
    """MiB that the kernel states of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def run(sizes: list[float], lr: float, place: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            prepare(int(size * 1e9), lr, Path(folder))
            image = (Path(folder) / "after").stat().st_size
            row: dict[str, Any] = {"bytes": image, "patch_bytes": (Path(folder) / "patch").stat().st_size}
            for task in TASKS:
                command = [sys.executable, "-m", "benchmarks.images", "--task", task, "--dir", folder]
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found = json.loads(said.splitlines()[-1])
                row[task] = {"mb_per_cpu_s": round(image / 1e6 / found["cpu"]), **found}
            rows.append(row)
            _show(row)
    return rows


def _show(row: dict[str, Any]) -> None:
    share = row["patch_bytes"] / row["bytes"]
    print(f"\n{row['bytes'] / 1e9:.2f} GB, patch {share:.2%}", file=sys.stderr)
    for task in TASKS:
        found = row[task]
        print(
            f"  {task:9s}{found['mb_per_cpu_s']:6d} MB per CPU-s {found['seconds']:6.1f} s   "
            f"peak +{found['memory']:.0f} MiB, +{found['own']:.0f} of its own   "
            f"written {found['written'] / row['bytes']:.2f} x",
            file=sys.stderr,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one image of 0.5 GB")
    parser.add_argument("--gigabytes", default="1,2,4")
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
        print(json.dumps(measure(options.task, options.dir)))
        return
    sizes = [0.5] if options.quick else [float(size) for size in options.gigabytes.split(",")]
    found = {"schema_version": 1, "lr": options.lr, "sizes": run(sizes, options.lr, options.dir)}
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
