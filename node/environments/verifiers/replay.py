"""Rollouts of a verifiers v1 package, replayed in its own process (driver.py): what it asks for, or its reward."""

import itertools
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from node.environments.errors import EnvironmentFault, Undecided
from node.environments.lines import LineChild
from node.environments.verifiers.place import VERSION, python

START_SECONDS = 300.0
SHOWN = ("PATH", "HOME", "LANG", "PYTHONPATH", "TMPDIR")
"""What the package's process sees of our environment: no keys, no addresses."""
_DRIVER = Path(__file__).with_name("driver.py")


@dataclass(frozen=True, slots=True)
class Turn:
    """before: token ids that the package put before it (of the first turn: the prompt); tokens: what was sampled;
    finished: whether with an end token."""

    before: list[int]
    tokens: list[int]
    finished: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """One of them is there. asked: the tokens after all turns, before what is to be sampled next; reward: it is over;
    broken: why it cannot go on from the last answer: that was cut off, or the package would change its tokens."""

    asked: list[int] | None = None
    reward: float | None = None
    broken: str = ""


class _Reply(msgspec.Struct, frozen=True):
    id: int = -1
    asked: list[int] | None = None
    reward: float | None = None
    broken: str = ""
    late: str = ""
    wrong: str = ""


class Replayer:
    """Blocking; one process, which threads ask one after the other. settings: the first line of driver.py; seconds: for
    a batch of rollouts.

    Raises EnvironmentFault if the package cannot be loaded.
    """

    def __init__(self, settings: dict[str, Any], seconds: float) -> None:
        self._settings = settings
        self._seconds = seconds
        self._numbers = itertools.count()
        self._turn = threading.Lock()
        self.prompts: list[str] = []
        shown = {name: os.environ[name] for name in SHOWN if name in os.environ}
        environment = shown | {"HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        command = [str(python()), "-P", str(_DRIVER)]
        self._child = LineChild(command, environment, START_SECONDS, self._refused, [settings])
        self._child.start()

    def replay(self, rollouts: Sequence[tuple[int, Sequence[Turn]]]) -> list[Outcome]:
        """rollouts: (task, its turns so far). Raises Undecided if one takes too long, by our clock or its own,
        EnvironmentFault if one fails or comes to something else than before."""
        with self._turn:
            return self._replayed(rollouts)

    def _replayed(self, rollouts: Sequence[tuple[int, Sequence[Turn]]]) -> list[Outcome]:
        orders = {next(self._numbers): rollout for rollout in rollouts}
        self._child.send(*(_order(number, *rollout) for number, rollout in orders.items()))
        found: dict[int, Outcome] = {}
        while len(found) < len(orders):
            reply = self._child.receive(self._seconds)
            if reply is None:
                raise self._undecided(f"its process ended, or took more than {self._seconds:g} s over a rollout")
            number, outcome = self._outcome(reply)
            found[number] = outcome
        return [found[number] for number in orders]

    def close(self) -> None:
        self._child.close()

    def _undecided(self, why: str) -> Undecided:
        return Undecided(
            f"the package {self._settings['taskset']!r} did not go on",
            why,
            "raise `seconds` in the environment's arguments, or look for what the package waits for",
        )

    def _outcome(self, message: Any) -> tuple[int, Outcome]:
        try:
            reply = msgspec.convert(message, _Reply)
        except msgspec.ValidationError as error:
            reply = _Reply(wrong=f"its process said what cannot be read: {error}")
        if reply.reward is not None and not math.isfinite(reply.reward):
            reply = _Reply(wrong=f"its reward is {reply.reward}")
        if reply.late:
            self.close()
            raise self._undecided(reply.late)
        if reply.wrong:
            self.close()
            raise EnvironmentFault(
                f"a rollout of the package {self._settings['taskset']!r} cannot be used",
                reply.wrong,
                "a package must do the same with the same answers: correct it, or train on its first turn only",
            )
        return reply.id, Outcome(reply.asked, reply.reward, reply.broken)

    def _refused(self, ready: Any) -> EnvironmentFault | None:
        if ready and "wrong" not in ready:
            self.prompts = [str(prompt) for prompt in ready["tasks"]]
            return None
        return EnvironmentFault(
            "the verifiers package cannot be loaded",
            str(ready["wrong"]) if ready else f"{python()} ended, or has no verifiers",
            f"intellect-node verifiers install PACKAGE makes an environment with verifiers {VERSION} and the package",
        )


def _order(number: int, task: int, turns: Sequence[Turn]) -> dict[str, Any]:
    return {"id": number, "task": task, "said": [[turn.before, turn.tokens, turn.finished] for turn in turns]}
