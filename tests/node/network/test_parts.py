"""The pure parts: contacts, back-off, budgets, reputation, framing."""

import pytest

from node.blobs.circle import Reputation
from node.network import requests
from node.network.budget import Budgets, TokenBucket
from node.network.contacts import MAX_CONTACT, Contact, parse_bootnode, parse_contact
from node.network.errors import BadContact
from node.network.redial import LONGEST_DELAY, delay_after
from node.network.requests import KeptStreams
from protocol.identity import Address, NodeKey

FIRST_BAN = 10.0
LONGEST_BAN = 3600.0

MOST_KEPT = 8
IDLE_SECONDS = 10.0

KEY = NodeKey.generate()
ALICE, BOB = Address("alice"), Address("bob")


def test_a_contact_is_read_and_must_belong_to_its_member() -> None:
    text = f"/ip4/10.0.0.1/tcp/4001/p2p/{KEY.peer_id}"
    assert parse_contact(KEY.address, text) == Contact(KEY.address, KEY.peer_id, "/ip4/10.0.0.1/tcp/4001")
    assert parse_contact(KEY.address, f"/dns4/node.example/tcp/1/p2p/{KEY.peer_id}") is not None
    assert parse_contact(NodeKey.generate().address, text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "/ip4/10.0.0.1/tcp/4001",
        f"/p2p/{KEY.peer_id}",
        f"/ip4/999.0.0.1/tcp/1/p2p/{KEY.peer_id}",
        f"/ip4/10.0.0.1/udp/1/p2p/{KEY.peer_id}",
        "/ip4/10.0.0.1/tcp/1/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
        "/ip4/10.0.0.1/tcp/1/p2p/\x00",
        "/ip4/10.0.0.1/tcp/1/p2p/" + "1" * 1000,
    ],
    ids=range(9),  # a key is another one in each process
)
def test_a_malformed_contact_is_none(text: str) -> None:
    assert parse_contact(KEY.address, text) is None


RELAY = NodeKey.generate()
TAIL = f"/p2p/{RELAY.peer_id}/p2p-circuit/p2p/{KEY.peer_id}"


def test_a_contact_behind_a_relay_names_it_with_or_without_where_it_is() -> None:
    place = "/ip4/255.255.255.255/tcp/65535"
    assert len(place + TAIL) <= MAX_CONTACT
    assert parse_contact(KEY.address, place + TAIL) == Contact(KEY.address, KEY.peer_id, place, RELAY.peer_id)
    assert parse_contact(KEY.address, TAIL) == Contact(KEY.address, KEY.peer_id, "", RELAY.peer_id)
    assert parse_contact(RELAY.address, TAIL) is None


@pytest.mark.parametrize(
    "text",
    [
        f"/ip4/1.2.3.4/tcp/1/p2p/{KEY.peer_id}/p2p-circuit/p2p/{KEY.peer_id}",
        f"/ip4/1.2.3.4/tcp/1/p2p-circuit/p2p/{KEY.peer_id}",
        f"/ip4/1.2.3.4/udp/1{TAIL}",
        f"nonsense{TAIL}",
        f"{TAIL}/p2p-circuit/p2p/{KEY.peer_id}",
        f"{TAIL}/tcp/1",
        f"/p2p/{RELAY.peer_id}/p2p-circuit",
    ],
    ids=range(7),
)
def test_a_malformed_contact_behind_a_relay_is_none(text: str) -> None:
    assert parse_contact(KEY.address, text) is None


def test_a_bootnode_says_itself_whom_it_is() -> None:
    text = f"/ip4/10.0.0.1/tcp/4001/p2p/{KEY.peer_id}"
    assert parse_bootnode(text).member == KEY.address
    for bad in ("", "/ip4/10.0.0.1/tcp/4001", f"{text}x", "/ip4/10.0.0.1/tcp/1/p2p/nobody"):
        with pytest.raises(BadContact, match="/ip4/ADDRESS"):
            parse_bootnode(bad)


def test_redial_waits_longer_after_each_failure_up_to_a_limit() -> None:
    waits = [delay_after(failures, 1.0) for failures in range(1, 40)]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_DELAY
    assert delay_after(1, 0.0) == delay_after(1, 1.0) / 2


def test_a_bucket_refills_with_time_and_never_beyond_its_burst() -> None:
    bucket = TokenBucket(rate=1, burst=2)
    assert [bucket.take(1, now) for now in (0, 0, 0, 1, 1, 100, 100, 100)] == [
        True, True, False, True, False, True, True, False,
    ]  # fmt: skip
    bucket.charge(10)
    assert not bucket.take(1, 105)
    assert bucket.take(1, 200)


def test_one_peers_budget_is_not_anothers() -> None:
    budgets = Budgets(rate=1, burst=1)
    assert [budgets.take(key, 1, 0) for key in "aabb"] == [True, False, True, False]


def test_lies_ban_longer_each_time_and_good_deeds_do_not_undo_them() -> None:
    reputation = Reputation()
    assert reputation.ready_at(ALICE, 5.0) == 5.0
    bans = [reputation.lied(ALICE, 5.0) for _ in range(20)]
    assert bans[0] == FIRST_BAN and bans == sorted(bans) and bans[-1] == LONGEST_BAN
    reputation.delivered(ALICE)
    assert reputation.ready_at(ALICE, 6.0) == 5.0 + LONGEST_BAN
    assert reputation.lies(ALICE) == 20
    assert reputation.ready_at(BOB, 6.0) == 6.0


def test_a_failure_pauses_briefly_and_a_delivery_clears_the_count() -> None:
    reputation = Reputation()
    for _ in range(5):
        reputation.failed(BOB, 0.0)
    long = reputation.ready_at(BOB, 0.0)
    reputation.delivered(BOB)
    reputation.failed(BOB, 100.0)
    assert 0 < reputation.ready_at(BOB, 100.0) - 100.0 < long


class Pipe:
    """A stream that gives what it was given."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    async def read_exactly(self, n: int) -> bytes:
        part = self.data[:n]
        self.data = self.data[len(part) :]
        return part

    async def write(self, data: bytes | memoryview, *, head: bytes = b"", bulk: bool = False) -> None:
        self.data += head + data


@pytest.mark.parametrize("size", [0, 1, 300_000])
@pytest.mark.parametrize("keep", [False, True])
async def test_requests_and_responses_survive_the_wire(size: int, keep: bool) -> None:
    body = bytes(size)
    pipe = Pipe()
    await requests.write_request(pipe, body, keep=keep)
    assert await requests.read_request(pipe, size) == (body, keep)
    await requests.write_response(pipe, requests.BUSY, body)
    assert await requests.read_response(pipe, size) == (requests.BUSY, body)
    assert not pipe.data


async def test_an_announced_length_above_the_limit_is_refused_before_reading() -> None:
    pipe = Pipe(b"\xff\xff\xff\xff" + bytes(100))
    with pytest.raises(requests.RequestWireError) as caught:
        await requests.read_request(pipe, 1000)
    assert caught.value.announced == 0x7FFFFFFF
    assert len(pipe.data) == 100


async def test_a_stream_that_ends_early_is_an_error() -> None:
    for data, error in (
        (b"", requests.RequestEnded),
        (b"\x00\x00", requests.RequestWireError),
        (b"\x00\x00\x00\x09abc", requests.RequestWireError),
    ):
        with pytest.raises(requests.RequestWireError) as caught:
            await requests.read_request(Pipe(data), 1000)
        assert type(caught.value) is error


class Idle:
    closed = False


def test_streams_are_kept_for_a_while_and_not_too_many_of_them() -> None:
    kept = KeptStreams[Idle]()
    streams = [Idle() for _ in range(MOST_KEPT + 1)]
    given_up = [each for stream in streams for each in kept.put(ALICE, "p", stream, 0.0)]
    assert given_up == streams[:1]
    assert kept.take(BOB, "p", 0.0) == kept.take(ALICE, "q", 0.0) == (None, [])
    streams[-1].closed = True  # by the peer
    assert kept.take(ALICE, "p", 1.0) == (streams[-2], streams[-1:])
    assert kept.take(ALICE, "p", IDLE_SECONDS + 1) == (None, streams[1:-2])
