"""Puts this process behind all walls at once, and says beforehand whether this machine has them."""

import os
import resource
import signal
import sys
import sysconfig
from pathlib import Path

from node.sandbox.confined import landlock, libc, seccomp

FUEL_PER_SECOND = 10_000_000_000
"""Of CPU time that a call may take: some three times what the same work takes natively (docs/sandbox.md)."""
MAX_FILES = 64


def missing() -> str | None:
    """What this machine lacks, None where nothing: a wall that is missing is never left out in silence."""
    if not sys.platform.startswith("linux") or not seccomp.supported():
        return f"the confinement is written for Linux on x86-64 and arm64, not for {sys.platform} on {libc.machine()}"
    if landlock.abi() < 1:
        return "the kernel has no Landlock (Linux 5.13 or newer, `landlock` in /sys/kernel/security/lsm)"
    return None


def prepare() -> None:
    """What need not be done again in every fork."""
    if missing() is None:
        seccomp.machine_code()


def stdlib_directories() -> list[Path]:
    """Where Python's own modules lie, without those of others."""
    return sorted({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")})


def cpu_seconds(fuel: int) -> int:
    return max(1, -(-fuel // FUEL_PER_SECOND))


def second_line() -> None:
    """For a process that runs a guest of wasmtime: if that broke out, it would stand here. Where the kernel can."""
    if missing() is not None:
        return
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    landlock.only_read([])
    libc.drop_capabilities()
    seccomp.confine()


def confine(readable: list[Path], memory_mib: int, output_bytes: int, fuel: int, keep: int) -> None:
    """This process, for good. keep: the one descriptor that stays besides the standard streams. Raises OSError."""
    os.closerange(3, keep)
    os.closerange(keep + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    _limit(memory_mib, output_bytes, cpu_seconds(fuel))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    libc.prctl(libc.PR_SET_DUMPABLE)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    landlock.only_read(readable)
    libc.drop_capabilities()
    seccomp.confine()


def _limit(memory_mib: int, output_bytes: int, cpu: int) -> None:
    here = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limits = {
        resource.RLIMIT_AS: (here + (memory_mib << 20),) * 2,
        resource.RLIMIT_FSIZE: (output_bytes + 1,) * 2,
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_NOFILE: (MAX_FILES,) * 2,
        resource.RLIMIT_NPROC: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    for what, bounds in limits.items():
        resource.setrlimit(what, bounds)
