"""A node that rests: by its owner's word, its hours, or what others do; what it drops and keeps; who may not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.lowlevel

from node.clock import Clock
from node.guest.machine import OthersUse
from node.guest.rest import GuestRest
from node.guest.settings import GuestSettings, read_guest
from node.progress import ProgressRecord
from node.services.engine import EngineService
from node.services.rest_keeper import CannotRest, PauseRequest, RestKeeper, read_pause
from protocol.messages import RolloutCommitted
from tests.node.services.test_rollout_worker import FILE_SECONDS, Swarm

NOON = 1_767_787_200.0  # 7 January 2026, 12:00 UTC
HOUR = 3600.0
ALWAYS = GuestSettings()


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that jumps does not wait for threads."""

    async def run_sync(do: Any, *args: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return do(*args)

    monkeypatch.setattr("node.services.rest_keeper.trio.to_thread.run_sync", run_sync)


class Machine:
    """What others do, as a test has it."""

    def __init__(self) -> None:
        self.use = OthersUse(cores=0.0, gpu=0.0)
        self.looks = 0

    def __call__(self) -> OthersUse:
        self.looks += 1
        return self.use


def resting(
    folder: Path, guest: GuestSettings = ALWAYS, role: Any = "worker", look: Machine | None = None, wall: Any = None
) -> RestKeeper:
    clock = Clock(wall=wall or (lambda: NOON + trio.current_time()))
    context: Any = SimpleNamespace(clock=clock, progress=ProgressRecord(wall=clock.wall))
    return RestKeeper(context, GuestRest(guest.patience), guest, role, folder, look, cores=8)


async def begun(one: RestKeeper, nursery: trio.Nursery) -> GuestRest:
    await one.start(nursery)
    await trio.lowlevel.checkpoint()
    return one._rest


# its owner's word


async def test_a_pause_ends_by_itself_and_outlives_a_restart(tmp_path: Path, autojump_clock: Any) -> None:
    async with trio.open_nursery() as nursery:
        rest = await begun(one := resting(tmp_path), nursery)
        assert not rest.why and one.beat() == {}
        await one.pause(PauseRequest(seconds=2 * HOUR))
        assert rest.why.startswith("paused by its owner until") and one.beat() == {"state": "paused"}
        assert one.status()["rest"].until == NOON + 2 * HOUR
        again = await begun(resting(tmp_path), nursery)
        assert again.why == rest.why
        await trio.sleep(2 * HOUR - 1)
        assert rest.why and again.why
        await trio.sleep(2)
        assert not rest.why and not again.why
        assert not (await begun(resting(tmp_path), nursery)).why  # of a pause that is over
        names = [event.name for event in one._context.progress.events]
        assert names == ["paused", "resumed"]
        nursery.cancel_scope.cancel()


async def test_a_pause_without_end_lasts_until_it_is_resumed(tmp_path: Path, autojump_clock: Any) -> None:
    async with trio.open_nursery() as nursery:
        rest = await begun(one := resting(tmp_path), nursery)
        await one.pause(PauseRequest())
        await trio.sleep(100 * HOUR)
        assert "until intellect-node resume" in rest.why
        await one.resume()
        assert not rest.why and read_pause(tmp_path / "pause.json") is None
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"until": "soon"}', b"[" * 4000])
async def test_a_pause_that_the_disk_has_changed_is_a_pause(data: bytes, tmp_path: Path, autojump_clock: Any) -> None:
    (tmp_path / "pause.json").write_bytes(data)
    async with trio.open_nursery() as nursery:
        rest = await begun(one := resting(tmp_path), nursery)
        assert rest.why
        await one.resume()
        assert not rest.why
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"", 200, "until intellect-node resume"),
        (b'{"seconds": 60}', 200, "paused by its owner until"),
        (b'{"seconds": -1}', 400, "out of bounds"),
        (b'{"seconds": 1e99}', 400, "out of bounds"),
        (b'{"patience": -5}', 400, "out of bounds"),
        (b'{"minutes": 5}', 400, "unknown field"),
        (b"\xff", 400, "malformed"),
    ],
)
async def test_the_control_socket_is_strict(body: bytes, code: int, says: str, tmp_path: Path) -> None:
    one = resting(tmp_path)
    sends: list[Any] = []
    async with trio.open_nursery() as nursery:
        await begun(one, nursery)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sends.append(message)

        scope = {"type": "http", "method": "POST", "path": "/pause", "headers": [], "query_string": b""}
        await one.routes()[0].handle(scope, receive, send)
        nursery.cancel_scope.cancel()
    assert sends[0]["status"] == code and says in sends[1]["body"].decode()


@pytest.mark.parametrize(
    ("role", "trainer", "standbys", "says"),
    [
        ("trainer", "me", (), "no other trainer"),
        ("trainer", "me", ("b",), "loses its term"),
        ("trainer", "b", ("me",), "take over"),
        ("validator", "b", (), "2 works wait for its verdict"),
    ],
)
async def test_who_has_promised_more_than_files_is_told_what_a_pause_would_cost(
    role: str, trainer: str, standbys: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    one = resting(tmp_path, role=role)
    table = SimpleNamespace(is_live=lambda address, now: address == "v1")
    terms = SimpleNamespace(trainers=(trainer, *standbys))
    membership = SimpleNamespace(
        own="me", trainer=trainer, terms=terms, validators=("me", "v1", "v2"), table=table, addresses=lambda: ["w"]
    )
    works = [SimpleNamespace(id=1), SimpleNamespace(id=2)]
    books = SimpleNamespace(verdict_of=lambda id, own: None), SimpleNamespace(of=lambda node: works)
    vars(one._context).update(
        {
            "membership": membership,
            "quorum": 2,
            "state": SimpleNamespace(vote_set=books[0], register=books[1]),
        }
    )
    with pytest.raises(CannotRest, match=f"a {role} cannot be paused") as caught:
        await one.pause(PauseRequest())
    assert says in caught.value.why and "intellect-node stop" in caught.value.remedy
    assert not one._rest.why and not (tmp_path / "pause.json").exists()
    if role == "validator":
        assert "of the others 1 live, and 2 must agree" in caught.value.why


# its hours


async def test_hours_begin_and_end_a_rest(tmp_path: Path, autojump_clock: Any) -> None:
    guest = read_guest({"hours": "22:00-07:00", "time_zone": "UTC"})
    async with trio.open_nursery() as nursery:
        rest = await begun(one := resting(tmp_path, guest), nursery)
        assert rest.why == "outside of its hours until Wed 22:00 UTC"
        await trio.sleep(10 * HOUR + 1)
        assert not rest.why
        await one.pause(PauseRequest(seconds=HOUR))
        await one.resume()
        assert not rest.why
        await trio.sleep(9 * HOUR)
        assert rest.why == "outside of its hours until Thu 22:00 UTC"
        nursery.cancel_scope.cancel()


async def test_a_clock_that_jumps_is_noticed_within_a_minute(tmp_path: Path, autojump_clock: Any) -> None:
    """A laptop slept through the end of its hours, or its clock was put right."""
    ahead = 0.0
    guest = read_guest({"hours": "11:00-20:00", "time_zone": "UTC"})
    async with trio.open_nursery() as nursery:
        rest = await begun(resting(tmp_path, guest, wall=lambda: NOON + ahead + trio.current_time()), nursery)
        await trio.sleep(5)
        ahead = 10 * HOUR
        assert not rest.why
        await trio.sleep(61)
        assert rest.why
        nursery.cancel_scope.cancel()


# what others do


async def test_it_works_only_on_a_machine_that_was_left_alone_for_a_while(tmp_path: Path, autojump_clock: Any) -> None:
    guest, machine = read_guest({"only_idle": True, "idle_minutes": 2}), Machine()
    async with trio.open_nursery() as nursery:
        rest = await begun(one := resting(tmp_path, guest, look=machine), nursery)
        assert "looks for 2 minutes" in rest.why
        await trio.sleep(121)
        assert not rest.why
        machine.use = OthersUse(cores=3.0, gpu=0.0)
        await trio.sleep(16)
        assert rest.why == "the machine is in use: others use 3.0 of its 8 cores"
        machine.use = OthersUse(cores=0.1, gpu=0.0)
        await trio.sleep(100)
        assert rest.why
        await trio.sleep(40)
        assert not rest.why and one.status()["rest"].in_use == ""
        assert machine.looks <= 1 + trio.current_time() / 15  # no oftener
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (OthersUse(0.9, 0.0), ""),
        (OthersUse(1.1, 0.0), "others use 1.1 of its 8 cores"),
        (OthersUse(0.0, 40.0), "others use 40 % of its GPU"),
        (OthersUse(None, None, battery=True), "battery"),
        (OthersUse(0.0, None), ""),
    ],
)
def test_what_counts_as_use(use: OthersUse, says: str) -> None:
    assert says in use.busy(8) and bool(says) == bool(use.busy(8))


# what is under way


class Child:
    """An engine's process, as the service drives it."""

    engine_name = "double"

    def __init__(self) -> None:
        self.asleep = False

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    def check_permitted(self, *_: object) -> None: ...

    def sleep(self) -> None:
        self.asleep = True

    def wake(self) -> None:
        self.asleep = False


@pytest.mark.parametrize("at_start", [True, False])
async def test_the_engine_goes_once_nothing_is_under_way_and_is_back_before_anybody_asks(
    at_start: bool, autojump_clock: Any
) -> None:
    rest, child, seen = GuestRest(), Child(), list[bool]()
    spec = SimpleNamespace(verification=None)
    context: Any = SimpleNamespace(run=SimpleNamespace(spec=spec), progress=ProgressRecord())
    engine = EngineService(context, child, "worker", rest)  # type: ignore[arg-type] - a double

    async def ask() -> None:
        await rest.over()
        seen.append(child.asleep)

    if at_start:
        rest.say("owner", "paused")
    async with trio.open_nursery() as nursery:
        await engine.start(nursery)
        assert child.asleep is at_start and engine.beat() == {"engine": "" if at_start else "double"}
        with rest.work():
            rest.say("owner", "paused")
            await trio.sleep(1)
            assert child.asleep is at_start  # what is under way has it
        assert child.asleep and engine.beat() == {"engine": ""}
        nursery.start_soon(ask)
        await trio.sleep(1)
        rest.say("owner", "")
        await trio.sleep(1)
        assert seen == [False] and engine.beat() == {"engine": "double"}
        nursery.cancel_scope.cancel()


async def test_what_is_under_way_has_its_time_and_is_dropped_then(autojump_clock: Any) -> None:
    rest, ended = GuestRest(patience=60.0), {}

    async def work(seconds: float) -> None:
        with rest.work() as scope:
            await trio.sleep(seconds)
        ended[seconds] = (trio.current_time(), scope.cancelled_caught)

    async with trio.open_nursery() as nursery:
        for seconds in (10.0, 30.0, 500.0):
            nursery.start_soon(work, seconds)
        await trio.sleep(5)
        rest.say("owner", "paused")
        assert not rest.quiet
        await trio.sleep(10)
        rest.say("hours", "outside", patience=5.0)  # a second reason shortens, and never adds
    assert ended == {10.0: (10.0, False), 30.0: (20.0, True), 500.0: (20.0, True)}
    assert rest.quiet and rest.dropped == 2
    with rest.work() as scope:
        await trio.sleep(1)
    assert scope.cancelled_caught  # begun while it rests


async def test_a_rest_that_ends_in_time_cuts_nothing(autojump_clock: Any) -> None:
    rest = GuestRest(patience=60.0)
    async with trio.open_nursery() as nursery:
        with rest.work() as scope:
            nursery.start_soon(trio.sleep, 0)
            await trio.sleep(1)
            rest.say("owner", "paused")
            await trio.sleep(30)
            rest.say("owner", "")
            await trio.sleep(100)
    assert not scope.cancelled_caught and rest.dropped == 0


@pytest.mark.parametrize(("patience", "more"), [(60.0, 1), (0.0, 0)])
async def test_a_worker_that_is_paused_in_a_file_makes_no_other_until_it_is_resumed(
    patience: float, more: int, tmp_path: Path, autojump_clock: Any
) -> None:
    """With patience the file is finished; without it is dropped, and its place is used again: nothing is said twice."""
    swarm = Swarm(tmp_path)
    rest: GuestRest = swarm.worker._rest
    async with trio.open_nursery() as nursery:
        await swarm.run(nursery)
        while not swarm.engine.under_way:
            await trio.sleep(0.05)
        before = swarm.trainer.commitments
        rest.say("owner", "paused", patience)
        await trio.sleep(8 * FILE_SECONDS)
        assert rest.quiet and swarm.worker.activity().startswith("paused")
        assert swarm.trainer.commitments == before + more
        rest.say("owner", "")
        await trio.sleep(8 * FILE_SECONDS)
        assert swarm.trainer.commitments >= before + more + 2
        said = swarm.trainer.member.board.messages(RolloutCommitted)
        places = [(one.message.commitment.policy_root, one.message.commitment.index) for one in said]
        assert len(places) == len(set(places))
        nursery.cancel_scope.cancel()
