"""What the benchmarks' command lines share: --quick, --json, figures in a file, and no log beside them."""

import argparse
import ctypes
import json
import logging
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import IO, Any, Literal, TypeVar
from unittest.mock import patch

T = TypeVar("T")
SKIPPED = 77
"""Exit code of a benchmark that can measure nothing here; it prints why."""


def parser_of(doc: str | None, quick: str, json: Literal["file", "line"] = "file") -> argparse.ArgumentParser:
    """Its help is the module's docstring. quick: what --quick does; json: whether --json names a file, or asks for one
    object on the last line."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    if json == "file":
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    else:
        parser.add_argument("--json", action="store_true", help="one object on the last line")
    return parser


def save(path: Path | None, found: Any) -> None:
    """Where --json named a file."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def silence_logs(least: int = logging.ERROR) -> None:
    """Figures stand on standard output; of what the product logs only what is at `least` so bad, on standard error."""
    from node.logs import print_logs

    print_logs(least)


def tell(text: str) -> None:
    """What happens now, for whoever waits: on standard error, with the time of day."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stderr.flush()


class Child:
    """A process, for a program that does nothing else while it waits for an answer."""

    def __init__(self, command: Sequence[str], errors: IO[bytes] | None = None) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    def hear(self) -> Any:
        """What it says next. Raises SystemExit once it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended: {self._process.wait()}")
        return json.loads(line)

    def ask(self, order: Any) -> Any:
        self.tell(order)
        return self.hear()

    def tell(self, order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


# What a figure's seconds and its memory are, by the device that computes.
# On a CPU they are the processor's seconds, in which other work on the machine does not count, and resident memory.
# On a GPU they are those of the clock, once the device has done all that it was given, and its allocator's memory.
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


def run_seeded(seed: int, live: Callable[[], Awaitable[T]]) -> T:
    """Run it under a clock that jumps, the same for each seed. trio shuffles whom it wakes first, so its random numbers
    are seeded, too; and so are those that are secret elsewhere, which decide who looks at what."""
    import trio
    from trio._core import _run
    from trio.testing import MockClock

    scheduler: Any = _run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    random.seed(seed)
    scheduler._r.seed(seed)
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    known = random.Random(seed)
    drawn = {"token_bytes": known.randbytes, "randbelow": known.randrange, "choice": known.choice}
    try:
        with patch.multiple(secrets, **drawn, SystemRandom=lambda: known):
            clock: Any = MockClock(autojump_threshold=0)
            clock.current_time = lambda: clock._virtual_base  # it stands between two jumps, and is asked at each step
            return trio.run(live, clock=clock)
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before
