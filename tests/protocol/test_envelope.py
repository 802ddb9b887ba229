from typing import Any

import msgspec
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from protocol.envelope import ENVELOPE_BYTES, ProofSubject, WrongBinding, open_envelope, seal
from protocol.identity import NodeKey
from protocol.toploc import MalformedProof, proofs_for, split_proofs

K, ROWS = 16, 4
SUBJECT = ProofSubject(3, NodeKey(b"\x07" * 32).address, bytes(range(32)), 5, 1, 2, [4, 5, 6], list(range(10)))
PROOFS = proofs_for(np.random.default_rng(0).integers(0, 0x7F80, (9, 64)).astype(np.uint16), K, ROWS)
SEALED = seal(PROOFS, SUBJECT, K, ROWS)


def test_an_envelope_opens_to_the_proofs_it_was_sealed_around() -> None:
    assert len(SEALED) == ENVELOPE_BYTES + len(PROOFS)
    assert open_envelope(SEALED, SUBJECT, K, ROWS) == split_proofs(PROOFS, K, 3)


def test_the_binding_is_the_hash_that_is_on_record() -> None:
    numbers = [(3, 8), (5, 8), (1, 4), (2, 4), (K, 2), (ROWS, 2), (3, 4), (10, 4)]
    plain = b"".join(number.to_bytes(size, "little") for number, size in numbers) + bytes.fromhex(SUBJECT.node[2:])
    tokens = b"".join(token.to_bytes(4, "little", signed=True) for token in [4, 5, 6, *range(10)])
    whole = blake3(plain + bytes(range(32)) + tokens, derive_key_context="intellect-node proof envelope v1")
    assert SEALED[12:ENVELOPE_BYTES] == whole.digest()


@pytest.mark.parametrize(
    "other",
    [
        {"pool": 4},
        {"node": NodeKey(b"\x08" * 32).address},
        {"policy_root": bytes(32)},
        {"index": 6},
        {"group": 2},
        {"sample": 1},
        {"prompt": [4, 5, 7]},
        {"experts": b"\0\1"},
        {"output": [*range(9), 99]},
        {"prompt": [4, 5, 6, 0], "output": list(range(1, 11))},
    ],
)
def test_it_opens_for_no_other_policy_request_or_worker(other: dict[str, Any]) -> None:
    with pytest.raises(WrongBinding):
        open_envelope(SEALED, msgspec.structs.replace(SUBJECT, **other), K, ROWS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        SEALED[:-1],
        SEALED + b"\0",
        PROOFS,
        b"XX" + SEALED[2:],
        SEALED[:2] + b"\x02" + SEALED[3:],
        SEALED[:3] + b"\x00" + SEALED[4:],
        SEALED[:5] + b"\x11" + SEALED[6:],
        SEALED[:ENVELOPE_BYTES] + bytes(len(PROOFS)),
    ],
)
def test_anything_that_seal_would_not_write_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedProof):
        open_envelope(data, SUBJECT, K, ROWS)


@given(st.integers(0, ENVELOPE_BYTES - 1), st.integers(1, 255))
def test_no_byte_of_the_head_can_change(at: int, by: int) -> None:
    data = bytearray(SEALED)
    data[at] ^= by
    with pytest.raises(MalformedProof):
        open_envelope(bytes(data), SUBJECT, K, ROWS)


def test_sealing_the_wrong_number_of_proofs_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="sampled tokens"):
        seal(PROOFS[:-34], SUBJECT, K, ROWS)
