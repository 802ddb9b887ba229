import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.identity import NodeKey
from protocol.manifest import PolicyStatement
from protocol.messages import (
    MAX_ENTRIES,
    MAX_LISTED,
    MAX_MESSAGE_BYTES,
    SALT_BYTES,
    AcceptedList,
    CheckpointOffered,
    EarningsVote,
    Envelope,
    EpochRootSigned,
    Heartbeat,
    MalformedMessage,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    Seal,
    Signed,
    StepVerdict,
    ValidatorBatch,
    VerdictIssued,
    VerdictRechecked,
    lean,
    message_digest,
    open_envelope,
    seal,
    seal_of,
    signed,
    with_carried,
)
from protocol.statements import (
    Domain,
    Earnings,
    EpochRoot,
    Rechecked,
    Verdict,
    WorkCommitment,
    sign,
    struct_hash,
    work_id,
)

KEY, OTHER = NodeKey(b"\x05" * 32), NodeKey(b"\x06" * 32)
DOMAIN = Domain(31337, KEY.address)
BEAT = Heartbeat(
    pool=1, boot=0, count=5, at=5, role="worker", state="working", contact="/ip4/1.2.3.4", policy_step=3, interval=1.0
)

WORK = WorkCommitment(1, KEY.address, bytes(32), 0, bytes(32), 1)
COMMITTED = RolloutCommitted(pool=1, commitment=WORK, signature=bytes(65), size=9)
JUDGED = Verdict(1, OTHER.address, bytes(32), 0, bytes(32), 1, 0, 0)
ISSUED = signed(VerdictIssued(pool=1, verdict=JUDGED, signature=b""), KEY, DOMAIN)
LOOKED_AGAIN = Rechecked(*msgspec.structs.astuple(JUDGED))
ROOT = EpochRoot(1, 3, 1_800_000_000, bytes(32), 640, bytes(32))
ROOTED = EpochRootSigned(pool=1, statement=ROOT, signature=sign(KEY, DOMAIN, ROOT))
SEAL = Seal(bytes(32), bytes(32))
EARNED = EarningsVote(
    pool=1, earnings=Earnings(1, 3, 7, bytes(32), 9, bytes(32)), table=bytes(32), size=9, signature=bytes(65)
)

STATED = PolicyStatement(1, 0, 5, 0, bytes(32), bytes(32), bytes(32), bytes(32))
STATED_ROOTS = ("parent", "policy_root", "batch_root", "state_root")
POLICY = {"signature": bytes(65), "manifest_root": bytes(32), "manifest_size": 1}
STEP = StepVerdict(
    pool=1, statement=STATED, trainer=OTHER.address, word=bytes(65), outcome=2, reason=30, signature=bytes(65)
)


def test_a_sealed_message_names_its_author() -> None:
    signed = open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, BEAT))
    assert (signed.author, signed.message) == (KEY.address, BEAT)


def test_further_contacts_are_few_and_short_and_a_node_without_any_says_what_programs_of_before_read() -> None:
    most = msgspec.structs.replace(BEAT, also=("x" * 160,) * 3)
    assert open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, most)).message == most
    for also in (("x",) * 4, ("x" * 161,)):
        with pytest.raises(MalformedMessage):
            open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, msgspec.structs.replace(BEAT, also=also)))
    assert b"also" not in msgspec.msgpack.encode(BEAT)


def test_a_rate_and_a_final_reward_are_numbers() -> None:
    told = msgspec.structs.replace(BEAT, finished=True, reward=0.701)
    assert open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, told)).message == told
    for odd in (math.nan, math.inf):
        with pytest.raises(MalformedMessage):
            open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, msgspec.structs.replace(told, reward=odd)))
        with pytest.raises(MalformedMessage):
            open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, msgspec.structs.replace(told, rate=odd)))


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


def test_a_verdict_on_a_step_is_one_on_the_trainers_commitment_and_binds_all_that_it_says() -> None:
    assert open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, STEP)).message == STEP
    assert STEP.verdict.work == work_id(STATED.commitment(OTHER.address))
    for change in ({"detail": "x"}, {"window": 1}, {"rate": 1}, {"arithmetic": "x"}, {"reason": 31}, {"outcome": 1}):
        assert struct_hash(msgspec.structs.replace(STEP, **change).verdict) != struct_hash(STEP.verdict), change


def test_a_root_is_its_authors_word_whoever_says_it_again_and_has_one_envelope() -> None:
    raw = seal(OTHER, DOMAIN, ROOTED)
    assert raw == seal(KEY, DOMAIN, ROOTED) and open_envelope(DOMAIN, 1, raw).author == KEY.address
    carried = open_envelope(DOMAIN, 1, seal(OTHER, DOMAIN, ValidatorBatch(pool=1, seals=(SEAL,), carried=(ROOTED,))))
    assert [one.raw for one in with_carried(carried)][1] == raw, "and stands without the message that carried it"
    payload = msgspec.msgpack.encode(ROOTED)
    signed_twice = Envelope(payload, KEY.sign_hash(message_digest(DOMAIN, payload)))
    with pytest.raises(MalformedMessage, match="a second time"):
        open_envelope(DOMAIN, 1, msgspec.msgpack.encode(signed_twice))


def test_what_pay_rests_on_travels() -> None:
    said = ValidatorBatch(pool=1, seals=(SEAL,), carried=(ISSUED, ROOTED, EARNED))
    again = signed(VerdictRechecked(pool=1, verdict=LOOKED_AGAIN, signature=b""), KEY, DOMAIN)
    for message in (ROOTED, said, again, EARNED):
        assert open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, message)).message == message


@pytest.mark.parametrize(
    "change",
    [
        {"rewards": bytes(16)},
        {"detail": "x"},
        {"report_root": bytes(32)},
        {"standing": 1},
        {"verifier": "x"},
        {"rate": 1},
    ],
    ids=str,
)
def test_a_verdict_signs_everything_that_it_says(change: dict[str, object]) -> None:
    """Two verdicts of one key on one work that differ in anything are two statements that a contract can compare."""
    with pytest.raises(MalformedMessage, match="not those that its verdict signs"):
        open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, msgspec.structs.replace(ISSUED, **change)))
    other = signed(msgspec.structs.replace(ISSUED, **change), KEY, DOMAIN)
    assert other.verdict != ISSUED.verdict and work_id(other.verdict) == work_id(ISSUED.verdict)


def test_nobody_says_anothers_verdict_again_in_other_bytes() -> None:
    """Nothing signs the bytes of a judgement: each further encoding would push a real one off its author's shelf."""
    raw = seal(KEY, DOMAIN, ISSUED)
    fields = msgspec.msgpack.decode(msgspec.msgpack.decode(raw, type=Envelope).payload)
    same, turned = (msgspec.msgpack.encode(dict(order)) for order in (fields.items(), reversed(fields.items())))
    assert open_envelope(DOMAIN, 1, msgspec.msgpack.encode(Envelope(same, b""))).author == KEY.address
    with pytest.raises(MalformedMessage, match="not encoded in the shortest way"):
        open_envelope(DOMAIN, 1, msgspec.msgpack.encode(Envelope(turned, b"")))
    with pytest.raises(MalformedMessage, match="a second time"):
        open_envelope(DOMAIN, 1, msgspec.msgpack.encode(Envelope(same, bytes(65))))


def test_a_judgement_that_is_kept_without_its_envelope_is_the_same_word() -> None:
    """Its values are those of another's, where both say the same."""
    heard = open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, ISSUED))
    other = open_envelope(DOMAIN, 1, seal(OTHER, DOMAIN, signed(ISSUED, OTHER, DOMAIN)))
    kept = lean(other, heard.message)
    assert kept.packed == b"" and kept.raw == other.raw and (kept.author, kept.message) == (other.author, other.message)
    assert kept.message.verdict is heard.message.verdict and kept.message.signature != heard.message.signature
    odd = Signed(KEY.address, ISSUED, b"bytes from which nothing follows")
    assert lean(odd, None) == odd


def test_a_seal_fits_its_authors_verdict_and_no_other() -> None:
    seal_ = seal_of(ISSUED, KEY.address)
    assert seal_ != seal_of(ISSUED, OTHER.address)
    assert seal_ != seal_of(msgspec.structs.replace(ISSUED, salt=b"\x01" * SALT_BYTES), KEY.address)
    other = signed(msgspec.structs.replace(ISSUED, detail="x"), KEY, DOMAIN)
    assert seal_ != seal_of(other, KEY.address)


@pytest.mark.parametrize(
    "message",
    [
        msgspec.structs.replace(BEAT, contact="x" * 500),
        msgspec.structs.replace(BEAT, interval=0.0),
        msgspec.structs.replace(BEAT, boot=2**63),
        msgspec.structs.replace(BEAT, count=-1),
        msgspec.structs.replace(BEAT, at=-1),
        msgspec.structs.replace(BEAT, interval=float("nan")),
        *(
            PolicyAnnounced(**{"pool": 1, "statement": STATED, **POLICY, **wrong})
            for wrong in (
                *({"statement": msgspec.structs.replace(STATED, **{name: bytes(31)})} for name in STATED_ROOTS),
                *({"statement": msgspec.structs.replace(STATED, **{name: -1})} for name in ("step", "term", "epoch")),
                {"statement": msgspec.structs.replace(STATED, step=2**63)},
                {"statement": msgspec.structs.replace(STATED, pool=2)},
                {"signature": bytes(64)},
                {"manifest_root": bytes(31)},
                {"manifest_size": 0},
            )
        ),
        RolloutCommitted(
            pool=1, commitment=WorkCommitment(1, OTHER.address, bytes(32), 0, bytes(32), 1), signature=bytes(65), size=9
        ),
        RolloutCommitted(
            pool=1, commitment=WorkCommitment(1, KEY.address, bytes(3), 0, bytes(32), 1), signature=bytes(65), size=9
        ),
        ValidatorBatch(pool=1),
        ValidatorBatch(pool=1, seals=(SEAL, Seal(bytes(32), bytes(31)))),
        ValidatorBatch(pool=1, seals=(SEAL, Seal(bytes(31), bytes(32)))),
        ValidatorBatch(pool=1, seals=(SEAL,) * (MAX_ENTRIES + 1)),
        ValidatorBatch(pool=1, carried=(EARNED,) * (MAX_ENTRIES + 1)),
        ValidatorBatch(pool=1, carried=(EARNED, msgspec.structs.replace(EARNED, table=bytes(31)))),
        ValidatorBatch(pool=1, carried=(msgspec.structs.replace(ROOTED, pool=2),)),
        msgspec.structs.replace(ROOTED, pool=2),
        msgspec.structs.replace(ROOTED, signature=bytes(64)),
        msgspec.structs.replace(ROOTED, statement=msgspec.structs.replace(ROOT, number=2**63)),
        msgspec.structs.replace(ROOTED, statement=msgspec.structs.replace(ROOT, epoch=-1)),
        msgspec.structs.replace(ROOTED, statement=msgspec.structs.replace(ROOT, blob=bytes(31))),
        msgspec.structs.replace(EARNED, earnings=Earnings(2, 3, 7, bytes(32), 9, bytes(32))),
        msgspec.structs.replace(EARNED, table=bytes(31)),
        msgspec.structs.replace(ISSUED, salt=b""),
        AcceptedList(pool=1, step=-1, works=(bytes(32),)),
        AcceptedList(pool=1, step=1, works=()),
        AcceptedList(pool=1, step=1, works=(bytes(31),)),
        AcceptedList(pool=1, step=1, works=(bytes(32), bytes(32))),
        AcceptedList(pool=1, step=1, works=tuple(n.to_bytes(32) for n in range(MAX_LISTED + 1))),
        CheckpointOffered(pool=1, term=0, step=0, root=bytes(32), size=9),
        CheckpointOffered(pool=1, term=0, step=1, root=bytes(32), size=2**40),
        CheckpointOffered(pool=1, term=2**32, step=1, root=bytes(32), size=9),
        *(
            msgspec.structs.replace(STEP, **change)
            for change in (
                {"statement": msgspec.structs.replace(STATED, pool=2)},
                {"statement": msgspec.structs.replace(STATED, step=0)},
                {"statement": msgspec.structs.replace(STATED, parent=b"")},
                {"trainer": "0x12"},
                {"word": b""},
                {"outcome": 3},
                {"outcome": 0},
                {"reason": 0},
                {"reason": 256},
                {"rate": -1},
                {"detail": "x" * 301},
            )
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_out_of_bounds_is_refused(message: Message) -> None:
    with pytest.raises(MalformedMessage):
        open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, message))


@pytest.mark.parametrize(
    "change",
    [
        {"units": -1},
        {"units": 2**32},
        {"index": -1},
        {"policy_root": bytes(31)},
        {"file_root": bytes(33)},
        {"node": "0x12"},
        {"node": KEY.address.lower()},
        {"outcome": 256},
        {"reason": -1},
    ],
    ids=str,
)
def test_a_statement_that_no_contract_could_read_is_refused(change: dict[str, object]) -> None:
    messages: list[Message] = [msgspec.structs.replace(ISSUED, verdict=msgspec.structs.replace(JUDGED, **change))]
    if change.keys() <= set(WORK.__struct_fields__):
        messages.append(msgspec.structs.replace(COMMITTED, commitment=msgspec.structs.replace(WORK, **change)))
    for message in messages:
        with pytest.raises(MalformedMessage):
            open_envelope(DOMAIN, 1, seal(KEY, DOMAIN, message))


@pytest.mark.parametrize(("index", "units"), [(0, 0), (2**64 - 1, 2**32 - 1)])
def test_the_widest_numbers_that_a_contract_can_read_pass(index: int, units: int) -> None:
    for message, field in ((COMMITTED, "commitment"), (ISSUED, "verdict")):
        statement = msgspec.structs.replace(getattr(message, field), index=index, units=units, epoch=index)
        raw = seal(KEY, DOMAIN, msgspec.structs.replace(message, **{field: statement}))
        assert len(work_id(getattr(open_envelope(DOMAIN, 1, raw).message, field))) == 32


def test_a_message_too_long_to_gossip_is_not_sent() -> None:
    with pytest.raises(MalformedMessage):
        seal(KEY, DOMAIN, msgspec.structs.replace(BEAT, engine="x" * MAX_MESSAGE_BYTES))


@given(st.binary(max_size=400))
def test_garbage_is_no_message(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        open_envelope(DOMAIN, 1, raw)
