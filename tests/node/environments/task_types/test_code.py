"""Programs as answers: which rows can be used, and what they are worth."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from node.environments.programs import ProgramRunner, last_block
from node.environments.task_types.base import Truth
from node.environments.task_types.code import MAX_TESTS, CodeCase, CodeScorer, read_truth
from node.environments.task_types.shapes.intellect import code
from node.sandbox import CallOutcome, CallStatus, SandboxLimits, Undecided
from tests.node.environments.sandboxes import OpenSandbox

STDIN = {"language": "python", "test_cases": [{"input": "1 2\n", "output": "3"}, {"input": "5 -5", "output": "0\n"}]}
ADD = {"fn_name": "add"}
FUNCTION = {"test_cases": [ADD | {"input": [1, 2], "output": 3}, ADD | {"input": [0, 0], "output": 0}]}


def answer(source: str, language: str = "python") -> str:
    return f"<think>```python\nprint(0)\n```</think> Here it is:\n```{language}\n{source}\n```\nThat adds them."


@pytest.fixture(scope="module")
def scorer() -> Iterator[CodeScorer]:
    runner = ProgramRunner(OpenSandbox, SandboxLimits())
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

    runner = ProgramRunner(opener, SandboxLimits())
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

    runner = ProgramRunner(opener, SandboxLimits())
    scorer = CodeScorer(runner)
    truth = read_truth(STDIN, {})
    for _ in range(2):
        assert scorer.score([(answer("print(9)"), truth)] * 3) == [0.0] * 3
    assert len(opened[0].calls) == 1
    opened[0].fail_with["run"] = Undecided("no", "slow", "wait")
    assert scorer.score([(answer("print(8)"), truth)]) == [0.0] and scorer.gave_up == 1
    opened[0].fail_with["run"] = CallOutcome(CallStatus.OUT_OF_FUEL, fuel=10**12)
    assert scorer.score([(answer("print(7)"), truth)]) == [0.0] and scorer.gave_up == 1
    runner.close()


def test_all_trials_of_a_program_share_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.environments.programs.TOTAL", 2)
    runner = ProgramRunner(OpenSandbox, SandboxLimits(fuel=10))
    list(runner.run("pass", []))
    runner._sandbox.fail_with["run"] = CallOutcome(CallStatus.OK, fuel=8)
    info = {"test_cases": [{"input": "", "output": ""}] * 5}
    trials = [case.trial for case in msgspec.json.decode(read_truth(info, {})[0], type=list[CodeCase])]
    assert [outcome.status for outcome in runner.run("pass", trials)] == [CallStatus.OK] * 3 + [
        CallStatus.OUT_OF_FUEL
    ] * 2
    assert [call.fuel for call in runner._sandbox.calls] == [10, 10, 4]
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
        ("```py\ny\n```\n```\n6\n```", "y\n"),
        ("```py\ny\n```\n```output\n6\n```", "y\n"),
        ("```cpp\ny\n```", None),
        ("```\nprint(1)\n```\nIt prints\n```\n1\n```", "print(1)\n"),
        ("```\nprint(1)\n```\nBetter:\n```\nprint(2)\n```", "print(2)\n"),
        ("```\n1\n```\n```\n2\n```", "2\n"),
        ("```Python3\nx\n```", "x\n"),
        ("```{.python .numberLines}\nx\n```", "x\n"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''\n"),
        ("~~~python\nx\n~~~", "x\n"),
        ("~~~python\nx\n```\n~~~", "x\n```\n"),
        ("```python\r\nx\r\n```\r\n", "x\r\n"),
        ("  ```python3\n  x\n  ```  ", "x\n"),
        ("- so:\n\n    ```python\n    if x:\n        y\n    ```", "if x:\n    y\n"),
        ("\t```python\n\tif x:\n\t\ty\n\t```", "if x:\n\ty\n"),
        ("   ```python\n   s = '''\nz\n'''\n   ```", "s = '''\nz\n'''\n"),
        ("```python\n    x\n    y\n```", "x\ny\n"),
        ("```\nx", None),
        ("print(1)", None),
        ("```python\n \n```", None),
        ("```python\nx\n```\n<think> again </think> no", None),
        ("```\n" + "x" * (1 << 19) + "\n```", None),
        ("`" * 100_000, None),
    ],
)
def test_the_program_of_an_answer_is_its_last_python_block_before_a_nameless_one(text: str, source: str | None) -> None:
    assert last_block(text) == source


PRINTS_3 = [
    "print(gcd(6, 9))",
    "print(list(accumulate([1, 2]))[-1])",
    "print(nlargest(1, [1, 3])[0])",
    "print(3 if inf > 1 and nan != nan else 0)",
    "print(sorted([3], key=cmp_to_key(lambda a, b: a - b))[0])",
    "print(reduce(mul, [3]))",
    "print(math.gcd(6, 9) + (defaultdict(int)[0] + Counter()[1]))",
    "print(deepcopy([3])[0] + bisect_left([1], 0) + len(list(permutations([]))) * 0)",
    "print(len(findall('a', 'aaa')))",
    "print(comb(3, 1)); assert ascii_lowercase",
    "print(fractions.Fraction(3)); assert time.time and decimal.Decimal(1)",
    "data = stdin.readline().split(); print(sum(map(int, data)))",
    "stdout.write(str(pow(3, 1)))",
    "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(3000) // 1000)",
    "t = threading.Thread(target=lambda: print(3))\nt.start()\nt.join()",
    "import sys\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 27)\n"
    "def f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
    "threading.Thread(target=lambda: print(f(3000) // 1000)).start()",
    "class T(threading.Thread):\n    def run(self): self.found = 3\nt = T()\nt.start()\nt.join()\nprint(t.found)",
    "import _thread\n_thread.start_new_thread(print, (3,))",
]


@pytest.mark.parametrize("source", PRINTS_3)
def test_a_program_finds_what_published_judges_give_it(scorer: CodeScorer, source: str) -> None:
    info = {"test_cases": [{"input": "1 2\n", "output": "3"}]}
    source = f"import threading\n{source}" if "threading." in source else source
    assert scored(scorer, info, answer(source)) == 1.0
    assert scored(scorer, info, answer(source + "\nprint(4)")) == 0.0


def test_what_judges_give_a_program_is_no_function_of_its_own(scorer: CodeScorer) -> None:
    info = {"test_cases": [{"fn_name": "gcd", "input": [6, 9], "output": 3}]}
    assert scored(scorer, info, answer("def other(): pass")) == 0.0
    assert scored(scorer, info, answer("from math import gcd")) == 1.0
