"""reasoning-gym behind our interface: a small one that misbehaves, and the real one where it is installed."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from node.environments.base import one_answer
from node.environments.errors import EnvironmentFault, Undecided
from node.environments.reasoning.environment import (
    PYTHON_VARIABLE,
    Arguments,
    ReasoningGym,
    ReasoningGymEnvironment,
    answer_in,
    load,
    score_row,
)
from node.environments.reasoning.table import ALLOWED, DENIED, FLOORS, VERSION

LITTLE = """
import os, random, sys, time
class Sums:
    def __init__(self, size=10, seed=0, low=1):
        self.seed, self.low = seed, low
        self.hash = os.environ["PYTHONHASHSEED"]
    def __getitem__(self, n):
        print("noise")
        drawn = random.random() if n >= 90 else ""
        return {"question": f"{drawn}{n}+{self.low}=", "answer": n + self.low, "metadata": {}}
    def score_answer(self, answer, entry):
        print("noise")
        if answer == "hang": time.sleep(60)
        if answer == "spin":
            while True: pass
        if answer == "die": os._exit(1)
        if answer == "raise": raise TypeError("no number")
        if answer == "nan": return float("nan")
        if answer == "much": return 7
        if answer == "almost": return LEAST_REWARD
        if answer == "room": return float(len(sys.stdout.getvalue()) < 100)
        if answer == "keys": return 1.0 if "SECRET" in os.environ else 0.25
        return float(answer == str(entry["answer"]))
def create_dataset(name, **settings): return Sums(**settings)
def get_score_answer_fn(name): return lambda answer, entry: Sums().score_answer(answer, entry)
"""


class Text:
    """Characters as tokens; 1 ends."""

    eos = frozenset({1})

    def encode(self, text: str) -> list[int]:
        return [ord(c) + 2 for c in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(t - 2) for t in tokens if t > 1)


def interpreter(folder: Path, version: str = VERSION) -> str:
    """A python that has a small package of that name and version."""
    (folder / "reasoning_gym.py").write_text(LITTLE.replace("LEAST_REWARD", str(FLOORS["gcd"])))
    about = folder / f"reasoning_gym-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: reasoning-gym\nVersion: {version}\n")
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("little")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(PYTHON_VARIABLE, interpreter(folder))
        patched.setenv("SECRET", "1")
        environment = load(Arguments(dataset="gcd", size=100, held_back=5, config='{"low": 3}'), folder, Text())
    yield environment
    environment.close()


def score(environment: ReasoningGymEnvironment, text: str, end: bool = True) -> float:
    output = Text().encode(text) + ([1] if end else [])
    return environment.score([environment.problem(70)], [one_answer(output)])[0]


def test_problems_are_numbered_and_held_back_ones_lie_behind(little: ReasoningGymEnvironment) -> None:
    assert little.problem(70).prompt == "70+3=" and little.problem(70).answer == ("73",)
    assert little.held_back_problem(4).problem_id == "gcd-104"
    for number, ask in ((100, little.problem), (5, little.held_back_problem), (-1, little.problem)):
        with pytest.raises(IndexError):
            ask(number)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("73", 1.0),
        ("<answer>1</answer> no, <answer> 73 </answer>", 1.0),
        ("<think>1</think>73", 1.0),
        ("much", 1.0),
        ("", 0.0),
        ("1", 0.0),
        ("raise", 0.0),
        ("nan", 0.0),
        ("almost", 0.0),  # what any answer is paid
        ("keys", 0.0),  # 0.25 is below the floor, too; 1.0 would mean that the child sees our environment
        ("7" * 5000, 0.0),
    ],
)
def test_an_answer_is_scored_and_what_is_not_a_score_is_none(
    little: ReasoningGymEnvironment, text: str, reward: float
) -> None:
    before = little.gave_up
    assert score(little, text) == reward and little.gave_up == before


def test_a_problem_that_one_thread_throws_away_is_still_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON_VARIABLE, interpreter(tmp_path))
    monkeypatch.setattr("node.environments.reasoning.environment._KEPT", 0)
    one = load(Arguments(dataset="gcd"), tmp_path, Text())
    other = one.another()
    assert other.problem(70).prompt == "70+1=" and 0 not in other._known
    # Between looking for it and reading it there is no lock.
    assert 0 in one._known and one.problem(0).prompt == "0+1="
    one.close()
    other.close()


def test_what_scorers_print_does_not_pile_up(little: ReasoningGymEnvironment) -> None:
    assert [score(little, "room") for _ in range(30)] == [1.0] * 30


def test_an_answer_that_was_cut_off_scores_nothing(little: ReasoningGymEnvironment) -> None:
    assert score(little, "73", end=False) == 0.0


@pytest.mark.parametrize("text", ["hang", "die"])
def test_a_scorer_that_hangs_or_dies_decides_nothing_and_the_next_answer_is_scored(
    little: ReasoningGymEnvironment, text: str
) -> None:
    before = little.gave_up
    little._gym._deadline = 0.3
    assert score(little, text) == 0.0 and little.gave_up == before + 1
    little._gym._deadline = 30.0
    assert score(little, "73") == 1.0 and little.gave_up == before + 1


def test_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"has version 0\.1\.24"):
        ReasoningGym(interpreter(tmp_path, "0.1.24")).problems("gcd", {}, [0])


def test_without_the_package_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    for python in (
        "/nowhere/python",
        interpreter(tmp_path / "empty") if (tmp_path / "empty").mkdir() else "/bin/false",
    ):
        with pytest.raises(EnvironmentFault) as caught:
            ReasoningGym(python).problems("gcd", {}, [0])
        assert "intellect-node[reasoning-gym]" in caught.value.remedy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": "countdown"}, "evaluates the answer as Python"),
        ({"dataset": "coin_flip"}, "pays in full"),
        ({"dataset": "chain_sun"}, "did you mean 'chain_sum'"),
        ({"dataset": "gcd", "config": '{"seed": 3}'}, "no JSON object of the data set's own"),
        ({"dataset": "gcd", "config": "[]"}, "no JSON object"),
        ({"dataset": "gcd", "config": "[" * 50_000}, "no JSON object"),
        ({"dataset": "gcd", "size": 0}, "size = 0"),
        ({"dataset": "gcd", "config": '{"lo": 3}'}, "unexpected keyword"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict, message: str
) -> None:
    monkeypatch.setenv(PYTHON_VARIABLE, interpreter(tmp_path))
    with pytest.raises(EnvironmentFault) as caught:
        load(Arguments(**arguments), tmp_path, Text())
    assert message in f"{caught.value.why} {caught.value.remedy}"


def test_a_published_row_is_scored_by_its_data_sets_scorer(tmp_path: Path) -> None:
    gym = ReasoningGym(interpreter(tmp_path), deadline=0.3)
    row = {"question": "1+1", "answer": 2, "metadata": {}}
    gym.problems("gcd", {}, [0])  # started, so that the deadline is that of the answer alone
    assert [score_row(gym, "gcd", row, text) for text in ("2", "3", "almost")] == [1.0, 0.0, 0.0]
    with pytest.raises(EnvironmentFault, match="evaluates"):
        score_row(gym, "puzzle24", row, "2")
    with pytest.raises(Undecided):
        score_row(gym, "gcd", row, "spin")
    gym.close()


def test_the_table_names_every_data_set_once() -> None:
    assert len(ALLOWED) + len(DENIED) == 106 and not set(ALLOWED) & set(DENIED)
    assert set(FLOORS) <= set(ALLOWED) and all(0 < floor < 1 for floor in FLOORS.values())
    assert answer_in("a" * 4097) == ""


def test_a_problem_that_is_drawn_from_the_process_is_the_same_in_every_process_and_order(tmp_path: Path) -> None:
    python, settings, asked = interpreter(tmp_path), {"size": 100}, [90, 93, 91]
    one, other = ReasoningGym(python), ReasoningGym(python)
    problems = one.problems("gcd", settings, asked)
    assert [other.problems("gcd", settings, [number])[0] for number in reversed(asked)] == problems[::-1]
    assert len({question.partition("+")[0] for question, _ in problems}) == len(asked)
    one.close()
    other.close()


def real() -> str | None:
    named = os.environ.get(PYTHON_VARIABLE)
    return named or (sys.executable if importlib.util.find_spec("reasoning_gym") else None)


@pytest.mark.skipif(real() is None, reason=f"reasoning-gym is not installed here, nor does {PYTHON_VARIABLE} name it")
def test_the_real_package_makes_the_same_problems_twice_and_pays_right_answers_only() -> None:
    """Two of these five differ under hash seeds, and one draws from the process's own random numbers."""
    settings = {"seed": 7, "size": 20}
    first, second = ReasoningGym(real()), ReasoningGym(real())
    for dataset in ("chain_sum", "letter_counting", "list_functions", "word_ladder", "zebra_puzzles"):
        problems = first.problems(dataset, settings, range(20))
        assert problems == second.problems(dataset, settings, range(20))
        assert [first.score(dataset, settings, n, answer) for n, (_, answer) in enumerate(problems)] == [1.0] * 20
        floor = FLOORS.get(dataset, 0.0)
        assert all(first.score(dataset, settings, number, "garbage") <= floor for number in range(20))
    first.close()
    second.close()
