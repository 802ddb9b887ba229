"""What `run validate` says of scorers before anybody trains: rows that would not pay, rows that would pay too much."""

import json
from pathlib import Path
from typing import Any

import pytest

from node.environments.both_ways import look_both_ways
from node.environments.dataset import Arguments, load
from node.environments.errors import DatasetError
from node.environments.registry import check_prompts
from node.errors import NodeError
from tests.node.environments.tokens import Characters

pytest.importorskip("latex2sympy2_extended")


def environment(path: Path, rows: list[dict[str, Any]]) -> Any:
    (path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load(Arguments(path="d.jsonl", held_back_share=0.2), path, Characters())


def test_rows_whose_published_solution_is_not_paid_are_named(tmp_path: Path) -> None:
    rows = [{"id": n, "problem": f"q{n}", "answer": str(n), "solution": f"It is \\boxed{{{n}}}."} for n in range(40)]
    good = look_both_ways(environment(tmp_path, rows))
    assert good.looked_at > 20 and not good.unpaid and not good.overpaid and not good.words
    # The published solution contradicts the published answer in a form that no reader compares.
    rows = [{**row, "solution": f"It is $\\boxed{{x + {row['id']}}}$."} if row["id"] % 2 else row for row in rows]
    found = look_both_ways(environment(tmp_path, rows))
    assert found.unpaid and all(int(one) % 2 for one in found.unpaid)


def test_rows_that_pay_a_wrong_answer_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"id": n, "problem": f"q{n}", "answer": f"\\{{1, 2, \\ldots, {n + 9}\\}}"} for n in range(40)]
    good = environment(tmp_path, rows)
    assert not look_both_ways(good).overpaid
    monkeypatch.setattr(type(good), "score_texts", lambda self, problem, answers: [1.0] * len(answers))
    found = look_both_ways(good)
    assert len(found.overpaid) == found.looked_at and found.overpaid[0][1] == "\\boxed{}"


def test_a_program_that_does_nothing_must_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = [{"input": "1", "output": ""}]
    rows = [{"problem": f"q{n}", "tests": tests} for n in range(40)]
    made = environment(tmp_path, rows)
    monkeypatch.setattr(type(made), "score_texts", lambda self, problem, answers: [float("pass" in a) for a in answers])
    found = look_both_ways(made)
    assert found.looked_at == 8 == len(found.overpaid)


def test_truths_that_are_only_words_are_counted(tmp_path: Path) -> None:
    rows = [{"id": n, "problem": f"q{n}", "answer": f"x \\equiv {n} \\pmod p, x > {n}"} for n in range(40)]
    rows += [{"id": n, "problem": f"q{n}", "answer": "\\text{no solution}"} for n in range(40, 80)]
    found = look_both_ways(environment(tmp_path, rows))
    assert not found.unpaid and 0 < found.words < found.looked_at


def test_the_problem_that_a_chat_template_refuses_is_named_and_how_many_there_are(tmp_path: Path) -> None:
    class Refusing(Characters):
        def encode(self, text: str) -> list[int]:
            if text.endswith(("3", "7")):
                raise NodeError("the prompt cannot be rendered", "roles must alternate", "change the messages")
            return super().encode(text)

    (tmp_path / "d.jsonl").write_text(
        "".join(json.dumps({"problem": f"q{n}", "answer": "1"}) + "\n" for n in range(40))
    )
    made = load(Arguments(path="d.jsonl"), tmp_path, Refusing())
    with pytest.raises(DatasetError, match="problem 'row-.*': roles must alternate.* more of the 3. problems") as told:
        check_prompts(made, 100)
    assert told.value.findings is not None and 4 < told.value.findings.total < 9
