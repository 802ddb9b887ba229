"""`repository`: mend a small repository with a shell and a Python that remember, then hidden tests run over its files.

A row has files, a prompt and tests. A rollout is a session (`machine`): its files are what is tested.
"""

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self

import msgspec

from node.bounded_dict import BoundedDict
from node.environments.base import Defaults, Determinism, Problem, Tokenizer, Transcript, answer_of, key_of
from node.environments.dataset import unusable_rows
from node.environments.errors import DatasetError, EnvironmentFault, Undecided
from node.environments.files import data_file, read_rows
from node.environments.machine import TOOLS, SessionMachine, check_files
from node.environments.programs import Opener, finished, opener_for
from node.environments.prompts import ListedProblems, check_template, read_prompt
from node.environments.task_types.code import same_output
from node.environments.tools.form import how_to_call, parse_call
from node.errors import Mistake, Mistakes
from node.sandbox import SandboxCall, SandboxLimits


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """path: below the run's assets; template: 'plain' or 'chat'; held_back_share: of the problems, for evaluation;
    calls: most of one rollout; result_characters: most of one result; call_fuel, session_fuel: instructions of one
    call and of a whole session; test_fuel: of one hidden test; memory_mib: of a machine; disk_kib: for its files;
    packages: what may be imported besides Python's own modules, with blanks between them;
    instructions: put before each prompt, {tools} says how tools are called."""

    path: str
    template: str = "plain"
    held_back_share: float = 0.05
    calls: int = 8
    result_characters: int = 2000
    call_fuel: int = 4_000_000_000
    session_fuel: int = 20_000_000_000
    test_fuel: int = 4_000_000_000
    memory_mib: int = 128
    disk_kib: int = 4096
    packages: str = ""
    instructions: str = "{tools}\n\n"


class _Test(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """code: a program that can import the files; output: what it prints where they are right."""

    code: str
    output: str


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """gold: files that mend it, by path; null: the file is removed."""

    problem_id: str
    prompt: Any
    files: dict[str, str]
    tests: tuple[_Test, ...]
    gold: dict[str, str | None] = {}


class RepositoryEnvironment(ListedProblems, Defaults):
    """Right in all tests scores 1, else 0. A session that has used up its fuel, or was cut off, scores 0."""

    name = "repository"
    determinism: Determinism = "bounded"

    def __init__(
        self, rows: Sequence[_Row], tokenizer: Tokenizer, arguments: Arguments, limits: SandboxLimits, opener: Opener
    ) -> None:
        """Raises ValueError for a prompt that cannot be used."""
        self.turns = arguments.calls + 1
        self.gave_up = 0
        self._arguments, self._limits, self._opener, self._tokenizer = arguments, limits, opener, tokenizer
        self._chat = arguments.template == "chat"
        self._rows = {row.problem_id: row for row in rows}
        self._instructions = arguments.instructions.replace("{tools}", how_to_call(list(TOOLS.items())))
        problems = [self._problem(row) for row in rows]
        self.hold(problems, arguments.held_back_share)
        self._begin()

    def _begin(self) -> None:
        """Nothing starts yet."""
        given = self._arguments
        self.machine = SessionMachine(
            self._opener, self._limits, fuel=given.session_fuel, call_fuel=given.call_fuel, most=given.result_characters
        )
        self._known = BoundedDict[bytes, float](1 << 12)

    def _problem(self, row: _Row) -> Problem:
        before, prompt = read_prompt(row.prompt)
        check_template(before, chat=self._chat)
        return Problem(row.problem_id, self._instructions + prompt, (), before=before)

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        """Raises Undecided."""
        calls = self._calls(problem, transcript)
        return None if calls is None else self.reply_tokens(self.machine.told(calls))

    def states(self, problem: Problem, transcript: Transcript) -> bytes:
        """Raises Undecided."""
        # The last answer makes no call any more, even where it ends with one. The last call stands two segments before.
        calls = self._calls(problem, transcript[:-2]) or []
        return self.machine.states(calls[: end + 1] for end in range(1, len(calls)))

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        scores = [0.0] * len(problems)
        for place, (problem, transcript) in enumerate(zip(problems, transcripts, strict=True)):
            if answer_of(self._tokenizer, transcript) is None:
                continue
            try:
                scores[place] = self._score(problem, transcript)
            except Undecided:
                self.gave_up += 1
        return scores

    def _score(self, problem: Problem, transcript: Transcript) -> float:
        calls = self._calls(problem, transcript[:-2]) if len(transcript) > 2 else None
        if calls is None:
            return 0.0  # nothing was called, so nothing is mended
        return self._tested(self._rows[problem.problem_id], self.machine.files(calls))

    def _tested(self, row: _Row, files: dict[str, str]) -> float:
        """Raises Undecided."""
        key = key_of((row.problem_id, sorted(files.items())))
        if key not in self._known:
            # No files: the session used up its fuel or left too much. A test that needs none would be paid.
            # An undecided test raises before it is remembered, so it is asked again.
            self._known[key] = float(bool(files) and all(self._passes(test, files) for test in row.tests))
        return self._known[key]

    def _passes(self, test: _Test, files: dict[str, str]) -> bool:
        outcome = self.machine.test(files, test.code, self._arguments.test_fuel)
        return finished(outcome) and same_output(outcome.printed.decode(errors="replace"), test.output)

    def wrong_rows(self, count: int) -> list[str]:
        """Ids among the first `count` whose files pass unmended, or whose golden files do not. Raises Undecided."""
        wrong: list[str] = []
        for row in list(self._rows.values())[:count]:
            mended = {path: text for path, text in {**row.files, **row.gold}.items() if text is not None}
            if self._tested(row, row.files) or (row.gold and not self._tested(row, mended)):
                wrong.append(row.problem_id)
        return wrong

    def _calls(self, problem: Problem, transcript: Transcript) -> list[SandboxCall] | None:
        """All calls of a session up to that which the transcript ends with; None where it ends with none."""
        calls = [self.machine.begin(self._rows[problem.problem_id].files)]
        for segment in transcript:
            if segment.sampled:
                call = parse_call(self._tokenizer.decode(segment.tokens), TOOLS)
                if call is None:
                    return None
                calls.append(self.machine.run(call.tool, call.text))
        return calls

    def another(self) -> Self:
        other = copy(self)
        other.gave_up = 0
        other._begin()
        return other

    def close(self) -> None:
        self.machine.close()


def load(
    arguments: Arguments, assets: Path, tokenizer: Tokenizer, opener: Opener | None = None
) -> RepositoryEnvironment:
    """Read and check the whole file. Raises DatasetError, EnvironmentFault."""
    path = data_file(assets, arguments.path)
    limits = _limits(arguments)
    found, rows = Mistakes(), {}
    remedy = "correct the row: problem_id, prompt, files, tests [{code, output}], gold"

    def bad(line: int, what: str) -> None:
        found.add(Mistake(f"{path}, line {line}", what, remedy))

    for line, raw in read_rows(path, bad):
        try:
            row = _row(raw, chat=arguments.template == "chat")
            if rows.setdefault(row.problem_id, row) is not row:
                raise ValueError(f"problem_id {row.problem_id[:80]!r} appears a second time")
        except ValueError as error:
            bad(line, str(error))
    if found.total:
        raise unusable_rows(found)
    environment = RepositoryEnvironment(list(rows.values()), tokenizer, arguments, limits, opener or opener_for(assets))
    if not environment.size or not environment.held_back:
        why = f"{path}: {environment.size} problems to train on and {environment.held_back} held back for evaluation"
        raise DatasetError("the dataset cannot be used", why, "add rows, or change held_back_share")
    return environment


def _limits(arguments: Arguments) -> SandboxLimits:
    most_calls = 64
    try:
        # A call may say less than the limit and never more, so the limit covers both kinds.
        fuel = max(arguments.call_fuel, arguments.test_fuel)
        limits = SandboxLimits(
            fuel=fuel,
            memory_mib=arguments.memory_mib,
            disk_bytes=arguments.disk_kib << 10,
            packages=tuple(arguments.packages.split()),
        )
        wrong = arguments.template not in ("plain", "chat") or not 0 < arguments.held_back_share < 1
        few = min(arguments.call_fuel, arguments.test_fuel, arguments.session_fuel, arguments.disk_kib) < 1
        if wrong or few or not 1 <= arguments.calls <= most_calls or not 16 <= arguments.result_characters <= 1 << 18:
            raise ValueError(f"template, a limit, calls (1..{most_calls}) or result_characters (16..262144) is not one")
    except ValueError as error:
        raise EnvironmentFault(
            "environment 'repository' cannot be loaded", str(error), "correct [environment.args]"
        ) from None
    return limits


def _row(raw: dict[str, Any], *, chat: bool) -> _Row:
    """Raises ValueError that says what is wrong."""
    row = msgspec.convert(raw, _Row)
    if not row.problem_id or not row.files or not row.tests:
        raise ValueError("it lacks an id, files or tests")
    # `wrong_rows` puts the golden files into a machine, so their paths are looked at as well.
    check_files((*row.files, *row.gold), row.files, [test.code for test in row.tests])
    before, _ = read_prompt(row.prompt)
    check_template(before, chat=chat)
    return row
