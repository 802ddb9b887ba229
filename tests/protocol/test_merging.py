"""Merging: beside formulas in float64, independent of windows, and the same bytes wherever it is computed."""

import numpy as np
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from protocol import merging
from protocol.merging import Merge, MergeError, merged, thresholds
from protocol.policy import bf16_bits, bf16_values

SIZE = 70_001  # more than a window, and no multiple of anything


def models(count: int = 3, seed: int = 0) -> list[np.ndarray]:
    """A base and `count` models that were trained from it."""
    source = np.random.default_rng(seed)
    base = source.normal(0, 0.02, SIZE).astype(np.float32)
    trained = [base + source.normal(0, 2e-3, SIZE).astype(np.float32) for _ in range(count)]
    return [bf16_bits(values) for values in (base, *trained)]


def whole(merge: Merge, base: np.ndarray | None, several: list[np.ndarray], name: str = "w") -> np.ndarray:
    return np.concatenate([window.copy() for window in merged(merge, name, base, several)])


def ulps(found: np.ndarray, expected: np.ndarray) -> int:
    """The greatest distance in the order of bf16 numbers."""
    one, other = (np.where(bits >> 15, 0x8000 - bits.astype(np.int64), bits) for bits in (found, expected))
    return int(np.abs(one - other).max())


def differences(base: np.ndarray, several: list[np.ndarray]) -> np.ndarray:
    return np.stack([bf16_values(one) - bf16_values(base) for one in several]).astype(np.float64)


def test_the_average_of_one_model_is_itself_and_so_is_that_of_many_equal_ones() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    sound = bits[np.abs(bf16_values(bits)) < 1e30]
    assert len(sound) > 50_000
    assert (whole(Merge(weights=(7,)), None, [sound]) == sound).all()
    assert (whole(Merge(weights=(3, 2, 3)), None, [sound] * 3) == sound).all()


@pytest.mark.parametrize("weights", [(1, 1, 1), (3, 1, 5)])
def test_an_average_is_within_one_ulp_of_the_plain_formula(weights: tuple[int, ...]) -> None:
    _, *several = models()
    plain = np.average([bf16_values(one) for one in several], axis=0, weights=np.float32(weights)).astype(np.float32)
    assert ulps(whole(Merge(weights=weights), None, several), bf16_bits(plain)) <= 1


def test_ties_keeps_the_largest_elects_a_sign_and_takes_the_mean_of_those_that_agree() -> None:
    base, *several = models()
    merge = Merge("ties", (2, 1, 1), density=0.2, scale=0.7)
    t, weights = differences(base, several), np.array([2, 1, 1])[:, None]
    last = round(0.2 * SIZE) - 1
    borders = -np.partition(-np.abs(t), last, axis=1)[:, last]
    assert thresholds(merge, base, several).tolist() == np.float32(borders).tolist()
    kept = np.where(np.abs(t) >= borders[:, None], t, 0)
    sign = np.sign((weights * kept).sum(axis=0))
    agrees = (np.sign(kept) == sign) & (kept != 0)
    mean = (weights * kept * agrees).sum(axis=0) / np.maximum((weights * agrees).sum(axis=0), 1)
    expected = bf16_bits((bf16_values(base) + 0.7 * mean).astype(np.float32))
    found = whole(merge, base, several)
    assert (found != expected).mean() < 1e-3 and (found != base).mean() > 0.3


@pytest.mark.parametrize("density", [1e-6, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["even", "equal", "not finite"])
def test_a_small_tensors_threshold_is_exact_whatever_the_numbers_are(density: float, kind: str) -> None:
    source = np.random.default_rng(3)
    t = source.normal(0, 1e-3, 1 << 16).astype(np.float32)
    if kind == "equal":
        t = np.float32(2**-10) * source.integers(0, 3, t.size).astype(np.float32)
    elif kind == "not finite":
        t[:9] = np.inf
    model, base = bf16_bits(t), np.zeros(t.size, np.uint16)
    exact = np.sort(np.abs(bf16_values(model)))[-max(1, round(density * t.size))]
    assert thresholds(Merge("ties", (1,), density), base, [model]) == [max(exact, np.float32(2**-126))]


@pytest.mark.parametrize("width", [1024, 1536])
def test_a_large_tensors_threshold_leaves_no_column_out(width: int) -> None:
    """With an even step only some columns would be seen, and here a column's place decides its size."""
    columns = np.arange(1, width + 1) * np.where(np.arange(width) % 2, 1e-4, 1e-6)
    t = np.tile(columns.astype(np.float32), 8 * (1 << 16) // width)
    model, base = bf16_bits(t), np.zeros(t.size, np.uint16)
    least = thresholds(Merge("ties", (1,), 0.2), base, [model])[0]
    assert abs((np.abs(bf16_values(model)) >= least).mean() - 0.2) < 0.01


def test_what_is_no_number_in_one_model_leaves_the_others_to_ties() -> None:
    base, one, other = models(2)
    broken, merge = one.copy(), Merge("ties", (1, 1), density=0.5)
    broken[::100] = 0x7FC1
    found, expected = (whole(merge, base, [first, other]) for first in (broken, one))
    assert np.isfinite(bf16_values(found)).all() and (found != expected).mean() < 0.02


def test_dare_keeps_by_a_draw_that_can_be_had_anywhere_and_scales_what_it_keeps() -> None:
    base, *several = models()
    merge, t = Merge("dare", (1, 1, 1), density=0.25, seed=9), differences(base, several)
    keep = []
    for number in range(3):
        place = (9).to_bytes(8, "little") + number.to_bytes(2, "little") + b"w"
        key = algorithms.AES128(blake3(place, derive_key_context="intellect-node merge draw v2").digest(16))
        stream = Cipher(key, modes.CTR(bytes(16))).encryptor().update(bytes(2 * SIZE))
        keep.append(np.frombuffer(stream, "<u2") < 1 << 14)
    assert 0.24 < np.mean(keep) < 0.26 and len({one.tobytes() for one in keep}) == 3
    added = (t * np.array(keep)).sum(axis=0) / 0.25 / 3
    expected = bf16_bits((bf16_values(base) + added).astype(np.float32))
    assert (whole(merge, base, several) != expected).mean() < 1e-3
    assert (whole(merge, base, several, "another") != whole(merge, base, several)).any()
    everything, average = Merge("dare", (1, 1, 1), density=1.0), Merge(weights=(1, 1, 1))
    assert (whole(everything, base, several) != whole(average, None, several)).mean() < 1e-2


@pytest.mark.parametrize("merge", [Merge("average", (1, 2)), Merge("ties", (1, 2), 0.3), Merge("dare", (1, 2), 0.3)])
def test_nothing_depends_on_how_a_tensor_is_cut(merge: Merge, monkeypatch: pytest.MonkeyPatch) -> None:
    base, *several = models(2)
    expected = whole(merge, base, several)
    for start, stop in ((0, 10), (12_345, 12_999), (65_000, 66_500), (SIZE - 1, SIZE)):  # as a validator draws them
        found = np.concatenate([window.copy() for window in merged(merge, "w", base, several, start, stop)])
        assert (found == expected[start:stop]).all()
    monkeypatch.setattr(merging, "WINDOW", 1021)
    assert (whole(merge, base, several) == expected).all()


def test_models_equal_to_the_base_merge_to_the_base() -> None:
    base = models(0)[0]
    for method in ("ties", "dare"):
        assert (whole(Merge(method, (1, 1)), base, [base, base]) == base).all()


def test_a_number_that_is_none_stays_none() -> None:
    bits = np.array([0x7FC1, 0x3F80, 0x7F80, 0xFF80], dtype=np.uint16)
    found = bf16_values(whole(Merge(weights=(1, 1)), None, [bits, bits[[1, 1, 3, 3]]]))
    assert np.isnan(found).tolist() == [True, False, True, False] and found[1] == 1 and found[3] == -np.inf


def test_the_bytes_of_a_merge_are_those_of_the_programs_before() -> None:
    """Golden: others recompute them, so no rearrangement here may change them."""
    base, *several = models(2, seed=4)
    digests = [
        blake3(whole(merge, base, several).tobytes()).hexdigest()[:16]
        for merge in (Merge("average", (1, 2)), Merge("ties", (1, 2), 0.3, 0.5), Merge("dare", (1, 2), 0.3, 0.5, 3))
    ]
    assert digests == ["bc883125a524720c", "03ccdfe8919feeb4", "84818a2fecdb1e3d"]


@pytest.mark.parametrize(
    ("merge", "words"),
    [
        (Merge(weights=()), "1 to 64 models"),
        (Merge(weights=(0,)), "whole, 1 to"),
        (Merge("ties", (1,), density=0.0), "above 0"),
        (Merge("ties", (1,), scale=float("nan")), "-100 to 100"),
        (Merge("dare", (1,), seed=-1), "seed"),
        (Merge("dare", (1,), density=2.0**-17), "density of dare must be above"),
        (Merge("ties", (1,), version=1), "version of a merge must be 2"),
    ],
)
def test_numbers_that_make_no_sense_are_named(merge: Merge, words: str) -> None:
    with pytest.raises(MergeError, match=words):
        merge.check()
