"""How often a node speaks, with which numbers, and when others believe a clock that was put right."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from node.clock import Clock
from node.services.base import ServiceManager
from node.services.heartbeat import HeartbeatSender
from node.state.journal import Journal
from node.state.pen import Pen
from node.swarm.board import Board
from node.swarm.membership import Membership
from protocol.identity import Address, NodeKey
from protocol.liveness import MemberState, MemberTable
from protocol.messages import Heartbeat
from protocol.statements import Domain
from tests.memory_network import MemoryHub, MemoryNetwork

STARTING = 60.0

MEMBERS = 199
NOON = 1_800_000_000.0
KEYS = [NodeKey(bytes([n]) * 32) for n in range(1, 6)]
DOMAIN = Domain(31337, KEYS[0].address)


class Said:
    def __init__(self) -> None:
        self.said: list[tuple[float, float]] = []

    async def post(self, message: Heartbeat) -> None:
        await trio.lowlevel.checkpoint()
        self.said.append((trio.current_time(), message.interval))
        assert (message.contact, message.also) == ("best", ("second",))


def table() -> MemberTable:
    members = MemberTable()
    for number in range(MEMBERS + 1):
        members.admit(Address(f"0x{number:040x}"))
    members.remove(Address(f"0x{0:040x}"), MemberState.LEFT)
    return members


async def test_a_node_that_starts_waits_ever_longer_for_those_it_has_not_heard_and_then_counts_whom_it_hears(
    autojump_clock,
) -> None:
    board = Said()
    context: Any = SimpleNamespace(
        board=board,
        key=KEYS[0],
        membership=SimpleNamespace(table=table()),
        clock=Clock(),
        policy_cache=SimpleNamespace(newest=None),
        pool=1,
    )
    with trio.move_on_after(STARTING + 5.5):
        await HeartbeatSender(context, ServiceManager(), "worker", lambda: ("best", "second"), 1.0).run()
    starting = [interval for at, interval in board.said if at < STARTING]
    assert starting == [2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0, 10.0]  # 200 of them, 20 a second in all
    assert [interval for at, interval in board.said if at >= STARTING] == [1.0] * 2


class Node:
    """A member that speaks. error: seconds that its clock is ahead."""

    def __init__(self, hub: MemoryHub, key: NodeKey, error: float = 0.0) -> None:
        self.hub, self.key, self.error, self.troubles = hub, key, error, []
        self.alive = trio.CancelScope()
        self.network = MemoryNetwork(key, hub)
        self.membership = Membership(key.address, self.network, KEYS[0].address, ())
        self.board = Board(self.network, key, DOMAIN, 1, self.membership, wall=self.wall)

    def wall(self) -> float:
        return NOON + self.error + trio.current_time()

    def beating(self, boot: int = 0) -> HeartbeatSender:
        context: Any = SimpleNamespace(
            **{"board": self.board, "key": self.key, "membership": self.membership, "pool": 1},
            clock=Clock(wall=self.wall),
            policy_cache=SimpleNamespace(newest=None),
            progress=SimpleNamespace(trouble=self.troubles.append),
        )
        return HeartbeatSender(
            context, ServiceManager(), "worker", lambda: (), 1.0, Pen(generation=boot) if boot else None
        )

    async def live(self, boot: int = 0) -> None:
        """Until it is killed."""
        with self.alive:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.network.run)
                nursery.start_soon(self.board.run)
                nursery.start_soon(self.membership.follow, self.board)
                nursery.start_soon(self.beating(boot).run)

    def holds_alive(self, other: "Node") -> bool:
        return self.membership.table.is_live(other.key.address, trio.current_time())


def meet(*nodes: Node) -> None:
    for one in nodes:
        for other in nodes:
            one.membership.joined(other.key.address, f"/ip4/127.0.0.1/tcp/1/p2p/{other.key.peer_id}")


@pytest.fixture
async def five() -> list[Node]:
    hub = MemoryHub()
    nodes = [Node(hub, key) for key in KEYS]
    meet(*nodes)
    return nodes


@pytest.mark.parametrize("error", [240.0, 86_400.0])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_clock_that_was_ahead_and_is_put_right_makes_its_node_alive_within_two_heartbeats(
    error: float, restarted: bool, five: list[Node], nursery: trio.Nursery, autojump_clock
) -> None:
    *others, wrong = five
    wrong.error = error
    for node in five:
        nursery.start_soon(node.live)
    await trio.sleep(30)
    assert all(other.holds_alive(wrong) is (error < 300) for other in others)
    assert wrong.beating().status()["node"]["clock"].ahead_seconds == pytest.approx(error, abs=1)
    if restarted:
        wrong.alive.cancel()
        await trio.sleep(20)
        assert not any(other.holds_alive(wrong) for other in others)
        wrong = Node(wrong.hub, wrong.key)
        meet(*others, wrong)
        nursery.start_soon(wrong.live, int(NOON + error) + 1)  # higher than of all before (`Continuity`)
    wrong.error = 0.0
    await trio.sleep(2.1)
    assert all(other.holds_alive(wrong) for other in others)
    assert wrong.troubles == []


async def test_a_node_whose_own_clock_is_late_believes_most_of_its_peers_and_not_one_of_them(
    five: list[Node], nursery: trio.Nursery, autojump_clock
) -> None:
    late, *others = five
    late.error = -3600.0
    others[0].error = 10 * 365 * 86_400.0
    for node in five:
        nursery.start_soon(node.live)
    await trio.sleep(10)
    assert [late.holds_alive(other) for other in others] == [False, True, True, True]
    assert late.board.clocks.ahead_by() == pytest.approx(-3600.0, abs=1)
    assert others[1].holds_alive(late) and not others[1].holds_alive(others[0])
    assert late.board.counts["future"] > 0 and late.board.counts["muted"] == 0


@pytest.fixture
def journal(tmp_path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


def test_every_start_has_a_higher_number_whatever_the_clock_does(journal: Journal) -> None:
    assert journal.boots() == 0
    assert [journal.booted(now) for now in (1000, 500, 500, 2000)] == [1000, 1001, 1002, 2000]
    assert journal.boots() == 2000
