"""The files that a finished task is made into: a data set with provenance, a filtered data set. Blocking.

Works on the owner's machine, from what the daemon has collected (`records`). Rows are in the order of the problems.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from node.environments.dataset import read_problems
from node.state.files import write_whole
from node.tasks.conversations import ConversationMessage, Conversations, Texts
from node.tasks.findings import read_task
from node.tasks.measures import solve_rate
from node.tasks.records import ShardRecord, TaskFolder
from node.tasks.results import TaskAnswer, scores_by_problem
from node.tasks.sources import MESSAGES, Sources, fields
from protocol.run import EnvironmentSpec
from protocol.segments import pieces, turns
from protocol.tasks import TaskSpec

SOLVE_RATE = "solve_rate"
_TEXTS = ("problem_id", "prompt_text", "response", "response_id", "llm_response")
_ORIGIN = ("task", "node", "policy_root", "file_root", "work_id", "commitment_signature", "verdicts", "engine")
_GENERATED: list[tuple[str, pa.DataType]] = [
    *((name, pa.string()) for name in _TEXTS),
    ("messages", MESSAGES),
    ("score", pa.float64()),
    ("finished", pa.bool_()),
    ("prompt_tokens", pa.list_(pa.int32())),
    ("response_tokens", pa.list_(pa.int32())),
    ("response_mask", pa.list_(pa.int8())),
    ("mean_logprob", pa.float64()),
    *((name, pa.int64()) for name in ("group", "sample", "turns", "shard", "policy_step")),
    *((name, pa.string()) for name in _ORIGIN),
]
"""The columns of generated data, beside those of the problem (`sources`). prompt_text: as the model was asked;
messages: prompt and response; response, SYNTHETIC-1's llm_response: what the policy said last, of one turn all of it;
response_mask: 1 for each token of response_tokens that was sampled, 0 for the environment's; mean_logprob: over
sampled tokens."""


# filter


class Filtered(msgspec.Struct, frozen=True):
    """rows: looked at; kept: written; undecided: without a score, never kept; spread: solve rate -> rows."""

    rows: int
    kept: int
    undecided: int
    spread: dict[str, int]


def write_filtered(folder: TaskFolder, source: Path | None, output: Path, lowest: float, highest: float) -> Filtered:
    """The rows whose solve rate lies in [lowest, highest], each with its rate, as JSONL or parquet (by the name).

    source: the data set that was filtered, whose columns are kept; None: problem ids and rates alone. What is written
    can be trained on with `solve_rate_field = "solve_rate"`.
    """
    scores = scores_by_problem(answer for _, answers in read_task(folder) for answer in answers)
    rates = {name: solve_rate(found) for name, found in scores.items()}
    kept = {name for name, rate in rates.items() if rate is not None and lowest <= rate <= highest}
    bare = ({"problem_id": name, SOLVE_RATE: rate} for name, rate in rates.items() if name in kept)
    written = _write_rows(_source_rows(source, rates, kept) if source else bare, output)
    spread: dict[str, int] = {}
    for rate in sorted(rate for rate in rates.values() if rate is not None):
        spread[f"{rate:.3g}"] = spread.get(f"{rate:.3g}", 0) + 1
    return Filtered(len(rates), written, sum(rate is None for rate in rates.values()), spread)


def _source_rows(source: Path, rates: Mapping[str, float | None], kept: set[str]) -> Iterator[dict[str, Any]]:
    for row, published in read_problems(source):
        if published.problem_id in kept:
            yield {**row, SOLVE_RATE: rates[published.problem_id]}


# generate


def write_generated(folder: TaskFolder, texts: Texts, output: Path, environment: EnvironmentSpec, assets: Path) -> int:
    """Every answer with its problem, its score and its origin, as parquet or JSONL (by the name); how many rows.

    environment: that the problems are of; assets: where its files lie. `dataset` and `task filter` read the result.
    """
    # The shards are read twice: of a large data set, only the rows that were asked are kept.
    names = {answer.problem_id for _, answers in read_task(folder) for answer in answers}
    sources = Sources(environment, assets, names)
    # A column of the source that is called like one of ours gives way to it.
    known = {name for name, _ in _GENERATED}
    schema = pa.schema([*(one for one in fields(sources) if one[0] not in known), *_GENERATED])
    rows = ({name: row.get(name) for name in schema.names} for row in _generated(folder, texts, sources))
    return _write_rows(rows, output, schema)


def _generated(folder: TaskFolder, texts: Texts, sources: Sources) -> Iterator[dict[str, Any]]:
    spec, said = folder.spec(), Conversations(texts)
    for record, answers in read_task(folder):
        provenance = _provenance(folder, spec, record)
        asked: dict[int, tuple[str, list[ConversationMessage]]] = {}
        for answer in answers:
            if answer.group not in asked:
                asked[answer.group] = texts.decode(answer.prompt), said.prompt(answer.prompt)
            prompt, before = asked[answer.group]
            problem = sources.of(answer.problem_id, prompt)
            yield {**problem, **_said(answer, prompt, before, said), **_facts(answer), **provenance}


def _said(answer: TaskAnswer, prompt: str, before: list[ConversationMessage], said: Conversations) -> dict[str, Any]:
    response = said.response(answer.output, answer.segments)
    return {
        "problem_id": answer.problem_id,
        "prompt_text": prompt,
        "response": response[-1].content,
        "llm_response": response[-1].content,
        "messages": [msgspec.structs.asdict(one) for one in (*before, *response)],
    }


def _facts(answer: TaskAnswer) -> dict[str, Any]:
    return {
        "score": answer.score,
        "finished": answer.finished,
        "prompt_tokens": answer.prompt,
        "response_tokens": answer.output,
        "response_mask": [int(sampled) for piece, sampled in pieces(answer.output, answer.segments) for _ in piece],
        "mean_logprob": answer.logprob,
        "response_id": f"{answer.shard}-{answer.group}-{answer.sample}",
        "sample": answer.sample,
        "group": answer.group,
        "turns": turns(answer.segments),
        "engine": answer.engine,
    }


def _provenance(folder: TaskFolder, spec: TaskSpec, record: ShardRecord) -> dict[str, Any]:
    return {
        "task": folder.path.name,
        "shard": record.shard,
        "node": record.node,
        "policy_root": spec.policy,
        "policy_step": spec.step,
        "file_root": record.file_root,
        "work_id": record.work,
        "commitment_signature": record.signature,
        "verdicts": json.dumps([msgspec.to_builtins(verdict) for verdict in record.verdicts], sort_keys=True),
    }


# files


def _write_rows(rows: Iterable[dict[str, Any]], output: Path, schema: pa.Schema | None = None) -> int:
    """JSONL, or parquet where the name says so; whole or not at all. schema: of parquet, None: read off all rows."""
    partial = output.with_name(f".{output.name}.partial")
    try:
        count = _write_parquet(rows, partial, schema) if output.suffix == ".parquet" else _write_lines(rows, partial)
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
    return count


def _write_lines(rows: Iterable[dict[str, Any]], path: Path) -> int:
    count = 0
    with path.open("wb") as file:
        for row in rows:
            file.write(msgspec.json.encode(row) + b"\n")
            count += 1
    return count


def _write_parquet(rows: Iterable[dict[str, Any]], path: Path, schema: pa.Schema | None) -> int:
    if schema is None:
        table = pa.Table.from_pylist(list(rows))
        pq.write_table(table, path, compression="zstd")
        return table.num_rows
    count = 0
    rows_at_once = 4096
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        waiting = iter(rows)
        while batch := list(islice(waiting, rows_at_once)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
            count += len(batch)
    return count


def write_json(output: Path, value: msgspec.Struct) -> None:
    """A small result as JSON, for people."""
    write_whole(output, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
