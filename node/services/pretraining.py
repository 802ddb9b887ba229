"""Pre-training at a desk: the learner's process, which is all of its peers, and a record of every round."""

import time
from pathlib import Path
from typing import Any

import msgspec
import trio

from node.metrics.alarms import Alarm
from node.metrics.journal import read_records
from node.metrics.observer import Observer
from node.recipe.limits import spent
from node.services.local import Doing, Told
from node.state.files import write_whole
from node.training.client import TrainerProcess
from node.training.length import same_but_for_length
from node.training.spool import Spool
from protocol.run import RunSpec

POLL = 0.05


class LocalPretraining:
    """One run in one directory. told: hears every round's record, in order; doing: what goes on meanwhile."""

    def __init__(
        self,
        run: RunSpec,
        encoded: bytes,
        assets: Path,
        *,
        peers: int,
        learner: TrainerProcess,
        spool: Spool,
        observer: Observer,
        told: Told = lambda record: None,
        doing: Doing = lambda text: None,
    ) -> None:
        self._run, self._encoded, self._assets, self._peers = run, encoded, assets, peers
        self._learner, self._spool, self._observer = learner, spool, observer
        self._told, self._doing = told, doing
        self._tokens = 0
        self._before = self._began = 0.0
        self.ended_by: str | None = None

    @property
    def rung(self) -> list[Alarm]:
        """Alarms that rang, in this process's life."""
        return self._observer.rung

    def status(self) -> dict[str, Any]:
        """What /metrics is made of (node.metrics.prometheus)."""
        latest = self._observer.latest
        return {
            "run": {"step": self._observer.newest, "steps_total": self._run.recipe.steps},
            "processes": [
                {"name": self._learner.name, "pid": self._learner.pid, "restarts": self._learner.restarts},
            ],
            "training": {
                "step": self._observer.newest,
                "seconds": float(latest.get("elapsed", 0.0)),
                "queued_rollouts": 0,
                "latest": latest,
                "alarms": [msgspec.to_builtins(alarm) for alarm in self._observer.alarms],
            },
        }

    async def run(self) -> None:
        """Train until the last round, or the end of the budget."""
        await trio.to_thread.run_sync(self._prepare)
        self._doing("the learner loads the model")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._learner.run)
            await self._follow()

    def _prepare(self) -> None:
        self._spool.prepare(self._encoded, self._assets, same_but_for_length)
        write_whole(self._spool.peers_path, str(self._peers).encode())
        for record in read_records(self._observer.path):
            self._before = max(self._before, float(record.get("elapsed", 0.0)))
            self._tokens += int(record.get("tokens", 0))

    async def _follow(self) -> None:
        """Record each round when it is complete; end the run where it has to end before its last one."""
        self._began = time.monotonic()
        for step in range(self._observer.newest + 1, self._run.recipe.steps + 1):
            while not self._spool.is_complete(step):  # noqa: ASYNC110 - another process writes it
                await trio.sleep(POLL)
            record = await trio.to_thread.run_sync(self._record, step)
            self._told(record)
            self._spool.forget_policies(step)
            self.ended_by = self._reason_to_end(record)
            if self.ended_by:
                self._learner.finish()
                return
            self._doing(f"round {step + 1}: {self._peers} peers train")

    def _record(self, step: int) -> dict[str, Any]:
        elapsed = round(self._before + time.monotonic() - self._began, 3)
        found = self._spool.record(step)
        self._tokens += int(found.get("tokens", 0))
        self._observer.observe(found, {"elapsed": elapsed, "tokens_so_far": self._tokens}, {})
        return self._observer.latest

    def _reason_to_end(self, record: dict[str, Any]) -> str | None:
        if self._run.alarms.stop and self._observer.alarms:
            return f"an alarm rings: {self._observer.alarms[0].text}"
        return spent(self._run, float(record["elapsed"]), self._tokens)
