"""System calls that Python has no function for. Linux only. Standard library only."""

import ctypes
import os
import platform
import signal

from node.processes.guardian import PR_SET_PDEATHSIG

LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
"""The same number on every architecture."""
CAPSET = {"x86_64": 126, "aarch64": 91}
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38
_libc = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    return platform.machine()


def syscall(number: int, *arguments: int | object) -> int:
    """Raises OSError."""
    _libc.syscall.restype = ctypes.c_long
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments))


def prctl(option: int, *arguments: int | object) -> int:
    """Raises OSError."""
    # The kernel refuses some options unless unused arguments are 0. ctypes would pass an int, whose upper half
    # may be anything.
    filled = [*arguments, *[ctypes.c_ulong(0)] * (4 - len(arguments))]
    return _checked(_libc.prctl(option, *filled))


def die_with(parent: int) -> None:
    """`node.processes.guardian.die_with_parent`, with a library that is loaded already: in a fork every page counts."""
    prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    # A parent that died before the line above sends no signal any more.
    if os.getppid() != parent:
        os._exit(1)


def drop_capabilities() -> None:
    """All of them, for good. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    nothing = (ctypes.c_uint32 * 6)()
    syscall(CAPSET[machine()], ctypes.byref(header), ctypes.byref(nothing))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
