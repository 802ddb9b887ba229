"""A session remembers from call to call; the same calls lead to the same machine, wherever and however often."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from node.environments.guests import guest
from node.sandbox import CallOutcome, CallStatus, SandboxCall, SandboxLimits, Sessions, Undecided
from node.sandbox.process import ProcessSandbox

ENTRY = "intellect_session"
LIMITS = SandboxLimits(fuel=100_000_000, memory_mib=128, output_bytes=1 << 16, seconds=60.0, disk_bytes=64 << 10)
BEGIN = SandboxCall("begin", ({"m.py": "def f(x):\n    return x + 1\n"},))
Opener = Callable[..., ProcessSandbox]
Made = Callable[..., Sessions]


@pytest.fixture(scope="module")
def sandbox(wasi: Opener) -> ProcessSandbox:
    return wasi("from intellect_session import *", LIMITS, {f"{ENTRY}.py": guest(ENTRY)})


@pytest.fixture
def made(sandbox: ProcessSandbox) -> Iterator[Made]:
    """made(kept, fuel): sessions of their own, in one sandbox."""
    opened: list[Sessions] = []

    def make(kept: int = 8, fuel: int = 10**11) -> Sessions:
        opened.append(Sessions(lambda: sandbox, fuel, kept))
        return opened[-1]

    yield make
    for sessions in opened:
        sessions.forget()


def _turns(*texts: str) -> list[SandboxCall]:
    """$ begins a shell command, anything else is Python."""
    tools = [("sh", text[1:]) if text.startswith("$") else ("python", text) for text in texts]
    return [BEGIN, *(SandboxCall("run", (*tool, 2000)) for tool in tools)]


def _played(sessions: Sessions, calls: list[SandboxCall]) -> list[CallOutcome]:
    return [sessions.outcome(calls[: turn + 1]) for turn in range(len(calls))]


WORK = _turns(
    "x = 20",
    "$sed -i 's/x + 1/x * 2/' m.py; cat m.py | grep return",
    "import m; y = m.f(x)\nopen('out.txt', 'w').write(str(y)); print(y)",
    "$cat out.txt; ls && python -c 'print(6*7)' > a.txt; wc -l a.txt",
    "while True: pass",
    "import random, time; x, y, random.random(), time.time()",
)


def test_names_files_and_edits_stay_from_turn_to_turn(made: Made) -> None:
    said = [outcome.value for outcome in _played(made(), WORK)]
    assert said[2:5] == ["    return x * 2\n", "40\n", "40m.py\nout.txt\n1\n"]
    assert said[5] is None  # the loop ran out of fuel, and took nothing with it
    assert said[6].startswith("(20, 40, ")


def test_a_session_comes_to_the_same_state_from_its_snapshots_and_from_its_beginning(made: Made) -> None:
    kept, forgetful = made(), made(kept=0)
    one, other = _played(kept, WORK), _played(forgetful, WORK)
    assert one == other  # states, fuel and words
    assert len({outcome.state for outcome in one}) == len(one)
    assert kept.replayed == 5  # what the endless loop took with it, once
    assert forgetful.replayed > 2 * kept.replayed


def test_a_machine_that_is_lost_is_built_again_and_never_taken_for_another(made: Made) -> None:
    sessions = made()
    expected = _played(made(), WORK[:5])
    _played(sessions, WORK[:4])
    process = sessions.sandbox._process  # type: ignore[attr-defined]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(Undecided, match="process is gone"):
        sessions.outcome(WORK[:5])
    assert sessions.outcome(WORK[:5]) == expected[4]


@pytest.mark.parametrize(
    ("attack", "ends", "says"),
    [
        ("open('big', 'wb').write(b'x' * 10**7)", CallStatus.OK, "OSError: [Errno 51]"),
        ("import os\nfor i in range(10**6): os.mkdir(str(i))", CallStatus.OK, "OSError: [Errno 51]"),
        ("import os\nos.fork()", CallStatus.OK, "AttributeError"),
        ("import time\ntime.sleep(10**8)\nprint('awake')", CallStatus.OK, "awake"),
        ("while True: pass", CallStatus.OUT_OF_FUEL, ""),
        ("import os\nos._exit(0)", CallStatus.EXITED, ""),
        ("open('/app/intellect_session.py', 'w')", CallStatus.OK, "OSError: [Errno 69]"),
    ],
)
def test_an_attack_is_held_and_leaves_the_session_as_it_was(
    made: Made, attack: str, ends: CallStatus, says: str
) -> None:
    sessions = made()
    outcome = sessions.outcome(_turns("x = 5", attack))
    assert outcome.status is ends
    assert says in str(outcome.value or "")
    assert sessions.outcome(_turns("x = 5", attack, "x")).value == "5\n"


def test_all_calls_of_a_session_share_one_budget(made: Made) -> None:
    sessions = made(fuel=LIMITS.fuel)
    calls = _turns("x = 1", "while True: pass", "x")
    assert [outcome.status for outcome in _played(sessions, calls)][2:] == [CallStatus.OUT_OF_FUEL] * 2
    assert made(fuel=3 * LIMITS.fuel).outcome(calls).value == "1\n"


def test_many_sessions_at_once_do_not_mix(made: Made) -> None:
    sessions = made()
    for name in "abcd":
        sessions.outcome(_turns(f"x = '{name}'"))
    assert [sessions.outcome(_turns(f"x = '{name}'", "x")).value for name in "abcd"] == [f"'{n}'\n" for n in "abcd"]
    assert sessions.replayed == 3  # the beginning, which all share, once for each of the others
