"""What reads answers stands in a child that may be killed, and no answer takes it long enough for that to happen.

How long something takes is asserted nowhere. An answer as long as any may be, made to hold up its scorer, must be
*decided* under a deadline of many times what it needs: a quadratic scorer needs many minutes for it. How times grow
with the length is measured: `python -m benchmarks.scorers`.
"""

import random
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from node.environments.base import Segment, answer_of, nested_deeply, one_answer
from node.environments.errors import Undecided
from node.environments.programs import ProgramRunner, last_block
from node.environments.reasoning.environment import answer_in
from node.environments.registry import load_environment
from node.environments.scoring_pool import POOL, ScoringPool
from node.environments.task_types import instructions
from node.environments.task_types.code import output_reward
from node.environments.task_types.reasoning_gym import ReasoningScorer
from node.environments.task_types.table import TASK_TYPES
from node.sandbox import CallOutcome, CallStatus, SandboxLimits
from protocol.audit import MAX_ANSWER_CHARACTERS
from protocol.run import EnvironmentSpec
from tests.cheats import hostile
from tests.cheats.hostile import HOSTILE
from tests.node.environments.tokens import Characters

ROWS: dict[str, dict[str, Any]] = {
    "verifiable_math": {"ground_truth": "3"},
    "prime_rl_code": {"test_cases": [{"input": "", "output": "3"}]},
    "verifiable_code": {"test_cases": [{"input": "", "output": "3"}]},
    "code_output_prediction": {"ground_truth": "3"},
    "instruction_following": {"instruction_id_list": ["punctuation:no_comma"]},
    "ifeval": {"instruction_id_list": ["punctuation:no_comma"]},
    "json_schema": {"json_schema": {"type": "string"}},
    "marked_math": {"ground_truth": "3"},
    "unscramble_sentence": {"ground_truth": "1. One.\n2. Two."},
    "unscrambling": {"ground_truth": "1. One.\n2. Two."},
    "ascii_tree_formatting": {"ground_truth": "a\n+-- b"},
    "formatask": {"ground_truth": "**three**"},
    "git_diff": {"ground_truth": "--- a\n+++ b\n-one\n+two"},
    "complex_json_output": {"ground_truth": '{"three": 3}'},
    "reasoning_gym": {"dataset_name": "chain_sum", "entry": {"question": "", "answer": "2", "metadata": {}}},
}


class Refusing:
    """A sandbox, which has a bound of its own, in which nothing is right."""

    def call_all(self, function: str, calls: Sequence[Sequence[Any]]) -> list[CallOutcome]:
        return [CallOutcome(CallStatus.RAISED)] * len(calls)

    def run(self, calls: Sequence[Any]) -> list[CallOutcome]:
        return [CallOutcome(CallStatus.RAISED) for _ in calls]

    def close(self) -> None:
        """Nothing runs."""


class Gym:
    """reasoning-gym, which hears only what is short."""

    def score_published(self, dataset: str, row: dict[str, Any], answer: str) -> float:
        assert len(answer) <= 4096
        return 0.0

    def close(self) -> None:
        """Nothing runs."""


def test_every_task_type_is_tried_here() -> None:
    assert ROWS.keys() == TASK_TYPES.keys() - {"llm_judgeable_groundtruth_similarity"}  # judges decide it, never we


@pytest.mark.parametrize("name", ROWS)
def test_no_answer_holds_a_scorer_up(name: str) -> None:
    truth = TASK_TYPES[name].truth(ROWS[name], {})
    runner = ProgramRunner(lambda *_: Refusing(), SandboxLimits())
    scorer = ReasoningScorer(Gym()) if name == "reasoning_gym" else TASK_TYPES[name].open(runner)  # type: ignore[arg-type]
    answers = [text(size) for text in HOSTILE.values() for size in (MAX_ANSWER_CHARACTERS, 250_000)]
    rewards = scorer.score([(answer, truth) for answer in answers])
    assert scorer.gave_up == 0 and len(rewards) == len(answers) and set(rewards) <= {0.0, 1.0}
    scorer.close()


@pytest.mark.parametrize("name", instructions.CHECKS)
def test_no_answer_holds_a_constraint_up(name: str) -> None:
    from benchmarks.scorers import CONSTRAINTS

    truth = instructions.read_truth({"instruction_id_list": [name], "kwargs": [CONSTRAINTS.get(name, {})]}, {})
    answers = [text(instructions.MAX_CHARACTERS) for text in HOSTILE.values()]
    assert all(isinstance(found, float) for found in POOL.call_all(instructions.reward, [(a, truth) for a in answers]))


@pytest.mark.parametrize("name", ["sort", "reverse", "retry"])
def test_no_answer_holds_a_built_in_environment_up(name: str, tmp_path: Path) -> None:
    environment = load_environment(EnvironmentSpec(name=name), tmp_path, Characters())
    problem = environment.problem(0)
    answers = [one_answer(Characters().encode(text(10_000) + "\n")) for text in HOSTILE.values()]
    assert set(environment.score([problem] * len(answers), answers)) == {0.0} and environment.gave_up == 0


class Row:
    """A tokenizer whose every token is a thousand letters."""

    eos = frozenset({0})

    def decode(self, tokens: Sequence[int]) -> str:
        return "a" * (1000 * (len(tokens) - 1))


def test_an_answer_over_the_cap_is_none_and_one_at_the_cap_is_read() -> None:
    tokens = MAX_ANSWER_CHARACTERS // 1000
    for count, read in ((tokens, True), (tokens + 1, False)):
        assert (answer_of(Row(), [Segment([1] * count + [0], True)]) is not None) is read  # type: ignore[arg-type]
    assert answer_of(Row(), [Segment([1], True)]) is None, "cut off"  # type: ignore[arg-type]


def test_what_takes_too_long_is_undecided_and_the_rest_is_decided() -> None:
    """The control of the tests above: a scorer that is quadratic meets the deadline, and that shows."""
    pool = ScoringPool(deadline=3.0)
    texts = ["a", "```a\n" * 60_000, "b", "die", "raise", "c"]
    found = pool.read(hostile.read_badly, texts)
    assert [isinstance(one, Undecided) for one in found] == [False, True, False, True, False, False]
    assert [one for one in found if not isinstance(one, Undecided)] == ["a", "b", None, "c"]
    pool.close()


def test_who_waits_for_a_processor_or_anything_else_uses_nothing_of_the_deadline(tmp_path: Path) -> None:
    """On a busy machine an answer takes many times its own seconds, and that makes it no worse."""
    pool, there = ScoringPool(deadline=0.5), tmp_path / "it is there"
    later = threading.Timer(1.0, there.touch)
    later.start()
    assert pool.read(hostile.read_when_there_is, [str(there)]) == [str(there)]
    assert isinstance(pool.read(hostile.read_badly, ["```a\n" * 60_000])[0], Undecided), "the control"
    later.join()
    pool.close()


def test_one_who_is_held_up_holds_nobody_else_up(tmp_path: Path) -> None:
    """While one answer is being read, for as long as that takes, another thread's is read, too."""
    pool, others = ScoringPool(), tmp_path / "others are through"
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(pool.read(hostile.read_when_there_is, [str(others)])))
    thread.start()
    assert pool.read(hostile.read_badly, ["a"]) == ["a"] and not found
    others.touch()
    thread.join()
    assert found == [[str(others)]]
    pool.close()


def test_long_and_many_answers_arrive_whole() -> None:
    texts = ["a" * MAX_ANSWER_CHARACTERS, "b", "\ud7ff\U0001f600\n" * 300_000, *map(str, range(300))]
    assert POOL.read(hostile.read_badly, texts) == texts
    assert POOL.read(hostile.read_badly, []) == []


def test_children_are_kept_and_no_more_than_a_few() -> None:
    pool = ScoringPool()
    for _ in range(3):
        pool.read(hostile.read_badly, ["a"])
    assert len(pool._idle) == 1
    (child,) = pool._idle
    child.close()
    assert pool.read(hostile.read_badly, ["b"]) == ["b"], "one that died in the meantime is replaced"
    pool.close()
    assert not pool._idle


# what was an expression once says the same


def before_sentences(text: str) -> int:
    return len(re.findall(r"[.!?]+(?:\s|$)", text))


def before_bullets(text: str) -> int:
    return len(re.findall(r"^\s*[*-](?![*-])", text, re.MULTILINE))


def before_program(text: str) -> str | None:
    """The last block that says py, else the last one without a name; without what is blank."""
    found = re.findall(r"^([ \t]*)```([^\n`]*)\n(.*?)^[ \t]*```[ \t]*$", text, re.DOTALL | re.MULTILINE)
    blocks = [
        (tag.strip(), dedent(re.sub(rf"^[ \t]{{0,{len(indent)}}}", "", block, flags=re.MULTILINE)))
        for indent, tag, block in found
        if block.strip()
    ]
    return next((block for wanted in ("py", "") for tag, block in reversed(blocks) if tag == wanted), None)


def made_of(random: random.Random, parts: Sequence[str], most: int) -> str:
    return "".join(random.choice(parts) for _ in range(random.randrange(most)))


def test_linear_scorers_say_what_the_expressions_before_them_said() -> None:
    source = random.Random(7)
    programs = 0
    for _ in range(4000):
        text = made_of(source, ["```\n", "```py\n", " ```\n", "\n", "a", "`a", "</think>", "\t"], 12)
        assert last_block(text) == before_program(text.rpartition("</think>")[2]), repr(text)
        programs += last_block(text) is not None
        text = made_of(source, ["*", "-", "\n", " ", "\t", "a", "\r", "."], 14)
        assert instructions.bullets(text, before_bullets(text)), repr(text)
        text = made_of(source, [".", "!", "?", " ", "\n", "a"], 14)
        assert instructions.sentences(text, before_sentences(text), "exactly"), repr(text)
        text = made_of(source, ["<answer>a", "<answer>", "</answer>", "</think>", " ", "b</answer>"], 8)
        found = re.findall(r"<answer>(.*?)</answer>", text.rpartition("</think>")[2], re.DOTALL)
        said = found[-1] if found else text.rpartition("</think>")[2]
        assert answer_in(text) == said.strip(), repr(text)
    assert programs > 100
    for text, good in (("```json\n{}\n```", True), ("```JSON [1]", True), ("{} ```", True), ("``````", False)):
        assert instructions.is_json(text) is good, text


def under(frames: int, call):
    """What is called that many calls further down."""
    return under(frames - 1, call) if frames else call()


@pytest.mark.parametrize("frames", [0, 300])
def test_how_deep_an_answer_may_be_nested_depends_on_no_interpreter(frames: int) -> None:
    """`json` reads 900 levels or gives up, by who calls it (3.11) and by its version: 3.12 reads 1,000, 3.13 5,000."""
    for levels, read in ((64, True), (65, False), (900, False), (3000, False)):
        text = "[" * levels + "]" * levels
        assert under(frames, lambda text=text: instructions.is_json(text)) is read, levels
        deep = f'{{"output": 1, "x": {text[1:-1]}}}'
        assert under(frames, lambda text=deep: output_reward(text, ("1",))) == float(read), levels
        assert (answer_in(f"<answer>{text}</answer>") == text) is read, levels


def test_brackets_that_are_closed_are_not_deep() -> None:
    assert not nested_deeply("[0, 1) (2, 3] {4}" * 1000)
    assert nested_deeply("))" + "(" * 65), "what is closed before it was opened hides nothing"
    assert not nested_deeply(")(" * 1000)
    assert instructions.is_json('["' + ":( " * 1000 + '"]'), "JSON knows no parentheses"
