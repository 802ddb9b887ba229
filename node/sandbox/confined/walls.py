"""Puts this process behind all walls at once (Landlock, seccomp, limits), and says beforehand whether they are here."""

import ctypes
import errno
import os
import resource
import signal
import struct
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from node.sandbox.confined import libc

MAX_FILES = 64


def missing() -> str | None:
    """What this machine lacks, None where nothing: a wall that is missing is never left out in silence."""
    if not sys.platform.startswith("linux") or not supported():
        return f"the confinement is written for Linux on x86-64 and arm64, not for {sys.platform} on {libc.machine()}"
    if landlock_abi() < 1:
        return "the kernel has no Landlock (Linux 5.13 or newer, `landlock` in /sys/kernel/security/lsm)"
    return None


def prepare() -> None:
    """What need not be done again in every fork."""
    if missing() is None:
        machine_code()


def stdlib_directories() -> list[Path]:
    """Where Python's own modules lie, without those of others."""
    return sorted({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")})


def cpu_seconds(fuel: int) -> int:
    # Of CPU time that a call may take: some three times what the same work takes natively (docs/sandbox.md).
    return max(1, -(-fuel // 10_000_000_000))


def second_line() -> None:
    """For a process that runs a guest of wasmtime: if that broke out, it would stand here. Where the kernel can."""
    if missing() is not None:
        return
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    # Nothing at all: interpreter and files are in memory by now.
    only_read([])
    libc.drop_capabilities()
    filter_calls()


def confine(readable: list[Path], memory_mib: int, output_bytes: int, fuel: int, keep: int) -> None:
    """This process, for good. keep: the one descriptor that stays besides the standard streams. Raises OSError."""
    os.closerange(3, keep)
    os.closerange(keep + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    _limit(memory_mib, output_bytes, cpu_seconds(fuel))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    # With 0 for an argument: no other process of this user may trace it or read its memory.
    libc.prctl(libc.PR_SET_DUMPABLE)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    only_read(readable)
    libc.drop_capabilities()
    # Last: the filter forbids most of the calls that the lines above make.
    filter_calls()


def _limit(memory_mib: int, output_bytes: int, cpu: int) -> None:
    here = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limits = {
        # What the fork inherits is counted, too, so the guest's share comes on top.
        resource.RLIMIT_AS: (here + (memory_mib << 20),) * 2,
        # Holds for the memory files of its output as well. The byte more shows that it was too long.
        resource.RLIMIT_FSIZE: (output_bytes + 1,) * 2,
        # A guest may ignore SIGXCPU at the first limit. Nobody ignores SIGKILL at the second.
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_NOFILE: (MAX_FILES,) * 2,
        resource.RLIMIT_NPROC: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    for what, bounds in limits.items():
        resource.setrlimit(what, bounds)


# Landlock: from now on this process opens nothing but files below some directories, and those only to read.
# Kernel documentation: userspace-api/landlock. Unprivileged, for good, inherited.
_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
"""ABI -> how many rights over files it knows; 16 since 5."""


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


@cache
def landlock_abi() -> int:
    """What the kernel can do, from 1; 0 where it has no Landlock or it is switched off."""
    version_flag = 1
    try:
        return libc.syscall(libc.LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(version_flag))
    except OSError:
        return 0


def only_read(directories: Iterable[Path]) -> None:
    """Nothing else, and no TCP, where the kernel can forbid it; no signal to and no abstract socket of others.

    Needs no_new_privs. Raises OSError.
    """
    version = landlock_abi()
    ruleset = _Ruleset((1 << _FS_BITS.get(version, 16)) - 1, 0b11 if version >= 4 else 0, 0b11 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = libc.syscall(libc.LANDLOCK_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for directory in directories:
            _allow(rules, directory)
        libc.syscall(libc.LANDLOCK_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _allow(rules: int, directory: Path) -> None:
    parent = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    read_file = 1 << 2
    read_dir = 1 << 3
    rule_path_beneath = 1
    try:
        rule = _PathBeneath(read_file | read_dir, parent)
        libc.syscall(
            libc.LANDLOCK_ADD_RULE,
            ctypes.c_int(rules),
            ctypes.c_int(rule_path_beneath),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(parent)


# seccomp: from now on this process makes only the system calls that Python needs to compute.
# An allow-list: whatever is not named fails with EPERM. No processes or threads, no sockets, no signals to anybody,
# no waiting (so that only computing takes time, which the kernel counts, and the wall clock almost never ends a
# call), no descriptors but files. Kernel documentation: seccomp_filter.
_ERRNO = 0x00050000
_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name -> (x86-64, aarch64); None: it has no such call
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "open": (2, None),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "access": (21, None),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "dup": (32, 23),
    "getpid": (39, 172),
    "exit": (60, 93),
    "uname": (63, 160),
    "getcwd": (79, 17),
    "readlink": (89, None),
    "getdents64": (217, 61),
    "gettimeofday": (96, 169),
    "getrusage": (98, 165),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "time": (201, None),
    "sched_getaffinity": (204, 123),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "exit_group": (231, 94),
    "openat": (257, 56),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "getrandom": (318, 278),
    "statx": (332, 291),
    "faccessat2": (439, 439),
}
_FUTEX, _FCNTL = (202, 98), (72, 25)
_FCNTL_ALLOWED = (0, 1, 2, 3, 1030)
"""Duplicate, get and set close-on-exec, get flags. Not the owner, to whom signals would go."""

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant."""


def supported() -> bool:
    return libc.machine() in _AUDIT


def filter_calls() -> None:
    """Needs no_new_privs. Raises OSError where the kernel has no seccomp filters."""
    code = machine_code()
    buffer = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer)))
    mode_filter = 2
    libc.prctl(libc.PR_SET_SECCOMP, ctypes.c_ulong(mode_filter), ctypes.byref(header))


@cache
def machine_code() -> bytes:
    """The filter of this machine. Made before a fork, it is there in every fork."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program(libc.machine()))


def program(machine: str) -> list[Instruction]:
    """The filter for one architecture, as classic BPF."""
    column = 0 if machine == "x86_64" else 1
    numbers = [pair[column] for pair in _CALLS.values()]
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    kill = 0x80000000
    call_number, architecture = 0, 4  # offsets in the call that a filter sees
    filtered: list[Instruction] = [
        # A number means another call on another architecture, so that one is looked at first.
        # x32 has the architecture of x86-64, and a bit in its numbers that none in the list has.
        (_LOAD, 0, 0, architecture),
        (_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, kill),
        (_LOAD, 0, 0, call_number),
    ]
    for number in numbers:
        if number is not None:
            filtered += _allow_if_equal([number])
    futex_command, futex_wake = 0x7F, 1
    filtered += _allow_by_argument(_FUTEX[column], [futex_wake], mask=futex_command)
    filtered += _allow_by_argument(_FCNTL[column], _FCNTL_ALLOWED)
    return [*filtered, refuse]


def _allow_if_equal(values: Sequence[int]) -> list[Instruction]:
    allow = 0x7FFF0000
    return [step for value in values for step in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, allow))]


def _allow_by_argument(number: int, values: Sequence[int], mask: int = 0xFFFFFFFF) -> list[Instruction]:
    """A call whose second argument has one of some values. It returns either way, so the number need not be loaded
    again."""
    # The lower half of it: both architectures are little-endian, and these calls take an int there.
    inside: list[Instruction] = [(_LOAD, 0, 0, 24), (_AND, 0, 0, mask), *_allow_if_equal(values)]
    inside.append((_RETURN, 0, 0, _ERRNO | errno.EPERM))
    return [(_EQUAL, 0, len(inside), number), *inside]
