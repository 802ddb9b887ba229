"""Several contacts of one member: which are used, in which order, and what a node tells of itself."""

import pytest

from node.network.contacts import Contact, address_set, announced, better_than_relays, ways_to
from node.network.dialling import Knocks
from protocol.identity import NodeKey, PeerId

PAUSE = 30.0

KEY, RELAY, OTHER = (NodeKey(bytes([n]) * 32) for n in (1, 2, 3))
SELF = f"/p2p/{KEY.peer_id}"
THROUGH = f"/p2p/{RELAY.peer_id}/p2p-circuit{SELF}"
NEAR, FAR = f"/ip4/192.168.1.7/tcp/1{SELF}", f"/ip4/10.9.9.9/tcp/1{SELF}"
OPEN, OPEN6 = f"/ip4/8.8.8.8/tcp/1{SELF}", f"/ip6/2a00::1/tcp/1{SELF}"
HERE = ["/ip4/192.168.1.2/tcp/4001", "/ip6/fe80::1/tcp/4001"]


def ways(told: tuple[str, ...], *, private: bool = True) -> list[str]:
    where = address_set(KEY.address, told)
    assert where is not None
    return [each.relay or each.address for each in ways_to(where, HERE, private=private)]


def addresses(*contacts: str) -> list[str]:
    return [RELAY.peer_id if "circuit" in each else each.removesuffix(SELF) for each in contacts]


def test_the_own_network_comes_first_then_the_internet_then_relays_then_networks_elsewhere() -> None:
    assert ways((THROUGH, FAR, OPEN, NEAR)) == addresses(NEAR, OPEN, THROUGH, FAR)
    assert ways((OPEN6, OPEN)) == addresses(OPEN6, OPEN)


def test_private_addresses_are_dialled_only_where_that_is_allowed() -> None:
    loopback = f"/ip4/127.0.0.1/tcp/1{SELF}"
    metadata = f"/ip4/169.254.169.254/tcp/80{SELF}"
    assert ways((NEAR, metadata, loopback, OPEN), private=False) == addresses(OPEN)
    assert ways((FAR, THROUGH), private=False) == addresses(THROUGH)


@pytest.mark.parametrize(
    "address",
    [
        *("/ip4/169.254.169.254/tcp/80", "/ip6/fd00:ec2::254/tcp/80", "/ip6/64:ff9b::a9fe:a9fe/tcp/80"),
        *("/ip6/2002:7f00:1::/tcp/80", "/ip6/fec0::1/tcp/80", "/ip6/::ffff:127.0.0.1/tcp/80", "/ip4/224.0.0.1/tcp/80"),
    ],
)
def test_what_leads_elsewhere_is_dialled_nowhere(address: str) -> None:
    for private in (True, False):
        assert ways((address + SELF, OPEN), private=private) == addresses(OPEN)


@pytest.mark.parametrize(
    "address", ["/ip6/2a00::1/tcp/1/ip4/10.0.0.1/tcp/22", "/dns4/a/tcp/1/ip4/10.0.0.1/tcp/22", "/dnsaddr/a/tcp/1"]
)
def test_an_address_of_two_hosts_is_none(address: str) -> None:
    assert address_set(KEY.address, (address + SELF,)) is None
    through = f"{address}/p2p/{RELAY.peer_id}/p2p-circuit{SELF}"
    assert address_set(KEY.address, (through,)) is None


def test_what_is_malformed_too_much_or_of_one_host_is_passed_over() -> None:
    where = address_set(KEY.address, ("nonsense", OPEN, f"/ip4/8.8.8.8/tcp/22{SELF}", NEAR, FAR))
    assert where is not None and [each.address for each in where.contacts] == addresses(OPEN, NEAR)
    assert address_set(KEY.address, ()) is None and address_set(OTHER.address, (OPEN,)) is None


def test_while_a_relay_connects_two_only_what_is_better_is_dialled() -> None:
    where = address_set(KEY.address, (THROUGH, FAR, OPEN))
    assert where is not None and where.hidden
    found = better_than_relays(ways_to(where, HERE, private=True))
    assert [each.address for each in found] == addresses(OPEN)


def test_a_node_tells_four_contacts_at_most_and_always_a_direct_one() -> None:
    relayed = [f"/p2p/{n}/p2p-circuit/p2p/own" for n in range(5)]
    direct = ["/ip4/10.0.0.1/tcp/1", "/ip4/8.8.8.8/tcp/1", "/ip6/2a00::1/tcp/1"]
    own = [f"{address}/p2p/own" for address in ("/ip4/8.8.8.8/tcp/1", "/ip6/2a00::1/tcp/1", "/ip4/10.0.0.1/tcp/1")]
    assert announced([], direct, PeerId("own")) == tuple(own)
    assert announced(relayed, direct, PeerId("own")) == (*relayed[:2], *own[:2])
    assert announced(relayed, direct[:1], PeerId("own")) == (*relayed[:3], own[2])


@pytest.mark.parametrize(("after", "dialled"), [(PAUSE - 1, False), (PAUSE, True)])
def test_where_nobody_was_others_are_not_looked_for_for_a_while(after: float, dialled: bool) -> None:
    knocks, victim = Knocks(), "/ip4/8.8.8.8/tcp/1"
    first, second = (Contact(key.address, key.peer_id, victim) for key in (KEY, OTHER))
    knocks.missed(first, 0.0)
    assert knocks.may(first, 1.0), "its own failures are the redialer's business"
    assert knocks.may(second, after) is dialled
    knocks.answered(first)
    assert knocks.may(second, 1.0)
