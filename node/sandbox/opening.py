"""Opens a sandbox: the one way in for everybody else."""

from collections.abc import Mapping
from pathlib import Path

from node.sandbox import shelf, wire
from node.sandbox.base import Limits
from node.sandbox.confined import walls
from node.sandbox.errors import Undecided
from node.sandbox.files import check_files
from node.sandbox.process import ProcessSandbox
from node.sandbox.runtime import compiled
from node.sandbox.wasi.settings import OPTIMISED, Settings

WASI_HOST = "node.sandbox.wasi.host"
CONFINED_HOST = "node.sandbox.confined.host"


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
