"""Keeps the run's counters in the journal, and counts what was started again: the daemon itself, and its children."""

from functools import partial
from typing import Any, Self

from node.changes import every, side_by_side
from node.services.base import Service, ServiceManager
from node.services.workplace import Workplace
from node.state.made import WorkDone
from node.state.tally import LifetimeCounters


class CounterKeeper(Service):
    """Begins before all that counts; done: what stood in the journal then. The status has the restarts of the whole
    run, whichever daemon it was."""

    name = "counter-keeper"

    def __init__(self, tally: LifetimeCounters, manager: ServiceManager, done: WorkDone) -> None:
        self._tally = tally
        self._manager = manager
        self._restarts = tally.part("restarts")
        self._before = dict(self._restarts)
        self._done = done

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        await place.tally.load()
        starts = place.tally.part("starts")
        starts["daemon"] += 1
        place.tally.part("restarts")["daemon"] = starts["daemon"] - 1
        journal, run = place.context.journal, place.context.run.root
        return cls(place.tally, place.manager, await journal.do(journal.files.work_done, run))

    async def run(self) -> None:
        # Seconds: what is counted is what has been started again, and each look asks all services for their status.
        await side_by_side(self._tally.keep, partial(every, 15.0, self.tick))

    def tick(self) -> None:
        """Count what the services say of their children since this daemon began."""
        for service in self._manager.services:
            rows = service.status().get("processes", ()) if service is not self else ()
            for row in rows:
                self._restarts[row.name] = self._before.get(row.name, 0) + row.restarts

    def status(self) -> dict[str, Any]:
        """Also what was counted before this daemon, until those who count have begun (an engine may load for long)."""
        verdicts = self._tally.part("verdicts")
        judged: dict[str, Any] = {"accepted": verdicts["accepted"], "rejected": verdicts["rejected"]}
        judged["by_reason"] = dict(self._tally.part("reasons"))
        return {"restarts": dict(self._restarts), "work": self._done.status(), "verdicts": judged}
