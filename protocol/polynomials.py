"""Polynomials over GF(65497), many at a time: through given points, and at given places. Exact in every step.

Numbers are below p = 65497 unless said otherwise. Where they are multiplied one by one they are uint32, since a
product and one more number stay below 2^32; where products are summed up they are float64, exact below 2^53.
"""

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

PRIME = 65_497
MAX_POINTS = 4096
"""Beyond this many the rounding errors of `_products` would no longer be below one half by proof."""

_P = np.uint32(PRIME)
_ONE_OVER_P = float(np.nextafter(1 / PRIME, 1))  # a little too large: see _reduce

F64 = NDArray[np.float64]
U32 = NDArray[np.uint32]
Shape = tuple[int, ...]


class _Scratch(threading.local):
    """Memory for intermediate numbers, one piece per purpose and thread, used again by the next call.

    Fresh pages from the operating system would take longer than the arithmetic.
    """

    def __init__(self) -> None:
        self._pieces: dict[str, NDArray[Any]] = {}

    def floats(self, purpose: str, shape: Shape) -> F64:
        return self._piece(purpose, shape, np.float64)

    def words(self, purpose: str, shape: Shape) -> U32:
        return self._piece(purpose, shape, np.uint32)

    def _piece(self, purpose: str, shape: Shape, kind: type[Any]) -> NDArray[Any]:
        size = math.prod(shape)
        # Small arrays come from numpy's own cache; large ones would keep megabytes for each thread.
        least_kept = 1 << 12
        most_kept = 1 << 18
        if not least_kept <= size <= most_kept:
            return np.empty(shape, dtype=kind)
        if purpose not in self._pieces or self._pieces[purpose].size < size:
            self._pieces[purpose] = np.empty(size, dtype=kind)
        return self._pieces[purpose][:size].reshape(shape)


_scratch = _Scratch()


def interpolate(x: U32, y: U32) -> U32:
    """x, y: uint32[n, k], the x of one row distinct -> uint32[n, k]: coefficients, constant term first.

    With M = prod (X - x_i) and v_i = y_i / M'(x_i), the polynomial is M * sum v_i / (X - x_i); expanded in
    1/X, sum v_i / (X - x_i) = sum_j s_j / X^(j+1) with s_j = sum v_i x_i^j, so coefficient d is
    sum_j M_(d+j+1) s_j. Raises ValueError for more than MAX_POINTS points.
    """
    k = x.shape[1]
    if k > MAX_POINTS:
        raise ValueError(f"{k} points: at most {MAX_POINTS} can be interpolated")
    # every step is exact and works on whole matrices: numpy needs no loop per point
    powers, giant = _powers(x, k)
    tail = _master(x)
    derivative = _reduce(tail * np.arange(1.0, k + 1))
    slopes = _horner(derivative, powers, giant)
    sums = _power_sums(_reduce_small(y * _INVERSE[slopes.astype(np.intp)]), powers, giant)
    both = np.stack([tail, sums[:, ::-1]], axis=1)
    return _reduce(_products(both)[:, 0, k - 1 : 2 * k - 1]).astype(np.uint32)


def evaluate(coefficients: F64, x: U32) -> U32:
    """coefficients: float64[n, k], x: uint32[n, m] -> uint32[n, m]: each polynomial at its own places."""
    powers, giant = _powers(x, coefficients.shape[1])
    return _horner(coefficients, powers, giant).astype(np.uint32)


def _reduce(values: F64) -> F64:
    """values mod p, in place, for whole numbers 0 <= value < 2^45.

    The factor exceeds 1/p by less than 2^-51 of itself. A multiple of p is thus never rounded below its quotient, and
    anything else stays below the next one: it is at least 1/p away, and the error is far smaller.
    """
    quotient = np.multiply(values, _ONE_OVER_P, out=_scratch.floats("quotient", values.shape))
    np.floor(quotient, out=quotient)
    quotient *= PRIME
    values -= quotient
    return values


def _reduce_small(values: U32) -> U32:
    """values mod p, in place. Numpy divides by one number with SIMD, and that is 5 times as fast as `%` on many."""
    # Below this, setting up the three passes takes longer than dividing.
    if values.size <= 256:
        return np.remainder(values, _P, out=values)
    quotient = np.floor_divide(values, _P, out=_scratch.words("small quotient", values.shape))
    quotient *= _P
    values -= quotient
    return values


def _powers(x: U32, k: int) -> tuple[F64, U32]:
    """x: uint32[n, m] -> (float64[n, width, m]: x^0 .. x^(width-1), uint32[n, m]: x^width), by doubling.

    width is a power of two near sqrt(k): the baby steps of polynomials of k coefficients.
    """
    count, places = x.shape
    # Near sqrt(k), where baby and giant steps cost the same.
    width = 1 << ((k - 1).bit_length() + 1) // 2
    powers = _scratch.words("powers", (count, width, places))
    powers[:, 0] = 1
    filled, step = 1, x  # step = x^filled
    while filled < width:
        _reduce_small(np.multiply(powers[:, :filled], step[:, None], out=powers[:, filled : 2 * filled]))
        step = _reduce_small(step * step)
        filled *= 2
    floats = _scratch.floats("float powers", powers.shape)
    floats[:] = powers
    return floats, step


def _horner(coefficients: F64, powers: F64, giant: U32) -> F64:
    """coefficients: float64[n, k] -> float64[n, m]: values at the places whose powers these are.

    Baby steps, giant steps (Paterson and Stockmeyer 1973): one matrix product, and Horner over the blocks. A sum of up
    to 64 products and one more is far below 2^45.
    """
    count, k = coefficients.shape
    width = powers.shape[1]
    blocks = -(-k // width)
    padded = np.zeros((count, blocks * width))
    padded[:, :k] = coefficients
    inner = _scratch.floats("blocks", (blocks, count, powers.shape[2]))
    np.matmul(padded.reshape(count, blocks, width), powers, out=inner.transpose(1, 0, 2))
    value, step = _reduce(inner[-1]), giant.astype(np.float64)
    for block in range(blocks - 2, -1, -1):
        value *= step
        value += inner[block]
        _reduce(value)
    return value


def _power_sums(values: U32, powers: F64, giant: U32) -> F64:
    """values: uint32[n, k] -> float64[n, k]: sum_i values_i x_i^j for j below k, by the same steps the other way."""
    count, k = values.shape
    width = powers.shape[1]
    blocks = -(-k // width)
    scaled = _scratch.floats("blocks", (blocks, count, k))
    for block in range(blocks):
        scaled[block] = values
        values = _reduce_small(values * giant)
    sums = scaled.transpose(1, 0, 2) @ powers.transpose(0, 2, 1)
    return _reduce(sums.reshape(count, -1)[:, :k])


def _master(x: U32) -> F64:
    """x: uint32[n, k] -> float64[n, k]: the coefficients of X^1 .. X^k of prod (X - x_i)."""
    count, k = x.shape
    group = 8  # products of eight factors by hand are quicker than FFTs of that size
    groups = 1 << max(0, -(-k // group) - 1).bit_length()
    missing = groups * group - k
    roots = np.zeros((count, groups * group), dtype=np.uint32)  # what is no root is 0, and gives a factor X
    np.subtract(_P, x, out=roots[:, missing:])
    low = _monic_groups(roots.reshape(count, groups, group))
    while low.shape[1] > 1:
        low = _monic_products(low)
    return np.concatenate([low[:, 0, missing + 1 :], np.ones((count, 1))], axis=1)


def _monic_groups(negated: U32) -> F64:
    """negated: uint32[n, groups, g] -> float64[n, groups, g]: prod (X + negated_i) without X^g, constant first."""
    count, groups, size = negated.shape
    columns = np.ascontiguousarray(negated.reshape(-1, size).T)
    falling = np.zeros((size + 1, columns.shape[1]), dtype=np.uint32)  # X^size first
    falling[0] = 1
    for done in range(size):
        falling[1 : done + 2] += falling[: done + 1] * columns[done]
        _reduce_small(falling[1 : done + 2])
    return np.ascontiguousarray(falling[:0:-1].T, dtype=np.float64).reshape(count, groups, size)


def _monic_products(low: F64) -> F64:
    """float64[n, 2g, m] -> float64[n, g, 2m]: products of neighbours, all without their leading 1."""
    products = _products(low)
    products[..., low.shape[-1] :] += low[:, 0::2]
    products[..., low.shape[-1] :] += low[:, 1::2]
    return _reduce(products)


def _products(polynomials: F64) -> F64:
    """float64[n, 2g, m] -> float64[n, g, >= 2m - 1]: products of neighbours over the whole numbers, by a real FFT.

    Exact: a convolution of length 2^n is off by at most |left| |right| ((1 + e)^3n (1 + 2.24 e)^(3n+1) (1 + b)^3n - 1)
    with b < e = 2^-53 (Brent, Percival, Zimmermann 2007). For MAX_POINTS numbers below p that is 0.32, so the nearest
    whole number is the right one; for 128 it is 0.01.
    """
    size = 1 << (2 * polynomials.shape[-1] - 2).bit_length()
    # As long as the whole product: a shorter one would add its end to its beginning.
    spectrum = np.fft.rfft(polynomials, size)
    products = np.fft.irfft(spectrum[:, 0::2] * spectrum[:, 1::2], size)
    # Rounding is what makes it exact: by the bound above the nearest whole number is the true one.
    return np.rint(products, out=products)


def _inverse_table() -> U32:
    """inverse[a] = a^(p-2) mod p for 0 <= a < p; inverse[0] = 0."""
    base = np.arange(PRIME, dtype=np.uint32)
    result, exponent = np.ones_like(base), PRIME - 2
    while exponent:
        if exponent & 1:
            result = _reduce_small(result * base)
        base = _reduce_small(base * base)
        exponent >>= 1
    return result


_INVERSE = _inverse_table()
