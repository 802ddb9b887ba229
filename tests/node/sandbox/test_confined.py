"""The native sandbox: the same interface, the kernel's walls, and honesty about what the kernel lacks."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from node.sandbox import Call, Limits, SandboxError, Status, Undecided, open_confined
from node.sandbox.confined import landlock, seccomp, walls
from node.sandbox.process import ProcessSandbox
from tests.node.sandbox.test_wasi import SOURCE

Opener = Callable[..., ProcessSandbox]


@pytest.fixture(scope="module")
def sandbox(confined: Opener) -> ProcessSandbox:
    return confined(SOURCE, Limits(memory_mib=128, output_bytes=1 << 16, seconds=20), {"helper.py": b"ONE = 1"})


def test_it_answers_as_the_other_sandbox_does(sandbox: ProcessSandbox) -> None:
    assert [sandbox.call("count").value for _ in range(2)] == [1, 1]
    assert sandbox.call("echo", "ä", [1]).value == ["ä", [1]]
    said = sandbox.call("say", "hi")
    assert (said.printed, said.complained, said.fuel) == (b"hi\n", b"oh", 0)
    assert next(sandbox.run([Call("read", stdin=b"x" * 10_000)])).value == "x" * 10_000  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("function", "arguments", "status"),
    [
        ("leave", [3], Status.EXITED),
        ("nothing", [], Status.RAISED),
        ("take", [1024], Status.OUT_OF_MEMORY),
        ("say", ["x" * 100_000], Status.TOO_LONG),
    ],
)
def test_each_way_to_end_has_its_name(
    sandbox: ProcessSandbox, function: str, arguments: list[object], status: Status
) -> None:
    assert sandbox.call(function, *arguments).status is status


def _left(marker: str) -> list[Path]:
    """Directories of the sandbox that holds this text; other tests' come and go meanwhile."""

    def holds(directory: Path) -> bool:
        try:
            return any(marker in file.read_text() for file in directory.rglob("*.py"))
        except FileNotFoundError:
            return False

    return [found for found in Path(tempfile.gettempdir()).glob("intellect-node-sandbox-*") if holds(found)]


def test_nothing_of_a_closed_sandbox_is_left(confined: Opener, tmp_path: Path) -> None:
    marker = str(tmp_path)
    one = confined(f"{SOURCE}\n# {marker}\n")
    process = one._process
    assert process is not None and _left(marker)
    one.close()
    assert process.returncode == 0 and not _left(marker)


def test_an_entry_that_does_not_load_is_named(confined: Opener) -> None:
    with pytest.raises(SandboxError, match="cannot be loaded"):
        confined("import nothing")


def test_a_wall_that_is_missing_is_said_and_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    with pytest.raises(Undecided, match="Landlock"):
        open_confined({"entry.py": b""}, "entry", Limits())
    monkeypatch.setattr(seccomp, "supported", lambda: False)
    assert "x86-64" in (walls.missing() or "")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_it_does_not_know_and_jumps_stay_within_it(machine: str) -> None:
    steps = seccomp.program(machine)
    returns = {constant for code, _, _, constant in steps if code == 0x06}
    assert steps[-1] == (0x06, 0, 0, 0x00050001)
    assert returns == {0x80000000, 0x7FFF0000, 0x00050001}
    for place, (_, true, false, _) in enumerate(steps[:-1]):
        assert place + 1 + max(true, false) < len(steps)
