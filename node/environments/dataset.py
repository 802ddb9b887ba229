"""`dataset`: problems from files (JSONL or parquet), in any of the published forms that `task_types.shapes` reads.

Parsing is strict: a row that cannot be scored is a mistake with its file and line, and all mistakes are told at
once; or it is left out and counted (on_bad_row = "skip"). None is scored 0 in silence. Which problems are held back
follows from their ids and from what is alike (`twins`), so every node agrees. What task types there are: `task_types`.
"""

import difflib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

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
from node.environments.columns import with_named_columns
from node.environments.errors import DatasetError, nearest
from node.environments.files import MAX_ROWS, data_file, files_of, read_rows
from node.environments.mix import least_dependable
from node.environments.programs import ProgramRunner, opener_for
from node.environments.prompts import ListedProblems, check_template, encode_prompt, read_prompt
from node.environments.task_types.base import Scorer
from node.environments.task_types.reasoning_gym import ReasoningScorer
from node.environments.task_types.shapes.base import Published
from node.environments.task_types.shapes.table import read_published
from node.environments.task_types.table import TASK_TYPES
from node.environments.twins import groups_of
from node.errors import Mistake, Mistakes
from node.sandbox import SandboxLimits
from protocol.errors import UNREADABLE

MAX_GOLDS, MAX_GOLD = 4096, 16 * 1024
"""Published solutions that are kept for a look at the scorers, and their characters."""
SPLIT_KEY = "split_key"
"""A column: rows with one value in it are on one side of the hold-out, whatever they say."""
_MEND = "correct or remove the row, or set on_bad_row = 'skip' in the environment's arguments"
_MALFORMED = (ValueError, TypeError, AttributeError, KeyError, RecursionError, OverflowError)
"""What reading a row comes to where somebody wrote it so: each is a mistake of that row."""
Asked = TypeVar("Asked", bound=Tokenizer)


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """path: below the run's assets; template: 'plain' or 'chat'; held_back_share: of the problems, for evaluation;
    solve_rate_field, solve_rate_min, solve_rate_max: keep only rows in the range (no field: keep all);
    other_tasks: 'error' or 'skip' for rows of task types that cannot be scored; on_bad_row: likewise for all rows that
    cannot be; bad_rows: how many are skipped, written when the run is made, so that every member skips the same (-1:
    not looked at yet); fuel: instructions that a program which is an answer may use for each test; memory_mib: its
    memory; packages: what it may import besides Python's own modules, with blanks between them; prompt_column,
    answer_column, messages_column: which columns are the prompt, the truth, a chat that holds both; instruction: stands
    behind each prompt; system_prompt: the first message of rows without one; chat_template_kwargs: JSON for the chat
    template; long_prompts: 'error' or 'skip' for prompts of more than most_tokens, which, with long_rows, how many are
    skipped, is written when the run is made."""

    path: str
    template: str = "plain"
    held_back_share: float = 0.05
    solve_rate_field: str = ""
    solve_rate_min: float = 0.0
    solve_rate_max: float = 1.0
    other_tasks: str = "error"
    on_bad_row: str = "error"
    bad_rows: int = -1
    fuel: int = SandboxLimits().fuel
    memory_mib: int = SandboxLimits().memory_mib
    packages: str = ""
    prompt_column: str = ""
    answer_column: str = ""
    messages_column: str = ""
    instruction: str = ""
    system_prompt: str = ""
    chat_template_kwargs: str = ""
    long_prompts: str = "error"
    most_tokens: int = 0
    long_rows: int = -1


@dataclass(slots=True)
class DatasetRows:
    """What a data file holds. shapes: form -> rows taken; skipped: rows left out for what is wrong with them; repeats:
    equal rows and further responses to a problem; left_out: by the solve-rate range or other_tasks = "skip"; golds:
    published solutions of some, by problem_id; long: problems left out for their length; alike: problems that are on
    the side of an earlier one, since they ask the same in other words."""

    training: list[Problem] = field(default_factory=list)
    held_back: list[Problem] = field(default_factory=list)
    shapes: Counter[str] = field(default_factory=Counter)
    skipped: Mistakes = field(default_factory=Mistakes)
    repeats: int = 0
    left_out: int = 0
    golds: dict[str, str] = field(default_factory=dict)
    long: int = 0
    alike: int = 0


class DatasetEnvironment(ListedProblems, OneTurn):
    """Rewards are those of each row's task type. What was cut off at the length limit is no answer and scores 0."""

    name = "dataset"

    def __init__(self, rows: DatasetRows, tokenizer: Tokenizer, runner: ProgramRunner, *, chat: bool) -> None:
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

    def score_texts(self, problem: Problem, answers: Sequence[str]) -> list[float]:
        """Rewards of answers as text, each complete."""
        return self._scorers[problem.task].score([(answer, problem.answer) for answer in answers])

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
    rows, chat = _read(path, arguments), arguments.template == "chat"
    tokenizer = asking(tokenizer, arguments)
    if arguments.long_prompts == "skip":
        _leave_long_ones_out(rows, arguments, tokenizer, chat)
    if not rows.training or not rows.held_back:
        raise DatasetError(
            "the dataset cannot be used",
            f"{path}: {len(rows.training)} problems to train on and {len(rows.held_back)} held back for evaluation"
            + (f", {rows.left_out} rows filtered out" if rows.left_out else "")
            + (f", {rows.skipped.total} bad rows" if rows.skipped.total else "")
            + (f", {rows.long} prompts of more than {arguments.most_tokens} tokens" if rows.long else ""),
            "add rows, widen the solve-rate range, or change held_back_share",
        )
    runner = ProgramRunner(opener_for(assets), limits)
    environment = DatasetEnvironment(rows, tokenizer, runner, chat=chat)
    try:
        environment.start()
    # Whatever ended it: a child of a scorer may have been started.
    except BaseException:
        environment.close()
        raise
    return environment


def _check_arguments(arguments: Arguments) -> None:
    if (
        arguments.template not in ("plain", "chat")
        or arguments.other_tasks not in ("error", "skip")
        or arguments.on_bad_row not in ("error", "skip")
        or arguments.long_prompts not in ("error", "skip")
    ):
        raise DatasetError(
            "the dataset's arguments are wrong",
            f"template = {arguments.template!r}, other_tasks = {arguments.other_tasks!r}, "
            f"on_bad_row = {arguments.on_bad_row!r}, long_prompts = {arguments.long_prompts!r}",
            "use template 'plain' or 'chat', and 'error' or 'skip' for the others",
        )
    for_chats = {"system_prompt": arguments.system_prompt, "chat_template_kwargs": arguments.chat_template_kwargs}
    if arguments.template == "plain" and (given := [name for name, value in for_chats.items() if value]):
        raise DatasetError(
            "the dataset's arguments are wrong",
            f"{' and '.join(given)} stand in a chat, and template = 'plain' asks without one",
            "set template = 'chat', or leave them out",
        )
    _template_settings(arguments)
    if not 0 <= arguments.solve_rate_min <= arguments.solve_rate_max <= 1:
        raise DatasetError(
            "the dataset's arguments are wrong",
            f"solve rates from {arguments.solve_rate_min:g} to {arguments.solve_rate_max:g}",
            "use 0 <= solve_rate_min <= solve_rate_max <= 1",
        )


def _template_settings(arguments: Arguments) -> dict[str, Any]:
    """Raises DatasetError where they are no JSON object."""
    if not arguments.chat_template_kwargs:
        return {}
    try:
        return msgspec.json.decode(arguments.chat_template_kwargs, type=dict[str, Any])
    except UNREADABLE as error:
        raise DatasetError(
            "the dataset's arguments are wrong",
            f"chat_template_kwargs is no JSON object: {error}",
            """write it as '{"enable_thinking": false}'""",
        ) from None


def asking(tokenizer: Asked, arguments: Arguments) -> Asked:
    """The tokenizer with what the run says to the chat template."""
    settings = _template_settings(arguments)
    return tokenizer.asked_with(settings) if settings else tokenizer


def _leave_long_ones_out(rows: DatasetRows, arguments: Arguments, tokenizer: Tokenizer, chat: bool) -> None:
    """Raises DatasetError where others are too long here than when the run was made: see `_read`."""
    for listed in (rows.training, rows.held_back):
        kept = [one for one in listed if len(encode_prompt(one, tokenizer, chat=chat)) <= arguments.most_tokens]
        rows.long += len(listed) - len(kept)
        listed[:] = kept
    if arguments.long_rows not in (-1, rows.long):
        raise DatasetError(
            "the dataset is read otherwise here",
            f"{rows.long} prompts have more than {arguments.most_tokens} tokens, {arguments.long_rows} had before",
            "use the version of intellect-node that the run was made with",
        )


def _read(data: Path | Sequence[Path], arguments: Arguments) -> DatasetRows:
    """Every row of the files. Raises DatasetError with all mistakes where bad rows are not skipped, or where others are
    skipped than when the run was made."""
    rows = DatasetRows()
    seen: dict[str, Problem] = {}
    keys: dict[str, str] = {}
    for path in (paths := files_of(data)):
        _read_file(path, arguments, rows, seen, keys)
    found = rows.skipped
    if found.total and arguments.on_bad_row == "error":
        raise unusable_rows(found)
    # A member that skips other rows numbers all later problems otherwise. It would draw other prompts than everybody.
    if arguments.on_bad_row == "skip" and arguments.bad_rows not in (-1, found.total):
        raise DatasetError(
            "the dataset is read otherwise here",
            f"{paths[0]}: {found.total} rows are skipped, {arguments.bad_rows} were when the run was made",
            "use the version of intellect-node that the run was made with",
        )
    _split([*seen.values()], keys, arguments.held_back_share, rows)
    return rows


def _read_file(
    path: Path, arguments: Arguments, rows: DatasetRows, seen: dict[str, Problem], keys: dict[str, str]
) -> None:
    def bad(line: int, what: str, remedy: str = _MEND) -> None:
        rows.skipped.add(Mistake(f"{path}, line {line}", what, remedy))

    for line, raw in read_rows(path, bad):
        if len(seen) > MAX_ROWS:
            raise DatasetError("the dataset cannot be used", f"more than {MAX_ROWS} problems", "name fewer files")
        try:
            _take(raw, arguments, rows, seen, keys)
        # It is a ValueError with another remedy, so it comes first.
        except _OtherTask as other:
            bad(line, str(other), "correct the row, or set other_tasks = 'skip' in the environment's arguments")
        except ValueError as error:
            bad(line, str(error))
        except _MALFORMED as error:
            bad(line, f"a value in it is of another type than it should be: {str(error)[:120]}")


def _split(problems: list[Problem], keys: Mapping[str, str], share: float, rows: DatasetRows) -> None:
    """Hold a share of the problems back, and what is alike to them: learnt in other words, an answer is no evidence."""
    firsts = groups_of(problems, [keys.get(problem.problem_id) for problem in problems])
    rows.alike = sum(first != place for place, first in enumerate(firsts))
    # By the name of the first, not its place: rows that are added later move no problem to the other side.
    by_name = [is_held_back(problem.problem_id, share) for problem in problems]
    aside = {first: by_name[first] for first in firsts}
    if len(set(aside.values())) == 1 < len(set(by_name)):
        # A few groups may all fall on one side: the smallest goes to the other. Where there is one, nothing helps.
        smallest = min(Counter(firsts).items(), key=lambda one: (one[1], one[0]))[0]
        aside[smallest] = not aside[smallest]
    held = by_name if len(aside) == 1 else [aside[first] for first in firsts]
    for problem, back in zip(problems, held, strict=True):
        (rows.held_back if back else rows.training).append(problem)


def unusable_rows(found: Mistakes) -> DatasetError:
    """The first finding as an error that carries them all."""
    first, more = found.first[0], found.total - 1
    also = f" (and {more} more mistakes: intellect-node run validate)" if more else ""
    error = DatasetError("the dataset cannot be used", f"{first.place}: {first.what}{also}", first.remedy)
    error.findings = found
    return error


class _OtherTask(ValueError):
    """A row of a task type that is not scored here."""


def _take(
    raw: Mapping[str, Any], arguments: Arguments, rows: DatasetRows, seen: dict[str, Problem], keys: dict[str, str]
) -> None:
    """Put a row among those `seen`, and its split key, if it has one. Raises ValueError for one that cannot be used."""
    key = raw.get(SPLIT_KEY)
    raw = with_named_columns(raw, arguments)
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
    # Several responses, or a file that holds a problem twice. With another prompt or truth an id contradicts itself.
    if known is not None and known != problem:
        raise ValueError(f"problem_id {problem.problem_id[:80]!r} appears a second time")
    if known is not None:
        rows.repeats += 1
        return
    seen[problem.problem_id] = problem
    rows.shapes[published.shape] += 1
    if isinstance(published.gold, str) and len(rows.golds) < MAX_GOLDS and len(published.gold) < MAX_GOLD:
        rows.golds[problem.problem_id] = published.gold
    if key is not None:
        keys[problem.problem_id] = str(key)


def _problem(published: Published, raw: Mapping[str, Any], arguments: Arguments) -> Problem:
    before, prompt = read_prompt(published.prompt)
    if arguments.instruction:
        prompt = f"{prompt}\n{arguments.instruction}"
    if arguments.system_prompt and (not before or before[0][0] != "system"):
        before = (("system", arguments.system_prompt), *before)
    truth = TASK_TYPES[published.task].truth(published.info, raw)
    check_template(before, chat=arguments.template == "chat")
    return Problem(published.problem_id, prompt, truth, published.task, before)


def collect(data: Path | Sequence[Path], arguments: Arguments) -> DatasetRows:
    """Every row of a data set that is not part of a run yet. Raises DatasetError for a file that cannot be read."""
    _check_arguments(arguments)
    return _read(data, arguments)


def count_bad_rows(data: Path | Sequence[Path], args: Mapping[str, Any]) -> int:
    """How many rows a run with these arguments skips. Raises DatasetError for a file that cannot be read."""
    return _read(data, msgspec.structs.replace(_arguments(args), on_bad_row="skip", bad_rows=-1)).skipped.total


def count_long_rows(data: Path | Sequence[Path], args: Mapping[str, Any], tokenizer: Tokenizer, most: int) -> int:
    """How many problems a run leaves out whose prompts have more than `most` tokens. Raises DatasetError."""
    arguments = msgspec.structs.replace(_arguments(args), most_tokens=most, bad_rows=-1, long_rows=-1)
    rows = _read(data, arguments)
    _leave_long_ones_out(rows, arguments, asking(tokenizer, arguments), arguments.template == "chat")
    return rows.long


def _arguments(args: Mapping[str, Any]) -> Arguments:
    """Those of a dataset, of an environment that may take more, as `tools` does."""
    known = Arguments.__struct_fields__
    return msgspec.convert({"path": "", **{key: args[key] for key in args if key in known}}, Arguments)


def _limits(arguments: Arguments) -> SandboxLimits:
    try:
        packages = tuple(arguments.packages.split())
        return SandboxLimits(fuel=arguments.fuel, memory_mib=arguments.memory_mib, packages=packages)
    except ValueError as error:
        raise DatasetError("the dataset's arguments are wrong", str(error), "correct [environment.args]") from None


def runs_programs(path: Path) -> bool:
    """Whether answers to rows of a data file are programs; bad rows are told when it is loaded. Raises DatasetError."""
    programs = {name for name, task in TASK_TYPES.items() if task.programs}
    return any(published.task in programs for _, published in read_problems(path))


def read_problems(path: Path) -> Iterator[tuple[dict[str, Any], Published]]:
    """(row, as it is read) of the rows that are of a published form; the others are left out. Raises DatasetError."""
    for _, raw in read_rows(path, lambda line, what: None):
        try:
            yield raw, read_published(raw)
        except _MALFORMED:
            continue


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
