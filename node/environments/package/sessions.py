"""Rollouts of a package as sessions: its functions say what a machine is to do, the machine says what came of it.

The package's code never runs in the machine, nor does it see more of it than words and files: what is right stays out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from node.bounded_dict import BoundedDict
from node.environments.base import key_of
from node.environments.errors import Undecided
from node.environments.machine import TOOLS, SessionMachine, check_files
from node.environments.package.manifest import SessionLimits
from node.environments.programs import Opener, finished
from node.environments.tools.form import MAX_CALL, ToolCall, parse_call
from node.sandbox import CallOutcome, CallStatus, SandboxCall

Row = Any
Turns = list[dict[str, str]]
Asked = tuple[Row, Turns]
CallAll = Callable[[str, Sequence[Sequence[Any]]], list[CallOutcome | Undecided]]
_Next = str | ToolCall | None
"""What a package has for a model behind an answer: words, a call whose result is told, nothing more."""


class PackageSessions:
    """For one thread; blocks. call_all: of the package's functions, which are `functions`. Raises Undecided wherever
    the package or a machine has no outcome here."""

    def __init__(
        self,
        session: SessionLimits,
        packages: tuple[str, ...],
        functions: Sequence[str],
        call_all: CallAll,
        opener: Opener,
    ) -> None:
        fuel, most = session.fuel, session.result_characters
        self._machine = SessionMachine(
            opener, session.limits(packages), fuel=fuel, call_fuel=session.call_fuel, most=most
        )
        self._functions, self._call_all = functions, call_all
        remembered = 1 << 12
        self._next = BoundedDict[bytes, _Next](remembered)
        self._given = BoundedDict[bytes, tuple[dict[str, str], tuple[str, ...]] | None](remembered)
        self._ran = BoundedDict[bytes, dict[str, Any]](remembered)
        self.spent = 0
        """instructions of all tests so far"""

    def replies(self, asked: Sequence[Asked]) -> list[str | None | Undecided]:
        """What the model is told behind the last answers; None: the rollout is over."""
        self._ask([one for one in asked if key_of(one) not in self._next])
        return [self._reply(*one) for one in asked]

    def states(self, row: Row, turns: Turns) -> bytes:
        """STATE_BYTES for each time that something was said."""
        ends = [end for end, turn in enumerate(turns) if turn["role"] == "user"]
        return self._machine.states(self._calls(row, turns[: end + 1]) for end in ends)

    def left(self, row: Row, turns: Turns) -> dict[str, Any]:
        """What `score` is told of a session: its files, and what the tests did with them. Empty, which is the floor:
        there are none, or the session used up what it may use."""
        given = self._gave(row)
        files = self._machine.files(self._calls(row, turns)) if given else {}
        return {"files": files, "runs": [self._run(files, code) for code in given[1]]} if given and files else {}

    def close(self) -> None:
        self._machine.close()

    def _reply(self, row: Row, turns: Turns) -> str | None | Undecided:
        try:
            chosen = self._chosen(row, turns)
            # Files that no machine takes end the rollout everywhere: they follow from the row, not from this machine.
            if chosen is None or self._gave(row) is None:
                return None
            if isinstance(chosen, str):
                return chosen
            return self._machine.told([*self._calls(row, turns), self._machine.run(chosen.tool, chosen.text)])
        except Undecided as undecided:
            return undecided

    def _calls(self, row: Row, turns: Turns) -> list[SandboxCall]:
        """Those that were made before the last answer, or were answered by it."""
        given = self._gave(row)
        calls = [self._machine.begin(given[0] if given else {})]
        for end, turn in enumerate(turns):
            chosen = self._chosen(row, turns[:end]) if turn["role"] == "user" else None
            if isinstance(chosen, ToolCall):
                calls.append(self._machine.run(chosen.tool, chosen.text))
        return calls

    def _chosen(self, row: Row, turns: Turns) -> _Next:
        key = key_of((row, turns))
        if key not in self._next:
            self._ask([(row, turns)])
        if key not in self._next:
            raise Undecided(
                "a package says nothing here", "its step has no outcome", "see whether this machine is busy"
            )
        return self._next[key]

    def _ask(self, asked: Sequence[Asked]) -> None:
        if "step" not in self._functions:
            for row, turns in asked:
                self._next[key_of((row, turns))] = parse_call(turns[-1]["content"], TOOLS)
            return
        for one, outcome in zip(asked, self._call_all("step", asked) if asked else (), strict=True):
            # An undecided step is not remembered: this machine may tell it the next time.
            if not isinstance(outcome, Undecided):
                self._next[key_of(one)] = _next_of(outcome)

    def _gave(self, row: Row) -> tuple[dict[str, str], tuple[str, ...]] | None:
        """The files that a session begins with, and its tests; None where a package gives what no machine takes."""
        key = key_of((row, []))
        if key not in self._given:
            told: dict[str, Any] = {}
            for name in ("files", "tests"):
                if name in self._functions:
                    outcome = self._call_all(name, [(row,)])[0]
                    if isinstance(outcome, Undecided):
                        raise outcome
                    told[name] = outcome.value if outcome.status is CallStatus.OK else None
            self._given[key] = _given(**told)
        return self._given[key]

    def _run(self, files: dict[str, str], code: str) -> dict[str, Any]:
        key = key_of((sorted(files.items()), code))
        if key not in self._ran:
            outcome = self._machine.test(files, code)
            self.spent += outcome.fuel
            self._ran[key] = {"ok": finished(outcome), "output": outcome.printed.decode(errors="replace")}
        return self._ran[key]


def _next_of(outcome: CallOutcome) -> _Next:
    """A step that fails, or says what is neither words nor a call, ends the rollout."""
    said = outcome.value if outcome.status is CallStatus.OK else None
    if isinstance(said, dict) and len(said) == 1:
        ((tool, text),) = said.items()
        good = tool in TOOLS and isinstance(text, str) and 0 < len(text.strip()) <= MAX_CALL
        return ToolCall(tool, text) if good else None
    return said if isinstance(said, str) and 0 < len(said) <= MAX_CALL else None


def _given(files: Any, tests: Any = ()) -> tuple[dict[str, str], tuple[str, ...]] | None:
    try:
        given = msgspec.convert(files, dict[str, str]), msgspec.convert(tests, tuple[str, ...])
        check_files(given[0], *given)
    except ValueError:  # msgspec's among them
        return None
    return given
