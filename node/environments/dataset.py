"""`dataset`: problems from a file in the form of the INTELLECT-2 dataset (JSONL or parquet).

Columns: prompt, task_type, verification_info (a JSON string or an object), problem_id, and optionally a
solve rate. Parsing is strict: a row that is not what it should be stops the run with its file and line.
Which problems are held back follows from their ids, so every node agrees.
"""

import difflib
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from node.environments.base import (
    Determinism,
    Environment,
    OneTurn,
    Problem,
    Tokenizer,
    Transcript,
    last_answer,
)
from node.environments.errors import DatasetError
from node.environments.math_scorer import MathScorer, final_answer

MAX_FILE_BYTES = 8 * 1024**3
MAX_ROW_BYTES = 1024**2
MAX_ROWS = 5_000_000
MAX_ROW_GROUP_BYTES = 2 * 1024**3
MAX_TRUTHS = 8
_HELD_BACK_CONTEXT = "intellect-node held-back problems v1"
_SUPPORTED = ("verifiable_math",)


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """path: below the run's assets; template: 'plain' or 'chat'; held_back_share: of the problems, for evaluation;
    solve_rate_field, solve_rate_min, solve_rate_max: keep only rows in the range (no field: keep all);
    other_tasks: 'error' or 'skip' for rows of task types that cannot be scored."""

    path: str
    template: str = "plain"
    held_back_share: float = 0.05
    solve_rate_field: str = ""
    solve_rate_min: float = 0.0
    solve_rate_max: float = 1.0
    other_tasks: str = "error"


class _Row(msgspec.Struct, frozen=True):
    """Columns beyond these are ignored: published datasets carry many."""

    prompt: str
    task_type: str
    verification_info: str | dict[str, Any]
    problem_id: str


class DatasetEnvironment(OneTurn):
    """`verifiable_math` rows: reward 1 if the answer is complete and equals a ground truth, else 0."""

    name = "dataset"
    determinism: Determinism = "bounded"

    def __init__(
        self,
        training: Sequence[Problem],
        held_back: Sequence[Problem],
        tokenizer: Tokenizer,
        *,
        chat: bool,
        left_out: int = 0,
    ) -> None:
        self._training = training
        self._held_back = held_back
        self._tokenizer = tokenizer
        self._chat = chat
        self._scorer = MathScorer()
        self.left_out = left_out
        """rows that the solve-rate range or other_tasks = "skip" kept out"""
        self.size = len(training)
        self.held_back = len(held_back)

    def problem(self, number: int) -> Problem:
        return self._training[_checked(number, self.size)]

    def held_back_problem(self, number: int) -> Problem:
        return self._held_back[_checked(number, self.held_back)]

    @property
    def gave_up(self) -> int:
        return self._scorer.gave_up

    def prompt_tokens(self, problem: Problem) -> list[int]:
        return (self._tokenizer.encode_chat if self._chat else self._tokenizer.encode)(problem.prompt)

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        """What was cut off at the length limit is no answer and scores 0."""
        outputs = list(map(last_answer, transcripts))
        complete = [i for i, output in enumerate(outputs) if output and output[-1] in self._tokenizer.eos]
        answers = [(i, final_answer(self._tokenizer.decode(outputs[i]))) for i in complete]
        given = [(i, answer) for i, answer in answers if answer is not None]
        right = self._scorer.match([(answer, problems[i].answer) for i, answer in given])
        scores = [0.0] * len(outputs)
        for (i, _), matches in zip(given, right, strict=True):
            scores[i] = float(matches)
        return scores

    def close(self) -> None:
        self._scorer.close()


def _checked(number: int, size: int) -> int:
    if not 0 <= number < size:
        raise IndexError(f"problem {number} of {size}")
    return number


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
    return DatasetEnvironment(training, held_back, tokenizer, chat=arguments.template == "chat", left_out=left_out)


def is_held_back(problem_id: str, share: float) -> bool:
    """Whether the hash of the id falls into the lowest `share` of all hashes."""
    digest = blake3(problem_id.encode(), derive_key_context=_HELD_BACK_CONTEXT).digest(8)
    return int.from_bytes(digest, "little") < share * 2**64


def _bad(path: Path, line: int, why: str) -> DatasetError:
    return DatasetError("the dataset cannot be used", f"{path}, line {line}: {why}", "correct or remove the row")


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
    if not row.prompt or not row.problem_id or len(row.problem_id) > 256:
        raise _bad(path, line, "prompt or problem_id is empty or too long")
    if row.task_type not in _SUPPORTED:
        if arguments.other_tasks == "skip":
            return None
        raise _bad(path, line, f"task_type {row.task_type[:80]!r} cannot be scored (only {', '.join(_SUPPORTED)})")
    if not _in_solve_range(raw, path, line, arguments):
        return None
    return Problem(row.problem_id, row.prompt, _truths(row, path, line))


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


def _truths(row: _Row, path: Path, line: int) -> tuple[str, ...]:
    info = row.verification_info
    if isinstance(info, str):
        try:
            info = json.loads(info)
        except (ValueError, RecursionError) as error:
            raise _bad(path, line, f"verification_info is not JSON: {error}") from None
    truth = info.get("ground_truth") if isinstance(info, dict) else None
    truths = truth if isinstance(truth, list) else [truth]
    if not 0 < len(truths) <= MAX_TRUTHS or not all(isinstance(t, str) and 0 < len(t) <= 1024 for t in truths):
        raise _bad(path, line, "verification_info needs ground_truth: a string, or a list of up to 8, none too long")
    return tuple(str(t) for t in truths)
