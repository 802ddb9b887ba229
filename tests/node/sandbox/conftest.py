"""What the tests of the sandbox share: the interpreter of this machine, and doors that close themselves."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from node.sandbox import RuntimeMissing, SandboxLimits, find_runtime, open_confined, open_wasi
from node.sandbox.confined import walls
from node.sandbox.process import ProcessSandbox

LIMITS = SandboxLimits(fuel=1_000_000_000, memory_mib=128, output_bytes=1 << 16, seconds=30.0)
Opener = Callable[..., ProcessSandbox]


@pytest.fixture(scope="session")
def interpreter() -> Path:
    try:
        return find_runtime()
    except RuntimeMissing as missing:
        pytest.skip(f"{missing}; {missing.remedy}")


@pytest.fixture(scope="module")
def wasi(interpreter: Path) -> Iterator[Opener]:
    """open(source, limits): a WASI sandbox whose entry module is `source`."""
    opened: list[ProcessSandbox] = []

    def open_one(
        source: str, limits: SandboxLimits = LIMITS, files: Mapping[str, bytes] | None = None
    ) -> ProcessSandbox:
        opened.append(open_wasi({"entry.py": source.encode(), **(files or {})}, "entry", limits, interpreter))
        return opened[-1]

    yield open_one
    for sandbox in opened:
        sandbox.close()


@pytest.fixture(scope="module")
def confined() -> Iterator[Opener]:
    """The same, natively."""
    lacking = walls.missing()
    if lacking:
        pytest.skip(lacking)
    opened: list[ProcessSandbox] = []

    def open_one(
        source: str, limits: SandboxLimits = LIMITS, files: Mapping[str, bytes] | None = None
    ) -> ProcessSandbox:
        opened.append(open_confined({"entry.py": source.encode(), **(files or {})}, "entry", limits))
        return opened[-1]

    yield open_one
    for sandbox in opened:
        sandbox.close()
