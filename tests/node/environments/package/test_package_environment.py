"""A package as an environment: its rows, its turns, its rewards, and what is made of its mistakes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.environments.base import Problem, Segment, Transcript, one_answer
from node.environments.errors import PackageError, Undecided
from node.environments.package.archive import pack
from node.environments.package.environment import Arguments, PackageEnvironment, load
from node.sandbox import CallOutcome, CallStatus
from node.sandbox import Undecided as NoOutcome
from tests.node.environments.sandboxes import OpenSandbox
from tests.node.environments.tokens import Characters

NEXT = """
# /// environment
# name = "next"
# class = "exact"
# turns = 2
# ///
def rows():
    return ({"id": f"n{n}", "n": n} for n in range(60))
def prompt(row):
    return f"{row['n']}+1="
def step(row, turns):
    return None if score(row, turns) else f"not {turns[-1]['content']}"
def score(row, turns):
    return turns[-1]["content"] == str(row["n"] + 1)
def golden(row):
    return str(row["n"] + 1)
"""
Loader = Callable[..., PackageEnvironment]
TOKENS = Characters()


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[Loader]:
    opened: list[PackageEnvironment] = []

    def load_package(code: str = NEXT, template: str = "plain", **files: str) -> PackageEnvironment:
        folder = tmp_path / "environments"
        folder.mkdir(exist_ok=True)
        texts = {"environment.py": code} | {name.replace("_", "."): text for name, text in files.items()}
        (folder / "next.tar").write_bytes(pack({name: text.encode() for name, text in texts.items()}))
        opened.append(load(Arguments(template, 0.3), tmp_path, "next", TOKENS, OpenSandbox))
        return opened[-1]

    yield load_package
    for environment in opened:
        environment.close()


def said(*texts: str, complete: bool = True) -> Transcript:
    """Sampled and environment's by turns, the last one the model's."""
    segments = [
        Segment(TOKENS.encode(text + ("\n" if place % 2 == 0 else "")), place % 2 == 0)
        for place, text in enumerate(texts)
    ]
    return segments if complete else [*segments[:-1], Segment(segments[-1].tokens[:-1], True)]


def numbered(environment: PackageEnvironment, number: int) -> Problem:
    problem = environment.problem(number)
    assert problem.problem_id.startswith("n")
    return problem


def test_rows_become_problems_that_everybody_splits_alike(loaded: Loader) -> None:
    one, other = loaded(), loaded()
    assert one.size + one.held_back == 60 and 5 < one.held_back < 40
    assert (one.name, one.determinism, one.turns) == ("next", "exact", 2)
    ids = [one.problem(n).problem_id for n in range(one.size)]
    assert ids == [other.problem(n).problem_id for n in range(other.size)]
    back = {one.held_back_problem(n).problem_id for n in range(one.held_back)}
    assert not back & {*ids}
    problem = one.problem(0)
    assert TOKENS.decode(one.prompt_tokens(problem)) == problem.prompt
    with pytest.raises(IndexError):
        one.problem(-1)


def test_rows_are_read_in_slices_and_a_file_of_rows_gives_the_same(
    loaded: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = loaded()
    small = NEXT.replace("# ///\ndef", "# [limits]\n# output_bytes = 2000\n# ///\ndef")
    lines = "".join(f'{{"id": "n{n}", "n": {n}}}\n' for n in range(60))
    sliced = loaded(small)
    filed = loaded(small.replace("def rows", "def old_rows"), rows_jsonl=lines)
    for other in (sliced, filed):
        assert [other.problem(n) for n in range(other.size)] == [made.problem(n) for n in range(made.size)]
        calls = [call.function for call in other._package.sandbox.calls]
        assert calls.count("asked") + calls.count("prompts") > 5


def test_a_reward_is_the_packages_own_and_what_was_cut_off_scores_nothing(loaded: Loader) -> None:
    environment = loaded()
    problem = numbered(environment, 3)
    right = str(int(problem.prompt[:-3]) + 1)
    transcripts = [said(right), said("x"), said("x", "not x", right), said(right, complete=False), one_answer([])]
    assert environment.score([problem] * 5, transcripts) == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert environment.faults == {}


def test_many_rollouts_are_told_in_one_pass_what_each_is_told_alone(loaded: Loader) -> None:
    together, alone = loaded(), loaded()
    transcripts = [said(str(n // 2)) for n in range(20)]  # each twice: asked once
    problems = [together.problem(n % 5) for n in range(20)]
    replies = together.steps(problems, transcripts)
    assert replies == [alone.step(*one) for one in zip(problems, transcripts, strict=True)] and None not in replies[:4]
    before = len(together._package.sandbox.calls)
    assert together.steps(problems, transcripts) == replies
    assert len(together._package.sandbox.calls) == before
    together._package.sandbox.fail_with["step"] = NoOutcome("no outcome", "busy", "wait")
    told, unsure = together.steps([problems[0], problems[0]], [transcripts[0], said("new")])
    assert told == replies[0] and isinstance(unsure, Undecided)


ECHO = NEXT.replace('f"not {turns[-1]', "f\"{row['n'] % 2 and 'No' or 'no'} {turns[-1]").replace(
    '== str(row["n"] + 1)', '== "y" and turns[1]["content"].startswith(row["n"] % 2 and "No" or "no")'
)


def test_texts_of_equal_tokens_are_never_mistaken_for_each_other(
    loaded: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a reward would depend on what else a machine has seen."""
    monkeypatch.setattr(Characters, "encode", lambda self, text: [ord(c) for c in text.lower()])
    environment = loaded(ECHO.replace("None if score(row, turns) else ", ""))
    problems = [environment.problem(number) for number in range(6)]
    assert len({int(problem.prompt[:-3]) % 2 for problem in problems}) == 2
    told = [environment.step(problem, said("x")) for problem in problems]
    assert {TOKENS.decode(tokens or []) for tokens in told} == {"no x"}
    assert environment.score(problems, [said("x", "no x", "y")] * 6) == [1.0] * 6


def test_equal_questions_are_asked_once(loaded: Loader) -> None:
    environment = loaded()
    problem = numbered(environment, 3)
    for _ in range(2):
        environment.score([problem] * 4, [said("x"), said("x"), said("y"), said("x", "not x", "x")])
    calls = environment._package.sandbox.calls
    assert sum(call.function == "score" for call in calls) == 3


def test_what_the_environment_says_goes_through_the_template_and_comes_back_as_text(loaded: Loader) -> None:
    told = NEXT.replace('str(row["n"] + 1)\ndef', 'turns[0]["content"] and turns[1]["content"] or "none"\ndef')
    told = told.replace("return None if score(row, turns) else", "return").replace(
        "return turns[-1]", 'return [t["content"] for t in turns] == ["x", "not x", "y"] or turns[-1]'
    )
    for template, text in (("plain", "not x"), ("chat", "<user>not x<assistant>")):
        environment = loaded(told, template)
        tokens = environment.step(numbered(environment, 0), said("x"))
        assert tokens is not None and TOKENS.decode(tokens) == text
        transcript = [*said("x"), Segment(tokens, False), *said("y")]
        assert environment.score([environment.problem(0)], [transcript]) == [1.0]
        fresh = loaded(told, template)  # which has never said anything, and says it again
        assert fresh.score([fresh.problem(0)], [transcript]) == [1.0]


def test_a_turn_that_nobody_can_replay_now_leaves_the_reward_undecided(loaded: Loader) -> None:
    environment = loaded()
    environment._package.sandbox.fail_with["step"] = NoOutcome("no", "slow", "wait")
    assert environment.score([environment.problem(0)], [said("x", "not x", "y")]) == [0.0]
    assert environment.gave_up == 1


def test_a_scorer_that_fails_gives_the_floor_and_is_counted(loaded: Loader) -> None:
    code = NEXT.replace('return turns[-1]["content"] == str(row["n"] + 1)', 'return eval(turns[-1]["content"])')
    environment = loaded(code)
    bodies = {
        "no reward": ["1.5", "-0.1", "'1'", "None", "10**400", "[1]"],
        "raised": ["1/0", "float('nan')", "float('inf')", "{1}"],
        "exited": ["__import__('sys').exit(0)"],
    }
    for fault, said_by_it in bodies.items():
        before = environment.faults.get(fault, 0)
        scores = environment.score([environment.problem(0)] * len(said_by_it), [said(text) for text in said_by_it])
        assert scores == [0.0] * len(said_by_it)
        assert environment.faults.get(fault, 0) == before + len(said_by_it)
    assert environment.score([environment.problem(0)], [said("True")]) == [1.0] and environment.gave_up == 0


def test_out_of_a_counted_limit_is_the_floor_everywhere(loaded: Loader) -> None:
    environment = loaded()
    for status in (CallStatus.OUT_OF_FUEL, CallStatus.OUT_OF_MEMORY, CallStatus.TOO_LONG, CallStatus.CRASHED):
        environment._package.sandbox.fail_with["score"] = CallOutcome(status)
        assert environment.score([environment.problem(0)], [said(str(status))]) == [0.0]
        assert environment.faults[str(status)] == 1 and environment.gave_up == 0


def test_what_this_machine_cannot_tell_is_undecided_and_asked_again(loaded: Loader) -> None:
    environment = loaded()
    problem = numbered(environment, 3)
    right = [said(str(int(problem.prompt[:-3]) + 1))]
    sandbox = environment._package.sandbox
    sandbox.fail_with = dict.fromkeys(("score", "step"), NoOutcome("no", "slow", "wait"))
    assert environment.score([problem], right) == [0.0] and environment.gave_up == 1
    with pytest.raises(Undecided):
        environment.step(problem, said("x"))
    sandbox.fail_with = {}
    assert environment.score([problem], right) == [1.0] and environment.gave_up == 1


def test_a_step_that_fails_ends_the_rollout(loaded: Loader) -> None:
    environment = loaded(
        NEXT.replace("return None if score(row, turns) else f", "return eval(turns[-1]['content'])\n    f")
    )
    for body in ("1 / 0", "5", "''", "'x' * 70000", "None"):
        assert environment.step(environment.problem(0), said(body)) is None
    assert environment.step(environment.problem(0), said("'more'")) == TOKENS.encode("more")


CODE = """
# /// environment
# name = "next"
# class = "exact"
# ///
def rows():
    return [{"n": n, "want": str(n * n)} for n in range(40)]
def prompt(row):
    return f"square {row['n']}"
def program(row, turns):
    return {"source": turns[-1]["content"], "stdin": [str(row["n"]), "3"]} if turns[-1]["content"] != "none" else None
def score(row, turns, runs):
    wanted = [row["want"], "9"]
    return sum(run["ok"] and run["output"].strip() == want for run, want in zip(runs, wanted)) / 2
def golden(row):
    return "print(int(input()) ** 2)"
"""


def test_programs_run_apart_from_what_is_expected_of_them(loaded: Loader) -> None:
    environment = loaded(CODE)
    problem = environment.problem(environment.size - 1)
    answers = ["print(int(input()) ** 2)", "print(9)", "raise SystemExit(3)", "none", "import environment"]
    scores = environment.score([problem] * 5, [said(text) for text in answers])
    assert scores == [1.0, 0.5, 0.0, 0.0, 0.0] and environment.faults == {}
    runner = environment._scorer._runner._sandbox
    want = f'"want": "{int(problem.prompt[7:]) ** 2}"'
    assert all(want not in str(call.arguments) for call in runner.calls) and len(runner.calls) == 8


def test_a_program_that_cannot_be_told_leaves_its_group_undecided(loaded: Loader) -> None:
    environment = loaded(CODE)
    environment.score([environment.problem(0)], [said("print(1)")])
    runner = environment._scorer._runner._sandbox
    runner.fail_with["run"] = NoOutcome("no", "slow", "wait")
    assert environment.score([environment.problem(0)] * 2, [said("print(2)"), said("none")]) == [0.0, 0.0]
    assert environment.gave_up == 1


def test_a_judged_package_leaves_every_reward_to_judges(loaded: Loader) -> None:
    environment = loaded(NEXT.replace('"exact"', '"judged"'))
    problem = environment.problem(0)
    right = said(str(int(problem.prompt[:-3]) + 1))
    assert environment.score([problem] * 2, [right, right]) == [0.0, 0.0]
    assert (environment.gave_up, environment.determinism) == (2, "judged")


def test_rows_are_bounded_one_by_one_and_together(loaded: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.environments.package.loaded.MAX_TOTAL_BYTES", 1000)
    with pytest.raises(PackageError, match="more than 1000 bytes"):
        loaded()
    monkeypatch.setattr("node.environments.package.loaded.MAX_ROW_BYTES", 10)
    with pytest.raises(PackageError, match="row 0 is no object of at most 10 bytes"):
        loaded()
    monkeypatch.setattr("node.environments.package.loaded.MAX_ROWS", 10)
    with pytest.raises(PackageError, match="more than 10 rows"):
        loaded()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (NEXT.replace("def rows", "def old"), "no rows"),
        (NEXT.replace("def score", "def mark"), "no function score"),
        (NEXT.replace("def step", "def next_step"), "no function step"),
        ("import nothing\n" + NEXT, "No module named 'nothing'"),
        (NEXT.replace("{row['n']}", "{row['m']}"), "row 0: KeyError"),
        (NEXT.replace("return f\"{row['n']}+1=\"", "return 5"), "row 0: the prompt is neither"),
        (NEXT.replace("return f\"{row['n']}+1=\"", "return ''"), "row 0: the prompt is empty"),
        (NEXT.replace('"n": n}', '"n": n} if n != 7 else [n]'), "row 7"),
        (NEXT.replace('f"n{n}"', "n % 50"), "same id"),
        (NEXT.replace('f"n{n}"', "[n]"), "row 0: its id"),
        (NEXT.replace("range(60)", "range(1)"), "held back"),
        (NEXT.replace('"next"', '"other"'), "calls itself 'other'"),
    ],
)
def test_a_package_that_cannot_be_used_is_told_before_a_run_begins(loaded: Loader, code: str, says: str) -> None:
    with pytest.raises(PackageError) as caught:
        loaded(code)
    assert says in caught.value.why and caught.value.remedy
