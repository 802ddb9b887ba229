"""reasoning-gym in a child process that may be killed: what is asked of it, and what its silence means."""

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from node.environments.errors import EnvironmentFault, Undecided
from node.environments.lines import LineChild
from node.environments.reasoning.table import VERSION

PYTHON_VARIABLE = "INTELLECT_NODE_REASONING_GYM_PYTHON"
START_SECONDS = 120.0
DEADLINE_SECONDS = 5.0
"""For each problem or answer."""
_CHILD = Path(__file__).with_name("child.py")


class ReasoningGym:
    """Blocking; one child, started when first needed, which threads ask one after the other. python: an interpreter
    that has the package, by default the one that PYTHON_VARIABLE names, or else our own."""

    def __init__(self, python: str | None = None, deadline: float = DEADLINE_SECONDS) -> None:
        self._python = python or os.environ.get(PYTHON_VARIABLE) or sys.executable
        self._deadline = deadline
        environment = {"PATH": os.environ.get("PATH", ""), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        self._child = LineChild([self._python, "-P", str(_CHILD)], environment, START_SECONDS, self._refused)
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
            found = self._child.receive(seconds)
        if found is None:
            raise Undecided(
                f"reasoning-gym gave no answer for {question[1]!r}",
                f"its process ended, or took more than {seconds:g} s",
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
