"""Opens a sandbox: the one way in for everybody else."""

import re
from collections.abc import Mapping
from pathlib import Path

from node.sandbox import shelf, wire
from node.sandbox.base import Limits
from node.sandbox.confined import walls
from node.sandbox.errors import SandboxError, Undecided
from node.sandbox.process import ProcessSandbox
from node.sandbox.runtime import compiled
from node.sandbox.wasi.settings import OPTIMISED, Settings

WASI_HOST = "node.sandbox.wasi.host"
CONFINED_HOST = "node.sandbox.confined.host"
MAX_FILES = 4096
MAX_BYTES = 64 << 20
_PATH = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}(/[A-Za-z0-9_][\w.-]{0,99}){0,7}", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w{0,99}(\.[A-Za-z_]\w{0,99}){0,7}", re.ASCII)


def open_wasi(
    files: Mapping[str, bytes], entry: str, limits: Limits, runtime: Path, *, settings: Settings = OPTIMISED
) -> ProcessSandbox:
    """CPython for WASI with counted instructions: the same outcomes on every machine.

    files: relative path -> content; entry: the module among them whose functions are called; runtime: what
    `find_runtime` found, packages beside it or in this user's cache. Raises SandboxError (the entry does not load),
    RuntimeMissing, Undecided.
    """
    check_files(files, entry)
    files = {**files, **shelf.files(limits.packages, runtime.parent)}
    return ProcessSandbox(WASI_HOST, _load(files, entry, limits, str(compiled(runtime, settings))), limits)


def open_confined(files: Mapping[str, bytes], entry: str, limits: Limits) -> ProcessSandbox:
    """A native Python behind the kernel's walls: about ten times faster, and not the same on every machine.

    For what no verdict depends on. Fuel is CPU time here (`confined.walls.FUEL_PER_SECOND`). Raises SandboxError,
    Undecided where the kernel lacks a wall.
    """
    check_files(files, entry)
    lacking = "the packages of the shelf are made for WASI" if limits.packages else walls.missing()
    if lacking is not None:
        raise Undecided(
            "this machine cannot confine a native program", lacking, "use the WASI sandbox, or a newer kernel"
        )
    return ProcessSandbox(CONFINED_HOST, _load(files, entry, limits, ""), limits)


def _load(files: Mapping[str, bytes], entry: str, limits: Limits, runtime: str) -> wire.Load:
    return wire.Load(
        files=dict(files),
        entry=entry,
        fuel=limits.fuel,
        load_fuel=limits.load_fuel,
        memory_mib=limits.memory_mib,
        output_bytes=limits.output_bytes,
        seconds=limits.seconds,
        runtime=runtime,
        disk_bytes=limits.disk_bytes,
    )


def check_files(files: Mapping[str, bytes], entry: str) -> None:
    """files: relative path -> content; entry: a module among them. Raises SandboxError."""
    for path in files:
        if not _PATH.fullmatch(path):
            raise _refused(f"{path[:100]!r} is no plain relative path", "rename the file: letters, digits, _ . -")
    if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_BYTES:
        raise _refused(f"more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB", "leave out what is not needed")
    place = entry.replace(".", "/")
    if not _MODULE.fullmatch(entry) or not {f"{place}.py", f"{place}/__init__.py"} & files.keys():
        raise _refused(f"there is no module {entry[:100]!r} among them", f"add {place[:100]}.py")


def _refused(why: str, remedy: str) -> SandboxError:
    return SandboxError("these files cannot be put into a sandbox", why, remedy)
