"""Problems, scores, and what is said of a dataset that is wrong."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from node.environments.base import one_answer
from node.environments.dataset import count_bad_rows
from node.environments.errors import DatasetError, EnvironmentFault
from node.environments.math_scorer import ALL, MathScorer, final_answer
from node.environments.registry import load_environment
from node.environments.scoring_pool import ScoringPool
from protocol.run import EnvironmentSpec
from tests.node.environments.tokens import Characters


def load(name: str, assets: Path, **args: Any):
    return load_environment(EnvironmentSpec(name=name, args=args), assets, Characters())


def row(i: int, **changes: Any) -> dict[str, Any]:
    return {
        "problem_id": f"p{i}",
        "prompt": f"{i} + 1 =",
        "task_type": "verifiable_math",
        "verification_info": json.dumps({"ground_truth": str(i + 1)}),
        "solve_rate": i / 100,
    } | changes


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    return path


def test_sort_holds_problems_back_that_are_never_trained_on(tmp_path: Path) -> None:
    sort = load("sort", tmp_path, digits=3, held_back=100)
    training = {sort.problem(i).problem_id for i in range(sort.size)}
    evaluation = {sort.held_back_problem(i).problem_id for i in range(sort.held_back)}
    assert (len(training), len(evaluation), len(training | evaluation)) == (900, 100, 1000)
    problem = sort.problem(17)
    right = "".join(sorted(problem.prompt[:3]))
    answers = [one_answer(Characters().encode(text)) for text in (problem.prompt, right, right + "1")]
    assert sort.score([problem] * 3, answers) == [0.0, 1.0, 0.0]
    with pytest.raises(IndexError):
        sort.problem(900)


@pytest.mark.parametrize(
    "args",
    [
        {"digits": 1},
        {"digits": "4"},
        {"digit": 4},
        {"digits": 2, "held_back": 99},
        {"digits": 10**12},
        {"digits": 18, "held_back": 10**17},
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, args: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentFault):
        load("sort", tmp_path, **args)
    with pytest.raises(EnvironmentFault, match="no environment"):
        load("chess", tmp_path)


def test_jsonl_and_parquet_give_the_same_problems(tmp_path: Path) -> None:
    rows = [row(i) for i in range(100)]
    write(tmp_path / "d.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d.parquet")
    lines, columns = (load("dataset", tmp_path, path=name, held_back_share=0.2) for name in ("d.jsonl", "d.parquet"))
    assert lines.size == columns.size and lines.size + lines.held_back == 100 and 5 < lines.held_back < 40
    assert [lines.problem(i) for i in range(lines.size)] == [columns.problem(i) for i in range(columns.size)]
    first = lines.problem(0)
    assert lines.prompt_tokens(first) == Characters().encode(first.prompt)
    answers = [one_answer(Characters().encode(text)) for text in (f"{first.answer[0]}\n", first.answer[0], "0\n")]
    assert lines.score([first] * 3, answers) == [1.0, 0.0, 0.0], "what was cut off is no answer"


def test_rows_outside_the_solve_rate_or_of_other_tasks_can_be_left_out(tmp_path: Path) -> None:
    write(tmp_path / "d.jsonl", [*(row(i) for i in range(100)), row(100, task_type="kernelbench", solve_rate=0.5)])
    with pytest.raises(DatasetError, match="line 101.*kernelbench"):
        load("dataset", tmp_path, path="d.jsonl")
    kept = load(
        "dataset", tmp_path, path="d.jsonl", other_tasks="skip", held_back_share=0.3,
        solve_rate_field="solve_rate", solve_rate_min=0.1, solve_rate_max=0.49,
    )  # fmt: skip
    assert kept.size + kept.held_back == 40
    chat = load("dataset", tmp_path, path="d.jsonl", other_tasks="skip", template="chat")
    assert Characters().decode(chat.prompt_tokens(chat.problem(0))).startswith("<user>")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("{not json", "not a JSON object"),
        ("[1, 2]", "not a JSON object"),
        ({"prompt": "x"}, "task_type"),
        (row(2, prompt=5), "prompt"),
        (row(2, prompt=""), "empty"),
        (row(2, problem_id="p0"), "second time"),
        (row(2, verification_info="{"), "neither JSON"),
        (row(2, verification_info="{}"), "ground_truth"),
        (row(2, verification_info={"ground_truth": [True]}), "ground_truth"),
        (row(2, task_type="poetry"), "poetry"),
        ("x" * (4 << 20) + "xx", "longer than"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path, broken: Any, why: str) -> None:
    path = write(tmp_path / "d.jsonl", [row(0), row(1), broken])
    with pytest.raises(DatasetError, match=why) as caught:
        load("dataset", tmp_path, path="d.jsonl")
    assert f"{path}, line 3" in caught.value.why and caught.value.remedy


def test_all_bad_rows_are_told_at_once_the_first_twenty_whole_and_the_rest_by_kind(tmp_path: Path) -> None:
    kinds = [{"prompt": 5}, {"task_type": "poetry"}, {"verification_info": "{}"}, {"problem_id": []}]
    broken = [row(n, **kinds[n % 4]) for n in range(24)] + ["{not json"] * 6
    path = write(tmp_path / "d.jsonl", [*(row(i) for i in range(100, 140)), *broken])
    with pytest.raises(DatasetError) as caught:
        load("dataset", tmp_path, path="d.jsonl")
    found = caught.value.findings
    assert found is not None and found.total == len(broken) == 30 and len(found.first) == 20
    assert [one.place for one in found.first] == [f"{path}, line {41 + n}" for n in range(20)]
    assert all(one.remedy for one in found.first)
    assert sum(found.rest().values()) == 10 and "and 29 more" in caught.value.why


def test_bad_rows_are_skipped_and_counted_where_the_run_says_so_and_by_every_member_alike(tmp_path: Path) -> None:
    bad = [
        "{not json",
        "x" * (4 << 20) + "xx",
        row(1, prompt=5),
        row(2, verification_info={"ground_truth": [True]}),
        row(100, prompt="Another?"),
    ]
    write(tmp_path / "d.jsonl", [*(row(i) for i in range(100, 140)), *bad, row(300)])
    skipping = {"path": "d.jsonl", "on_bad_row": "skip", "held_back_share": 0.3}
    kept = load("dataset", tmp_path, **skipping)
    assert kept.size + kept.held_back == 41 and kept.rows.shapes == {"INTELLECT-2, verifiable_math": 41}
    assert kept.rows.skipped.total == len(bad) == count_bad_rows(tmp_path / "d.jsonl", skipping)
    load("dataset", tmp_path, **skipping, bad_rows=len(bad))
    with pytest.raises(DatasetError, match="5 rows are skipped, 4 were when the run was made"):
        load("dataset", tmp_path, **skipping, bad_rows=4)
    with pytest.raises(DatasetError, match="on_bad_row"):
        load("dataset", tmp_path, path="d.jsonl", on_bad_row="ignore")


def test_several_responses_to_a_problem_are_one_problem_unless_they_contradict_each_other(tmp_path: Path) -> None:
    rows = [row(i // 4, response_id=f"r{i}", llm_response="so") for i in range(160)]
    write(tmp_path / "d.jsonl", rows)
    once = load("dataset", tmp_path, path="d.jsonl", held_back_share=0.3)
    assert once.size + once.held_back == 40 and once.rows.repeats == 120
    write(tmp_path / "d.jsonl", [*rows, row(0, response_id="r", prompt="another?")])
    with pytest.raises(DatasetError, match="line 161: problem_id 'p0' appears a second time"):
        load("dataset", tmp_path, path="d.jsonl")


def test_a_dataset_that_is_missing_elsewhere_or_empty_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    write(tmp_path / "outside.jsonl", [row(0)])
    (tmp_path / "assets" / "empty.jsonl").touch()
    (tmp_path / "assets" / "d.parquet").write_bytes(b"PAR1 no")
    for path in ("none.jsonl", "../outside.jsonl", "empty.jsonl", "d.parquet"):
        with pytest.raises(DatasetError):
            load("dataset", tmp_path / "assets", path=path)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{1} or rather \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("<think>\\boxed{3}</think> 4", "4"),
        ("\\boxed{7", None),
        ("", None),
        ("9" * 600, None),
    ],
)
def test_the_final_answer_is_the_last_box_or_what_follows_the_thinking(text: str, answer: str | None) -> None:
    found = final_answer(text)
    assert (found and found.partition(ALL)[0]) == answer


def test_all_boxes_of_an_answer_follow_its_last_one() -> None:
    assert final_answer("\\boxed{1} and \\boxed{2}, \\boxed{}") == f"2{ALL}1, 2"
    assert final_answer("\\boxed{2} and \\fbox{1}, so \\boxed{2}.") == f"2{ALL}1, 2"
    assert final_answer("\\boxed{7}, as I was to write \\boxed{...}") == "7"
    assert final_answer("I write it in \\boxed{}: 7") is None
    assert final_answer("\\boxed{\\fbox{7}} and \\boxed{\\{3\\}}") == f"\\{{3\\}}{ALL}\\fbox{{7}}, \\{{3\\}}"


@pytest.fixture(scope="module")
def pool() -> Iterator[ScoringPool]:
    pytest.importorskip("latex2sympy2_extended")
    pool = ScoringPool(60.0, "node.environments.mathematics.comparison")
    yield pool
    pool.close()


def test_integers_need_no_child(pool: ScoringPool) -> None:
    before = len(pool._idle)
    assert MathScorer(pool).match([("0042", ("42",)), ("41", ("42",))]) == [True, False]
    assert len(pool._idle) == before


def test_a_right_answer_that_a_busy_moment_left_undecided_is_right_the_next_time(
    pool: ScoringPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer, question = MathScorer(pool), ("\\frac{2}{4}", ("0.5",))
    with monkeypatch.context() as busy:
        busy.setattr(pool, "_deadline", 0.0)  # a child's first answer takes longer than any other
        assert scorer.match([question]) == [False] and scorer.gave_up == 1
    assert scorer.match([question]) == [True] and scorer.gave_up == 1


def test_answers_are_compared_as_mathematics_and_within_bounds(
    pool: ScoringPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = MathScorer(pool)
    tower = "9^{9^{9^{9^9}}}"
    questions = [
        ("\\frac{2}{4}", ("0.5",)),
        ("x+1", ("y", "1+x")),
        ("x+2", ("1+x",)),
        ("\\frac{", ("0.5",)),
        ("\\sqrt{4}", ("2",)),
    ]
    assert scorer.match(questions) == [True, True, False, False, True]
    assert scorer.match([*questions[:2], (tower, ("2",))]) == [True, True, False]
    assert scorer.gave_up == 0, "what is too large is decided by its size, on every machine alike"
    monkeypatch.setattr(pool, "_deadline", 0.0)
    assert scorer.match([*questions[:2], ("\\frac{1}{3}", ("x",))]) == [True, True, False]
    assert scorer.gave_up == 1
