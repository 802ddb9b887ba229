"""What this process may use of its machine: a container, a unit of systemd or taskset leave less than the machine has.

Reads control groups of both versions. A limit of any group above counts, so each path is followed up to its root; where
a container hides the path, what is mounted is its own group.
"""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CONTROL = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


class ProcessMemory(NamedTuple):
    """Bytes: what this process and those beside it may have in all, and what is left of it."""

    total: int
    free: int


def cores() -> int:
    """Processors that this process may use, at least 1; of a share of one, that one."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([own, *(math.ceil(share) for share in _shares(CONTROL, OWN_GROUPS))]))


def memory() -> ProcessMemory:
    """The machine's memory, or the least that a control group leaves of it."""
    import psutil  # who asks for cores only needs none of it

    machine = psutil.virtual_memory()
    total, free = machine.total, machine.available
    for limit, used in _memories(CONTROL, OWN_GROUPS):
        total, free = min(total, limit), min(free, max(0, limit - used))
    return ProcessMemory(total, free)


def allow_open_files(most: int = 16_384) -> int:
    """Let this process and its children have as many open files as the system lets it choose, `most` at most. Shells
    and service managers begin with 1,024 for the sake of old programs; a member of a large pool holds more. Returns how
    many there may be now."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # a system with a lower bound of its own
        return soft
    return wanted


def open_files() -> int:
    """How many files and sockets this process may have open."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _shares(control: Path, own: Path) -> Iterator[float]:
    """Processors that each group may use."""
    for group in _groups(control, own, "cpu"):
        quota, period = (_words(group / "cpu.max") + ["", ""])[:2]
        if not quota:
            quota, period = _word(group / "cpu.cfs_quota_us"), _word(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) and int(quota):
            yield int(quota) / int(period)


def _memories(control: Path, own: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) of each group that has a limit, bytes. Pages of files that can be dropped are not used."""
    for group in _groups(control, own, "memory"):
        limit = _word(group / "memory.max") or _word(group / "memory.limit_in_bytes")
        used = _word(group / "memory.current") or _word(group / "memory.usage_in_bytes")
        if limit.isdigit():
            yield int(limit), max(0, (int(used) if used.isdigit() else 0) - _droppable(group / "memory.stat"))


def _droppable(stat: Path) -> int:
    told = dict(line.split(" ", 1) for line in _text(stat).splitlines() if " " in line)
    value = told.get("total_inactive_file", told.get("inactive_file", "0")).strip()
    return int(value) if value.isdigit() else 0


def _groups(control: Path, own: Path, controller: str) -> Iterator[Path]:
    """Directories of the own group for a controller, and of those above."""
    for line in _text(own).splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names == "":
            roots = [control, control / "unified"]
        elif controller in names.split(","):
            roots = [control / names, control / controller]
        else:
            continue
        for root in roots:
            yield from _up(root, path)


def _up(root: Path, path: str) -> Iterator[Path]:
    # Groups inside groups that are looked at.
    parts = [part for part in path.split("/") if part not in ("", ".", "..")][:64]
    for depth in range(len(parts), -1, -1):
        group = root.joinpath(*parts[:depth])
        if group.is_dir():
            yield group


def _word(path: Path) -> str:
    return next(iter(_words(path)), "")


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    """Empty where there is none: other systems have no such files, and a container may hide them."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
