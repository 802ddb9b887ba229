"""One engine, two kinds of work: rollouts come first; tasks take the gaps, and where there are none a share.

Pure but for waiting; the clock is an argument.
"""

from collections.abc import Callable

import trio

SHARE = 0.25
"""Of an engine's time, what tasks may take while rollouts are wanted."""
HALF_LIFE = 60.0
POLL = 0.05


class EngineShare:
    """Who may use a worker's engine next. share: of the time that tasks may take from rollouts; clock: seconds."""

    def __init__(self, share: float = SHARE, clock: Callable[[], float] = trio.current_time) -> None:
        self._share = share
        self._clock = clock
        self._rollouts = 0.0
        self._tasks = 0.0
        self._at: float | None = None
        self.rollouts_wanted = False

    def rollout_took(self, seconds: float) -> None:
        self._fade()
        self._rollouts += seconds

    def task_took(self, seconds: float) -> None:
        self._fade()
        self._tasks += seconds

    @property
    def is_tasks_turn(self) -> bool:
        """Whether a task may be worked on now."""
        if not self.rollouts_wanted:
            return True
        self._fade()
        return self._tasks <= self._share * (self._tasks + self._rollouts)

    async def turn(self) -> None:
        """Returns when a task may be worked on."""
        while not self.is_tasks_turn:  # noqa: ASYNC110 - time alone may change it
            await trio.sleep(POLL)

    def _fade(self) -> None:
        """What is long past counts less."""
        now = self._clock()
        if self._at is not None:
            left = 0.5 ** ((now - self._at) / HALF_LIFE)
            self._rollouts *= left
            self._tasks *= left
        self._at = now
