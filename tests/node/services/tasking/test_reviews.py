"""Reviews of a package: paid like work, and only if the package says the same at the validators."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from node.environments.package.archive import pack
from node.sandbox import SandboxLimits
from node.services.certifier import Certifier
from node.services.judging.recomputing import Recomputer
from node.services.tasking.requests import TaskRequest
from node.swarm.vote_set import FileState
from node.tasks import reviewing
from node.tasks.findings import review
from node.tasks.recomputed import TaskRuntime
from node.tasks.reviewing import PACKAGE, NoReview, review_package
from protocol.blobs import describe
from protocol.checks import Fault, Reason
from protocol.run import Asset
from protocol.statements import VerdictOutcome
from protocol.tasks import TaskId, TaskSpec
from tests.node.environments.sandboxes import OpenSandbox
from tests.node.services.tasking.town import Town, at_once, opened

UNITS = 500
Looked = dict[str, bytes]
"""Directory of a node's files -> its report."""
ARCHIVE = pack(
    {
        "environment.py": b"""# /// environment
# name = "tiny"
# class = "exact"
# ///
def rows():
    return [{"id": "a"}, {"id": "b"}]
def prompt(row):
    return row["id"]
def score(row, turns):
    return 0.5
def golden(row):
    return row["id"]
"""
    }
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return MockClock(autojump_threshold=0)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The package's functions are really called, by a Python that costs little."""

    def opened(files: Mapping[str, bytes], entry: str, limits: SandboxLimits) -> OpenSandbox:
        return OpenSandbox(files, entry, limits)

    place = tmp_path_factory.mktemp("package")
    (place / PACKAGE).write_bytes(ARCHIVE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reviewing, "opener_for", lambda *_, **__: opened)
        return review_package(place, bytes(32))


@pytest.fixture
def looked(report: bytes, monkeypatch: pytest.MonkeyPatch) -> Looked:
    """What nodes find of the package, by what is put in."""
    found: Looked = {"worker-0": report, "worker-1": report, "worker-2": report}

    def look(files: Path, task: TaskId) -> bytes:
        assert (files / PACKAGE).read_bytes() == ARCHIVE
        return found.get(files.name, report)

    monkeypatch.setattr("node.tasks.recomputed.review_package", look)
    return found


async def offer(town: Town) -> TaskId:
    package = town.directory / "package"
    package.write_bytes(ARCHIVE)
    root = describe(ARCHIVE).root.hex()
    asset = Asset(path=PACKAGE, root=root, size=len(ARCHIVE))
    wanted = TaskSpec(kind="review", last=1, copies=3, subject=root, assets=(asset,), units=UNITS)
    id = await town.offering.offer(TaskRequest(wanted, files={PACKAGE: str(package)}))
    await town.until(lambda: all(seat.jury.state.tasks.find(id) for seat in (*town.workers, *town.seats)))
    return id


async def test_three_nodes_review_a_package_and_each_is_paid(clock: MockClock, looked: Looked, tmp_path: Path) -> None:
    town = Town(tmp_path)
    async with opened(town) as nursery:
        certifying, own = Certifier(town.seats[0].context), town.seats[0].key.address
        nursery.start_soon(certifying.run)
        town.start(nursery)
        id = await offer(town)
        await town.finish(id)
        found = review(town.folder(id))
        assert found.confirmed["package"] == describe(ARCHIVE).root.hex() and not found.confirmed["good"]
        assert len(found.reports) == 1
        await trio.sleep(5)
        paid = {one.key.address: town.certified(own, one.key.address) for one in (*town.workers, *town.seats)}
        assert all(paid[worker.key.address] == UNITS for worker in town.workers)
        share = int(town.run.pay.judging * UNITS * town.run.pay.judged_share)
        assert share and all(paid[seat.key.address] == 3 * share for seat in town.seats)
        records = [record for record, _, _ in town.folder(id).results()]
        assert all(len(one.verdicts) == 2 and one.units == UNITS for one in records)


async def test_a_forged_report_is_refused_earns_nothing_and_costs_no_stake(
    clock: MockClock, looked: Looked, tmp_path: Path
) -> None:
    looked["worker-1"] = looked["worker-0"].replace(b'"good":false', b'"good":true')
    town = Town(tmp_path)
    async with opened(town) as nursery:
        town.start(nursery)
        id = await offer(town)
        register, vote_set = town.trainer.jury.state.register, town.trainer.jury.state.vote_set
        forger = town.workers[1].key.address
        await town.until(lambda: len(town.folder(id).done()) == 2 and register.of(forger))
        await town.until(lambda: all(vote_set.state(work.id) is FileState.REJECTED for work in register.of(forger)))
        refused = list(vote_set.rejecting(register.of(forger)[0].id).values())
        said = {(vote.verdict.outcome, vote.verdict.reason) for vote in refused}
        assert said == {(VerdictOutcome.REJECT, Reason.WRONG_REPORT)} and len(refused) == 2
        assert forger not in {record.node for record, _, _ in town.folder(id).results()}
        assert review(town.folder(id)).confirmed["good"] is False  # equal reports of two
        assert all(not judge.slashed for judge in town.judges)


async def test_a_validator_reviews_once_counts_units_and_has_no_opinion_where_it_cannot_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def files(_: object) -> Path:
        await trio.lowlevel.checkpoint()
        return tmp_path

    def work(report: bytes, units: int = UNITS) -> Any:
        commitment = SimpleNamespace(units=units, file_root=describe(report).root, index=0)
        spec = SimpleNamespace(kind="review", units=UNITS, copies=3)
        return SimpleNamespace(task=SimpleNamespace(id=b"t", spec=spec), commitment=commitment)

    looked: list[Path] = []
    monkeypatch.setattr("node.tasks.recomputed.review_package", lambda path, task: looked.append(path) or b"good")
    task_inputs, none = SimpleNamespace(files=files), SimpleNamespace()
    reviews = Recomputer(TaskRuntime(task_inputs, none, tmp_path), 0.05)
    assert (await reviews.inspect(work(b"good"))).outcome == VerdictOutcome.ACCEPT
    refused = await reviews.inspect(work(b"better"))
    assert (refused.outcome, refused.reason) == (VerdictOutcome.REJECT, Reason.WRONG_REPORT) and len(looked) == 1
    claimed = await reviews.inspect(work(b"good", units=UNITS + 1))
    assert isinstance(claimed, Fault) and claimed.reason is Reason.UNITS

    def cannot(*_: object) -> bytes:
        raise NoReview("not here", "no interpreter", "fetch it")

    monkeypatch.setattr("node.tasks.recomputed.review_package", cannot)
    assert (await reviews.inspect(work(b"good"))).outcome == VerdictOutcome.ACCEPT
    with pytest.raises(NoReview):  # looked at again in a dispute: another result cannot be had
        await reviews.inspect(work(b"good"), afresh=True)


async def test_a_review_without_a_package_ends_no_worker(clock: MockClock, tmp_path: Path) -> None:
    town = Town(tmp_path)
    async with opened(town) as nursery:
        town.start(nursery)
        lacking = TaskSpec(kind="review", last=1, copies=3, subject="ab" * 32, units=UNITS)  # its package is not there
        await town.offering.offer(TaskRequest(lacking))
        await town.until(lambda: all(work.counts["failed"] for work in town.work))
        await town.finish(await town.offer(last=8))
        assert {record.node for record, _, _ in town.folder(next(reversed(town.offering.own))).results()}
