"""What a figure's seconds and its memory are, by the device that computes.

On a CPU they are the processor's seconds, in which other work on the machine does not count, and resident memory. On a
GPU they are those of the clock, once the device has done all that it was given, and its allocator's memory.
"""

import ctypes
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
