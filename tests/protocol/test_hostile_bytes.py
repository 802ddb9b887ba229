"""Parsers of what strangers send: any bytes end in an answer or in the one error, within the input's size class."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.envelope import ProofSubject, open_envelope, seal
from protocol.identity import NodeKey
from protocol.rollout import MalformedRollout, RolloutBatch, RolloutHeader, SampleRow, decode, encode
from protocol.toploc import MalformedProof, compare, evaluate_proofs, parse_proof, proofs_for, split_proofs

K, ROWS = 8, 4
NODE = NodeKey(b"\x07" * 32).address
SUBJECT = ProofSubject(1, NODE, bytes(32), 0, 0, 0, [1, 2], [3, 4, 5, 6, 7, 8])
ACTIVATIONS = np.random.default_rng(0).integers(0, 0x7F80, (5, 16)).astype(np.uint16)
PROOFS = proofs_for(ACTIVATIONS, K, ROWS)
SEALED = seal(PROOFS, SUBJECT, K, ROWS)
FILE = encode(
    RolloutBatch(
        RolloutHeader(1, NODE, "00" * 32, 0),
        tuple(SampleRow(0, i, "p", [1, 2], [3, 4, 5, 6, 7, 8], False, SEALED) for i in range(4)),
    )
)


def mutated(data: bytes) -> st.SearchStrategy[bytes]:
    """The honest bytes with a few changed, cut or repeated: closer to trouble than random ones."""
    changes = st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), min_size=1, max_size=8)

    def apply(changed: list[tuple[int, int]], cut: int, extra: bytes) -> bytes:
        damaged = bytearray(data)
        for at, value in changed:
            damaged[at] = value
        return bytes(damaged[: len(data) - cut]) + extra

    cuts = st.one_of(st.just(0), st.integers(0, len(data)))
    return st.builds(apply, changes, cuts, st.one_of(st.just(b""), st.binary(max_size=64)))


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=600), mutated(PROOFS[: 2 + 2 * K])), st.integers(1, 256))
@example(bytes(258), 128)
@example(b"", 1)
def test_a_proof_parses_to_itself_or_not_at_all(data: bytes, k: int) -> None:
    try:
        proof = parse_proof(data, k)
    except MalformedProof:
        return
    assert proof.encode() == data
    assert all(
        0 <= value < 65497 for value in evaluate_proofs([proof], np.arange(0, 200_000, 999)[None]).ravel().tolist()
    )


@settings(max_examples=80)
@given(mutated(PROOFS), st.integers(0, 5))
def test_proofs_that_parse_can_be_compared_with_any_rows(data: bytes, count: int) -> None:
    try:
        proofs = split_proofs(data, K, count)
    except MalformedProof:
        return
    for proof in proofs:
        assert 0 <= compare(proof, ACTIVATIONS).exponent_mismatches <= K


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=200), mutated(SEALED)))
def test_an_envelope_opens_to_what_was_sealed_or_not_at_all(data: bytes) -> None:
    try:
        proofs = open_envelope(data, SUBJECT, K, ROWS)
    except MalformedProof:
        return
    assert seal(b"".join(proof.encode() for proof in proofs), SUBJECT, K, ROWS) == data


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=400), mutated(FILE)))
def test_a_rollout_file_decodes_or_is_malformed(data: bytes) -> None:
    try:
        batch = decode(data, 8)
    except MalformedRollout:
        return
    assert len(batch.rows) <= 8


@pytest.mark.parametrize("rows", [10**9, 2**31 - 1, 2**62])
def test_a_header_that_claims_a_billion_rows_allocates_nothing(rows: int) -> None:
    data = FILE.replace((4).to_bytes(8, "little"), rows.to_bytes(8, "little"))
    assert data != FILE
    tracemalloc.start()
    with pytest.raises(MalformedRollout):
        decode(data, 8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
