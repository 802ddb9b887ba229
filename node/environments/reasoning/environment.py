"""`reasoning_gym`: numbered problems of one data set of reasoning-gym.

Problem n of a seed is the same on every machine that has the pinned version. The last answer counts: what stands
between <answer> and </answer>, or all of it behind the reasoning. Held-back problems have the numbers behind the
training problems; a data set of few possible questions may ask one twice.
"""

import json
import os
import sys
import threading
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self

import msgspec

from node.environments.base import (
    Determinism,
    OneTurn,
    Problem,
    Tokenizer,
    Transcript,
    answer_of,
    nested_deeply,
    numbered,
)
from node.environments.errors import EnvironmentFault, Undecided
from node.environments.lines import LineChild
from node.environments.reasoning.table import FLOORS, VERSION, refusal
from node.environments.scoring_pool import POOL

PYTHON_VARIABLE = "INTELLECT_NODE_REASONING_GYM_PYTHON"
_CHILD = Path(__file__).with_name("child.py")


class ReasoningGym:
    """Blocking; one child, started when first needed, which threads ask one after the other. python: an interpreter
    that has the package, by default the one that PYTHON_VARIABLE names, or else our own."""

    def __init__(
        self,
        python: str | None = None,
        deadline: float = 5.0,  # of a processor for each problem or answer
        *,
        start_seconds: float = 120.0,
    ) -> None:
        self._python = python or os.environ.get(PYTHON_VARIABLE) or sys.executable
        self._deadline = deadline
        # One hash seed: what is made by going through a set of words is the same in every process.
        environment = {"PATH": os.environ.get("PATH", ""), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        # -P: nothing in the working directory is imported in the package's place.
        command = [self._python, "-P", str(_CHILD), str(deadline)]
        self._child = LineChild(command, environment, start_seconds, self._refused)
        # The child answers in order: two threads that ask at once would take each other's answers.
        self._turn = threading.Lock()

    def another(self) -> "ReasoningGym":
        """With a child of its own."""
        return ReasoningGym(self._python, self._deadline)

    def start(self) -> None:
        """Raises EnvironmentFault where the package is missing, or of another version."""
        with self._turn:
            self._child.start()

    def problems(self, dataset: str, settings: dict[str, Any], numbers: Sequence[int]) -> list[tuple[str, str]]:
        """(question, a right answer) of each. Raises EnvironmentFault for settings that the data set does not take."""
        found = self._ask(["problems", dataset, settings, list(numbers)], self._deadline * max(len(numbers), 1))
        return [(str(question), str(answer)) for question, answer in found]

    def score(self, dataset: str, settings: dict[str, Any], number: int, answer: str) -> float:
        """0..1. Raises Undecided if it does not come in time."""
        return float(self._ask(["scores", dataset, settings, [[number, answer]]], self._deadline)[0])

    def score_published(self, dataset: str, row: dict[str, Any], answer: str) -> float:
        """The same for a row that somebody else made: {"question", "answer", "metadata"}, as published."""
        return float(self._ask(["published", dataset, [[row, answer]]], self._deadline)[0])

    def close(self) -> None:
        self._child.close()

    def _ask(self, question: list[Any], seconds: float) -> Any:
        with self._turn:
            self._child.send(question)
            # By the clock only where the child gets no processor (`scoring_pool`).
            found = self._child.receive(12 * seconds)
        if found is None:
            raise Undecided(
                f"reasoning-gym gave no answer for {question[1]!r}",
                f"its process ended, or took more than {seconds:g} s of a processor",
                "other machines may decide it; leave the data set out if this happens often",
            )
        if isinstance(found, dict):
            raise EnvironmentFault(
                f"the data set {question[1]!r} cannot be used", str(found.get("wrong")), "correct its config"
            )
        return found

    def _refused(self, said: Any) -> EnvironmentFault | None:
        if said == ["ready", VERSION]:
            return None
        why = f"{self._python} cannot import it"
        if isinstance(said, dict):
            why = said["wrong"]
        elif said:
            why = f"{self._python} has version {said[-1]}, and other versions make other problems"
        return EnvironmentFault(
            f"the environment 'reasoning_gym' needs reasoning-gym {VERSION}",
            why,
            "pip install 'intellect-node[reasoning-gym]', or name another interpreter that has it in "
            f"{PYTHON_VARIABLE}",
        )


MAX_PROBLEMS = 1 << 24
MAX_ANSWER_CHARACTERS = 4096
_KEPT = 1 << 14
_OPENED, _CLOSED = "<answer>", "</answer>"


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """dataset: its name in reasoning-gym; seed, size, held_back: of the problems; template: 'plain' or 'chat';
    config: the data set's own settings, a JSON object."""

    dataset: str
    seed: int = 0
    size: int = 10_000
    held_back: int = 256
    template: str = "plain"
    config: str = "{}"


class ReasoningGymEnvironment(OneTurn):
    name = "reasoning_gym"
    determinism: Determinism = "bounded"

    def __init__(self, arguments: Arguments, settings: dict[str, Any], gym: ReasoningGym, tokenizer: Tokenizer) -> None:
        self._dataset = arguments.dataset
        self._settings = {**settings, "seed": arguments.seed, "size": arguments.size + arguments.held_back}
        self._gym = gym
        self._encode = tokenizer.encode_chat if arguments.template == "chat" else tokenizer.encode
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, str]] = {}
        self.size = arguments.size
        self.held_back = arguments.held_back
        self.gave_up = 0
        self._made(0)  # settings that the data set does not take are found here

    def problem(self, number: int) -> Problem:
        return self._made(numbered(range(self.size), number))

    def held_back_problem(self, number: int) -> Problem:
        return self._made(self.size + numbered(range(self.held_back), number))

    def prompt_tokens(self, problem: Problem) -> list[int]:
        return self._encode(problem.prompt)

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        given = {place: said for place, one in enumerate(transcripts) if (said := answer_of(self._tokenizer, one))}
        scores = [0.0] * len(problems)
        for place, answer in zip(given, POOL.read(answer_in, list(given.values())), strict=True):
            scores[place] = self._score(problems[place], answer)
        return scores

    def another(self) -> Self:
        other = copy(self)
        other._gym = self._gym.another()
        # Each thread keeps problems for itself: what one throws away, another may be about to read.
        other._known = dict(self._known)
        return other

    def close(self) -> None:
        self._gym.close()

    def _score(self, problem: Problem, answer: str | None | Undecided) -> float:
        if not answer or isinstance(answer, Undecided):
            self.gave_up += isinstance(answer, Undecided)
            return 0.0
        number = int(problem.problem_id.rpartition("-")[2])
        try:
            return above_floor(self._dataset, self._gym.score(self._dataset, self._settings, number, answer))
        except Undecided:
            self.gave_up += 1
            return 0.0

    def _made(self, number: int) -> Problem:
        """A problem, with its neighbours: every exchange with another process costs more than a problem."""
        window = 64
        if number not in self._known:
            if len(self._known) > _KEPT:
                # They follow from their numbers, and are made again when they are needed.
                self._known.clear()
            first = number - number % window
            numbers = range(first, min(first + window, self.size + self.held_back))
            self._known.update(zip(numbers, self._gym.problems(self._dataset, self._settings, numbers), strict=True))
        question, answer = self._known[number]
        return Problem(f"{self._dataset}-{number}", question, (answer,))


def load(arguments: Arguments, assets: Path, tokenizer: Tokenizer) -> ReasoningGymEnvironment:
    """Raises EnvironmentFault for a data set that is not scored here, or settings that it does not take."""
    wrong = refusal(arguments.dataset)
    if wrong:
        raise EnvironmentFault("environment 'reasoning_gym' cannot be loaded", *wrong)
    settings = _settings(arguments.config)
    good = 1 <= arguments.size and 1 <= arguments.held_back and arguments.size + arguments.held_back <= MAX_PROBLEMS
    if not good or arguments.template not in ("plain", "chat") or not 0 <= arguments.seed < 1 << 31:
        raise EnvironmentFault(
            "environment 'reasoning_gym' cannot be loaded",
            f"seed = {arguments.seed}, size = {arguments.size}, held_back = {arguments.held_back}, "
            f"template = {arguments.template!r}",
            f"use 1 to {MAX_PROBLEMS} problems, a seed of up to 31 bits, and template 'plain' or 'chat'",
        )
    gym = ReasoningGym()
    try:
        return ReasoningGymEnvironment(arguments, settings, gym, tokenizer)
    except EnvironmentFault:
        gym.close()
        raise


def _settings(config: str) -> dict[str, Any]:
    try:
        settings = json.loads(config)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict) or {"seed", "size"} & settings.keys():
        raise EnvironmentFault(
            "environment 'reasoning_gym' cannot be loaded",
            f"config = {config[:80]!r} is no JSON object of the data set's own settings",
            """for example config = '{"max_words": 8}'; seed and size are arguments of the environment""",
        )
    return settings


def answer_in(text: str) -> str:
    """The last <answer>...</answer> behind the reasoning, or else all the text there; empty if that is too long or
    nested deeply."""
    text = text.rpartition("</think>")[2]
    start, end = 0, len(text)
    opened = text.find(_OPENED)
    while opened >= 0 and (closed := text.find(_CLOSED, opened)) >= 0:  # what is never closed is looked for once
        start, end = opened + len(_OPENED), closed
        opened = text.find(_OPENED, closed)
    answer = text[start:end].strip()
    return answer if len(answer) <= MAX_ANSWER_CHARACTERS and not nested_deeply(answer) else ""


def above_floor(dataset: str, score: float) -> float:
    """What a data set pays for any answer whatever is nothing.

    Honest partial credit up to there is lost with it: 0.67 for answering "0" to a question about dates is worse.
    """
    return score if score > FLOORS.get(dataset, 0.0) else 0.0


def score_row(gym: ReasoningGym, dataset: str, row: dict[str, Any], answer: str) -> float:
    """A published row of task type `reasoning_gym`: `row` is what reasoning-gym made (question, answer, metadata).

    Raises Undecided, and EnvironmentFault for a data set that is not scored here.
    """
    wrong = refusal(dataset)
    if wrong:
        raise EnvironmentFault(f"rows of {dataset[:80]!r} are not scored", *wrong)
    return above_floor(dataset, gym.score_published(dataset, row, answer)) if answer else 0.0
