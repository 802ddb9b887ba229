"""A policy's image into a running engine: from disk, from the page cache, and with a request in flight."""

import gc
import os
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.command import clock_of, peak, reset_peak
from benchmarks.gpu.job import Job, Rows
from benchmarks.gpu.models import directory
from node.inference.engine import GenerationRequest, generate
from node.inference.errors import EngineError
from node.inference.settings import EngineSettings
from node.inference.torch_engine import TorchEngine


def measure(job: Job) -> Rows:
    """Seconds are of the clock, on every device: disks are not waited for by a processor."""
    folders = [directory(job.scratch, job.size, job.device, seed) for seed in (0, 1)]
    images = [folder / "model.safetensors" for folder in folders]
    engine = TorchEngine(folders[0], EngineSettings(job.device, job.dtype))
    settle = clock_of(job.device)
    engine.load(engine.read(str(images[0])))
    before = _answer(engine)
    for name, image, prepare in (
        ("cold: from disk", images[1], _forget),
        ("warm: in the page cache", images[0], lambda _: None),
        ("warm, once more", images[1], lambda _: None),
    ):
        prepare(image)
        yield "seconds", {"image": name, **_swap(engine, image, job.device)}
    engine.load(engine.read(str(images[0])))
    settle()
    yield "a request", {"case": "other weights and back: the same tokens", "found": _answer(engine) == before}
    yield "a request", {"case": "in flight while a policy is loaded", "found": _in_flight(engine, images[1])}


def _swap(engine: TorchEngine, image: Path, device: str) -> dict[str, Any]:
    settle, in_use, read_before = clock_of(device), reset_peak(device), _read_from_disk()
    started = perf_counter()
    weights = engine.read(str(image))
    mapped = perf_counter() - started
    engine.load(weights)
    settle()
    whole = perf_counter() - started
    size = image.stat().st_size
    return {
        "read s": mapped,
        "load s": whole - mapped,
        "GB/s": size / whole / 1e9,
        "GB": size / 1e9,
        "of it read from disk, GB": (_read_from_disk() - read_before) / 1e9,
        "memory on top, MiB": peak(device) - in_use,
    }


def _forget(image: Path) -> None:
    """Have the kernel drop the file's pages: nothing may have it mapped."""
    gc.collect()
    file = os.open(image, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _read_from_disk() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def _request() -> GenerationRequest:
    return GenerationRequest([5, 6, 7, 8], np.random.default_rng(3).random(24))


def _answer(engine: TorchEngine) -> list[int]:
    return generate(engine, [_request()], 1.0)[0].output


def _in_flight(engine: TorchEngine, other: Path) -> str:
    """No engine interrupts what it decodes."""
    decoder = engine.decoder(1.0)
    decoder.submit(_request())
    for _ in range(4):
        decoder.step()
    try:
        engine.load(engine.read(str(other)))
    except EngineError as error:
        told = f"the load is refused ({error.what})"
    else:
        told = "the load went through"
    done = [completion for _ in range(24) for _, completion in decoder.step()]
    return f"{told}; the request {'goes on to its end' if len(done) == 1 else 'is lost'}"
