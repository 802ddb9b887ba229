"""Counters that a second daemon in the same directory goes on with."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from node.services.base import Service, ServiceManager
from node.services.counter_keeper import CounterKeeper
from node.state.journal import Journal
from node.state.tally import LifetimeCounters
from node.status_schema import ProcessPart

RUNS_COUNTED = 16

RUN = b"r" * 32


class Child(Service):
    """A service whose child was started again so often."""

    name = "engine"

    def __init__(self, restarts: int) -> None:
        self.restarts = restarts

    def status(self) -> dict[str, Any]:
        return {"processes": [ProcessPart("engine", 1, self.restarts)]}


class Place:
    """What the service asks of its workplace."""

    def __init__(self, journal: Journal, restarts: int) -> None:
        self.tally = LifetimeCounters(journal, RUN)
        self.context = SimpleNamespace(journal=journal, run=SimpleNamespace(root=RUN))
        self.manager = ServiceManager()
        self.manager.services.append(Child(restarts))


async def daemon(path: Path, restarts: int, accepted: int) -> dict[str, Any]:
    """One daemon's life, ended by cancelling; returns what its status said of restarts and verdicts."""
    journal = Journal(path)
    place = Place(journal, restarts)
    service = await CounterKeeper.open(place)  # type: ignore[arg-type]
    verdicts = place.tally.part("verdicts")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        verdicts["accepted"] += accepted
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    journal.close()
    status = service.status()
    assert status["verdicts"]["accepted"] == verdicts["accepted"]
    return {**status["restarts"], "accepted": verdicts["accepted"]}


async def test_counters_go_on_after_a_restart_and_restarts_are_counted_over_all_daemons(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    assert await daemon(path, restarts=2, accepted=5) == {"daemon": 0, "engine": 2, "accepted": 5}
    assert await daemon(path, restarts=0, accepted=1) == {"daemon": 1, "engine": 2, "accepted": 6}
    assert await daemon(path, restarts=3, accepted=0) == {"daemon": 2, "engine": 5, "accepted": 6}


async def test_each_run_counts_for_itself_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    for number in range(RUNS_COUNTED + 3):
        journal.note_tallies(bytes([number]), [("verdicts", "accepted", number)])
    assert journal.tallies(bytes([2])) == [] and journal.tallies(bytes([3])) == [("verdicts", "accepted", 3)]
    fresh = LifetimeCounters(journal, b"another")
    await fresh.load()
    assert fresh.part("verdicts")["accepted"] == 0
    journal.close()


async def test_what_a_worker_did_is_told_before_its_engine_is_ready(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    for number in range(3):
        journal.files.add_file(bytes([number]), b"policy", number, 10, 0.0, RUN, 1)
    journal.files.judge_file(b"\x00", "accepted")
    journal.files.judge_file(b"\x01", "rejected")
    journal.files.note_reasons(b"\x01", "copied, late")
    work = (await CounterKeeper.open(Place(journal, 0))).status()["work"]  # type: ignore[arg-type]
    assert (work["files_committed"], work["files_accepted"], work["files_rejected"]) == (3, 1, 1)
    assert work["rejected_by_reason"] == {"copied": 1, "late": 1} and work["units"] == 30
    journal.close()
