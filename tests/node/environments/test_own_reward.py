"""A reward function of one's own over problems that are there already."""

from pathlib import Path

import pytest

from node.environments.base import one_answer
from node.environments.registry import load_environment
from node.own_code import OwnCodeError
from protocol.run import EnvironmentSpec
from protocol.sections import EnvironmentPart


class Digits:
    """Digit d is token d + 2, as in the test model; 1 ends."""

    eos = frozenset({1})

    def encode(self, text):
        return [int(c) + 2 if c.isdigit() else 12 for c in text]

    def decode(self, tokens):
        return "".join(str(t - 2) for t in tokens if t >= 2)


def environment(folder: Path, returned: str, **settings):
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "mine.py").write_text(f"def score(row, answer):\n    return {returned}\n")
    named = EnvironmentSpec(name="sort", args={"digits": 3, "held_back": 10}, reward="mine:score")
    return load_environment(settings.get("named", named), folder, Digits())


def test_the_function_scores_what_the_environment_asks(tmp_path: Path) -> None:
    own = environment(tmp_path, "len(answer) + (answer == row['answer'][0]) / 2")
    problem = own.problem(7)
    right = [int(c) + 2 for c in problem.answer[0]]
    cut_off = one_answer([4, 4])
    assert own.score([problem, problem], [one_answer([*right, 1]), cut_off]) == [3.5, 2.0]
    assert (own.size, own.held_back, own.turns) == (990, 10, 1) and own.prompt_tokens(problem)


def test_one_part_of_a_mix_may_have_its_own(tmp_path: Path) -> None:
    parts = (
        EnvironmentPart(name="sort", args={"digits": 3, "held_back": 10}, reward="mine:score"),
        EnvironmentPart(name="reverse", args={"digits": 3, "held_back": 10}),
    )
    mix = environment(tmp_path, "7", named=EnvironmentSpec(name="mix", parts=parts))
    problems = [mix.held_back_problem(0), mix.held_back_problem(1)]
    assert mix.score(problems, [one_answer([1]), one_answer([1])]) == [7.0, 0.0]


@pytest.mark.parametrize("returned", ["None", "float('nan')", "float('inf')", "'good'", "[1]", "answer.nothing"])
def test_a_reward_that_is_no_number_is_named_with_its_problem(tmp_path: Path, returned: str) -> None:
    own = environment(tmp_path, returned)
    with pytest.raises(OwnCodeError, match="mine:score"):
        own.score([own.problem(0)], [one_answer([2, 1])])
