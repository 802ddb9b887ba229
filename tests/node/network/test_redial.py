"""When members are dialled again, on a clock of the test's own."""

from typing import Any

import pytest
import trio

from node.network.contacts import AddressSet
from node.network.errors import PeerUnavailable
from node.network.redial import LONGEST_DELAY, LinkKind, Redialer
from protocol.identity import Address, NodeKey

OWN, OTHER = sorted((NodeKey(bytes([n]) * 32) for n in (1, 2)), key=lambda key: key.address)


class Line:
    """A member that answers no dial, and how it is connected."""

    def __init__(self) -> None:
        self.link, self.pinged = LinkKind.APART, 0
        self.dialled: list[float] = []

    async def dial(self, where: AddressSet) -> None:
        self.dialled.append(trio.current_time())
        raise PeerUnavailable(where.member, "nobody is there")

    async def ping(self, where: AddressSet) -> None:
        self.pinged += 1


def contact(port: int) -> str:
    return f"/ip4/8.8.8.8/tcp/{port}/p2p/{OTHER.peer_id}"


@pytest.fixture
async def line(nursery: trio.Nursery) -> tuple[Line, Redialer]:
    line = Line()
    redialer = Redialer(OWN.address, line.dial, lambda where: line.link, line.ping)
    nursery.start_soon(redialer.run)
    return line, redialer


async def test_a_member_that_moves_every_second_is_dialled_no_oftener_than_one_that_stays(
    line: tuple[Line, Redialer], autojump_clock: Any
) -> None:
    member, redialer = line
    for port in range(1, 121):
        redialer.place(OTHER.address, contact(port))
        await trio.sleep(1)
    assert 3 <= len(member.dialled) <= 12


async def test_a_member_that_a_relay_connects_is_tried_directly_ever_more_seldom_and_pinged(
    line: tuple[Line, Redialer], autojump_clock: Any
) -> None:
    member, redialer = line
    member.link = LinkKind.RELAYED
    redialer.place(OTHER.address, contact(1))
    await trio.sleep(3600)
    assert 15 <= len(member.dialled) <= 40 and member.pinged > 100
    assert member.dialled[-1] - member.dialled[-2] > LONGEST_DELAY
    member.link, before = LinkKind.APART, len(member.dialled)
    await trio.sleep(2)
    assert len(member.dialled) > before, "a lost connection is dialled at once"


async def test_in_a_pool_of_thousands_the_last_member_is_known_and_dialled_like_the_first(
    line: tuple[Line, Redialer], autojump_clock: Any
) -> None:
    member, redialer = line
    crowd = {Address(f"0x{number:040x}"): f"not read: {number}" for number in range(3000)}
    redialer.stay_with({OTHER.address})
    for one, told in {**crowd, OTHER.address: contact(1)}.items():
        redialer.place(one, told)
    await trio.sleep(2)
    assert member.dialled and all(map(redialer.knows, (*crowd, OTHER.address)))


async def test_a_member_that_is_told_anew_leaves_the_others_loops_alone_and_one_that_is_gone_is_not_dialled(
    line: tuple[Line, Redialer], autojump_clock: Any
) -> None:
    member, redialer = line
    member.link = LinkKind.BEST
    redialer.place(OTHER.address, contact(1))
    await trio.sleep(1)
    before = dict(redialer._loops)
    redialer.place(Address("0x" + "77" * 20), "not read")
    assert redialer._loops == before
    redialer.place(OTHER.address, None)
    member.link = LinkKind.APART
    await trio.sleep(60)
    assert not member.dialled and not redialer.knows(OTHER.address)
