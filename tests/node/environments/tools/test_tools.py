"""Tools: how they are called and told, what they find, and a rollout that uses them."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from node.environments.base import Environment, Segment, Transcript
from node.environments.errors import DatasetError, EnvironmentFault, Undecided
from node.environments.guests import intellect_session
from node.environments.registry import load_environment
from node.environments.tools import environment as tools
from node.environments.tools.environment import Corpus, Passage, PythonTool, SearchTool, load_corpus, log2, words
from node.environments.tools.form import MAX_CALL, ToolCall, parse_call, tell_result
from node.sandbox import CallOutcome, CallStatus, RuntimeMissing, SandboxLimits, find_runtime, open_wasi
from protocol.run import EnvironmentSpec
from tests.node.environments.test_environments import Characters, row

TOOLS = ("python", "search")


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        ("<python>\nprint(1)\n</python>", ToolCall("python", "print(1)")),
        ("so: <search>a b</search> \n", ToolCall("search", "a b")),
        ("<python>1</python> then <python>2</python>", ToolCall("python", "2")),
        ("<think><python>1</python></think>\n<search>x</search>", ToolCall("search", "x")),
        ("<search>a</search> and the answer is 4", None),
        ("<think><python>1</python>", ToolCall("python", "1")),
        ("<python>1</python></think>", None),
        ("<python> </python>", None),
        ("</python>", None),
        ("<python>1</search>", None),
        ("<shell>ls</shell>", None),
        ("<python>" + "x" * (MAX_CALL + 1) + "</python>", None),
        ("", None),
    ],
)
def test_a_call_is_what_an_answer_ends_with(answer: str, call: ToolCall | None) -> None:
    assert parse_call(answer, TOOLS) == call


def test_a_result_is_bounded_and_can_be_encoded() -> None:
    assert tell_result("42\n", 100) == "<result>\n42\n</result>"
    assert tell_result("x" * 50, 4) == "<result>\nxxxx [cut]\n</result>"
    assert tell_result("\ud800", 9) == "<result>\n?\n</result>"


PASSAGES = [
    Passage("the cat sat on the mat"),
    Passage("the dog ate the cat and the mat", "Dogs"),
    Passage("a cat a cat a cat"),
    Passage("nothing here"),
    Passage("nothing there"),
    Passage("Größe größe"),
]


def plainly(query: str) -> list[int]:
    """BM25 in floating point, as the paper has it."""
    documents = [words(f"{one.title} {one.text}") for one in PASSAGES]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        counts, score = Counter(document), 0.0
        for word in set(words(query)):
            rarity = math.log2((len(documents) + 1) / (sum(word in one for one in documents) + 0.5))
            times = counts[word]
            score += rarity * 2.2 * times / (times + 1.2 * (0.25 + 0.75 * len(document) / mean))
        scores.append(score)
    return sorted((i for i, score in enumerate(scores) if score), key=lambda i: -scores[i])


@pytest.mark.parametrize("query", ["cat", "the mat", "dogs", "nothing", "GRÖSSE größe", "cat dog mat sat", "zebra"])
def test_whole_numbers_rank_as_the_formula_does_and_ties_go_to_the_earlier_row(query: str) -> None:
    assert Corpus(PASSAGES).best(query, 9) == [PASSAGES[i] for i in plainly(query)]


def test_logarithms_are_integers() -> None:
    for numerator, denominator in ((1, 1), (3, 2), (10**6, 7), (2**70 + 1, 3)):
        exact = math.log2(numerator / denominator) * 2**16
        assert exact - 1.001 <= log2(numerator, denominator) <= exact + 1e-6


def test_what_is_searched_is_cut_and_nothing_is_said_to_be_nothing() -> None:
    tool = SearchTool(Corpus(PASSAGES), 10)
    assert tool.answer("dog") == "Dogs: the " and tool.answer("zebra !") == "nothing was found"


@pytest.mark.parametrize("line", ["{}", '{"text": 5}', "[1]", json.dumps({"text": "x" * 70_000})])
def test_a_corpus_that_is_none_is_named_by_file_and_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "c.jsonl").write_text(f'{{"text": "a", "url": 1}}\n{line}\n')
    with pytest.raises(DatasetError, match="line 2"):
        load_corpus(tmp_path / "c.jsonl")
    (tmp_path / "c.jsonl").write_text("")
    with pytest.raises(DatasetError, match="no passages"):
        load_corpus(tmp_path / "c.jsonl")


class Here:
    """A sandbox in memory: the guest's own function, and outcomes that are forced by what is called."""

    def __init__(self) -> None:
        self.closed = False

    def call(self, function: str, *arguments: Any) -> CallOutcome:
        if "forever" in arguments[1]:
            return CallOutcome(CallStatus.OUT_OF_FUEL, None, "", 5)
        if "busy" in arguments[1]:
            raise Undecided("the sandbox found no outcome", "the wall clock passed", "nothing to do")
        return CallOutcome(CallStatus.OK, getattr(intellect_session, function)(*arguments))

    def close(self) -> None:
        self.closed = True


def python_tool(sandbox: Here, most: int = 100) -> PythonTool:
    def opened(files: Mapping[str, bytes], entry: str, limits: SandboxLimits) -> Any:
        assert set(files) == {f"{entry}.py"}
        return sandbox

    return PythonTool(opened, SandboxLimits(), most)


def test_a_call_tells_what_it_printed_and_how_it_failed() -> None:
    sandbox = Here()
    tool = python_tool(sandbox)
    told = {
        code: told_here(tool, code) for code in ("print(6 * 7)", "print(1); 1 / 0", "forever", "import sys; sys.exit()")
    }
    assert told["print(6 * 7)"] == "42\n"
    assert told["print(1); 1 / 0"] == "1\nZeroDivisionError: division by zero\n"
    assert told["forever"] == "the call ended early: out of fuel" and told["import sys; sys.exit()"] == ""
    assert told_here(python_tool(Here(), 7), "print('x' * 50)") == "x" * 7
    with pytest.raises(Undecided):
        tool.answer("busy")
    tool.close()
    assert sandbox.closed


def told_here(tool: PythonTool, code: str) -> str:
    """The guest puts itself in place of standard output, which the sandbox throws away after the call."""
    import sys

    kept = sys.stdout, sys.stderr
    try:
        return tool.answer(code)
    finally:
        sys.stdout, sys.stderr = kept


def test_the_real_sandbox_tells_the_same() -> None:
    try:
        runtime = find_runtime()
    except RuntimeMissing:
        pytest.skip("no interpreter for the sandbox here")
    tool = PythonTool(
        lambda files, entry, limits: open_wasi(files, entry, limits, runtime), SandboxLimits(fuel=10**9), 100
    )
    try:
        assert tool.answer("x = 6\nprint(x * 7)") == "42\n"
        assert tool.answer("print(x)") == "NameError: name 'x' is not defined\n", "nothing is left of an earlier call"
        assert tool.answer("while True: pass") == "the call ended early: out of fuel"
    finally:
        tool.close()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    (tmp_path / "d.jsonl").write_text("\n".join(json.dumps(row(i)) for i in range(40)))
    (tmp_path / "c.jsonl").write_text("\n".join(json.dumps({"text": one.text}) for one in PASSAGES))
    monkeypatch.setattr(tools, "opener_for", lambda assets: lambda files, entry, limits: Here())
    args = {"path": "d.jsonl", "corpus": "c.jsonl", "tools": "search python", "calls": 2, "held_back_share": 0.2}
    return load_environment(EnvironmentSpec(name="tools", args=args), tmp_path, Characters())


def said(*texts: str) -> Transcript:
    return [Segment(Characters().encode(text), sampled=i % 2 == 0) for i, text in enumerate(texts)]


def test_an_answer_that_ends_with_a_call_is_told_the_result_and_any_other_is_the_last(environment: Environment) -> None:
    problem = environment.problem(0)
    told = environment.step(problem, said("<search>dog</search>\n"))
    assert told is not None and Characters().decode(told).startswith("<result>the dog ate the cat")
    assert environment.step(problem, said("it is 5\n")) is None
    assert (environment.turns, environment.determinism) == (3, "bounded")
    prompt = Characters().decode(environment.prompt_tokens(problem))
    assert "<search>...</search> finds" in prompt and "<python>" in prompt and prompt.endswith(problem.prompt)


def test_only_the_last_answer_scores_and_a_call_is_none(environment: Environment) -> None:
    problem = environment.problem(0)
    right = f"{problem.answer[0]}\n"
    tries = [said("<search>a</search>\n", "r", right), said(right), said(right, "r", "<search>9</search>\n"), said("1")]
    assert environment.score([problem] * 4, tries) == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"tools": "pyhton"}, "did you mean 'python'"),
        ({"tools": ""}, "name a tool"),
        ({"tools": "search"}, "belong together"),
        ({"corpus": "c.jsonl"}, "belong together"),
        ({"tools": "search", "corpus": "../c.jsonl"}, "leaves"),
        ({"calls": 0}, "1..64"),
        ({"result_characters": 3}, "16"),
        ({"call_fuel": -1}, "fuel"),
    ],
)
def test_tools_that_make_no_sense_are_refused(tmp_path: Path, args: dict[str, Any], why: str) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        load_environment(EnvironmentSpec(name="tools", args={"path": "d.jsonl", **args}), tmp_path, Characters())
    assert why in f"{caught.value} {caught.value.remedy}"
