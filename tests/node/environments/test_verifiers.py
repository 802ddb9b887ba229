"""A verifiers v1 package behind our interface: what its process may do wrong, and the real one where it is there."""

import json
import sys
from pathlib import Path

import pytest

from node.environments.base import Segment
from node.environments.errors import EnvironmentFault, Undecided
from node.environments.verifiers.environment import PYTHON_VARIABLE, Arguments, VerifiersEnvironment, load, python
from node.inference.tokenizer import LocalTokenizer

INSTALLED = python().exists()
MARKS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
]
"""What the renderer of the Qwen3 family looks for."""
LITTLE = """
import json, sys, time
settings = json.loads(sys.stdin.readline())
if settings["taskset"] == "absent": print(json.dumps({"wrong": "no such package"}), flush=True); sys.exit()
print(json.dumps({"tasks": [f"task {n}" for n in range(settings["tasks"])]}), flush=True)
orders = []
for line in sys.stdin:
    order = json.loads(line)
    said, reply = order["said"], {"id": order["id"]}
    word = bytes(t for turn in said[-1:] for t in turn[1]).decode().rstrip("\\x01")
    if said and said[0][0] != [order["task"], 7]: reply["wrong"] = "another prompt"
    elif word == "hang": time.sleep(60)
    elif word == "die": sys.exit()
    elif word == "babble": print("what?", flush=True); continue
    elif word == "list": reply = [1]
    elif word == "nan": print('{"id": %d, "reward": NaN}' % order["id"], flush=True); continue
    elif word == "late": reply["late"] = "the rollout failed: Timeout"
    elif word == "wrong": reply["wrong"] = "says something else than the last time"
    elif not said: reply["asked"] = [order["task"], 7]
    elif word == "broken" or settings["renderer"] == "other": reply["broken"] = "changes what was said"
    elif len(said) == 2 and not said[1][2]: reply["broken"] = "the last answer was cut off"
    elif len(said) == 1: reply["asked"] = [8, 9]
    else: reply["reward"] = float(said[1][0] == [8, 9] and said[1][2])
    print(json.dumps(reply), flush=True)
"""


class Text:
    eos = frozenset({1})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def turn(text: str, *, end: bool = True) -> Segment:
    return Segment([*text.encode(), *([1] if end else [])], sampled=True)


def little(folder: Path, monkeypatch: pytest.MonkeyPatch, **arguments: object) -> VerifiersEnvironment:
    (folder / "driver.py").write_text(LITTLE)
    program = folder / "python"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {folder}/driver.py\n")
    program.chmod(0o755)
    monkeypatch.setenv(PYTHON_VARIABLE, str(program))
    return load(Arguments(**{"taskset": "mine", "tasks": 70, "held_back": 5, **arguments}), folder, Text())


def test_a_rollout_is_replayed_turn_by_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = little(tmp_path, monkeypatch)
    assert (mine.size, mine.held_back, mine.turns, mine.determinism) == (65, 5, 8, "bounded")
    problem = mine.held_back_problem(2)
    assert (problem.problem_id, problem.prompt) == ("mine-67", "task 67")
    assert mine.prompt_tokens(problem) == [67, 7]
    said = [turn("a")]
    assert mine.step(problem, said) == [8, 9]
    said += [Segment([8, 9], sampled=False), turn("b")]
    assert mine.step(problem, said) is None
    cut_off = [*said[:2], turn("b", end=False)]
    assert mine.score([problem] * 4, [said, cut_off, said[:1], [turn("broken")]]) == [1.0, 0.0, 0.0, 0.0]
    assert mine.step(problem, [turn("broken")]) is None  # over: an answer that the package would change
    mine.close()


@pytest.mark.parametrize(
    ("word", "error", "message"),
    [
        ("hang", Undecided, "more than 0.3 s"),
        ("die", Undecided, "its process ended"),
        ("babble", Undecided, "did not go on"),
        ("late", Undecided, "Timeout"),
        ("list", EnvironmentFault, "cannot be read"),
        ("nan", EnvironmentFault, "its reward is nan"),
        ("wrong", EnvironmentFault, "something else than the last time"),
    ],
)
def test_a_process_that_misbehaves_is_ended_and_the_next_rollout_has_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, error: type[Exception], message: str
) -> None:
    mine = little(tmp_path, monkeypatch)
    problem = mine.problem(0)
    mine.prompt_tokens(problem)
    mine._replayer._seconds = 0.3 if word == "hang" else 30.0
    with pytest.raises(error, match=message):
        mine.step(problem, [turn(word)])
    mine._replayer._seconds = 30.0
    assert mine.step(problem, [turn("a")]) == [8, 9]
    mine.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"taskset": "absent"}, "no such package"),
        ({"tasks": 5, "held_back": 5}, "held_back = 5"),
        ({"turns": 0}, "turns = 0"),
        ({"renderer": "other"}, "changes what was said"),
        ({"config": "[]"}, "no JSON object"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict, message: str
) -> None:
    with pytest.raises(EnvironmentFault, match=message):
        little(tmp_path, monkeypatch, **arguments)


def test_without_an_environment_the_error_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(EnvironmentFault) as caught:
        load(Arguments(taskset="mine"), tmp_path, Text())
    assert "intellect-node verifiers install" in caught.value.remedy


def write_chat_model(model: Path) -> None:
    """A tokenizer of single characters that speaks ChatML, as that of Qwen3 does."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    model.mkdir()
    letters = [chr(number) for number in range(32, 127)] + ["\n"]
    vocabulary = {token: number for number, token in enumerate([*MARKS, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=MARKS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS[:3]])
    tokenizer.add_tokens([AddedToken(mark, special=False) for mark in MARKS[3:]])
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3", "eos_token_id": 2}))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": MARKS[2], "pad_token": MARKS[0]}
    (model / "tokenizer_config.json").write_text(json.dumps(about))


@pytest.mark.skipif(not INSTALLED, reason=f"verifiers is not installed: {python()} is not there ({PYTHON_VARIABLE})")
def test_a_real_package_is_played_over_two_turns_and_rewards_what_was_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "packages"))
    write_chat_model(tmp_path / "model")
    tokenizer = LocalTokenizer(tmp_path / "model")

    def said(text: str) -> Segment:
        return Segment([*tokenizer.encode(text), 2], sampled=True)

    arguments = Arguments(taskset="say_twice", tasks=6, held_back=1, turns=2, renderer="qwen3")
    twice = load(arguments, tmp_path, tokenizer)
    problem = twice.problem(0)
    prompt = "<|im_start|>user\nSay abc.<|im_end|>\n<|im_start|>assistant\n"
    assert twice.prompt_tokens(problem) == tokenizer.encode(prompt)
    between = twice.step(problem, [said("no")])
    assert between == tokenizer.encode("\n<|im_start|>user\nAgain, please.<|im_end|>\n<|im_start|>assistant\n")
    right, wrong = ([said("no"), Segment(between, sampled=False), said(text)] for text in ("abc", "abd"))
    assert twice.step(problem, right) is None
    assert twice.score([problem, problem], [right, wrong]) == [1.0, 0.0]
    assert twice.score([problem], [[Segment(tokenizer.encode("ab"), sampled=True)]]) == [0.0]  # cut off
    with pytest.raises(EnvironmentFault, match="says something else than the last time"):
        twice.score([problem], [[said("no"), Segment(between[:-1], sampled=False), said("abc")]])
    twice.close()
