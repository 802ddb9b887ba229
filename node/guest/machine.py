"""Whether somebody else uses this machine: the processors' time, the GPUs', the battery. Blocking: call from a thread.

What is ours is the tree of processes of this program. What others take is the rest of what the system counts. Of each
figure that a system does not tell None is said, and never 0.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import psutil

from node import limits

PROGRAM, SECONDS = "nvidia-smi", 10.0


class OthersUse(NamedTuple):
    """By others. cores: processors' worth of time since the last look; gpu: percent of the busiest GPU; each None where
    it cannot be told. battery: whether the machine runs on one."""

    cores: float | None = None
    gpu: float | None = None
    battery: bool = False

    def busy(self, cores: int) -> str:
        """What stands against work here, in words; empty for nothing. cores: that the machine has."""
        if self.battery:
            return "it runs on its battery"
        # What others may take of the processors while the machine counts as left alone: so many, and of a small machine
        # so much of all.
        most = min(1.0, 0.2 * cores)
        if self.cores is not None and self.cores > most:
            return f"others use {self.cores:.1f} of its {cores} cores"
        gpu_percent = 5.0
        if self.gpu is not None and self.gpu > gpu_percent:
            return f"others use {self.gpu:.0f} % of its GPU"
        return ""

    @property
    def unknown(self) -> str:
        """What nobody can say, in words."""
        names = [name for name, known in (("the processors", self.cores), ("the GPU", self.gpu)) if known is None]
        return " and ".join(names)


class MachineLook(Protocol):
    """One look at the machine. Blocking."""

    def __call__(self) -> OthersUse: ...


class UseWatch:
    """Looks, one after the other: what others used in between. gpus: whether there is one of NVIDIA's."""

    def __init__(self, *, gpus: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._gpus = gpus
        self._clock = clock
        self._before: tuple[float, float, dict[tuple[int, float], float]] | None = None

    def __call__(self) -> OthersUse:
        own = own_processes()
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        gpu = others_on_gpu({one.pid for one in own}) if self._gpus else 0.0
        # Unknown (None) is no battery's word: a desktop's power supply says nothing of itself.
        return OthersUse(self._others(own), gpu, battery is not None and battery.power_plugged is False)

    def _others(self, own: Iterable[psutil.Process]) -> float | None:
        """Processors' worth of time by others since the last look, None at the first one."""
        now, all_busy, ours = self._clock(), _busy(), dict(filter(None, map(_used, own)))
        before, self._before = self._before, (now, all_busy, ours)
        if before is None or now <= before[0]:
            return None
        mine = sum(max(0.0, used - before[2].get(one, 0.0)) for one, used in ours.items())
        return max(0.0, all_busy - before[1] - mine) / (now - before[0])


def own_processes() -> list[psutil.Process]:
    """This daemon, its guardian if it has one, and all that they started."""
    this = psutil.Process()
    try:
        parent = this.parent()
        root = parent if parent is not None and parent.cmdline() == this.cmdline() else this
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return [this]


def _used(process: psutil.Process) -> tuple[tuple[int, float], float] | None:
    try:
        times = process.cpu_times()
        return (process.pid, process.create_time()), times.user + times.system
    except psutil.Error:  # it has ended
        return None


def _busy() -> float:
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))


def others_on_gpu(own: set[int]) -> float | None:
    """Percent of the busiest GPU's time that processes other than these have, None where nobody can say."""
    told = _ask(["pmon", "-c", "1", "-s", "u"])
    return None if told is None else read_pmon(told, own, psutil.pid_exists)


def read_pmon(told: str, own: set[int], exists: Callable[[int], bool]) -> float | None:
    """The table of `nvidia-smi pmon`: gpu, pid, type, sm in percent. In a container the pids are the host's: where one
    is nobody's here, whose it is cannot be told. Pure but for `exists`."""
    by_gpu: dict[str, float] = {}
    most_lines = 512
    for line in told.splitlines()[:most_lines]:
        words = line.split()
        if line.startswith("#") or len(words) < 4 or words[1] == "-":
            continue
        if not words[1].isdecimal():
            return None
        pid = int(words[1])
        if pid in own:
            continue
        if not exists(pid) or not words[3].replace("-", "0", 1).isdecimal():
            return None
        by_gpu[words[0]] = by_gpu.get(words[0], 0.0) + (0.0 if words[3] == "-" else float(words[3]))
    return max(by_gpu.values(), default=0.0)


def power_limits() -> list[float] | None:
    """Watts that each of NVIDIA's GPUs may take, None where nobody says."""
    told = _ask(["--query-gpu=power.limit", "--format=csv,noheader,nounits"])
    try:
        return None if told is None else [float(line) for line in told.split()] or None
    except ValueError:  # "[N/A]", of a card that has none
        return None


def _ask(words: list[str]) -> str | None:
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    try:
        return subprocess.run([program, *words], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    except (subprocess.SubprocessError, OSError, UnicodeDecodeError):
        return None


def keep_to_cores(most: int) -> None:
    """Let this process, and all that it starts from now on, use so many of its processors; 0: all."""
    if most and sys.platform.startswith("linux"):
        mine = sorted(os.sched_getaffinity(0))
        # From the end: what else is told nothing begins with the first ones.
        os.sched_setaffinity(0, mine[-most:])


def machine_cores() -> int:
    """Of the whole machine, since what others use is counted of all."""
    return os.cpu_count() or limits.cores()
