"""What goes wrong at a validator between a look and a verdict: it is no fault of a file, and the node goes on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from node.blobs.errors import StoreFull
from node.errors import NodeError
from node.inference.wire import Inspect, Inspected
from node.services.judging.judge import Validator
from node.services.judging.recomputing import Recomputer
from node.swarm.vote_set import FileState
from node.tasks.recomputed import TaskRuntime
from protocol.blobs import BlobInfo, describe
from protocol.errors import OwnFailure
from protocol.identity import Address
from tests.attacks.validators.court import Court, ReportingEngine, Trouble


async def judged(court: Court, seconds: float = 25) -> FileState:
    """What becomes of one honest file."""
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        work = await court.commit()
        await trio.sleep(seconds)
        state = court.trainer.jury.state.vote_set.state(work)
        nursery.cancel_scope.cancel()
    return state


async def test_a_store_that_is_full_for_a_moment_ends_no_validator(tmp_path: Path, autojump_clock: Any) -> None:
    court = Court([Validator] * 2, engine=lambda _, bad: ReportingEngine(bad), scratch=tmp_path)
    add, fails = court.blobs.add, 2

    async def full(source: Path | bytes) -> BlobInfo:
        nonlocal fails
        fails -= 1
        if fails >= 0:
            raise StoreFull("all of it is pinned or arriving")
        return await add(source)

    court.blobs.add = full  # type: ignore[method-assign]
    assert await judged(court) is FileState.ACCEPTED
    assert not list(tmp_path.rglob("report-*"))


@pytest.mark.parametrize("own", [True, False], ids=["its own disk", "nobody hands it over"])
async def test_a_validator_that_has_no_room_for_a_file_rejects_nobody(
    tmp_path: Path, autojump_clock: Any, own: bool
) -> None:
    court = Court([Validator], engine=lambda _, bad: ReportingEngine(bad), scratch=tmp_path, quorum=1)

    async def fetch(root: bytes, sources: Sequence[Address], **_: Any) -> Path:
        await trio.sleep(1)
        raise StoreFull("all of it is pinned") if own else Trouble("no such blob", "nobody has it", "wait")

    court.blobs.fetch = fetch  # type: ignore[method-assign]
    assert await judged(court, 200) is (FileState.OPEN if own else FileState.REJECTED)
    assert court.validators[0].outcomes["withheld"] == own


async def test_a_file_that_made_room_while_it_waited_is_fetched_again(tmp_path: Path, autojump_clock: Any) -> None:
    places = [tmp_path / "evicted", tmp_path / "kept"]
    places[1].write_bytes(b"a file")

    class Reading(ReportingEngine):
        def inspect(self, order: Inspect) -> Inspected:
            if not Path(order.path).exists():
                raise Trouble("the engine failed", "no such file", "see its log")
            return super().inspect(order)

    def fetching() -> Callable[..., Any]:
        left = list(places)

        async def fetch(root: bytes, sources: Sequence[Address], **_: Any) -> Path:
            await trio.lowlevel.checkpoint()
            return left.pop(0) if len(left) > 1 else left[0]

        return fetch

    court = Court([Validator], engine=lambda _, bad: Reading(bad), scratch=tmp_path, quorum=1)
    court.blobs.fetch = fetching()  # type: ignore[method-assign]
    assert await judged(court) is FileState.ACCEPTED


async def test_a_result_whose_file_is_gone_once_the_own_one_is_computed_is_put_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def own() -> bytes:
        await trio.lowlevel.checkpoint()
        return b"own"

    async def ready(*_: object) -> Any:
        await trio.lowlevel.checkpoint()
        return own

    monkeypatch.setattr("node.services.judging.recomputing.prepared", ready)
    none: Any = SimpleNamespace()
    spec = SimpleNamespace(kind="teach", units=5, copies=1)
    work: Any = SimpleNamespace(
        task=SimpleNamespace(id=b"t", spec=spec),
        commitment=SimpleNamespace(units=5, file_root=describe(b"theirs").root, index=0),
    )
    with pytest.raises(NodeError, match="its file is gone"):
        await Recomputer(TaskRuntime(none, none, tmp_path), 0.05).inspect(work, tmp_path / "evicted")
    (tmp_path / "torn").write_bytes(b"their")
    with pytest.raises(OwnFailure, match="damaged on this machine"):
        await Recomputer(TaskRuntime(none, none, tmp_path), 0.05).inspect(work, tmp_path / "torn")
