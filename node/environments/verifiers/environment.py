"""A verifiers v1 package behind our interface: `step` and `score` replay its rollout with what was sampled.

A package plays its rollouts itself, so nothing here knows whether they are exact; a replay that differs from the one
before is an error. Its code comes from wherever its owner installed it, not from the run, and runs without a sandbox:
for a desk, never for a swarm (protocol.own_code.DESK_ENVIRONMENTS).
"""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from node.environments.base import Defaults, Determinism, Problem, Tokenizer, Transcript
from node.environments.errors import EnvironmentFault
from node.environments.verifiers.replay import Outcome, Replayer, Turn

MAX_TASKS = 1 << 20
LONGEST = 1 << 20
_WINDOW = 32


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """taskset: the package's name; tasks: how many of its first tasks, the last held_back of them for evaluation;
    turns: most answers of a rollout; renderer: of the model's family in verifiers, "" to find it by the model's name;
    config: the taskset's own settings, a JSON object; seconds: that rollouts may take."""

    taskset: str
    tasks: int = 256
    held_back: int = 32
    turns: int = 8
    renderer: str = ""
    config: str = "{}"
    seconds: float = 120.0


class VerifiersEnvironment(Defaults):
    name = "verifiers"
    determinism: Determinism = "bounded"
    gave_up = 0

    def __init__(self, arguments: Arguments, replayer: Replayer, tokenizer: Tokenizer) -> None:
        self._taskset = arguments.taskset
        self._replayer = replayer
        self._eos = tokenizer.eos
        self._first: dict[int, list[int]] = {}
        self._prompts = replayer.prompts
        self.turns = arguments.turns
        self.held_back = arguments.held_back
        self.size = len(self._prompts) - arguments.held_back
        if self.size < 1:
            raise EnvironmentFault(
                "environment 'verifiers' cannot be loaded",
                f"{self._taskset!r} has {len(self._prompts)} tasks, held_back = {self.held_back}",
                "hold fewer back, or let the taskset make more (config)",
            )

    def problem(self, number: int) -> Problem:
        return self._task(_checked(number, self.size))

    def held_back_problem(self, number: int) -> Problem:
        return self._task(self.size + _checked(number, self.held_back))

    def prompt_tokens(self, problem: Problem) -> list[int]:
        """What the package first asks for. Its neighbours are asked too: a process takes many at once."""
        task = _number(problem)
        if task not in self._first:
            first = task - task % _WINDOW
            tasks = range(first, min(first + _WINDOW, len(self._prompts)))
            asked = self._replayer.replay([(one, ()) for one in tasks])
            self._first.update((one, self._asked(found)) for one, found in zip(tasks, asked, strict=True))
        return list(self._first[task])

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        return self._replayer.replay([self._rollout(problem, transcript)])[0].asked

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        """The package's own reward; 0 for a rollout that is over where the package would have gone on: after a cut, or
        an answer (one with marks of the template in it) that the package's renderer would change."""
        # No error: that would stop a run at the first strange token of an untrained policy. Where even plain answers
        # are changed, `check_renderer` has refused the package.
        rollouts = [self._rollout(problem, one) for problem, one in zip(problems, transcripts, strict=True)]
        return [found.reward or 0.0 for found in self._replayer.replay(rollouts)]

    def check_renderer(self, tokenizer: Tokenizer) -> None:
        """Raises EnvironmentFault if even a plain answer would be changed by what follows it."""
        problem = self.problem(0)
        plain = Turn(self.prompt_tokens(problem), [*tokenizer.encode("1"), min(self._eos)], finished=True)
        broken = self._replayer.replay([(0, [plain])])[0].broken
        if broken:
            raise EnvironmentFault(
                f"the package {self._taskset!r} cannot be trained on over several turns",
                broken,
                "name the renderer of the model's family (renderer = 'qwen3'), or set turns = 1",
            )

    def close(self) -> None:
        self._replayer.close()

    def _task(self, number: int) -> Problem:
        return Problem(f"{self._taskset}-{number}", self._prompts[number], ())

    def _asked(self, found: Outcome) -> list[int]:
        if not found.asked:
            raise EnvironmentFault(
                f"the package {self._taskset!r} cannot be used",
                "a rollout of it ends without asking the model anything",
                "leave such tasks out",
            )
        return found.asked

    def _rollout(self, problem: Problem, transcript: Transcript) -> tuple[int, list[Turn]]:
        """(task, its turns): each with what stood before it, so that a replay that differs is seen."""
        turns: list[Turn] = []
        before = self.prompt_tokens(problem)
        for segment in transcript:
            if segment.sampled:
                turns.append(Turn(before, segment.tokens, bool(segment.tokens) and segment.tokens[-1] in self._eos))
            else:
                before = segment.tokens
        return _number(problem), turns


def load(arguments: Arguments, assets: Path, tokenizer: Tokenizer) -> VerifiersEnvironment:
    """Raises EnvironmentFault."""
    good = 1 <= arguments.held_back < arguments.tasks <= MAX_TASKS and 1 <= arguments.turns <= 256
    if not good or not 0 < arguments.seconds <= 86400:
        raise EnvironmentFault(
            "environment 'verifiers' cannot be loaded",
            f"tasks = {arguments.tasks}, held_back = {arguments.held_back}, turns = {arguments.turns}, "
            f"seconds = {arguments.seconds:g}",
            f"use up to {MAX_TASKS} tasks, fewer held back, 1 to 256 turns",
        )
    settings = {
        "taskset": arguments.taskset,
        "config": _config(arguments.config),
        "tasks": arguments.tasks,
        "longest": LONGEST,
        "model": str((assets / "model").resolve()),
        "renderer": arguments.renderer,
    }
    replayer = Replayer(settings, arguments.seconds)
    try:
        environment = VerifiersEnvironment(arguments, replayer, tokenizer)
        if arguments.turns > 1:
            environment.check_renderer(tokenizer)
    except EnvironmentFault:
        replayer.close()
        raise
    return environment


def _config(text: str) -> dict[str, object]:
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise EnvironmentFault(
            "environment 'verifiers' cannot be loaded",
            f"config = {text[:80]!r} is no JSON object",
            """for example config = '{"num_tasks": 100}'""",
        )
    return config


def _number(problem: Problem) -> int:
    return int(problem.problem_id.rpartition("-")[2])


def _checked(number: int, size: int) -> int:
    if not 0 <= number < size:
        raise IndexError(f"problem {number} of {size}")
    return number
