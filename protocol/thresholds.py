"""Hard thresholds: what refuses one file by itself, whatever the worker's record is."""

import msgspec


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """exponent_mismatches (of toploc_k), mantissa_mean, mantissa_median: most that one proof may have;
    sampling_mean: mean distance per file; sampling_outside: share of tokens more than 0.01 outside; routing: by how
    much an expert on record may be less likely than the router's own last choice, as a difference of logarithms."""

    exponent_mismatches: int = 8
    mantissa_mean: float = 0.5
    mantissa_median: float = 0.5
    sampling_mean: float = 1e-4
    sampling_outside: float = 0.01
    routing: float = 0.01


EXACT = Thresholds(
    exponent_mismatches=0,
    mantissa_mean=0.0,
    mantissa_median=0.0,
    sampling_mean=2.0**-40,
    sampling_outside=0.0,
    routing=0.0,
)
"""Where honest work is equal: what is left is how float64 rounds the sums of a draw, which are compared to u."""
