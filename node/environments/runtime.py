"""Which sandbox strangers' code runs in: CPython for WASI, whose outcomes are the same on every machine.

The interpreter is a file of the run (`RUNTIME`), or the user's own copy of it, known by its hash.
"""

from collections.abc import Mapping
from pathlib import Path

from node.environments.programs import Opener
from node.sandbox import Limits, Sandbox

RUNTIME = "python.wasm"
"""Its path among a run's assets."""


def opener_for(assets: Path | None = None) -> Opener:
    """Opens sandboxes with the interpreter of a run, else the user's. Raises SandboxError where there is none."""

    def opened(files: Mapping[str, bytes], entry: str, limits: Limits) -> Sandbox:
        from node.sandbox import find_runtime, open_wasi

        return open_wasi(files, entry, limits, find_runtime(assets))

    return opened
