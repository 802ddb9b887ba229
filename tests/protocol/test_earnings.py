"""What nodes show, and what works are worth: one form, one root, nothing that two readers can read differently."""

import msgspec
import pytest

from protocol.earnings import (
    ShownWork,
    decode_certificates,
    encode_certificates,
    of_file,
    of_judgement,
    refusal_of,
)
from protocol.errors import ProtocolError
from protocol.identity import NodeKey
from protocol.statements import Rechecked, Verdict, WorkCommitment, work_id
from tests.attacks.validators.court import court_run

KEYS = [NodeKey(bytes([n]) * 32) for n in range(1, 8)]
A, B = KEYS[0].address, KEYS[1].address
SIGNATURE = bytes(65)


def test_certificates_are_read_as_one_nodes_of_one_epoch_and_never_doubled() -> None:
    works = [ShownWork(bytes([n]) * 32, 5, (SIGNATURE,)) for n in (2, 1)]
    data = encode_certificates(A, 3, works)
    assert [one.work[0] for one in decode_certificates(data, A, 3).works] == [1, 2]
    for node, epoch in ((B, 3), (A, 4)):
        with pytest.raises(ProtocolError, match="another"):
            decode_certificates(data, node, epoch)
    with pytest.raises(ProtocolError, match="doubled"):
        decode_certificates(encode_certificates(A, 3, [works[0], works[0]]), A, 3)
    with pytest.raises(ProtocolError):
        decode_certificates(encode_certificates(A, 3, [ShownWork(b"w" * 32, 5, (SIGNATURE,) * 17)]), A, 3)


def test_a_judgement_is_one_work_whatever_is_said_of_its_size() -> None:
    commitment = WorkCommitment(1, A, b"p" * 32, 4, b"f" * 32, 1000, 9)
    verdict = Verdict(1, A, b"p" * 32, 4, b"f" * 32, 1000, 0, 0, 9)
    run = court_run()
    few, many = of_judgement(run, B, verdict, 1, 16), of_judgement(run, B, verdict, 16, 16)
    assert few.work == many.work != of_file(commitment).work and 0 < few.units < many.units
    assert few.epoch == 9 and few.node == B and of_file(commitment).work == work_id(commitment)


def test_a_refusal_says_what_was_signed_against_which_work() -> None:
    verdict = Verdict(1, A, b"p" * 32, 4, b"f" * 32, 1000, 1, 5, 9, b"v" * 32)
    looked = Rechecked(1, A, b"p" * 32, 4, b"f" * 32, 1000, 2, 5, 9, b"w" * 32)
    refusal = refusal_of([(verdict, SIGNATURE), (looked, SIGNATURE)])
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(refusal), type=type(refusal))
    assert again.statements(1) == [(verdict, SIGNATURE), (looked, SIGNATURE)] and again.work(1) == work_id(verdict)
