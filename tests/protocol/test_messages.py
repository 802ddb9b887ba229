import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.identity import NodeKey
from protocol.messages import (
    MAX_MESSAGE_BYTES,
    Envelope,
    Heartbeat,
    MalformedMessage,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    open_envelope,
    seal,
)
from protocol.statements import Domain, WorkCommitment

KEY, OTHER = NodeKey(b"\x05" * 32), NodeKey(b"\x06" * 32)
DOMAIN = Domain(31337, KEY.address)
BEAT = Heartbeat(
    pool=1, sequence=5, role="worker", state="working", contact="/ip4/1.2.3.4", policy_step=3, interval=1.0
)


def test_a_sealed_message_names_its_author() -> None:
    signed = open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, BEAT))
    assert (signed.author, signed.message) == (KEY.address, BEAT)


def test_a_message_does_not_travel_to_another_pool_or_chain() -> None:
    raw = seal(KEY, DOMAIN, BEAT)
    with pytest.raises(MalformedMessage):
        open_envelope(DOMAIN, 2, raw)
    assert open_envelope(Domain(1, KEY.address), 1, raw).author != KEY.address


def test_a_tampered_payload_is_not_its_authors() -> None:
    envelope = msgspec.msgpack.decode(seal(KEY, DOMAIN, BEAT), type=Envelope)
    payload = envelope.payload.replace(b"working", b"sleepin")
    try:
        signed = open_envelope(DOMAIN, 1, msgspec.msgpack.encode(Envelope(payload, envelope.signature)))
        assert signed.author != KEY.address
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "message",
    [
        msgspec.structs.replace(BEAT, contact="x" * 500),
        msgspec.structs.replace(BEAT, interval=0.0),
        msgspec.structs.replace(BEAT, interval=float("nan")),
        PolicyAnnounced(pool=1, step=-1, policy_root=bytes(32), manifest_root=bytes(32), manifest_size=1),
        PolicyAnnounced(pool=1, step=1, policy_root=bytes(31), manifest_root=bytes(32), manifest_size=1),
        RolloutCommitted(
            pool=1, commitment=WorkCommitment(1, OTHER.address, bytes(32), 0, bytes(32), 1), signature=bytes(65), size=9
        ),
        RolloutCommitted(
            pool=1, commitment=WorkCommitment(1, KEY.address, bytes(3), 0, bytes(32), 1), signature=bytes(65), size=9
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_out_of_bounds_is_refused(message: Message) -> None:
    with pytest.raises(MalformedMessage):
        open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, message))


def test_a_message_too_long_to_gossip_is_not_sent() -> None:
    with pytest.raises(MalformedMessage):
        seal(KEY, DOMAIN, msgspec.structs.replace(BEAT, engine="x" * MAX_MESSAGE_BYTES))


@given(st.binary(max_size=400))
def test_garbage_is_no_message(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        open_envelope(DOMAIN, 1, raw)
