"""A verifiers v1 package behind our interface: `step` and `score` replay its rollout with what was sampled.

A package plays its rollouts itself, so nothing here knows whether they are exact; a replay that differs from the one
before is an error. Its code comes from wherever its owner installed it, not from the run, and runs without a sandbox:
for a desk, never for a swarm (protocol.own_code.DESK_ENVIRONMENTS).
"""

import itertools
import json
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from node.environments.base import Defaults, Determinism, Problem, Tokenizer, Transcript, numbered
from node.environments.errors import EnvironmentFault, Undecided
from node.environments.lines import LineChild
from node.places import default_cache

SHOWN = ("PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR")
"""What the package's process sees of our environment: no keys, no addresses."""
_DRIVER = Path(__file__).with_name("driver.py")


@dataclass(frozen=True, slots=True)
class PackageTurn:
    """before: token ids that the package put before it (of the first turn: the prompt); tokens: what was sampled;
    finished: whether with an end token."""

    before: list[int]
    tokens: list[int]
    finished: bool


class ReplayOutcome(msgspec.Struct, frozen=True):
    """What driver.py says of a rollout. One of them is there. asked: the tokens after all turns, before what is to be
    sampled next; reward: it is over; broken: why it cannot go on from the last answer: that was cut off, or the package
    would change its tokens; late, wrong: why this process has no outcome, which is raised."""

    id: int = -1
    asked: list[int] | None = None
    reward: float | None = None
    broken: str = ""
    late: str = ""
    wrong: str = ""


class RolloutReplayer:
    """Blocking; one process, which threads ask one after the other. settings: the first line of driver.py; seconds: for
    a batch of rollouts.

    Raises EnvironmentFault if the package cannot be loaded.
    """

    def __init__(self, settings: dict[str, Any], seconds: float, *, start_seconds: float = 300.0) -> None:
        self._settings = settings
        self._seconds = seconds
        self._numbers = itertools.count()
        # Two threads that ask at once would read the replies to each other's rollouts.
        self._turn = threading.Lock()
        self.prompts: list[str] = []
        shown = {name: os.environ[name] for name in SHOWN if name in os.environ}
        # Offline and with one hash seed: a package must come to the same on every machine.
        environment = shown | {"HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        command = [str(python()), "-P", str(_DRIVER)]
        self._child = LineChild(command, environment, start_seconds, self._refused, [settings])
        self._child.start()

    def replay(self, rollouts: Sequence[tuple[int, Sequence[PackageTurn]]]) -> list[ReplayOutcome]:
        """rollouts: (task, its turns so far). Raises Undecided if one takes too long, by our clock or its own,
        EnvironmentFault if one fails or comes to something else than before."""
        with self._turn:
            orders = {next(self._numbers): rollout for rollout in rollouts}
            self._child.send(*(_order(number, *rollout) for number, rollout in orders.items()))
            found: dict[int, ReplayOutcome] = {}
            while len(found) < len(orders):
                reply = self._child.receive(self._seconds)
                if reply is None:
                    raise self._undecided(f"its process ended, or took more than {self._seconds:g} s over a rollout")
                outcome = self._outcome(reply)
                found[outcome.id] = outcome
            return [found[number] for number in orders]

    def close(self) -> None:
        self._child.close()

    def _undecided(self, why: str) -> Undecided:
        return Undecided(
            f"the package {self._settings['taskset']!r} did not go on",
            why,
            "raise `seconds` in the environment's arguments, or look for what the package waits for",
        )

    def _outcome(self, message: Any) -> ReplayOutcome:
        try:
            reply = msgspec.convert(message, ReplayOutcome)
        except msgspec.ValidationError as error:
            reply = ReplayOutcome(wrong=f"its process said what cannot be read: {error}")
        if reply.reward is not None and not math.isfinite(reply.reward):
            reply = ReplayOutcome(wrong=f"its reward is {reply.reward}")
        if reply.late:
            # The replies to the rest of the batch are on their way. Only a new process says none of them.
            self.close()
            raise self._undecided(reply.late)
        if reply.wrong:
            self.close()
            raise EnvironmentFault(
                f"a rollout of the package {self._settings['taskset']!r} cannot be used",
                reply.wrong,
                "a package must do the same with the same answers: correct it, or train on its first turn only",
            )
        return reply

    def _refused(self, ready: Any) -> EnvironmentFault | None:
        if ready and "wrong" not in ready:
            self.prompts = [str(prompt) for prompt in ready["tasks"]]
            return None
        return EnvironmentFault(
            "the verifiers package cannot be loaded",
            str(ready["wrong"]) if ready else f"{python()} ended, or has no verifiers",
            f"intellect-node verifiers install PACKAGE makes an environment with verifiers {VERSION} and the package",
        )


def _order(number: int, task: int, turns: Sequence[PackageTurn]) -> dict[str, Any]:
    return {"id": number, "task": task, "said": [[turn.before, turn.tokens, turn.finished] for turn in turns]}


VERSION = "0.4.0"
PYTHON_VARIABLE = "INTELLECT_NODE_VERIFIERS_PYTHON"


def own_place() -> Path:
    """The environment that `intellect-node verifiers install` makes."""
    return default_cache() / f"verifiers-{VERSION}"


def python() -> Path:
    """The interpreter that runs packages: the one that PYTHON_VARIABLE names, or that of `own_place`."""
    named = os.environ.get(PYTHON_VARIABLE)
    return Path(named) if named else own_place() / "bin" / "python"


MAX_TASKS = 1 << 20


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

    def __init__(self, arguments: Arguments, replayer: RolloutReplayer, tokenizer: Tokenizer) -> None:
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
        return self._task(numbered(range(self.size), number))

    def held_back_problem(self, number: int) -> Problem:
        return self._task(self.size + numbered(range(self.held_back), number))

    def prompt_tokens(self, problem: Problem) -> list[int]:
        """What the package first asks for. Its neighbours are asked too: a process takes many at once."""
        task = _number(problem)
        window = 32
        if task not in self._first:
            first = task - task % window
            tasks = range(first, min(first + window, len(self._prompts)))
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
        plain = PackageTurn(self.prompt_tokens(problem), [*tokenizer.encode("1"), min(self._eos)], finished=True)
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

    def _asked(self, found: ReplayOutcome) -> list[int]:
        if not found.asked:
            raise EnvironmentFault(
                f"the package {self._taskset!r} cannot be used",
                "a rollout of it ends without asking the model anything",
                "leave such tasks out",
            )
        return found.asked

    def _rollout(self, problem: Problem, transcript: Transcript) -> tuple[int, list[PackageTurn]]:
        """(task, its turns): each with what stood before it, so that a replay that differs is seen."""
        turns: list[PackageTurn] = []
        before = self.prompt_tokens(problem)
        for segment in transcript:
            if segment.sampled:
                turns.append(
                    PackageTurn(before, segment.tokens, bool(segment.tokens) and segment.tokens[-1] in self._eos)
                )
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
    longest = 1 << 20
    settings = {
        "taskset": arguments.taskset,
        "config": _config(arguments.config),
        "tasks": arguments.tasks,
        "longest": longest,
        "model": str((assets / "model").resolve()),
        "renderer": arguments.renderer,
    }
    replayer = RolloutReplayer(settings, arguments.seconds)
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
    except (ValueError, RecursionError):
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
