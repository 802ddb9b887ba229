"""A package's code in its sandbox: its rows with their prompts, and its functions as one batch of calls each.

Whatever it says is checked here: it was written by a stranger.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import msgspec

from node.environments.errors import PackageError, Undecided
from node.environments.guests import guest
from node.environments.package.manifest import ROWS, Manifest, read_manifest
from node.environments.package.sessions import PackageSessions
from node.environments.programs import Opener
from node.sandbox import CallOutcome, CallStatus, Sandbox, SandboxError
from node.sandbox import Undecided as NoOutcome
from protocol.errors import UNREADABLE

MAX_ROWS = 1_000_000
MAX_ROW_BYTES = 256 * 1024
MAX_TOTAL_BYTES = 1 << 30
"""Of all rows and prompts."""
MAX_SAID = 64 * 1024
"""Characters that an environment may say in a turn."""
_ENTRY = "intellect_package"
_NO_TRICKS = "do not change Python's own functions"

Turn = dict[str, str]
"""{"role": "assistant" | "user", "content": text}"""
Row = Any
"""A JSON object."""


class _Facts(msgspec.Struct, frozen=True):
    functions: tuple[str, ...]
    rows: int | None


@dataclass(frozen=True, slots=True)
class Item:
    """number: its place among the rows, from 0; prompt: text or messages, not yet looked at."""

    number: int
    row: Row
    prompt: Any


class LoadedPackage:
    """The package's functions. For one thread; blocks. functions: which of them it has."""

    def __init__(self, files: Mapping[str, bytes], opener: Opener) -> None:
        """Raises PackageError where the package or its module cannot be used."""
        self.manifest: Manifest = read_manifest(files)
        self._files = files
        self._opener = opener
        self.spent = 0
        """instructions of all calls so far"""
        self.most_spent = 0
        """of one call"""
        # Set before anything can fail: `close` looks at it.
        self.sessions: PackageSessions | None = None
        try:
            self.sandbox = self._opened()
        # It is a SandboxError, too, but what this machine cannot do is no mistake of the package.
        except NoOutcome:
            raise
        except SandboxError as error:
            raise self._unusable(f"{error.what}: {error.why}", error.remedy) from error
        try:
            facts = self._read(self._must("describe"), _Facts)
            self.functions = facts.functions
            self.sessions = self._with_sessions()
            self._made = facts.rows
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        judged, several = self.manifest.determinism == "judged", self.manifest.turns > 1
        talks = ["files"] if self.manifest.session else ["step"] if several else []
        wanted = ["prompt", *([] if judged else ["score"]), *talks]
        missing = [name for name in wanted if name not in self.functions]
        if missing:
            raise self._unusable(f"there is no function {missing[0]}", "write it: see docs/environments.md")
        if self.manifest.session and "program" in self.functions:
            raise self._unusable("it has sessions, and a function program", "write tests(row) in its place")
        if (self._made is None) == (ROWS not in self._files):
            raise self._unusable("it has no rows, or two sources of them", f"write rows(), or put {ROWS} in")
        if self._made is not None and self._made > MAX_ROWS:
            raise self._unusable(f"it has more than {MAX_ROWS} rows", "make fewer")

    def items(self) -> Iterator[Item]:
        """Every row with its prompt, in order, read in slices. Raises PackageError."""
        total = 0
        for item in self._file_items() if self._made is None else self._made_items(self._made):
            total += len(msgspec.json.encode((item.row, item.prompt)))
            if total > MAX_TOTAL_BYTES:
                raise self._unusable(f"its rows have more than {MAX_TOTAL_BYTES} bytes", "make fewer")
            yield item

    def _made_items(self, count: int) -> Iterator[Item]:
        number, most = 0, self.manifest.limits.output_bytes // 8
        while number < count:
            pairs = self._read(self._must("asked", number, most), list[tuple[Row, Any]])
            # The guest gives at least one, but its package can change what it calls: this loop would never end.
            if not 0 < len(pairs) <= count - number:
                raise self._unusable(f"it told {len(pairs)} rows behind row {number} of {count}", _NO_TRICKS)
            for row, prompt in pairs:
                yield self._item(number, row, prompt)
                number += 1

    def _file_items(self) -> Iterator[Item]:
        lines = [line for line in self._files[ROWS].splitlines() if line.strip()]
        if len(lines) > MAX_ROWS:
            raise self._unusable(f"it has more than {MAX_ROWS} rows", "make fewer")
        number, most = 0, self.manifest.limits.output_bytes // 8
        while number < len(lines):
            rows = [self._line(place, lines[place]) for place in _slice(lines, number, most)]
            prompts = self._read(self._must("prompts", number, rows), list[Any])
            if len(prompts) != len(rows):
                why = f"it told {len(prompts)} prompts of {len(rows)} rows"
                raise self._unusable(why, _NO_TRICKS)
            for row, prompt in zip(rows, prompts, strict=True):
                yield self._item(number, row, prompt)
                number += 1

    def _line(self, number: int, line: bytes) -> Row:
        try:
            return msgspec.json.decode(line)
        except UNREADABLE as error:
            raise self._unusable(f"{ROWS}, row {number}: not JSON: {error}", "correct the row") from None

    def _item(self, number: int, row: Row, prompt: Any) -> Item:
        if not isinstance(row, dict) or len(json.dumps(row)) > MAX_ROW_BYTES:
            why = f"row {number} is no object of at most {MAX_ROW_BYTES} bytes"
            raise self._unusable(why, "make rows dicts of plain values")
        return Item(number, row, prompt)

    def call_all(self, function: str, calls: Sequence[Sequence[Any]]) -> list[CallOutcome | NoOutcome]:
        """One outcome for each list of arguments, from the same state every time."""
        outcomes = self.sandbox.call_all(function, calls)
        fuel = [outcome.fuel for outcome in outcomes if isinstance(outcome, CallOutcome)]
        self.spent += sum(fuel)
        self.most_spent = max([self.most_spent, *fuel])
        return outcomes

    def step(self, row: Row, turns: list[Turn]) -> str | None:
        """What the environment says next; None: the rollout is over. Raises Undecided.

        A step that fails ends the rollout: on every machine, since its limits are counted.
        """
        (said,) = self.steps([(row, turns)])
        if isinstance(said, Undecided):
            raise said
        return said

    def steps(self, asked: Sequence[tuple[Row, list[Turn]]]) -> list[str | None | Undecided]:
        """The same of many rollouts at once."""
        if self.sessions is not None:
            return self.sessions.replies(asked)
        return [_said(outcome) for outcome in self.call_all("step", asked)]

    def golden(self, row: Row) -> tuple[str, ...]:
        """The right answer of a row, turn by turn. Raises PackageError, Undecided."""
        value = self._must("golden", row)
        texts = [value] if isinstance(value, str) else value
        return tuple(self._read(texts, list[str]))

    def _must(self, function: str, *arguments: Any) -> Any:
        """The value of a call that a package has to be able to answer."""
        outcome = self.sandbox.call(function, *arguments)
        if outcome.status is not CallStatus.OK:
            why = f"{function}() ended with: {outcome.status}" + (f", {outcome.error}" if outcome.error else "")
            raise self._unusable(why, "mend it: intellect-node env check")
        return outcome.value

    def _read(self, value: Any, kind: Any) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise self._unusable(f"it said what it must not: {error}", "mend it: intellect-node env check") from None

    def _unusable(self, why: str, remedy: str) -> PackageError:
        return unusable(self.manifest.name, why, remedy)

    def another(self) -> "LoadedPackage":
        """The same in a sandbox of its own, for another thread. Raises Undecided."""
        other = copy(self)
        other.sandbox = self._opened()
        other.sessions = other._with_sessions()
        return other

    def _with_sessions(self) -> PackageSessions | None:
        session, packages = self.manifest.session, self.manifest.packages
        if session is None:
            return None
        return PackageSessions(session, packages, self.functions, self.call_all, self._opener)

    def _opened(self) -> Sandbox:
        files = {**self._files, f"{_ENTRY}.py": guest(_ENTRY)}
        return self._opener(files, _ENTRY, self.manifest.limits)

    def close(self) -> None:
        self.sandbox.close()
        if self.sessions is not None:
            self.sessions.close()


def _said(outcome: CallOutcome | Undecided) -> str | None | Undecided:
    if isinstance(outcome, Undecided):
        return outcome
    said = outcome.value if outcome.status is CallStatus.OK else None
    return said if isinstance(said, str) and said and len(said) <= MAX_SAID else None


def _slice(lines: Sequence[bytes], first: int, most: int) -> Iterator[int]:
    """Places of the lines from `first` on that have `most` bytes together, at least one."""
    size = 0
    for place in range(first, len(lines)):
        size += len(lines[place])
        if place > first and size > most:
            return
        yield place


def unusable(name: str, why: str, remedy: str) -> PackageError:
    return PackageError(f"the environment {name!r} cannot be used", why, remedy)
