"""What asks the same in other words stands on one side of a hold-out; what a template writes does not."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from examples.make_sums import write_rows
from node.environments.base import Problem
from node.environments.dataset import Arguments, DatasetRows, _read
from node.environments.twins import groups_of


def problem(text: str, truth: str = "7", number: int = 0) -> Problem:
    return Problem(f"p{number}", text, (truth,), "verifiable_math")


SAME = {
    "case, marks and blanks": ("Ann has 3 apples and gets 4.  How many?", "ann has 3 apples and gets 4 how many"),
    "other words": ("Ann has 3 apples and gets 4.", "Tom owned 4 cars. He bought 3 more!"),
    "another order": ("3 + 4", "4 + 3"),
    "numbers in words": ("Ann has 3 apples and gets 4.", "Ann has three apples and gets four."),
    "numbers written otherwise": ("1,000 and 2.50", "2.5 with 1000"),
    "one word": ("Write a function that reverses a list of words.", "Write a function which reverses a list of words."),
    "full width": ("Ann has \uff13 apples and \uff14", "Ann has 3 apples and 4"),
}
OTHER = {
    "other numbers": (("Ann has 3 apples and gets 4.", "7"), ("Ann has 3 apples and gets 5.", "8")),
    "another question about them": (("Ann has 4 and loses 3.", "1"), ("Ann has 4 and gets 3.", "7")),
    "another answer": (
        ("What is the capital of France, please?", "Paris"),
        ("What is the capital of Spain, please?", "Madrid"),
    ),
    "other brackets": (("(3 + 4) * 2", "14"), ("3 + (4 * 2)", "11")),
    "another text": (("Write a poem about the sea.", "-"), ("Prove that the root is irrational.", "-")),
    "one number alone": (("Square 4.", "16"), ("How many ounces are in 4 quarters of a pound?", "16")),
}


@pytest.mark.parametrize("kind", SAME)
def test_the_same_in_other_words_is_alike(kind: str) -> None:
    assert groups_of([problem(text, number=n) for n, text in enumerate(SAME[kind])]) == [0, 0]


@pytest.mark.parametrize("kind", OTHER)
def test_another_problem_is_not_alike(kind: str) -> None:
    assert groups_of([problem(text, truth, n) for n, (text, truth) in enumerate(OTHER[kind])]) == [0, 1]


def test_what_all_rows_have_in_common_groups_none() -> None:
    """A preface, and options that are numbered."""
    draw = random.Random(0)
    words = [f"word{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(600)]
    rows = [
        problem(f"Choose well. {' '.join(draw.sample(words, 8))}. 1) a 2) b 3) c 4) d", str(n % 9 + 1), n)
        for n in range(600)
    ]
    assert len(set(groups_of(rows))) == len(rows)
    rows += [problem(rows[5].prompt.replace("Choose well", "Please choose"), rows[5].answer[0], 9999)]
    assert groups_of(rows)[-1] == 5, "a control: with the words of its own it is found"


def test_many_wordings_of_few_pairs_are_found() -> None:
    pairs = [(a, b) for a in range(2, 12) for b in range(a, 12)]
    forms = [f"{{a}} things{chr(97 + n)} and then {{b}} others{chr(97 + n)}" for n in range(24)]
    rows = [
        problem(form.format(a=a, b=b), str(a + b), n)
        for n, (form, (a, b)) in enumerate((f, p) for f in forms for p in pairs)
    ]
    assert len(set(groups_of(rows))) == len(pairs)


def test_templates_leave_problems_of_their_own() -> None:
    rows = [problem(f"What is {a} plus {b}?", str(a + b), a * 50 + b) for a in range(50) for b in range(50)]
    assert max(Counter(groups_of(rows)).values()) == 2  # a + b and b + a


def read(path: Path, rows: list[dict], share: float = 0.25, **arguments: object) -> DatasetRows:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return _read(path, Arguments(path="", held_back_share=share, **arguments))  # type: ignore[arg-type]


def pair_of(one: Problem) -> tuple[str, ...]:
    return tuple(sorted(re.findall(r"\d+", one.prompt)))


def test_what_is_alike_stands_on_one_side_and_is_counted(tmp_path: Path) -> None:
    forms = ("{a} + {b}", "Ann has {a} apples and gets {b} more.", "{b} birds sit there, {a} come.")
    rows = [
        {"question": form.format(a=a, b=b), "answer": f"#### {a + b}"}
        for form in forms
        for a in range(20)
        for b in range(a, 20)
    ]
    found = read(tmp_path / "d.jsonl", rows)
    assert found.alike == len(rows) * 2 // 3
    pairs = [
        {tuple(sorted(re.findall(r"\d+", one.prompt))) for one in side} for side in (found.training, found.held_back)
    ]
    assert not pairs[0] & pairs[1] and len(found.held_back) > len(rows) // 8
    later = read(tmp_path / "d.jsonl", [*rows, {"question": "17 and 18?", "answer": "#### 35"}])
    assert {one.prompt for one in found.held_back} <= {one.prompt for one in later.held_back}, "nothing moves"


def test_the_maker_of_rows_may_say_what_is_alike(tmp_path: Path) -> None:
    rows = [{"question": f"Say word {n}", "answer": f"#### {n}", "split_key": n % 10} for n in range(100)]
    found = read(tmp_path / "d.jsonl", rows)
    keys = [{int(one.answer[0]) % 10 for one in side} for side in (found.training, found.held_back)]
    assert keys[0] | keys[1] == {*range(10)} and not keys[0] & keys[1] and found.alike == 90


def test_rows_that_are_all_alike_are_split_as_they_were(tmp_path: Path) -> None:
    rows = [{"question": f"What is 3 plus 4{'!' * n}?", "answer": "#### 7"} for n in range(60)]
    found = read(tmp_path / "d.jsonl", rows)
    assert found.alike == 59 and found.training and found.held_back


def test_no_pair_of_smollms_held_back_sums_stands_in_training(tmp_path: Path) -> None:
    write_rows(tmp_path)
    found = _read(tmp_path / "sums.jsonl", Arguments(path="", template="chat", held_back_share=0.25))
    pairs = [
        {tuple(sorted(re.findall(r"\d+", one.prompt))) for one in side} for side in (found.training, found.held_back)
    ]
    assert not pairs[0] & pairs[1] and len(found.held_back) == 97
