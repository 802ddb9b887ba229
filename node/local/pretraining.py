"""Pre-training at a desk: the learner's process, which is all of its peers, and a record of every round."""

import time
from pathlib import Path
from typing import Any

import trio

from node.local.rollouts import LocalRun
from node.state.files import write_whole
from protocol.run import RunSpec


class LocalPretraining(LocalRun):
    """One run that pre-trains, in one directory."""

    def __init__(self, run: RunSpec, encoded: bytes, assets: Path, *, peers: int, **parts: Any) -> None:
        super().__init__(run, encoded, assets, **parts)
        self._peers = peers

    async def run(self) -> None:
        """Train until the last round, or the end of the budget."""
        await trio.to_thread.run_sync(self._prepare)
        self._activity("the learner loads the model")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch.run)
            # The learner ends by itself after the last round.
            async with trio.open_nursery() as inner:
                inner.start_soon(self._learner.run)
                await self._follow()
            nursery.cancel_scope.cancel()

    def _prepare(self) -> None:
        super()._prepare()
        write_whole(self._spool.peers_path, str(self._peers).encode())

    def _recall(self, record: dict[str, Any]) -> None:
        self._tokens += int(record.get("tokens", 0))

    async def _follow(self) -> None:
        """Record each round when it is complete; end the run where it has to end before its last one."""
        self._began = time.monotonic()
        for step in range(self._observer.newest + 1, self._run.recipe.steps + 1):
            await self._watch.until_there(lambda step=step: self._spool.is_complete(step))
            record = await trio.to_thread.run_sync(self._record, step)
            self._told(record)
            self._spool.forget_policies(step)
            self.ended_by = self._reason_to_end(record)
            if self.ended_by:
                self._learner.finish()
                return
            self._activity(f"round {step + 1}: {self._peers} peers train")

    def _record(self, step: int) -> dict[str, Any]:
        elapsed = round(self._before + time.monotonic() - self._began, 3)
        found = self._spool.record(step)
        self._tokens += int(found.get("tokens", 0))
        self._observer.observe(found, {"elapsed": elapsed, "tokens_so_far": self._tokens}, {})
        return self._observer.latest
