"""Records of where members are: their own word, not stale, not from the future, nobody else's."""

import msgspec
import pytest

from node.swarm.peer_records import AHEAD, MAX_RECORDS, MAX_TOLD, MAX_TOLD_BYTES, PeerRecords
from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey
from protocol.messages import Heartbeat, seal
from protocol.statements import Domain

EXPIRES = 24 * 3600.0

OWN, MEMBER, STRANGER = (NodeKey(bytes([n]) * 32) for n in (1, 2, 3))
DOMAIN = Domain(31337, Address("0x" + "11" * 20))
NOW = 2_000_000_000.0
POOL = 4


def record(key: NodeKey = MEMBER, at: float = NOW, contact: str = "here", pool: int = POOL) -> bytes:
    beat = Heartbeat(
        pool=pool,
        boot=0,
        count=int(at),
        at=int(at * 1000),
        role="worker",
        state="working",
        contact=contact,
        policy_step=0,
        interval=2.0,
    )
    return seal(key, DOMAIN, beat)


def book(*others: NodeKey) -> PeerRecords:
    members = {OWN.address, MEMBER.address, *(key.address for key in others)}
    return PeerRecords(OWN.address, DOMAIN, POOL, lambda address: address in members)


def listed(*records: bytes) -> bytes:
    return msgspec.msgpack.encode(list(records))


def test_a_members_word_is_kept_handed_on_and_read_by_the_next() -> None:
    first, second = book(), book()
    signed = first.read(record(), NOW)
    assert signed is not None and signed.message.contact == "here"
    (raw,) = second.unknown(first.told(NOW))
    assert second.read(raw, NOW) == signed
    assert second.unknown(first.told(NOW)) == []


def test_a_record_tells_all_of_a_members_contacts() -> None:
    beat = Heartbeat(
        pool=POOL,
        boot=0,
        count=0,
        at=int(NOW * 1000),
        role="worker",
        state="",
        contact="best",
        policy_step=0,
        interval=2.0,
        also=("a", "b", "c"),
    )
    kept = book().read(seal(MEMBER, DOMAIN, beat), NOW)
    assert kept is not None and (kept.message.contact, *kept.message.also) == ("best", "a", "b", "c")


@pytest.mark.parametrize(
    "raw",
    [
        record(STRANGER),
        record(OWN),
        record(at=NOW - EXPIRES - 1),
        record(at=NOW + AHEAD + 1),
        record(pool=POOL + 1),
        record()[:-1] + b"x",
        b"",
        b"nonsense",
    ],
)
def test_strangers_stale_early_forged_and_malformed_records_are_passed_over(raw: bytes) -> None:
    kept = book()
    assert kept.read(raw, NOW) is None and len(kept) == 0


def test_an_older_word_does_not_replace_a_newer_one() -> None:
    kept = book()
    assert kept.read(record(at=NOW, contact="new"), NOW) is not None
    assert kept.read(record(at=NOW - 60, contact="old"), NOW) is None
    assert kept.read(record(at=NOW + 1, contact="newer"), NOW) is not None


def test_what_has_expired_is_not_handed_on() -> None:
    kept = book()
    kept.read(record(), NOW)
    assert kept.unknown(kept.kept(NOW)) == [] and msgspec.msgpack.decode(kept.kept(NOW)) != []
    assert msgspec.msgpack.decode(kept.told(NOW + EXPIRES + 1)) == []


def test_a_peer_is_told_a_bounded_part_and_reads_no_more() -> None:
    keys = [NodeKey(bytes([n, 9]) * 16) for n in range(1, MAX_TOLD + 20)]
    kept = book(*keys)
    for key in keys:
        assert kept.read(record(key, contact="x" * 160), NOW) is not None
    told = kept.told(NOW)
    assert len(told) <= MAX_TOLD_BYTES and len(msgspec.msgpack.decode(told)) == MAX_TOLD
    assert len(kept.unknown(listed(*[bytes([n % 256, n // 256]) for n in range(MAX_RECORDS + 9)]))) == MAX_RECORDS


@pytest.mark.parametrize("data", [b"\xc1", b"\x81\x01\x02", b"x" * 3_000_000])
def test_what_is_no_list_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        book().unknown(data)
