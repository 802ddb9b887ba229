"""A repository is mended in a session; hidden tests run over what it leaves, in machines of their own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.environments.base import Segment, Transcript
from node.environments.errors import DatasetError, EnvironmentFault
from node.environments.registry import load_environment
from node.environments.repository import RepositoryEnvironment
from node.sandbox import RuntimeMissing, find_runtime
from protocol.run import EnvironmentSpec
from tests.node.environments.tokens import Characters

ROW = {
    "problem_id": "0",
    "prompt": "f must double",
    "files": {"src/m.py": "def f(x):\n    return x + 1\n", "README": "m"},
    "tests": [{"code": "from src.m import f\nprint(f(4))", "output": "8"}, {"code": "print('ok')", "output": "ok"}],
    "gold": {"src/m.py": "def f(x):\n    return x * 2\n"},
}
SED = "<sh>sed -i 's/x + 1/x * 2/' src/m.py</sh>"
ARGS = {"path": "rows.jsonl", "calls": 3, "held_back_share": 0.5, "call_fuel": 200_000_000, "test_fuel": 200_000_000}


def _load(folder: Path, rows: list[dict[str, Any]], **args: Any) -> RepositoryEnvironment:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_environment(EnvironmentSpec(name="repository", args={**ARGS, **args}), folder, Characters())
    assert isinstance(found, RepositoryEnvironment)
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryEnvironment]:
    try:
        find_runtime()
    except RuntimeMissing as missing:
        pytest.skip(str(missing))
    made = _load(tmp_path_factory.mktemp("rows"), [{**ROW, "problem_id": str(number)} for number in range(8)])
    yield made
    made.close()


def _rollout(environment: RepositoryEnvironment, *said: str) -> Transcript:
    """The words of the policy, with what the environment says between them."""
    transcript: list[Segment] = []
    for text in said:
        transcript.append(Segment(Characters().encode(f"{text}\n"), sampled=True))
        reply = environment.step(environment.problem(0), transcript) if text != said[-1] else None
        if reply:
            transcript.append(Segment(reply, sampled=False))
    return transcript


def _told(transcript: Transcript) -> list[str]:
    return ["".join(map(chr, one.tokens)) for one in transcript if not one.sampled]


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ((SED, "done"), 1.0),
        (("<sh>cat src/m.py</sh>", SED, "<sh>ls</sh>"), 1.0),  # the last call is not answered: the files stand
        (("<python>open('src/m.py', 'w').write('f = lambda x: x * 2')</python>", "done"), 1.0),
        (("<sh>ls</sh>", "done"), 0.0),
        (("done",), 0.0),
        (("<sh>sed -i 's/x + 1/8/' src/m.py; rm README</sh>", "done"), 1.0),
        (("<sh>rm -r src</sh>", "done"), 0.0),
        ((SED, "<python>while True: pass</python>", "done"), 1.0),
        ((SED, "<python>import intellect_session as s; s.files = lambda: 7; s.test = print</python>", "done"), 0.0),
        (("<python>open('src/m.py', 'w').write('import os; os._exit(0)')</python>", "done"), 0.0),
        (("<python>open('src/m.py', 'w').write('while 1: 0')</python>", "done"), 0.0),
    ],
)
def test_hidden_tests_judge_the_files_that_a_session_leaves(
    environment: RepositoryEnvironment, said: tuple[str, ...], reward: float
) -> None:
    assert environment.score([environment.problem(0)], [_rollout(environment, *said)]) == [reward]


def test_what_was_said_is_told_and_an_early_end_too(environment: RepositoryEnvironment) -> None:
    told = _told(_rollout(environment, "<sh>cat src/m.py | head -1</sh>", "<python>while True: pass</python>", "done"))
    assert told == [
        "<result>\ndef f(x):\n</result>",
        "<result>\nthe call ended early: out of fuel\n</result>",
    ]


def test_another_machine_comes_to_the_same_words_and_rewards(environment: RepositoryEnvironment) -> None:
    rollout = _rollout(environment, "<python>import random; print(random.random(), id(object()))</python>", SED, ".")
    other = environment.another()
    try:
        problem = other.problem(0)
        assert [other.step(problem, rollout[:end]) for end in (1, 3)] == [rollout[1].tokens, rollout[3].tokens]
        assert other.score([problem], [rollout]) == [1.0]
    finally:
        other.close()


def test_rows_whose_gold_fails_or_that_need_no_mending_are_found(
    environment: RepositoryEnvironment, tmp_path: Path
) -> None:
    wrong = [
        {**ROW, "problem_id": "bad gold", "gold": {"src/m.py": None}},
        {**ROW, "problem_id": "well", "files": ROW["gold"]},
    ]
    other = _load(tmp_path, [*wrong, *({**ROW, "problem_id": str(number)} for number in range(4))])
    try:
        assert other.wrong_rows(99) == ["bad gold", "well"]
    finally:
        other.close()


def test_an_answer_that_was_cut_off_scores_nothing(environment: RepositoryEnvironment) -> None:
    rollout = [*_rollout(environment, SED, "done")]
    cut = [*rollout[:-1], Segment(rollout[-1].tokens[:-1], sampled=True)]
    assert environment.score([environment.problem(0)] * 2, [rollout, cut]) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"files": {"../m.py": ""}}, "no plain relative path"),
        ({"files": {}}, "lacks an id, files or tests"),
        ({"tests": []}, "lacks an id, files or tests"),
        ({"tests": [{"code": "1", "output": 5}]}, "Expected `str`"),
        ({"grader": "x"}, "unknown field `grader`"),
        ({"problem_id": "1"}, "a second time"),
        ({"files": {"m.py": "x" * (1 << 20)}}, "more than 1048576 characters"),
        ({"prompt": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}, "template = 'plain'"),
    ],
)
def test_rows_that_cannot_be_used_are_told_all_at_once(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    good = [{**ROW, "problem_id": str(number)} for number in (1, 2)]
    with pytest.raises(DatasetError, match=why) as refused:
        _load(tmp_path, [*good, {**ROW, **change}, {"problem_id": "9"}])
    assert refused.value.findings is not None and refused.value.findings.total == 2


@pytest.mark.parametrize("args", [{"calls": 0}, {"call_fuel": 0}, {"memory_mib": 1}, {"disk_kib": 1 << 30}])
def test_arguments_out_of_range_are_refused(tmp_path: Path, args: dict[str, int]) -> None:
    with pytest.raises(EnvironmentFault, match="cannot be loaded"):
        _load(tmp_path, [ROW], **args)
