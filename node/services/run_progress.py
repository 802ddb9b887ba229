"""How the run goes and whether it is over, as the trainer tells it: in the status, and the end once in the log.

A run that is lengthened goes on: the trainer's newest word counts.
"""

from typing import Any

import structlog

from node.services.base import Service
from node.services.context import Context
from node.swarm.facts import RunTold

log = structlog.get_logger()


class RunProgress(Service):
    """over: whether the run is; reward: its mean held-back reward by now, or when it ended, by the trainer's word."""

    name = "run-progress"

    def __init__(self, context: Context) -> None:
        self._context = context
        self.over = False
        self.reward: float | None = None

    async def run(self) -> None:
        await self._context.handle(self._hear, RunTold)

    def _hear(self, told: RunTold) -> None:
        if told.over and not self.over:
            log.info(
                "run.over",
                step=told.step,
                reward=told.reward,
                remedy="intellect-node weights fetch gets the trained model; this node may leave",
            )
            reward = "" if told.reward is None else f", with a mean reward of {told.reward:.3f}"
            self._context.progress.tell("over", f"the run is over at step {told.step}{reward}")
        # The newest word, also where it takes an earlier one back: a run may be lengthened.
        self.over, self.reward = told.over, told.reward

    def status(self) -> dict[str, Any]:
        final = self.reward if self.over else None
        return {"run": {"over": self.over, "final_reward": final, "reward": self.reward}}
