"""Hard thresholds refuse hardly any honest file, though a calibration sees few of them."""

import msgspec
import numpy as np
import pytest

from node.calibration.thresholds import hard_thresholds, rarely_exceeded
from protocol.checks import check_activations, check_routing, check_sampling
from protocol.engines import pair
from protocol.thresholds import Thresholds
from tests.node.calibration.simulated import PAIRS, RULES, RUN, by_rule, count, draw, refused, statistics

LEAST_ROUTING = 1e-3


@pytest.mark.parametrize("name", PAIRS)
def test_fewer_than_ten_of_a_hundred_thousand_honest_files_are_refused(name: str) -> None:
    counts = count(PAIRS[name], samples=64, calibrations=20, files=5000)
    assert sum(counts["rule"]) < 10
    assert sum(counts["margin"]) >= sum(counts["rule"])
    if name == "bf16 seen in fp32":
        assert sum(counts["margin"]) > 100  # so these files can be refused


def test_what_is_counted_is_what_a_validator_says() -> None:
    random = np.random.default_rng(3)
    seen = draw(PAIRS["two GPUs, heavy"], 2 * 50, 8, random)
    tight = Thresholds(
        exponent_mismatches=5, mantissa_mean=4.0, mantissa_median=4.0, sampling_mean=1e-3, sampling_outside=0.1
    )
    samples = statistics(seen)
    said = [
        bool(
            check_activations([error for sample in file for error in sample.errors], tight)
            or check_sampling(np.concatenate([sample.distances for sample in file]), tight)
        )
        for file in (samples[at : at + 16] for at in range(0, len(samples), 16))
    ]
    assert said == refused(seen, tight).tolist() and 0 < sum(said) < len(said)


def test_gross_work_is_refused_by_cuts_that_honest_work_passes() -> None:
    pair = PAIRS["fp32 of two builds"]
    thresholds = by_rule(draw(pair, 64, 1, np.random.default_rng(0)), 0)
    assert refused(draw(PAIRS["bf16 seen in fp32"], 2 * 100, 8, np.random.default_rng(1)), thresholds).all()
    assert RUN.rollout.samples_per_file == 16 and set(RULES) == {"rule", "margin"}


def test_a_heavier_tail_is_followed_further_out() -> None:
    random = np.random.default_rng(0)
    light, heavy = random.exponential(1.0, 4000), random.pareto(6.0, 4000)
    assert 9 < rarely_exceeded(light, 1e-4) < 16  # true: 9.2
    assert 3.6 < rarely_exceeded(heavy, 1e-4) < 8  # true: 3.6
    assert rarely_exceeded(np.zeros(64), 1e-6) == 0.0 and rarely_exceeded(np.ones(1), 1e-6) == 1.5
    assert rarely_exceeded(light[:64], 1e-6) > rarely_exceeded(light[:64], 1e-4)


def test_the_margin_of_experts_follows_from_what_honest_work_lacked() -> None:
    random, wide = np.random.default_rng(0), pair("a/bfloat16/sdpa", "a/bfloat16/sdpa")
    looks = statistics(draw(PAIRS["bf16 seen in fp32"], 64, 8, random))[:64]

    def margin(routing: list[float | None]) -> float:
        samples = [msgspec.structs.replace(one, routing=worst) for one, worst in zip(looks, routing, strict=True)]
        return hard_thresholds(RUN, {wide: samples}, 0).thresholds(*wide.split(">")).routing

    lacked = random.exponential(0.02, 64).tolist()
    found = margin(lacked)
    assert 1.5 * max(lacked) <= found < 1
    fresh = [np.array([one], dtype=np.float32) for one in random.exponential(0.02, 10**5)]
    assert sum(check_routing([one], Thresholds(routing=found)) is not None for one in fresh) < 10
    assert check_routing([*fresh[:3], np.array([np.nan], dtype=np.float32)], Thresholds(routing=found)) is not None
    assert margin([0.0] * 64) == LEAST_ROUTING and margin([None] * 64) == Thresholds().routing
