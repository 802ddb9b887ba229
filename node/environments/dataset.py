"""`dataset`: problems from a file (JSONL or parquet), in any of the published forms that `task_types.shapes` reads.

Parsing is strict: a row that cannot be scored is a mistake with its file and line, and all mistakes are told at
once; or it is left out and counted (on_bad_row = "skip"). None is scored 0 in silence. Which problems are held back
follows from their ids, so every node agrees. What task types there are: `task_types`.
"""

import difflib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

import msgspec

from node.environments.base import (
    Determinism,
    Environment,
    OneTurn,
    Problem,
    Tokenizer,
    Transcript,
    answer_of,
    is_held_back,
)
from node.environments.errors import DatasetError, nearest
from node.environments.mix import least_dependable
from node.environments.parquet import ParquetError, rows_of
from node.environments.programs import ProgramRunner, opener_for
from node.environments.prompts import ListedProblems, check_template, read_prompt
from node.environments.task_types.base import Scorer
from node.environments.task_types.reasoning_gym import ReasoningScorer
from node.environments.task_types.shapes.base import Published
from node.environments.task_types.shapes.table import read_published
from node.environments.task_types.table import TASK_TYPES
from node.errors import Finding, Findings
from node.sandbox import Limits
from protocol.errors import UNREADABLE

MAX_FILE_BYTES = 8 * 1024**3
MAX_ROW_BYTES = 4 * 1024**2
MAX_ROWS = 5_000_000
_MEND = "correct or remove the row, or set on_bad_row = 'skip' in the environment's arguments"
_MALFORMED = (ValueError, TypeError, AttributeError, KeyError, RecursionError, OverflowError)
"""What reading a row comes to where somebody wrote it so: each is a mistake of that row."""
Bad = Callable[[int, str], None]
"""Told (line, what is wrong with it)."""


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """path: below the run's assets; template: 'plain' or 'chat'; held_back_share: of the problems, for evaluation;
    solve_rate_field, solve_rate_min, solve_rate_max: keep only rows in the range (no field: keep all);
    other_tasks: 'error' or 'skip' for rows of task types that cannot be scored; on_bad_row: likewise for all rows that
    cannot be; bad_rows: how many are skipped, written when the run is made, so that every member skips the same (-1:
    not looked at yet); fuel: instructions that a program which is an answer may use for each test; memory_mib: its
    memory; packages: what it may import besides Python's own modules, with blanks between them."""

    path: str
    template: str = "plain"
    held_back_share: float = 0.05
    solve_rate_field: str = ""
    solve_rate_min: float = 0.0
    solve_rate_max: float = 1.0
    other_tasks: str = "error"
    on_bad_row: str = "error"
    bad_rows: int = -1
    fuel: int = Limits().fuel
    memory_mib: int = Limits().memory_mib
    packages: str = ""


@dataclass(slots=True)
class Rows:
    """What a data file holds. shapes: form -> rows taken; skipped: rows left out for what is wrong with them; repeats:
    further responses to a problem; left_out: by the solve-rate range or other_tasks = "skip"."""

    training: list[Problem] = field(default_factory=list)
    held_back: list[Problem] = field(default_factory=list)
    shapes: Counter[str] = field(default_factory=Counter)
    skipped: Findings = field(default_factory=Findings)
    repeats: int = 0
    left_out: int = 0


class DatasetEnvironment(ListedProblems, OneTurn):
    """Rewards are those of each row's task type. What was cut off at the length limit is no answer and scores 0."""

    name = "dataset"

    def __init__(self, rows: Rows, tokenizer: Tokenizer, runner: ProgramRunner, *, chat: bool) -> None:
        self._training = training = rows.training
        self._held_back = held_back = rows.held_back
        self._tokenizer = tokenizer
        self._chat = chat
        self._runner = runner
        tasks = sorted({problem.task for problem in (*training, *held_back)})
        self._scorers: dict[str, Scorer] = {task: TASK_TYPES[task].open(runner) for task in tasks}  # nothing starts yet
        self.determinism: Determinism = least_dependable(TASK_TYPES[task].determinism for task in tasks)
        self.rows = rows
        self.left_out = rows.left_out

    @property
    def gave_up(self) -> int:
        return sum(scorer.gave_up for scorer in self._scorers.values())

    def is_judged(self, problem: Problem) -> bool:
        return TASK_TYPES[problem.task].determinism == "judged"

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        answers = [answer_of(self._tokenizer, transcript) for transcript in transcripts]
        scores = [0.0] * len(answers)
        for task, scorer in self._scorers.items():
            given = [(i, answer) for i, answer in enumerate(answers) if problems[i].task == task and answer is not None]
            rewards = scorer.score([(answer, problems[i].answer) for i, answer in given]) if given else []
            for (i, _), reward in zip(given, rewards, strict=True):
                scores[i] = reward
        return scores

    def start(self) -> None:
        """What a scorer needs besides this program is missed when a run is loaded, not at its first answer."""
        for scorer in self._scorers.values():
            if isinstance(scorer, ReasoningScorer):
                scorer.start()

    def another(self) -> Self:
        # Rows never change, so all threads share them. Children and what they remember belong to one thread.
        other = copy(self)
        other._runner = self._runner.another()
        other._scorers = {task: TASK_TYPES[task].open(other._runner) for task in self._scorers}
        return other

    def close(self) -> None:
        for scorer in self._scorers.values():
            scorer.close()
        self._runner.close()


def load(arguments: Arguments, assets: Path, tokenizer: Tokenizer) -> Environment:
    """Read and check the whole file. Raises DatasetError, EnvironmentFault where a scorer is missing here."""
    path = data_file(assets, arguments.path)
    _check_arguments(arguments)
    limits = _limits(arguments)
    rows = _read(path, arguments)
    if not rows.training or not rows.held_back:
        raise DatasetError(
            "the dataset cannot be used",
            f"{path}: {len(rows.training)} problems to train on and {len(rows.held_back)} held back for evaluation"
            + (f", {rows.left_out} rows filtered out" if rows.left_out else "")
            + (f", {rows.skipped.total} bad rows" if rows.skipped.total else ""),
            "add rows, widen the solve-rate range, or change held_back_share",
        )
    chat, runner = arguments.template == "chat", ProgramRunner(opener_for(assets), limits)
    environment = DatasetEnvironment(rows, tokenizer, runner, chat=chat)
    try:
        environment.start()
    # Whatever ended it: a child of a scorer may have been started.
    except BaseException:
        environment.close()
        raise
    return environment


def data_file(assets: Path, name: str) -> Path:
    """Raises DatasetError for one outside a run's assets."""
    path = assets / name
    # Resolved: a link inside of the assets may lead out of them.
    if not path.resolve().is_relative_to(assets.resolve()):
        raise DatasetError("the dataset cannot be read", f"{name!r} leaves the run's assets", "correct path")
    return path


def _check_arguments(arguments: Arguments) -> None:
    if (
        arguments.template not in ("plain", "chat")
        or arguments.other_tasks not in ("error", "skip")
        or arguments.on_bad_row not in ("error", "skip")
    ):
        raise DatasetError(
            "the dataset's arguments are wrong",
            f"template = {arguments.template!r}, other_tasks = {arguments.other_tasks!r}, "
            f"on_bad_row = {arguments.on_bad_row!r}",
            "use template 'plain' or 'chat', other_tasks and on_bad_row 'error' or 'skip'",
        )
    if not 0 <= arguments.solve_rate_min <= arguments.solve_rate_max <= 1:
        raise DatasetError(
            "the dataset's arguments are wrong",
            f"solve rates from {arguments.solve_rate_min:g} to {arguments.solve_rate_max:g}",
            "use 0 <= solve_rate_min <= solve_rate_max <= 1",
        )


def _read(path: Path, arguments: Arguments) -> Rows:
    """Every row of the file. Raises DatasetError with all mistakes where bad rows are not skipped, or where others are
    skipped than when the run was made."""
    rows = Rows()
    seen: dict[str, Problem] = {}

    def bad(line: int, what: str, remedy: str = _MEND) -> None:
        rows.skipped.add(Finding(f"{path}, line {line}", what, remedy))

    for line, raw in read_rows(path, bad):
        try:
            _take(raw, arguments, rows, seen)
        # It is a ValueError with another remedy, so it comes first.
        except _OtherTask as other:
            bad(line, str(other), "correct the row, or set other_tasks = 'skip' in the environment's arguments")
        except ValueError as error:
            bad(line, str(error))
        except _MALFORMED as error:
            bad(line, f"a value in it is of another type than it should be: {str(error)[:120]}")
    found = rows.skipped
    if found.total and arguments.on_bad_row == "error":
        raise unusable_rows(found)
    # A member that skips other rows numbers all later problems otherwise. It would draw other prompts than everybody.
    if arguments.on_bad_row == "skip" and arguments.bad_rows not in (-1, found.total):
        raise DatasetError(
            "the dataset is read otherwise here",
            f"{path}: {found.total} rows are skipped, {arguments.bad_rows} were when the run was made",
            "use the version of intellect-node that the run was made with",
        )
    return rows


def unusable_rows(found: Findings) -> DatasetError:
    """The first finding as an error that carries them all."""
    first, more = found.first[0], found.total - 1
    also = f" (and {more} more mistakes: intellect-node run validate)" if more else ""
    error = DatasetError("the dataset cannot be used", f"{first.place}: {first.what}{also}", first.remedy)
    error.findings = found
    return error


class _OtherTask(ValueError):
    """A row of a task type that is not scored here."""


def _take(raw: Mapping[str, Any], arguments: Arguments, rows: Rows, seen: dict[str, Problem]) -> None:
    """Put a row where it belongs. Raises ValueError for one that cannot be used."""
    published = read_published(raw)
    task = TASK_TYPES.get(published.task)
    if task is None and arguments.other_tasks == "skip":
        rows.left_out += 1
        return
    if task is None:
        # Left out in silence, such rows would make the run train on something else than its file says.
        raise _OtherTask(f"task_type {published.task[:80]!r} cannot be scored; {nearest(published.task, TASK_TYPES)}")
    if not _in_solve_range(raw, arguments):
        rows.left_out += 1
        return
    problem = _problem(published, raw, arguments)
    known = seen.get(problem.problem_id)
    # Several responses repeat their problem's row. A repeated id with another prompt or truth contradicts itself.
    if known is not None and not (published.several and known == problem):
        raise ValueError(f"problem_id {problem.problem_id[:80]!r} appears a second time")
    if known is not None:
        rows.repeats += 1
        return
    seen[problem.problem_id] = problem
    rows.shapes[published.shape] += 1
    # By its name, not its place: rows that are added later move no problem to the other side.
    aside = is_held_back(problem.problem_id, arguments.held_back_share)
    (rows.held_back if aside else rows.training).append(problem)


def _problem(published: Published, raw: Mapping[str, Any], arguments: Arguments) -> Problem:
    before, prompt = read_prompt(published.prompt)
    truth = TASK_TYPES[published.task].truth(published.info, raw)
    check_template(before, chat=arguments.template == "chat")
    return Problem(published.problem_id, prompt, truth, published.task, before)


def count_bad_rows(path: Path, args: Mapping[str, Any]) -> int:
    """How many rows a run with these arguments skips. Raises DatasetError for a file that cannot be read."""
    # The arguments may be those of `tools`, which takes more than a dataset does.
    known = Arguments.__struct_fields__
    arguments = msgspec.convert({"path": "", **{key: args[key] for key in args if key in known}}, Arguments)
    return _read(path, msgspec.structs.replace(arguments, on_bad_row="skip", bad_rows=-1)).skipped.total


def _limits(arguments: Arguments) -> Limits:
    try:
        packages = tuple(arguments.packages.split())
        return Limits(fuel=arguments.fuel, memory_mib=arguments.memory_mib, packages=packages)
    except ValueError as error:
        raise DatasetError("the dataset's arguments are wrong", str(error), "correct [environment.args]") from None


def runs_programs(path: Path) -> bool:
    """Whether answers to rows of a data file are programs; bad rows are told when it is loaded. Raises DatasetError."""
    programs = {name for name, task in TASK_TYPES.items() if task.programs}
    return any(published.task in programs for _, published in read_problems(path))


def read_problems(path: Path) -> Iterator[tuple[dict[str, Any], Published]]:
    """(row, as it is read) of the rows that are of a published form; the others are left out. Raises DatasetError."""
    for _, raw in read_rows(path, lambda line, what: None):  # noqa: ARG005
        try:
            yield raw, read_published(raw)
        except _MALFORMED:
            continue


def read_rows(path: Path, bad: Bad | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line or row number from 1, row as a dict). bad: told of lines that are no rows, else they raise DatasetError, as
    does a file that cannot be read."""

    def refuse(line: int, what: str) -> NoReturn:
        raise DatasetError("the dataset cannot be used", f"{path}, line {line}: {what}", "correct or remove the row")

    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DatasetError("the dataset cannot be read", f"{path} is larger than 8 GiB", "split the file")
        count = 0
        rows = (_parquet_rows if _is_parquet(path) else _json_rows)(path, bad or refuse)
        for line, row in rows:
            count += 1
            if count > MAX_ROWS:
                refuse(line, f"more than {MAX_ROWS} rows")
            yield line, row
    except (OSError, ParquetError) as error:
        raise DatasetError(
            "the dataset cannot be read", f"{path}: {error}", "check environment.args.path and the file"
        ) from None


def _is_parquet(path: Path) -> bool:
    """By its name; a blob, which has none, by how it begins."""
    with path.open("rb") as file:
        return path.suffix == ".parquet" or (not path.suffix and file.read(4) == b"PAR1")


def _json_rows(path: Path, bad: Bad) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        line = 0
        # One byte beyond the bound shows that a line is too long, without reading all of it.
        while text := file.readline(MAX_ROW_BYTES + 1):
            line += 1
            if len(text) > MAX_ROW_BYTES:
                bad(line, f"longer than {MAX_ROW_BYTES} bytes")
                # The rest of a long line would be taken for rows, and all later line numbers would be wrong.
                while text and not text.endswith(b"\n"):
                    text = file.readline(MAX_ROW_BYTES)
                continue
            if not text.strip():
                continue
            try:
                row = msgspec.json.decode(text, type=dict[str, Any])
            except UNREADABLE as error:
                bad(line, f"not a JSON object: {error}")
                continue
            yield line, row


def _parquet_rows(path: Path, bad: Bad) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, row in enumerate(rows_of(path, most_row=MAX_ROW_BYTES), 1):
        if row is None:
            bad(line, f"longer than {MAX_ROW_BYTES} bytes")
        else:
            yield line, row


def _in_solve_range(raw: Mapping[str, Any], arguments: Arguments) -> bool:
    """Raises ValueError for a row without its rate."""
    name = arguments.solve_rate_field
    if not name:
        return True
    rate = raw.get(name)
    if name not in raw:
        close = difflib.get_close_matches(name, raw, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(map(str, list(raw)[:12]))}"
        raise ValueError(f"there is no column {name!r}{hint}")
    # In Python a bool is an int: `true` would be a solve rate of 1.
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not math.isfinite(rate):
        raise ValueError(f"{name} is {rate!r} instead of a number")
    return arguments.solve_rate_min <= rate <= arguments.solve_rate_max
