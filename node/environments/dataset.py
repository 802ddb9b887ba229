"""`dataset`: problems from a file in the form of the INTELLECT-2 dataset (JSONL or parquet).

Columns: prompt, task_type, verification_info (an object, its JSON or its Python repr, or null), problem_id, and
optionally a solve rate. Parsing is strict: a row that is not what it should be stops the run with its file and line.
Which problems are held back follows from their ids, so every node agrees. What task types there are: `task_types`.
"""

import ast
import difflib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from node.environments.base import Determinism, Environment, OneTurn, Problem, Tokenizer, Transcript, last_answer
from node.environments.errors import DatasetError
from node.environments.mix import least_dependable
from node.environments.names import nearest
from node.environments.programs import ProgramRunner
from node.environments.prompts import check_template, encode_prompt, read_prompt
from node.environments.runtime import opener_for
from node.environments.split import is_held_back, numbered
from node.environments.task_types.base import Scorer
from node.environments.task_types.table import TASK_TYPES
from node.sandbox import Limits

MAX_FILE_BYTES = 8 * 1024**3
MAX_ROW_BYTES = 4 * 1024**2
MAX_ROWS = 5_000_000
MAX_ROW_GROUP_BYTES = 2 * 1024**3
MAX_ID = 256
MAX_REPR_CHARACTERS = 256 * 1024
MAX_REPR_DEPTH = 32


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """path: below the run's assets; template: 'plain' or 'chat'; held_back_share: of the problems, for evaluation;
    solve_rate_field, solve_rate_min, solve_rate_max: keep only rows in the range (no field: keep all);
    other_tasks: 'error' or 'skip' for rows of task types that cannot be scored; fuel: instructions that a program which
    is an answer may use for each test; memory_mib: its memory."""

    path: str
    template: str = "plain"
    held_back_share: float = 0.05
    solve_rate_field: str = ""
    solve_rate_min: float = 0.0
    solve_rate_max: float = 1.0
    other_tasks: str = "error"
    fuel: int = Limits().fuel
    memory_mib: int = Limits().memory_mib


class _Row(msgspec.Struct, frozen=True):
    """Columns beyond these are ignored: published datasets carry many."""

    prompt: str | list[dict[str, Any]]
    task_type: str
    problem_id: str | int
    verification_info: str | dict[str, Any] | None = None


class DatasetEnvironment(OneTurn):
    """Rewards are those of each row's task type. What was cut off at the length limit is no answer and scores 0."""

    name = "dataset"

    def __init__(
        self,
        training: Sequence[Problem],
        held_back: Sequence[Problem],
        tokenizer: Tokenizer,
        runner: ProgramRunner,
        *,
        chat: bool,
        left_out: int = 0,
    ) -> None:
        self._training = training
        self._held_back = held_back
        self._tokenizer = tokenizer
        self._chat = chat
        self._runner = runner
        tasks = sorted({problem.task for problem in (*training, *held_back)})
        self._scorers: dict[str, Scorer] = {task: TASK_TYPES[task].open(runner) for task in tasks}
        self.determinism: Determinism = least_dependable(TASK_TYPES[task].determinism for task in tasks)
        self.left_out = left_out
        """rows that the solve-rate range or other_tasks = "skip" kept out"""
        self.size = len(training)
        self.held_back = len(held_back)

    def problem(self, number: int) -> Problem:
        return numbered(self._training, number)

    def held_back_problem(self, number: int) -> Problem:
        return numbered(self._held_back, number)

    @property
    def gave_up(self) -> int:
        return sum(scorer.gave_up for scorer in self._scorers.values())

    def prompt_tokens(self, problem: Problem) -> list[int]:
        return encode_prompt(problem, self._tokenizer, chat=self._chat)

    def is_judged(self, problem: Problem) -> bool:
        return TASK_TYPES[problem.task].determinism == "judged"

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        answers = [self._complete(last_answer(transcript)) for transcript in transcripts]
        scores = [0.0] * len(answers)
        for task, scorer in self._scorers.items():
            given = [(i, answer) for i, answer in enumerate(answers) if problems[i].task == task and answer is not None]
            rewards = scorer.score([(answer, problems[i].answer) for i, answer in given]) if given else []
            for (i, _), reward in zip(given, rewards, strict=True):
                scores[i] = reward
        return scores

    def _complete(self, output: Sequence[int]) -> str | None:
        """The text of an answer that ended by itself."""
        return self._tokenizer.decode(output) if output and output[-1] in self._tokenizer.eos else None

    def close(self) -> None:
        for scorer in self._scorers.values():
            scorer.close()
        self._runner.close()


def load(arguments: Arguments, assets: Path, tokenizer: Tokenizer) -> Environment:
    """Read and check the whole file. Raises DatasetError."""
    path = assets / arguments.path
    if not path.resolve().is_relative_to(assets.resolve()):
        raise DatasetError("the dataset cannot be read", f"{arguments.path!r} leaves the run's assets", "correct path")
    if arguments.template not in ("plain", "chat") or arguments.other_tasks not in ("error", "skip"):
        raise DatasetError(
            "the dataset's arguments are wrong",
            f"template = {arguments.template!r}, other_tasks = {arguments.other_tasks!r}",
            "use template 'plain' or 'chat' and other_tasks 'error' or 'skip'",
        )
    if not 0 <= arguments.solve_rate_min <= arguments.solve_rate_max <= 1:
        raise DatasetError(
            "the dataset's arguments are wrong",
            f"solve rates from {arguments.solve_rate_min:g} to {arguments.solve_rate_max:g}",
            "use 0 <= solve_rate_min <= solve_rate_max <= 1",
        )
    limits = _limits(arguments)
    training: list[Problem] = []
    held_back: list[Problem] = []
    seen: set[str] = set()
    left_out = 0
    for line, raw in read_rows(path):
        problem = _problem(raw, path, line, arguments)
        if problem is None:
            left_out += 1
            continue
        if problem.problem_id in seen:
            raise _bad(path, line, f"problem_id {problem.problem_id[:80]!r} appears a second time")
        seen.add(problem.problem_id)
        (held_back if is_held_back(problem.problem_id, arguments.held_back_share) else training).append(problem)
    if not training or not held_back:
        raise DatasetError(
            "the dataset cannot be used",
            f"{path}: {len(training)} problems to train on and {len(held_back)} held back for evaluation"
            + (f", {left_out} rows filtered out" if left_out else ""),
            "add rows, widen the solve-rate range, or change held_back_share",
        )
    chat, runner = arguments.template == "chat", ProgramRunner(opener_for(assets), limits)
    return DatasetEnvironment(training, held_back, tokenizer, runner, chat=chat, left_out=left_out)


def _limits(arguments: Arguments) -> Limits:
    try:
        return Limits(fuel=arguments.fuel, memory_mib=arguments.memory_mib)
    except ValueError as error:
        raise DatasetError("the dataset's arguments are wrong", str(error), "correct [environment.args]") from None


def runs_programs(path: Path) -> bool:
    """Whether a data file has rows whose answers are programs. Raises DatasetError."""
    programs = {name for name, task in TASK_TYPES.items() if task.programs}
    return any(raw.get("task_type") in programs for _, raw in read_rows(path))


def _bad(path: Path, line: int, why: str, remedy: str = "correct or remove the row") -> DatasetError:
    return DatasetError("the dataset cannot be used", f"{path}, line {line}: {why}", remedy)


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line or row number from 1, row as a dict). Raises DatasetError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DatasetError("the dataset cannot be read", f"{path} is larger than 8 GiB", "split the file")
        count = 0
        for line, row in _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path):
            count += 1
            if count > MAX_ROWS:
                raise _bad(path, line, f"more than {MAX_ROWS} rows")
            yield line, row
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(
            "the dataset cannot be read", f"{path}: {error}", "check environment.args.path and the file"
        ) from None


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        line = 0
        while text := file.readline(MAX_ROW_BYTES + 1):
            line += 1
            if len(text) > MAX_ROW_BYTES:
                raise _bad(path, line, f"longer than {MAX_ROW_BYTES} bytes")
            if not text.strip():
                continue
            try:
                yield line, msgspec.json.decode(text, type=dict[str, Any])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise _bad(path, line, f"not a JSON object: {error}") from None


def _parquet_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        for group in range(metadata.num_row_groups):
            if metadata.row_group(group).total_byte_size > MAX_ROW_GROUP_BYTES:
                why = f"{path}: row group {group} is larger than {MAX_ROW_GROUP_BYTES} bytes"
                raise DatasetError("the dataset cannot be read", why, "write it with smaller row groups")
        line = 0
        for batch in file.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                line += 1
                yield line, row


def _problem(raw: dict[str, Any], path: Path, line: int, arguments: Arguments) -> Problem | None:
    """The row's problem, None if it is filtered out."""
    try:
        row = msgspec.convert(raw, _Row, strict=True)
    except msgspec.ValidationError as error:
        raise _bad(path, line, str(error)) from None
    problem_id = str(row.problem_id)
    if not 0 < len(problem_id) <= MAX_ID:
        raise _bad(path, line, "problem_id is empty or too long")
    task = TASK_TYPES.get(row.task_type)
    if task is None:
        if arguments.other_tasks == "skip":
            return None
        why = f"task_type {row.task_type[:80]!r} cannot be scored; {nearest(row.task_type, TASK_TYPES)}"
        raise _bad(path, line, why, "correct the row, or set other_tasks = 'skip' in the environment's arguments")
    if not _in_solve_range(raw, path, line, arguments):
        return None
    try:
        before, prompt = read_prompt(row.prompt)
        problem = Problem(problem_id, prompt, task.truth(_info(row.verification_info), raw), task.name, before)
        check_template(problem, chat=arguments.template == "chat")
    except ValueError as error:
        raise _bad(path, line, str(error)) from None
    return problem


def _in_solve_range(raw: dict[str, Any], path: Path, line: int, arguments: Arguments) -> bool:
    if not arguments.solve_rate_field:
        return True
    rate = raw.get(arguments.solve_rate_field)
    if arguments.solve_rate_field not in raw:
        close = difflib.get_close_matches(arguments.solve_rate_field, raw, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(map(str, list(raw)[:12]))}"
        raise _bad(path, line, f"there is no column {arguments.solve_rate_field!r}{hint}")
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not math.isfinite(rate):
        raise _bad(path, line, f"{arguments.solve_rate_field} is {rate!r} instead of a number")
    return arguments.solve_rate_min <= rate <= arguments.solve_rate_max


def _info(written: str | dict[str, Any] | None) -> dict[str, Any]:
    """The row's verification_info; what was written as JSON, as a Python repr or not at all, too. Raises ValueError."""
    if not isinstance(written, str):
        return written or {}
    try:
        info = json.loads(written)
    except (ValueError, RecursionError) as error:
        info = _literal(written, str(error)[:120])
    if not isinstance(info, dict | None):
        raise ValueError("verification_info is no object")
    return info or {}


def _literal(text: str, why: str) -> Any:
    """The value of a Python repr of plain values."""
    depth = max(_depths(text), default=0)
    if not text.lstrip().startswith("{") or len(text) > MAX_REPR_CHARACTERS or depth > MAX_REPR_DEPTH:
        raise ValueError(f"verification_info is not JSON: {why}")
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"verification_info is neither JSON ({why}) nor the repr of plain values") from None


def _depths(text: str) -> Iterable[int]:
    """Brackets open at each place, those in strings too: an upper bound of the nesting that a parser would meet."""
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        yield depth
