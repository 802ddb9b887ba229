"""Members in the local network: what is announced, and which claims are dialled."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import zeroconf

from node.network.contacts import MAX_CONTACTS_EACH
from node.services.membership.lan import MAX_HEARD, Lan, _Ear, _open, contacts_in, neighbourhood, service_of
from node.swarm.membership import Membership
from protocol.identity import NodeKey

AGAIN = 60.0

OWN, OTHER, STRANGER = (NodeKey(bytes([n]) * 32) for n in (1, 2, 3))
HERE = "/ip4/192.168.1.2/tcp/4001"


class Net:
    """A network that listens in 192.168.1.0/24 and notes whom it is to dial."""

    peer_id = OWN.peer_id

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def listening(self) -> tuple[str, ...]:
        return (HERE, "/ip4/127.0.0.1/tcp/4001", "/ip4/8.8.8.1/tcp/4001")

    def set_contact(self, member: str, told: Any) -> None:
        self.told.append((member, told))

    def stay_with(self, members: Any) -> None: ...


def lan() -> tuple[Lan, Net]:
    net = Net()
    membership = Membership(OWN.address, net, OTHER.address, ())
    membership.joined(OTHER.address, "registered")
    member: Any = SimpleNamespace(network=net, membership=membership)
    return Lan(member), net


def at(host: str, key: NodeKey = OTHER) -> str:
    return f"/ip4/{host}/tcp/4001/p2p/{key.peer_id}"


def test_a_member_that_is_heard_is_tried_there_first_and_its_own_word_is_kept() -> None:
    heard, net = lan()
    for _ in range(3):
        heard.hear(at("192.168.1.9"))
    assert net.told[-1] == (OTHER.address, (at("192.168.1.9"), "registered")) and len(net.told) == 2
    assert heard.status() == {"node": {"lan": 1}}


@pytest.mark.parametrize(
    "claim",
    [
        at("192.168.1.9", STRANGER),
        at("192.168.1.9", OWN),
        at("192.168.2.9"),
        at("8.8.8.8"),
        at("127.0.0.1").replace("127.0.0.1", "169.254.169.254"),
        f"/ip4/192.168.1.9/tcp/1/p2p/{STRANGER.peer_id}/p2p-circuit/p2p/{OTHER.peer_id}",
        "nonsense",
    ],
    ids=range(7),
)
def test_strangers_and_addresses_of_other_networks_are_not_dialled(claim: str) -> None:
    heard, net = lan()
    heard.hear(claim)
    assert len(net.told) == 1 and not heard.found


def test_only_addresses_that_mean_something_to_neighbours_are_announced() -> None:
    heard, _ = lan()
    assert heard._own() == [f"{HERE}/p2p/{OWN.peer_id}"]


def test_a_record_is_read_as_it_is_written_and_bounded() -> None:
    contact = at("192.168.1.9")
    info = service_of(contact)
    assert info.port == 4001 and list(contacts_in(info.text)) == [contact]
    assert list(contacts_in(info.text * 20)) == [contact] * MAX_CONTACTS_EACH
    for odd in (b"", b"\x00", b"\xff", b"\x05abc", b"\xffdnsaddr=" + b"x" * 255, b"\x0adnsaddr=\xc3\xa9"):
        assert list(contacts_in(odd)) in ([], [""])


async def test_more_than_anybody_looks_at_is_dropped() -> None:
    send, heard = trio.open_memory_channel[str](MAX_HEARD)
    ear = _Ear(send, trio.lowlevel.current_trio_token())
    for n in range(MAX_HEARD + 10):
        ear._take(str(n))
    assert heard.statistics().current_buffer_used == MAX_HEARD
    heard.close()
    ear._take("nobody listens")


async def test_a_library_that_a_busy_machine_holds_up_is_tried_again_later(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, _ = lan()
    tries: list[float] = []

    def too_late(contacts: list[str]) -> Any:
        tries.append(trio.current_time())
        raise OSError("its thread comes too late")

    monkeypatch.setattr("node.services.membership.lan.neighbourhood", too_late)
    with trio.move_on_after(AGAIN + 1):
        await heard.run()
    assert len(tries) == 2


def test_an_error_of_the_library_is_one_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(self: Any, **_: Any) -> None:
        raise zeroconf.EventLoopBlocked

    monkeypatch.setattr(zeroconf.Zeroconf, "__init__", too_late)
    ear: Any = None
    with pytest.raises(OSError, match="EventLoopBlocked"):
        _open([at("127.0.0.1")], ear)


async def test_what_one_announces_is_heard_on_the_same_network() -> None:
    contact = f"/ip4/127.0.0.1/tcp/4001/p2p/{OTHER.peer_id}"
    with trio.fail_after(60):
        async with neighbourhood([contact]) as heard:
            assert await heard.receive() == contact
