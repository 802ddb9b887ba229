from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.policy import bf16_bits
from protocol.toploc import (
    PRIME,
    ActivationProof,
    MalformedProof,
    ProofErrors,
    build_proofs,
    compare,
    compare_all,
    encode_points,
    evaluate_proofs,
    parse_proof,
    proof_count,
    proof_size,
    proofs_for,
    split_proofs,
    top_positions,
)


def rows_of(seed: int, n: int = 4, hidden: int = 128) -> np.ndarray:
    return bf16_bits(np.random.default_rng(seed).standard_normal((n, hidden)).astype(np.float32))


def build_proof(rows: np.ndarray, k: int) -> bytes:
    return build_proofs([rows], k)[0]


def proof_from_points(positions: Sequence[int] | np.ndarray, bits: Sequence[int] | np.ndarray) -> bytes:
    """The proof through explicit points (flat position, bf16 bits)."""
    return encode_points(np.array([positions]), np.array([bits]))[0]


def evaluate(proof: ActivationProof, position: int) -> int:
    """The bf16 bits that a proof claims, in plain Python integers."""
    x, value = position % proof.modulus, 0
    for coefficient in reversed(proof.coefficients):
        value = (value * x + coefficient) % PRIME
    return value


def naive_proof(positions: list[int], bits: list[int]) -> bytes:
    """Lagrange in plain Python integers: slow, and written independently of the module."""
    modulus = next(m for m in range(PRIME, 0, -1) if len({p % m for p in positions}) == len(positions))
    xs = [p % modulus for p in positions]
    total = [0] * len(xs)
    for i, x in enumerate(xs):
        basis, scale = [1], 1
        for j, other in enumerate(xs):
            if i != j:
                basis = [(a - other * b) % PRIME for a, b in zip([0, *basis], [*basis, 0], strict=True)]
                scale = scale * (x - other) % PRIME
        factor = bits[i] * pow(scale, -1, PRIME) % PRIME
        total = [(t + factor * b) % PRIME for t, b in zip(total, basis, strict=True)]
    return b"".join(word.to_bytes(2) for word in [modulus, *total])


@settings(max_examples=30)
@given(st.dictionaries(st.integers(0, 200_000), st.integers(0, 0xFF80), min_size=1, max_size=12))
def test_proofs_are_byte_for_byte_the_published_format(points: dict[int, int]) -> None:
    positions, bits = list(points), list(points.values())
    assert proof_from_points(positions, bits) == naive_proof(positions, bits)


@settings(max_examples=6)
@given(st.integers(0, 2**32), st.sampled_from([13, 64, 100, 128]))
def test_interpolation_at_full_size_is_the_plain_one(seed: int, k: int) -> None:
    random = np.random.default_rng(seed)
    positions = np.sort(random.choice(163_840, k, replace=False))
    bits = random.integers(0, 0x10000, k)
    data = proof_from_points(positions, bits)
    assert data == naive_proof(positions.tolist(), bits.tolist())
    parsed = parse_proof(data, k)
    assert [evaluate(parsed, int(p)) for p in positions] == (bits % PRIME).tolist()
    assert evaluate_proofs([parsed], positions[None])[0].tolist() == (bits % PRIME).tolist()


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 70), st.sampled_from([1, 3, 40, 65536]))
def test_the_top_positions_are_those_of_a_stable_sort(seed: int, k: int, levels: int) -> None:
    """Few levels: ties everywhere. Enough values that the short cut by blocks is taken."""
    rows = np.random.default_rng(seed).integers(0, levels, (9, 2048)).astype(np.uint16)
    order = np.argsort(-(rows.reshape(-1) & 0x7FFF).astype(np.int64), kind="stable")[:k]
    assert top_positions(rows, k).tolist() == sorted(order.tolist())


def slow_errors(data: bytes, k: int, rows: np.ndarray) -> ProofErrors:
    """What `compare` must find, point by point."""
    parsed, flat = parse_proof(data, k), rows.reshape(-1).tolist()
    order = sorted(range(len(flat)), key=lambda i: (-(flat[i] & 0x7FFF), i))[:k]
    pairs = [(evaluate(parsed, i), flat[i]) for i in order]
    off = sorted(abs((a & 0x7F) - (b & 0x7F)) for a, b in pairs if (a >> 7) & 0xFF == (b >> 7) & 0xFF)
    if not off:
        return ProofErrors(k, 2.0**64, 2.0**64)
    return ProofErrors(k - len(off), sum(off) / len(off), float(off[len(off) // 2]))


@settings(max_examples=20)
@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=1, max_size=10),
    st.sampled_from([16, 100, 640, 2304]),
    st.integers(1, 16),
    st.sampled_from([3, 300, 65536]),
)
def test_a_file_of_proofs_is_what_the_slow_way_gives(
    seed: int, shapes: list[tuple[int, bool]], hidden: int, k: int, levels: int
) -> None:
    """Batches of all lengths, beyond and below what is chosen by one partition; some twice; few levels: ties."""
    random = np.random.default_rng(seed)
    batches: list[np.ndarray] = []
    for count, again in shapes:
        fresh = random.integers(0, levels, (count, hidden)).astype(np.uint16)
        batches.append(batches[-1].copy() if again and batches else fresh)
    built = build_proofs(batches, k)
    for rows, data in zip(batches, built, strict=True):
        flat = rows.reshape(-1).tolist()
        order = sorted(range(len(flat)), key=lambda i: (-(flat[i] & 0x7FFF), i))[:k]
        assert data == naive_proof(order, [flat[i] for i in order])
    disturbed = [rows ^ random.integers(0, 3, rows.shape).astype(np.uint16) for rows in batches]
    found = compare_all([parse_proof(data, k) for data in built], disturbed)
    assert found == [slow_errors(data, k, rows) for data, rows in zip(built, disturbed, strict=True)]


def test_files_larger_than_what_is_computed_at_once_keep_their_order() -> None:
    random = np.random.default_rng(0)
    batches = [random.integers(0, 0x7F80, (n, 256)).astype(np.uint16) for n in random.integers(1, 70, 150)]
    built = build_proofs(batches, 128)
    assert built == [build_proof(rows, 128) for rows in batches]
    errors = compare_all([parse_proof(data, 128) for data in built], batches)
    assert errors == [ProofErrors(0, 0.0, 0.0)] * len(batches)


def test_many_proofs_compare_as_one_by_one() -> None:
    batches = [rows_of(seed, 3, 256) for seed in range(70)]
    proofs = [parse_proof(data, 96) for data in build_proofs(batches, 96)]
    shifted = [*batches[1:], batches[0]]
    assert compare_all(proofs, shifted) == [compare(p, rows) for p, rows in zip(proofs, shifted, strict=True)]
    assert all(error == ProofErrors(0, 0.0, 0.0) for error in compare_all(proofs, batches))


def test_a_proof_of_128_points_has_258_bytes_and_repeats_its_points() -> None:
    rows = rows_of(0, 32, 512)
    data = build_proof(rows, 128)
    assert len(data) == proof_size(128) == 258
    parsed = parse_proof(data, 128)
    flat = rows.reshape(-1)
    assert all(evaluate(parsed, int(p)) == flat[p] for p in top_positions(rows, 128))
    assert compare(parsed, rows).exponent_mismatches == 0
    assert parsed.encode() == data


def test_positions_that_collide_get_a_smaller_modulus_and_still_verify() -> None:
    positions, bits = [5, 5 + PRIME, 9], [16256, 16300, 16400]
    parsed = parse_proof(proof_from_points(positions, bits), 3)
    assert parsed.modulus < PRIME and [evaluate(parsed, p) for p in positions] == bits


def test_batched_and_single_proofs_agree() -> None:
    batches = [rows_of(seed) for seed in range(6)]
    assert build_proofs(batches, 64) == [build_proof(rows, 64) for rows in batches]


def test_other_activations_are_far_away() -> None:
    errors = compare(parse_proof(build_proof(rows_of(1), 128), 128), rows_of(2))
    assert errors.exponent_mismatches > 100


def test_ties_break_to_the_lowest_position() -> None:
    rows = np.full((2, 8), 0x3F80, dtype=np.uint16)
    assert top_positions(rows, 3).tolist() == [0, 1, 2]


def test_the_median_is_the_upper_one() -> None:
    parsed = parse_proof(proof_from_points([0, 1], [0x3F80, 0x3F84]), 2)
    assert compare(parsed, np.array([[0x3F80, 0x3F80]], dtype=np.uint16)).mantissa_median == 4


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(258),  # the null proof that kills the reference's verifier: modulus 0
        bytes(257),
        (65498).to_bytes(2) + bytes(256),
        (127).to_bytes(2) + bytes(256),
        PRIME.to_bytes(2) + (65497).to_bytes(2) + bytes(254),
        PRIME.to_bytes(2) + b"\xff\xff" + bytes(254),
    ],
)
def test_anything_not_canonical_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedProof):
        parse_proof(data, 128)


@given(st.integers(1, 200))
def test_n_output_tokens_have_n_minus_one_rows(tokens: int) -> None:
    rows = np.zeros((tokens - 1, 128), dtype=np.uint16)
    data = proofs_for(rows, 16)
    assert len(split_proofs(data, 16, proof_count(tokens))) == -(-(tokens - 1) // 32)
    with pytest.raises(MalformedProof):
        split_proofs(data, 16, proof_count(tokens) + 1)


def test_too_few_values_for_k_points_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="toploc_k"):
        build_proof(rows_of(0, 1, 64), 128)
