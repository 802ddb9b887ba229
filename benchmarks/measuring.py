"""What a figure's seconds and its memory are, by the device that computes.

On a CPU they are the processor's seconds, in which other work on the machine does not count, and resident memory. On a
GPU they are those of the clock, once the device has done all that it was given, and its allocator's memory.
"""

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

Clock = Callable[[], float]
"""Seconds since some moment."""


def clock_of(device: str) -> Clock:
    if not device.startswith("cuda"):
        return time.process_time
    import torch

    def when_done() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return when_done


def reset_peak(device: str = "cpu") -> float:
    """MiB in use, once freed memory is handed back; what was the peak is forgotten."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return peak(device)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak(device: str = "cpu") -> float:
    """The most MiB in use since then."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated() / 2**20
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def resident(pid: int) -> dict[str, int]:
    """KiB of a process' memory by kind, and its threads and open descriptors.

    `rss`; `pss` (shared pages in shares); `anonymous` (heap, stacks); `file` (mapped libraries); `private` (what its
    end would free).
    """
    fields: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0])
    return {
        "rss": fields["Rss"],
        "pss": fields["Pss"],
        "anonymous": fields["Anonymous"],
        "file": fields["Rss"] - fields["Anonymous"],
        "private": fields["Private_Clean"] + fields["Private_Dirty"],
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
    }
