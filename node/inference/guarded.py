"""An environment that several jobs use at a time.

Scorers talk to helper processes, so one call comes after the other in each *lane*: the environment itself, or the same
problems with helpers of their own. A lane is made when all others are busy, so that a file whose answers take their
scorer a minute delays no other file. Problems are made one after the other, and never wait for a scorer.

What an environment could not decide in time is counted for the thread that asked, so that no job takes another's
undecided answers for its own. It is closed when nobody uses it any more.
"""

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from node.environments.base import Determinism, Environment, Problem, Reply, Transcript
from node.sandbox import SandboxError


class Guarded:
    """`Environment`, of another one: within."""

    def __init__(self, within: Environment) -> None:
        self.within = within
        self.name, self.size, self.held_back = within.name, within.size, within.held_back
        self.determinism: Determinism = within.determinism
        self.turns = within.turns
        self._lock = threading.RLock()
        self._own = threading.local()
        self._lanes = [within]
        self._idle = [within]
        # A lane may be a sandbox on each core, so memory bounds them. As many as an engine's process has jobs at a
        # time.
        self._most = 4 if hasattr(within, "another") else 1
        self._freed = threading.Condition()
        # Over the list and not a method: a reference to this object would keep it from ever being closed.
        self._closer = weakref.finalize(self, _close, self._lanes)

    @property
    def gave_up(self) -> int:
        """Of the calls of this thread."""
        return getattr(self._own, "gave_up", 0)

    def is_judged(self, problem: Problem) -> bool:
        return self.within.is_judged(problem)

    def is_witnessed(self, problem: Problem) -> bool:
        return self.within.is_witnessed(problem)

    def problem(self, number: int) -> Problem:
        with self._lock:
            return self.within.problem(number)

    def held_back_problem(self, number: int) -> Problem:
        with self._lock:
            return self.within.held_back_problem(number)

    def prompt_tokens(self, problem: Problem) -> list[int]:
        with self._lock:
            return self.within.prompt_tokens(problem)

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        with self._lane() as lane:
            return lane.step(problem, transcript)

    def steps(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[Reply]:
        with self._lane() as lane:
            return lane.steps(problems, transcripts)

    def states(self, problem: Problem, transcript: Transcript) -> bytes:
        with self._lane() as lane:
            return lane.states(problem, transcript)

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        with self._lane() as lane:
            # The lane is ours alone here, so what it adds is of this call.
            before = lane.gave_up
            scores = lane.score(problems, transcripts)
            self._own.gave_up = self.gave_up + lane.gave_up - before
            return scores

    @contextmanager
    def _lane(self) -> Iterator[Environment]:
        """One that nobody else uses; waits only while there are as many as there may be."""
        with self._freed:
            while not self._idle:
                if len(self._lanes) >= self._most or not self._add_lane():
                    self._freed.wait()
            lane = self._idle.pop()
        try:
            yield lane
        finally:
            with self._freed:
                self._idle.append(lane)
                self._freed.notify()

    def _add_lane(self) -> bool:
        """The lock is held: whoever needs a lane as well would otherwise begin another."""
        try:
            lane = self.within.another()
        except SandboxError:
            return False  # this machine has no room for it now
        if lane is None:
            self._most = len(self._lanes)
            return False
        self._lanes.append(lane)
        self._idle.append(lane)
        return True

    def another(self) -> Self:
        """It is for all threads as it is."""
        return self

    def close(self) -> None:
        """Once; nobody may use it then."""
        self._closer()


def _close(lanes: Sequence[Environment]) -> None:
    for lane in lanes:
        lane.close()
