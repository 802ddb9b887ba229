"""A golden row of every published form: its right answers are paid, its wrong ones are not; others are refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.environments.dataset import count_bad_rows
from node.environments.programs import ProgramRunner
from node.environments.task_types.shapes.table import read_published
from node.environments.task_types.table import TASK_TYPES
from node.sandbox import SandboxLimits
from tests.node.environments.sandboxes import OpenSandbox

GOLDEN = [json.loads(line) for line in (Path(__file__).parent / "golden.jsonl").read_text().splitlines()]
TAKEN = [one for one in GOLDEN if "shape" in one]
REFUSED = [one for one in GOLDEN if "refused" in one]


@pytest.fixture(scope="module")
def runner() -> Iterator[ProgramRunner]:
    runner = ProgramRunner(OpenSandbox, SandboxLimits())
    yield runner
    runner.close()


@pytest.mark.parametrize("one", TAKEN, ids=[one["shape"] for one in TAKEN])
def test_a_row_of_each_form_pays_right_answers_and_no_wrong_ones(one: dict[str, Any], runner: ProgramRunner) -> None:
    published = read_published(one["row"])
    assert published.shape == one["shape"]
    task = TASK_TYPES[published.task]
    truth = task.truth(published.info, one["row"])
    if task.name in ("verifiable_math", "marked_math"):
        pytest.importorskip("latex2sympy2_extended")
    if not one["right"]:
        return
    scorer = task.open(runner)
    answers = [*one["right"], *one["wrong"], "", "<think>" + one["right"][0]]
    scores = scorer.score([(f"<think>so</think>{answer}", truth) for answer in answers])
    scorer.close()
    assert scores == [1.0] * len(one["right"]) + [0.0] * (len(one["wrong"]) + 1) + scores[-1:]
    assert scorer.gave_up == 0


@pytest.mark.parametrize("one", REFUSED, ids=[one["refused"] for one in REFUSED])
def test_a_row_that_cannot_be_scored_is_refused_and_never_scored_0(one: dict[str, Any]) -> None:
    row = one["row"]
    if row.get("verification_info") == {"ground_truth": "LONG"}:
        row = row | {"verification_info": {"ground_truth": "x" * (5 << 20)}}
    with pytest.raises(ValueError, match=one["refused"]):
        published = read_published(row)
        TASK_TYPES[published.task].truth(published.info, row)


VALUES: list[Any] = [
    None,
    True,
    -1,
    1e308,
    "",
    "x",
    "{",
    "[[[[",
    "####",
    [],
    [[]],
    {},
    {"a": {"b": []}},
    ["a", 1, None],
]


def test_rows_with_any_value_anywhere_are_read_or_refused_and_nothing_else(tmp_path: Path) -> None:
    """Through `dataset`, as a stranger's file comes: one mistake a row at most, and never another error."""
    rows = [{**one["row"], key: value} for one in GOLDEN for key in one["row"] for value in VALUES]
    for one in TAKEN:
        info = one["row"].get("verification_info")
        inner = json.loads(info) if isinstance(info, str) else info or {}
        rows += [{**one["row"], "verification_info": {**inner, key: value}} for key in inner for value in VALUES]
    for number, row in enumerate(rows):
        row["problem_id"] = row.get("problem_id") if isinstance(row.get("problem_id"), list | dict) else number
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = count_bad_rows(path, {"template": "chat"})
    assert 500 < found < len(rows) and len(rows) > 3000


def test_a_problem_that_a_file_holds_many_times_is_one_and_two_of_one_id_are_a_mistake(tmp_path: Path) -> None:
    """DAPO-Math-17k holds each of its problems about a hundred times."""
    row = next(one["row"] for one in TAKEN if one["row"].get("data_source") == "math_dapo")
    path = tmp_path / "rows.jsonl"
    for last, mistakes in ((row, 0), (row | {"prompt": "Another."}, 1)):
        path.write_text("".join(json.dumps(one) + "\n" for one in [row] * 5 + [last]))
        assert count_bad_rows(path, {"template": "chat"}) == mistakes


def test_ids_follow_from_the_content_where_a_row_has_none() -> None:
    row = next(one["row"] for one in TAKEN if one["shape"] == "GSM8K")
    first, again = read_published(row), read_published({**row, "solve_rate": 0.5})
    assert first.problem_id == again.problem_id != read_published({**row, "question": "Why?"}).problem_id
