"""Dialling back: who asks about itself gets an answer, nobody can use a member to look at other machines."""

from typing import Any

import pytest
import trio

from node.swarm.dialback import DialBack, accepts
from protocol.identity import NodeKey
from tests.memory_network import MemoryHub, MemoryNetwork
from tests.node.networks import know

PAUSE = 30.0

ASKER, MEMBER = (NodeKey(bytes([n]) * 32) for n in (1, 2))


class Dialler:
    def __init__(self, open_port: bool) -> None:
        self.open = open_port
        self.dialled: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> bool:
        self.dialled.append((host, port))
        return self.open


async def answers(
    address: str, dialler: Dialler, times: int = 1, pause: float = 0.0, announced: str | None = None
) -> list[bool | None]:
    """What a member answers who asks about `address`, is seen at 127.0.0.1, and has announced another or none."""
    hub = MemoryHub()
    asking, asked = MemoryNetwork(ASKER, hub), MemoryNetwork(MEMBER, hub)
    contact = f"{announced}/p2p/{ASKER.peer_id}" if announced else None
    DialBack(asked, lambda node: contact if contact and node == ASKER.address else (), dialler)
    asker = DialBack(asking, lambda _: ())
    found: list[bool | None] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(asking.run)
        await nursery.start(asked.run)
        know(asking, {MEMBER.address: f"/ip4/127.0.0.1/tcp/1/p2p/{MEMBER.peer_id}"})
        for _ in range(times):
            with trio.fail_after(5):
                look = await asker.ask(MEMBER.address, address)
            assert look.seen == ("127.0.0.1", 1)
            found.append(look.reached)
            await trio.sleep(pause)
        nursery.cancel_scope.cancel()
    return found


@pytest.mark.parametrize("open_port", [True, False])
async def test_a_member_says_whether_it_could_dial_what_was_announced(open_port: bool) -> None:
    dialler = Dialler(open_port)
    there = "/ip4/8.8.8.8/tcp/4001"
    assert await answers(there, dialler, announced=there) == [open_port]
    assert dialler.dialled == [("8.8.8.8", 4001)]


async def test_a_member_dials_where_the_question_comes_from() -> None:
    dialler = Dialler(True)
    assert await answers("/ip4/127.0.0.1/tcp/4001", dialler) == [True]
    assert dialler.dialled == [("127.0.0.1", 4001)]


@pytest.mark.parametrize(
    "address",
    [
        *("/ip4/192.168.0.1/tcp/80", "/ip4/169.254.169.254/tcp/80", "/ip6/::1/tcp/1", "/ip6/2002:7f00:1::/tcp/1"),
        *("/ip6/64:ff9b::7f00:1/tcp/1", "/ip6/fec0::1/tcp/1", "/ip4/168.63.129.16/tcp/80"),
    ],
)
async def test_nobody_looks_into_a_members_own_network_and_such_an_address_leads_nowhere(address: str) -> None:
    dialler = Dialler(True)
    assert await answers(address, dialler, announced=address) == [False] and dialler.dialled == []


@pytest.mark.parametrize(
    ("address", "announced"),
    [
        ("/ip4/8.8.8.8/tcp/4001", None),
        ("/ip4/8.8.8.8/tcp/4001", "/ip4/8.8.8.8/tcp/4002"),
        ("/ip4/8.8.8.8/tcp/4001", f"/ip4/8.8.8.8/tcp/4001/p2p/{MEMBER.peer_id}/p2p-circuit"),
        ("/dns4/localhost/tcp/1", None),
        ("nonsense", None),
    ],
)
async def test_nobody_makes_a_member_knock_at_other_machines(address: str, announced: str | None) -> None:
    dialler = Dialler(True)
    assert await answers(address, dialler, announced=announced) == [None] and dialler.dialled == []


async def test_who_asks_too_often_is_not_dialled_again(autojump_clock: Any) -> None:
    dialler = Dialler(True)
    assert await answers("/ip4/127.0.0.1/tcp/1", dialler, times=3, pause=PAUSE / 2) == [True, None, True]
    assert len(dialler.dialled) == 2


async def test_a_closed_port_is_not_accepted_and_an_open_one_is() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    assert await accepts("127.0.0.1", port)
    await listeners[0].aclose()
    assert not await accepts("127.0.0.1", port)
