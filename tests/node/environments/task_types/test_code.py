"""Programs as answers: which rows can be used, and what they are worth."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from node.environments.programs import ProgramRunner, last_block
from node.environments.task_types.base import Truth
from node.environments.task_types.code import MAX_TESTS, Case, CodeScorer, read_truth
from node.environments.task_types.shapes.intellect import code
from node.sandbox import Limits, Outcome, Status, Undecided
from tests.node.environments.sandboxes import OpenSandbox

STDIN = {"language": "python", "test_cases": [{"input": "1 2\n", "output": "3"}, {"input": "5 -5", "output": "0\n"}]}
ADD = {"fn_name": "add"}
FUNCTION = {"test_cases": [ADD | {"input": [1, 2], "output": 3}, ADD | {"input": [0, 0], "output": 0}]}


def answer(source: str, language: str = "python") -> str:
    return f"<think>```python\nprint(0)\n```</think> Here it is:\n```{language}\n{source}\n```\nThat adds them."


@pytest.fixture(scope="module")
def scorer() -> Iterator[CodeScorer]:
    runner = ProgramRunner(OpenSandbox, Limits())
    yield CodeScorer(runner)
    runner.close()


def scored(scorer: CodeScorer, info: dict[str, Any], text: str) -> float:
    return scorer.score([(text, read_truth(info, {}))])[0]


@pytest.mark.parametrize(
    ("source", "reward"),
    [
        ("print(sum(map(int, input().split())))", 1.0),
        ("a, b = map(int, input().split())\nprint(f'  {a + b}.0  ')\nprint()", 1.0),
        ("print(3)", 0.0),
        ("if __name__ == '__main__':\n    print(sum(map(int, input().split())))\n    raise SystemExit", 1.0),
        ("print(sum(map(int, input().split())))\nraise SystemExit(1)", 0.0),
        ("print(sum(map(int, input().split())))\n1 / 0", 0.0),
        ("def broken(", 0.0),
        ("", 0.0),
    ],
)
def test_a_program_must_pass_every_test_on_standard_input(scorer: CodeScorer, source: str, reward: float) -> None:
    assert scored(scorer, STDIN, answer(source)) == reward


@pytest.mark.parametrize(
    ("source", "reward"),
    [
        ("def add(a, b): return a + b", 1.0),
        ("class Solution:\n    def add(self, a: int, b: Optional[int]) -> int: return a + b", 1.0),
        ("def add(a, b): return float(a + b)", 1.0),
        ("def add(a, b): return str(a + b)", 0.0),
        ("def plus(a, b): return a + b", 0.0),
        ("def add(a, b): return {a + b}", 0.0),
        ("def add(a, b): exit(0)", 0.0),
    ],
)
def test_functions_are_called_and_their_values_compared_outside(scorer: CodeScorer, source: str, reward: float) -> None:
    assert scored(scorer, FUNCTION, answer(source)) == reward


def test_what_is_expected_never_enters_the_sandbox() -> None:
    opened: list[OpenSandbox] = []

    def opener(*arguments: Any) -> OpenSandbox:
        opened.append(OpenSandbox(*arguments))
        return opened[0]

    runner = ProgramRunner(opener, Limits())
    info = {"test_cases": [{"input": "x", "output": "the secret"}, {"fn_name": "f", "input": [], "output": "secret 2"}]}
    scorer = CodeScorer(runner)
    assert scored(scorer, info, answer("f = lambda: 'secret 2'\nprint('the ' + 'secret')")) == 1.0
    runner.close()
    assert [call.function for call in opened[0].calls] == ["run", "call"]
    assert "the secret" not in repr(opened[0].calls)


def test_equal_programs_are_run_once_and_the_first_failure_ends_it() -> None:
    opened: list[OpenSandbox] = []

    def opener(*arguments: Any) -> OpenSandbox:
        opened.append(OpenSandbox(*arguments))
        return opened[0]

    runner = ProgramRunner(opener, Limits())
    scorer = CodeScorer(runner)
    truth = read_truth(STDIN, {})
    for _ in range(2):
        assert scorer.score([(answer("print(9)"), truth)] * 3) == [0.0] * 3
    assert len(opened[0].calls) == 1
    opened[0].fail_with["run"] = Undecided("no", "slow", "wait")
    assert scorer.score([(answer("print(8)"), truth)]) == [0.0] and scorer.gave_up == 1
    opened[0].fail_with["run"] = Outcome(Status.OUT_OF_FUEL, fuel=10**12)
    assert scorer.score([(answer("print(7)"), truth)]) == [0.0] and scorer.gave_up == 1
    runner.close()


def test_all_trials_of_a_program_share_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.environments.programs.TOTAL", 2)
    runner = ProgramRunner(OpenSandbox, Limits(fuel=10))
    list(runner.run("pass", []))
    runner._sandbox.fail_with["run"] = Outcome(Status.OK, fuel=8)  # noqa: SLF001
    info = {"test_cases": [{"input": "", "output": ""}] * 5}
    trials = [case.trial for case in msgspec.json.decode(read_truth(info, {})[0], type=list[Case])]
    assert [outcome.status for outcome in runner.run("pass", trials)] == [Status.OK] * 3 + [Status.OUT_OF_FUEL] * 2
    assert [call.fuel for call in runner._sandbox.calls] == [10, 10, 4]  # noqa: SLF001
    runner.close()


def truth_of(info: dict[str, Any]) -> Truth:
    """The tests of a published row."""
    return read_truth(code("prime_rl_code", info, None)[2], {})


def test_both_published_forms_of_tests_are_read_alike() -> None:
    listed = truth_of({"test_cases": [{"fn_name": "f", "input": [[1], "x"], "output": [2]}]})
    lists = {"inputs": ['[1]\n"x"'], "outputs": ["[2]"], "fn_name": "f"}
    assert truth_of({"test_cases": json.dumps(lists)}) == listed
    assert truth_of({"test_cases": lists}) == listed
    plain = truth_of({"test_cases": [{"input": "1\n2", "output": "3", "fn_name": None}]})
    assert truth_of({"test_cases": {"inputs": [["1", "2"]], "outputs": [["3"]]}}) == plain


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({"test_cases": []}, "any program would pass"),
        ({"test_cases": {"inputs": [], "outputs": []}}, "any program would pass"),
        ({}, "it needs tests"),
        ({"test_cases": "[1"}, "not JSON"),
        ({"test_cases": [{"input": "x"}]}, "test 0 has no input and output"),
        ({"test_cases": {"inputs": ["1"], "outputs": []}}, "as many outputs"),
        ({"test_cases": [{"fn_name": "a.b", "input": [], "output": 1}]}, "no function's name"),
        ({"test_cases": [{"fn_name": "f", "input": 5, "output": 1}]}, "no list of arguments"),
        ({"test_cases": [{"input": "", "output": ""}] * (MAX_TESTS + 1)}, "are allowed"),
        ({"test_cases": [{"input": "x" * (5 << 20), "output": ""}] * 2}, "bytes, 8388608 are allowed"),
        (
            {"test_cases": [{"fn_name": "f", "input": [5], "output": "Infinity"}]},
            "test 0 has a number that is infinite",
        ),
        ({"test_cases": [{"fn_name": "f", "input": [5], "output": "[1e999]"}]}, "test 0 has a number that is infinite"),
        ({"test_cases": [{"fn_name": "f", "input": "NaN", "output": "0"}]}, "test 0 has a number that is infinite"),
        ({"language": "rust", "test_cases": [{"input": "", "output": ""}]}, "only Python"),
    ],
)
def test_tests_that_cannot_be_used_are_refused(info: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        truth_of(info)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("```python\nx\n```", "x\n"),
        ("```\nx\n```\n```py\ny\n```", "y\n"),
        ("  ```python3\n  x\n  ```  ", "  x\n"),
        ("```\nx", None),
        ("print(1)", None),
        ("```python\n \n```", None),
        ("```python\nx\n```\n<think> again </think> no", None),
        ("```\n" + "x" * (1 << 19) + "\n```", None),
        ("`" * 100_000, None),
    ],
)
def test_the_last_fenced_block_after_the_reasoning_is_the_program(text: str, source: str | None) -> None:
    assert last_block(text) == source
