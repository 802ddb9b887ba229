"""The native sandbox: the same interface, the kernel's walls, and honesty about what the kernel lacks."""

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from node.sandbox import CallStatus, SandboxCall, SandboxError, SandboxLimits, Undecided, open_confined
from node.sandbox.confined import walls
from node.sandbox.process import ProcessSandbox
from tests.node.sandbox.test_wasi import SOURCE

Opener = Callable[..., ProcessSandbox]


@pytest.fixture(scope="module")
def sandbox(confined: Opener) -> ProcessSandbox:
    return confined(SOURCE, SandboxLimits(memory_mib=128, output_bytes=1 << 16, seconds=20), {"helper.py": b"ONE = 1"})


def test_it_answers_as_the_other_sandbox_does(sandbox: ProcessSandbox) -> None:
    assert [sandbox.call("count").value for _ in range(2)] == [1, 1]
    assert sandbox.call("echo", "ä", [1]).value == ["ä", [1]]
    said = sandbox.call("say", "hi")
    assert (said.printed, said.complained, said.fuel) == (b"hi\n", b"oh", 0)
    assert next(sandbox.run([SandboxCall("read", stdin=b"x" * 10_000)])).value == "x" * 10_000  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("function", "arguments", "status"),
    [
        ("leave", [3], CallStatus.EXITED),
        ("nothing", [], CallStatus.RAISED),
        ("take", [1024], CallStatus.OUT_OF_MEMORY),
        ("say", ["x" * 100_000], CallStatus.TOO_LONG),
    ],
)
def test_each_way_to_end_has_its_name(
    sandbox: ProcessSandbox, function: str, arguments: list[object], status: CallStatus
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
    monkeypatch.setattr(walls, "landlock_abi", lambda: 0)
    with pytest.raises(Undecided, match="Landlock"):
        open_confined({"entry.py": b""}, "entry", SandboxLimits())
    monkeypatch.setattr(walls, "supported", lambda: False)
    assert "x86-64" in (walls.missing() or "")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_it_does_not_know_and_jumps_stay_within_it(machine: str) -> None:
    steps = walls.program(machine)
    returns = {constant for code, _, _, constant in steps if code == 0x06}
    assert steps[-1] == (0x06, 0, 0, 0x00050001)
    assert returns == {0x80000000, 0x7FFF0000, 0x00050001}
    for place, (_, true, false, _) in enumerate(steps[:-1]):
        assert place + 1 + max(true, false) < len(steps)


KILLED, REFUSED, ALLOWED = 0x80000000, 0x00050001, 0x7FFF0000
HEADERS = {
    "x86_64": (0xC000003E, "x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": (0x80000000 | 0x40000000 | 183, "asm-generic/unistd.h"),  # 64 bit, little end first, EM_AARCH64
}


def says(machine: str, number: int, second: int = 0, architecture: int | None = None) -> int:
    """What the filter's steps come to, by the rules of classic BPF."""
    words = {0: number, 4: HEADERS[machine][0] if architecture is None else architecture, 24: second}
    steps, place, held = walls.program(machine), 0, 0
    while True:
        code, true, false, constant = steps[place]
        place += 1
        if code == 0x06:
            return constant
        if code == 0x20:
            held = words[constant]
        elif code == 0x54:
            held &= constant
        else:
            place += true if held == constant else false


@pytest.mark.parametrize("machine", HEADERS)
def test_the_filter_allows_the_calls_that_the_kernels_headers_number_so_and_no_others(machine: str) -> None:
    header = Path("/usr/include") / HEADERS[machine][1]
    if not header.exists():
        pytest.skip(f"there is no {header}: install linux-libc-dev")
    found = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", header.read_text())
    numbers = {name: int(number) for name, number in found}
    numbers.setdefault("newfstatat", numbers.get("fstatat", -1))  # the generic table's name for it
    allowed = {number for number in range(1024) if says(machine, number) == ALLOWED}
    named = {numbers[name] for name in walls._CALLS if name in numbers}
    assert allowed == named | {numbers["fcntl"]}  # with its second argument 0, duplicate
    lacking = {name for name in walls._CALLS if name not in numbers}
    assert lacking == (set() if machine == "x86_64" else {"open", "stat", "lstat", "access", "readlink", "time"})
    assert {says(machine, numbers["futex"], second) for second in (1, 129)} == {ALLOWED}
    assert {says(machine, numbers["futex"], second) for second in (0, 128, 9)} == {REFUSED}
    assert says(machine, numbers["fcntl"], 8) == REFUSED  # who gets its signals
    for name in ("clone", "execve", "socket", "ptrace", "kill", "bpf", "prctl", "nanosleep", "io_uring_setup"):
        assert says(machine, numbers[name]) == REFUSED


@pytest.mark.parametrize("machine", HEADERS)
def test_a_call_of_another_architecture_ends_the_process(machine: str) -> None:
    foreign = {one for one, _ in HEADERS.values()} | {0x40000003, 0x40000028}  # x86 and arm of 32 bits
    for architecture in foreign - {HEADERS[machine][0]}:
        assert says(machine, 63, architecture=architecture) == KILLED


def test_the_kernel_takes_the_filter_of_the_other_architecture_and_ends_who_is_none() -> None:
    if not walls.supported() or walls.missing():
        pytest.skip("this machine has no seccomp filters")
    for machine, ends in (("own", 0), ("other", -signal.SIGSYS)):
        lines = (
            "from node.sandbox.confined import libc, walls; import os",
            "own = libc.machine(); other = 'aarch64' if own == 'x86_64' else 'x86_64'",
            f"made = walls.program({machine})",
            "walls.program = lambda _: made",
            "libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1); walls.filter_calls(); os.getpid(); os._exit(0)",
        )
        done = subprocess.run([sys.executable, "-c", "\n".join(lines)], check=False, timeout=60)
        assert done.returncode == ends, machine
