"""A machine of a rollout's own: files in memory, a shell, a Python that remembers (`guests/intellect_session`).

It lives through the rollout's turns and is replayed by fuel alone (`node.sandbox.opening`). What leaves it are its
files. They are tested in machines of their own, because whoever wrote in the session may have changed everything there;
what a test should print never goes in.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from node.environments.errors import Undecided
from node.environments.guests import guest
from node.environments.programs import Opener
from node.environments.tools.form import tell_result
from node.sandbox import CallOutcome, CallStatus, SandboxCall, SandboxLimits, Sessions
from protocol.rollout import STATE_BYTES

TOOLS = {"sh": "runs shell commands in the repository", "python": "runs Python there, which remembers its names"}
MAX_FILES = 512
MAX_TESTS = 64
MAX_CHARACTERS = 1 << 20
"""Of all files and tests together."""
# No part begins with a dot, so no path leads out of the folder and none is hidden.
_PATH = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}(/[A-Za-z0-9_][\w.-]{0,99}){0,7}", re.ASCII)
_ENTRY = "intellect_session"


class SessionMachine:
    """For one thread; starts nothing before it is asked. fuel: of all calls of a session together; call_fuel: of one,
    and of a test; most: characters of a result that are told."""

    def __init__(self, opener: Opener, limits: SandboxLimits, *, fuel: int, call_fuel: int, most: int) -> None:
        files = {f"{_ENTRY}.py": guest(_ENTRY)}
        self._call_fuel, self._most = call_fuel, most
        self.sessions = Sessions(lambda: opener(files, _ENTRY, limits), fuel)

    def begin(self, files: Mapping[str, str]) -> SandboxCall:
        """The first call of a session."""
        # With a bound of its own, a call that never ends costs this much and not the whole session.
        return SandboxCall("begin", (files,), fuel=self._call_fuel)

    def run(self, tool: str, text: str) -> SandboxCall:
        # One character more than is told, by which `tell_result` sees that something was cut.
        return SandboxCall("run", (tool, text, self._most + 1), fuel=self._call_fuel)

    def told(self, calls: Sequence[SandboxCall]) -> str:
        """What the model is told of the last of them. Raises Undecided."""
        outcome = self.sessions.outcome(calls)
        said = outcome.value if outcome.status is CallStatus.OK else f"the call ended early: {outcome.status.value}"
        return tell_result(str(said), self._most)

    def states(self, sessions: Iterable[Sequence[SandboxCall]]) -> bytes:
        """Of the machine after each of these lists of calls, one behind the other. Raises Undecided."""
        return b"".join(self.sessions.state(calls)[:STATE_BYTES] for calls in sessions)

    def files(self, calls: Sequence[SandboxCall]) -> dict[str, str]:
        """What a session leaves, by path; nothing where it left too much or no files. Raises Undecided."""
        # The function is the program's own, but the session may have replaced it: its word is a stranger's.
        left = self.sessions.outcome([*calls, SandboxCall("files")])
        try:
            return msgspec.convert(left.value, dict[str, str]) if left.status is CallStatus.OK else {}
        except msgspec.ValidationError:
            return {}

    def test(self, files: Mapping[str, str], code: str, fuel: int | None = None) -> CallOutcome:
        """What a program does that can import the files. Raises Undecided."""
        (outcome,) = self.sessions.sandbox.run([SandboxCall("test", (files, code), fuel=fuel or self._call_fuel)])
        if isinstance(outcome, Undecided):
            raise outcome
        return outcome

    def close(self) -> None:
        self.sessions.close()


def check_files(paths: Iterable[str], files: Mapping[str, str], tests: Sequence[str]) -> None:
    """Raises ValueError where files and the code of tests are more than a machine takes. paths: all that are named."""
    if len(files) > MAX_FILES or len(tests) > MAX_TESTS:
        raise ValueError(f"it has more than {MAX_FILES} files or {MAX_TESTS} tests")
    wrong = next((path for path in paths if not _PATH.fullmatch(path)), None)
    if wrong is not None:
        raise ValueError(f"{wrong[:80]!r} is no plain relative path")
    if sum(map(len, files.values())) + sum(map(len, tests)) > MAX_CHARACTERS:
        raise ValueError(f"its files and tests have more than {MAX_CHARACTERS} characters")
