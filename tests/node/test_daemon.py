"""The first moments of a daemon: whatever stops it, it leaves its state directory as it found it."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
import trio
import trio.testing

from cli.errors import CHAIN, CONFIGURATION, exit_code, unwrap
from node import daemon
from node.chain.errors import ChainError, NotDeployed
from node.config import NodeConfig
from node.services.base import Service
from node.state.journal import Journal
from node.state.keystore import save_key
from node.state.leave import LEAVING
from node.state.pen import Pen
from node.swarm.membership import Membership
from protocol.identity import NodeKey
from tests.memory_network import MemoryHub, MemoryNetwork
from tests.words import slash_of


def interrupted_while_opening_the_journal(path: Path, pen: Pen) -> Journal:
    os.kill(os.getpid(), signal.SIGTERM)
    return Journal(path, pen)


def test_a_stop_that_comes_before_anything_runs_still_frees_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "Journal", interrupted_while_opening_the_journal)
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody listened to SIGTERM"))
    try:
        trio.run(daemon.Daemon(NodeConfig(state_dir=tmp_path / "state", home=tmp_path)).main)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert not (tmp_path / "state" / "lock").exists()


def as_far_as_it_comes(place: Path) -> BaseException:
    """Why a daemon without a chain ends."""
    with pytest.raises(BaseException) as raised:
        trio.run(daemon.Daemon(NodeConfig(state_dir=place, home=place.parent)).main)
    return unwrap(raised.value)


def cut(place: Path) -> None:
    journal = place / "journal.sqlite"
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2])


def other_key(place: Path) -> None:
    (place / "node-key.json").unlink()
    save_key(place / "node-key.json", NodeKey(b"\2" * 32), (place / "password").read_text().strip())


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (lambda place: (place / "node-key.json").unlink(), "the key beside it is not there"),
        (other_key, f"the key beside it is {NodeKey(bytes([2]) * 32).address}"),
        (lambda place: (place / "password").unlink(), "no password for the key"),
        (cut, "cannot use the journal"),
    ],
)
def test_a_directory_that_was_copied_in_part_or_put_together_of_two_is_refused(
    tmp_path: Path, part: Callable[[Path], object], says: str
) -> None:
    place = tmp_path / "state"
    for _ in range(2):
        assert exit_code(as_far_as_it_comes(place)) == CHAIN, "the control: a whole one"
    part(place)
    before = {path.name for path in place.iterdir()}
    error = as_far_as_it_comes(place)
    assert exit_code(error) == CONFIGURATION and says in str(error)
    assert {path.name for path in place.iterdir()} - {"journal.sqlite-wal", "journal.sqlite-shm"} <= before


def test_as_long_as_a_daemon_lives_what_it_opens_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = list[bool]()

    def opened(path: Path, pen: Pen) -> Journal:
        patient.append(hasattr(open, "__wrapped__"))
        return Journal(path, pen)

    monkeypatch.setattr(daemon, "Journal", opened)
    as_far_as_it_comes(tmp_path / "state")
    assert patient == [True] and not hasattr(open, "__wrapped__")


class Chain:
    """answers: to whether the node is evicted, one after the other; None is silence."""

    def __init__(self, *answers: bool | None) -> None:
        self.answers = list(answers)

    async def is_evicted(self, pool: int, node: str) -> bool:
        answer = self.answers.pop(0)
        if answer is None:
            raise ChainError("the chain does not answer", "no route", "wait")
        return answer


async def test_a_slash_of_the_past_that_was_overturned_stops_no_node(autojump_clock: Any) -> None:
    """The pool's history is heard anew at each start, the slash before what overturned it."""
    key = NodeKey(b"\1" * 32)
    members = Membership(key.address, MemoryNetwork(key, MemoryHub()), key.address, ())
    chain: Any = Chain(None, False, True)
    slashes = [slash_of(key.address, hash_) for hash_ in ("0xa", "0xb")]
    with trio.move_on_after(60) as waited:
        members.slash(slashes[0])
        await daemon.until_evicted(members, chain, 1)
    assert waited.cancelled_caught and chain.answers == [True]
    members.unslash(key.address, "0xa")
    members.slash(slashes[1])
    await daemon.until_evicted(members, chain, 1)
    assert chain.answers == []


@pytest.mark.parametrize("ends", ["stopped", "failed"])
def test_a_daemon_that_ends_closes_its_way_to_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    said: list[str] = []

    class Chain:
        def __init__(self, *_: object, **__: object) -> None:
            said.append("opened")

        async def pool(self, number: int, *, agreed: bool = False) -> None:
            if ends == "failed":
                raise NotDeployed(["swarm"], 1)
            os.kill(os.getpid(), signal.SIGTERM)
            await trio.sleep_forever()

        def close(self) -> None:
            said.append("closed")

    profile: Any = SimpleNamespace(pool=1, chain_id=31337, contracts=SimpleNamespace(swarm="0x" + "5" * 40))
    monkeypatch.setattr(daemon, "load_profile", lambda *_, **__: profile)
    monkeypatch.setattr(daemon, "ChainClient", Chain)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with suppress(*([BaseExceptionGroup] if ends == "failed" else [])):
        trio.run(daemon.Daemon(NodeConfig(state_dir=tmp_path / "state", home=tmp_path)).main)
    assert said == ["opened", "closed"]


@pytest.mark.parametrize(
    ("who", "tells"),
    [("stops", False), ("has left", True), ("has a seat", True), ("leads alone", False), ("is out", False)],
)
async def test_a_node_that_stops_stays_a_member_and_who_leaves_or_has_a_seat_tells_the_chain(
    who: str, tells: bool, tmp_path: Path
) -> None:
    told: list[int] = []

    class Chain:
        async def leave(self, pool: int) -> None:
            await trio.lowlevel.checkpoint()
            told.append(pool)

    node, journal = daemon.Daemon(NodeConfig(state_dir=tmp_path, home=tmp_path)), Journal(tmp_path / "j.sqlite")
    evicted = trio.Event()
    members = SimpleNamespace(
        own="0xab",
        evicted=evicted,
        terms=SimpleNamespace(seated=who == "has a seat"),
        in_office=lambda one: who in ("has a seat", "leads alone"),
    )
    if who == "has left":
        node.manager.left.set()
    if who == "is out":
        evicted.set()
    given: Any = (Chain(), 7, members, tmp_path, journal)
    await node._leave(*given)
    assert told == ([7] if tells else [])
    journal.close()


@pytest.mark.parametrize("when", ["at work", "while it starts", "before it was started"])
async def test_who_leaves_ends_what_works_and_keeps_what_stays_until_it_has_left(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []

    class Stays(Service):
        name = "stays"

        @classmethod
        async def open(cls, place: Any) -> Self:
            return cls()

        async def run(self) -> None:
            running.append(self.name)
            try:
                await trio.sleep_forever()
            finally:
                running.remove(self.name)

    class Works(Stays):
        name = "works"

    class Loads(Works):
        """An engine that is ready late, or never."""

        name = "loads"

        async def start(self, nursery: trio.Nursery) -> None:
            nursery.start_soon(self.run)
            await (trio.sleep_forever if when == "while it starts" else trio.lowlevel.checkpoint)()

    monkeypatch.setattr(daemon, "ROLES", {"worker": (Works, Loads, Stays)})
    monkeypatch.setattr(daemon, "STAYING", {Stays})
    node, journal = daemon.Daemon(NodeConfig(state_dir=tmp_path, home=tmp_path)), Journal(tmp_path / "j.sqlite")
    run = SimpleNamespace(spec=SimpleNamespace(replicas=0, pretraining=None))
    place: Any = SimpleNamespace(role="worker", control=None, context=SimpleNamespace(run=run, journal=journal))
    if when == "before it was started":
        journal.remember(LEAVING, b"1:0xab:7")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node._serve, nursery, place)
        while "stays" not in running:
            await trio.testing.wait_all_tasks_blocked(0.01)
        await trio.testing.wait_all_tasks_blocked(0.02)
        if when != "before it was started":
            assert sorted(running) == ["loads", "stays", "works"]
            node.manager.leave()
            await trio.testing.wait_all_tasks_blocked(0.02)
        assert running == ["stays"] and node.manager.names == ["stays"], "no status tells of what has ended"
        assert node.manager.state != "working"
        node.manager.left.set()
    assert running == []
    journal.close()
