from collections import Counter
from pathlib import Path

import pytest

from node.environments.base import OneTurn, Problem, Segment, Transcript, one_answer
from node.environments.errors import EnvironmentFault
from node.environments.mix import MixEnvironment, label_of
from node.environments.registry import check_arguments, check_prompts, load_environment
from protocol.draw import draw_problems
from protocol.identity import address_from_bytes
from protocol.run import EnvironmentSpec
from protocol.sections import EnvironmentPart

SIZE = 1 << 62

NODE = address_from_bytes(b"\x05" * 20)
MIX = EnvironmentSpec(
    name="mix",
    parts=(
        EnvironmentPart(name="sort", weight=3, args={"digits": 3, "held_back": 10}),
        EnvironmentPart(name="reverse", weight=1, label="back", args={"digits": 4, "held_back": 20}),
    ),
)


class Characters:
    """One token per character; token 1 ends an answer."""

    eos = frozenset({1})

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, tokens) -> str:
        return "".join(chr(token) for token in tokens if token != 1)

    def encode_chat(self, text: str) -> list[int]:
        raise NotImplementedError

    def encode_reply(self, text: str) -> list[int]:
        raise NotImplementedError


@pytest.fixture
def mix() -> MixEnvironment:
    environment = load_environment(MIX, Path("."), Characters())
    assert isinstance(environment, MixEnvironment)
    return environment


def test_the_draw_meets_each_environment_by_its_weight(mix: MixEnvironment) -> None:
    numbers = draw_problems(b"\x01" * 32, NODE, 0, 4000, mix.size)
    labels = Counter(label_of(MIX, mix.problem(number).problem_id) for number in numbers)
    assert set(labels) == {"sort", "back"} and 0.72 < labels["sort"] / 4000 < 0.78
    assert len({mix.problem(number).problem_id for number in numbers}) > 1500


def test_every_answer_is_scored_by_its_own_environment(mix: MixEnvironment) -> None:
    problems = [mix.problem(number) for number in draw_problems(b"\x02" * 32, NODE, 0, 50, mix.size)]
    tokens = Characters()
    right = [one_answer([*tokens.encode(problem.answer[0]), 1]) for problem in problems]
    assert mix.score(problems, right) == [1.0] * 50
    assert mix.score(problems, [one_answer([*tokens.encode("x"), 1])] * 50) == [0.0] * 50
    reverse = next(problem for problem in problems if problem.problem_id.startswith("back/"))
    digits = reverse.problem_id.removeprefix("back/reverse-")
    assert tokens.decode(mix.prompt_tokens(reverse)) == f"={digits}=" and reverse.answer == (digits[::-1],)


def test_a_mix_takes_the_turns_of_its_parts_and_is_as_dependable_as_the_least(mix: MixEnvironment) -> None:
    class Asks(OneTurn):
        size, held_back, gave_up, turns, determinism = 9, 9, 0, 3, "bounded"

        def problem(self, number: int) -> Problem:
            return Problem(f"asks-{number}", "", ())

        def step(self, problem: Problem, transcript: Transcript) -> list[int]:
            return [int(problem.problem_id.removeprefix("asks-")), len(transcript)]

    parts = [(label, 1.0, environment) for label, environment in mix.parts.items()]
    both = MixEnvironment([*parts, ("asking", 1.0, Asks())])
    assert (mix.turns, mix.determinism, both.turns, both.determinism) == (1, "exact", 3, "bounded")
    asked, sort = Problem("asking/asks-7", "", ()), Problem("sort/sort-1", "", ())
    first = one_answer([5, 1])
    assert both.step(asked, first) == [7, 1] and both.step(sort, first) is None
    assert both.step(asked, [*first, Segment([2], sampled=False)] * 2 + [*first]) is None, "its own turns are over"


def test_held_back_problems_alternate_and_are_all_there(mix: MixEnvironment) -> None:
    ids = [mix.held_back_problem(number).problem_id for number in range(mix.held_back)]
    assert len(set(ids)) == 30
    assert [one.partition("/")[0] for one in ids[:4]] == ["sort", "back", "sort", "back"]


def test_held_back_problems_of_each_part_are_numbered_as_they_alternate() -> None:
    lists = [_Listed(3), _Listed(1), _Listed(4)]
    mix = MixEnvironment([(label, 1, one) for label, one in zip("abc", lists, strict=True)])  # type: ignore[misc]
    ids = [mix.held_back_problem(number).problem_id for number in range(mix.held_back)]
    assert ids == ["a/0", "b/0", "c/0", "a/1", "c/1", "a/2", "c/2", "c/3"]
    assert mix.held_back_parts == [[0, 3, 5], [1], [2, 4, 6, 7]]
    for number in (-1, 8):
        with pytest.raises(IndexError):
            mix.held_back_problem(number)


def test_a_mix_of_parts_that_hold_millions_back_takes_no_memory_for_them() -> None:
    mix = MixEnvironment([("a", 1, _Listed(1 << 60)), ("b", 1, _Listed(2))])  # type: ignore[list-item]
    assert mix.held_back == (1 << 60) + 2
    assert mix.held_back_problem(3).problem_id == "b/1"
    assert mix.held_back_problem(mix.held_back - 1).problem_id == f"a/{(1 << 60) - 1}"


class _Listed:
    def __init__(self, held_back: int) -> None:
        self.held_back = held_back

    def held_back_problem(self, number: int) -> Problem:
        return Problem(str(number), "", ())


def test_numbers_outside_are_no_problems(mix: MixEnvironment) -> None:
    for number in (-1, SIZE):
        with pytest.raises(IndexError):
            mix.problem(number)
    assert mix.problem(SIZE - 1).problem_id


def test_prompts_of_every_part_are_looked_at(mix: MixEnvironment) -> None:
    assert check_prompts(mix, limit=6) == 6  # "=1234=", of the second part
    with pytest.raises(Exception, match="has 6 tokens"):
        check_prompts(mix, limit=5)


def test_a_mix_of_nothing_or_of_unknown_parts_is_an_error() -> None:
    with pytest.raises(EnvironmentFault, match="no parts"):
        load_environment(EnvironmentSpec(name="mix"), Path("."), Characters())
    with pytest.raises(EnvironmentFault, match="'chess'"):
        parts = (EnvironmentPart(name="chess"),)
        load_environment(EnvironmentSpec(name="mix", parts=parts), Path("."), Characters())


@pytest.mark.parametrize(
    ("name", "args", "hint"),
    [
        ("srot", {}, "did you mean 'sort'?"),
        ("sort", {"digit": 4}, "did you mean 'digits'?"),
        ("sort", {"digits": "four"}, "correct args"),
        ("dataset", {"path": "x", "solve_rate_feild": "a"}, "did you mean 'solve_rate_field'?"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_loaded(name: str, args: dict, hint: str) -> None:
    problem = check_arguments(name, args)
    assert problem is not None and hint in problem[1]


def test_right_arguments_pass() -> None:
    assert check_arguments("sort", {"digits": 5}) is None


def test_only_a_mix_has_labels() -> None:
    assert label_of(EnvironmentSpec(name="dataset"), "books/7") == "dataset"
