"""How often a node speaks: seldom in a large pool, also while it has not heard the others yet."""

from types import SimpleNamespace
from typing import Any

import trio

from node.clock import Clock
from node.services.base import Crew
from node.services.heartbeat import STARTING, Beating
from protocol.identity import Address
from protocol.liveness import Members, MemberState
from protocol.messages import Heartbeat

MEMBERS = 199


class Board:
    def __init__(self) -> None:
        self.said: list[tuple[float, float]] = []

    async def post(self, message: Heartbeat) -> None:
        await trio.lowlevel.checkpoint()
        self.said.append((trio.current_time(), message.interval))
        assert (message.contact, message.also) == ("best", ("second",))


def table() -> Members:
    members = Members()
    for number in range(MEMBERS + 1):
        members.admit(Address(f"0x{number:040x}"))
    members.remove(Address(f"0x{0:040x}"), MemberState.LEFT)
    return members


async def test_a_node_that_starts_counts_whom_it_has_not_heard_and_then_only_whom_it_hears(autojump_clock) -> None:
    board = Board()
    station: Any = SimpleNamespace(
        board=board,
        membership=SimpleNamespace(table=table()),
        clock=Clock(),
        shelf=SimpleNamespace(newest=None),
        pool=1,
    )
    with trio.move_on_after(STARTING + 5.5):
        await Beating(station, Crew(), "worker", lambda: ("best", "second"), 1.0).run()
    starting = [interval for at, interval in board.said if at < STARTING]
    assert starting == [10.0] * 6  # 200 of them, 20 a second in all
    assert [interval for at, interval in board.said if at >= STARTING] == [1.0] * 6
