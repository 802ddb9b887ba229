"""Landlock: from now on this process opens nothing but files below some directories, and those only to read.

Kernel documentation: userspace-api/landlock. Unprivileged, for good, inherited.
"""

import ctypes
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from node.sandbox.confined import libc

_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
"""ABI -> how many rights over files it knows; 16 since 5."""


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


@cache
def abi() -> int:
    """What the kernel can do, from 1; 0 where it has no Landlock or it is switched off."""
    try:
        return libc.syscall(libc.LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def only_read(directories: Iterable[Path]) -> None:
    """Nothing else, and no TCP, where the kernel can forbid it; no signal to and no abstract socket of others.

    Needs no_new_privs. Raises OSError.
    """
    version = abi()
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
    try:
        rule = _PathBeneath(_READ_FILE | _READ_DIR, parent)
        libc.syscall(
            libc.LANDLOCK_ADD_RULE,
            ctypes.c_int(rules),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(parent)
