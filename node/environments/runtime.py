"""Which sandbox strangers' code runs in: CPython for WASI, whose outcomes are the same on every machine.

The interpreter is a file of the run (`RUNTIME`), or the user's own copy of it, known by its hash.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from node.environments.programs import Opener
from node.sandbox import Limits, Sandbox, SandboxError, find_runtime, shelf

RUNTIME = "python.wasm"
"""Its path among a run's assets."""


def opener_for(assets: Path | None = None, *, optimised: bool = True) -> Opener:
    """Opens sandboxes with the interpreter of a run, else the user's. Raises SandboxError where there is none.

    optimised: whether the compiler takes its time for fast code; outcomes are the same.
    """

    def opened(files: Mapping[str, bytes], entry: str, limits: Limits) -> Sandbox:
        from node.sandbox import open_wasi
        from node.sandbox.pool import SandboxPool
        from node.sandbox.wasi.settings import Settings

        runtime, settings = find_runtime(assets), Settings(optimised=optimised)
        return SandboxPool(lambda: open_wasi(files, entry, limits, runtime, settings=settings))

    return opened


def sandbox_files(packages: Iterable[str] = ()) -> dict[str, Path]:
    """What a run needs for a sandbox with these packages, by asset. Raises SandboxError."""
    return {RUNTIME: find_runtime(), **{one.asset: shelf.find(one) for one in shelf.wanted(packages)}}


def own_copy(asset: str) -> Path | None:
    """This user's copy of an asset that all runs share; None where there is none."""
    package = shelf.ASSETS.get(asset)
    try:
        return find_runtime() if asset == RUNTIME else shelf.find(package) if package else None
    except SandboxError:
        return None
