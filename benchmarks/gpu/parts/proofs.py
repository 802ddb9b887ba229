"""Decoding against prefill in the type that GPUs compute in: how far honest work is from itself, and cheats from it.

`node.calibration` does here what it does for a run. Two attention kernels make honest work and look at each other's;
the first one also cheats in every way that the calibration knows, cheaper weights among them. Half of the samples make
the rules, and the other half is tried under them.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.job import Job, Rows, Skipped
from benchmarks.gpu.models import SIZES, directory
from node.calibration import calibrate
from node.calibration.calibrate import MOST_FILES, Calibration, CalibrationPlan, DecisionOutcome, Measured
from node.environments.base import Determinism, Environment, OneTurn, Problem, Transcript
from node.inference.settings import EngineSettings
from protocol.decision import SampleStatistics
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec, VerificationSpec

PROMPT = 64
Subject = tuple[str, RunSpec, Path, Environment]
"""What it is, its run, its model directory, its problems."""


class RandomPrompts(OneTurn):
    """Problems of random tokens, for models of random weights: nobody asks what they mean."""

    name = "random"
    size, held_back, gave_up = 1 << 20, 1, 0
    determinism: Determinism = "exact"

    def __init__(self, vocabulary: int, length: int) -> None:
        self._vocabulary, self._length = vocabulary, length

    def problem(self, number: int) -> Problem:
        return Problem(str(number), "", ())

    held_back_problem = problem

    def prompt_tokens(self, problem: Problem) -> list[int]:
        random = np.random.default_rng(int(problem.problem_id))
        return random.integers(2, self._vocabulary, size=self._length).tolist()

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        return [0.0] * len(problems)

    def close(self) -> None:
        """There is nothing to stop."""


def measure(job: Job) -> Rows:
    for title, run, model, environment in _subjects(job):
        started = time.monotonic()
        settings = [EngineSettings(job.device, job.dtype, kernel) for kernel in ("sdpa", "eager")]
        plan = CalibrationPlan(settings, 16 if job.quick else 64, seed=11)
        known = set[str]()
        for measured in calibrate.measuring(run, model, environment, plan, _say):
            # At once: who ends this early has what there was.
            for name, samples in (measured.honest | measured.cheating | measured.crossed).items():
                if name not in known:
                    known.add(name)
                    yield "as seen", {"model": title, "work": name, **_raw(samples)}
        yield "measured with", {"model": title, "samples": plan.samples, "seconds": time.monotonic() - started}
        rules = calibrate.derive(run, measured, plan.seed, _say)
        yield "rules", {"model": title, **_cuts(rules)}
        yield from _rows(title, measured, rules)


def _subjects(job: Job) -> Iterator[Subject]:
    size = SIZES[job.size]
    output = 16 if job.quick else 128
    run = RunSpec(
        name="random",
        environment=EnvironmentSpec(name="sort"),  # stands for RandomPrompts, which runs do not know
        rollout=RolloutSpec(
            group_size=4, prompts_per_step=16, prompts_per_file=4, max_prompt_tokens=PROMPT, max_output_tokens=output
        ),
        recipe=Recipe(learning_rate=1e-6),
        verification=VerificationSpec(toploc_k=32 if job.quick else 128),
    )
    model = directory(job.scratch, job.size, job.device)
    yield f"{job.size}, random weights", run, model, RandomPrompts(size.vocabulary, PROMPT)
    if not job.quick:
        yield from _smollm(job)


def _smollm(job: Job) -> Iterator[Subject]:
    """The only one with weights that were trained, where its files are."""
    try:
        from benchmarks.gpu.parts.smollm import smollm

        run, assets, environment = smollm(job.scratch)
    except (Skipped, ModuleNotFoundError) as error:
        print(f"without SmolLM2: {error}", file=sys.stderr)
    else:
        yield "SmolLM2-135M-Instruct", run, assets / "model", environment


def _rows(title: str, measured: Measured, rules: Calibration) -> Rows:
    """One row for each pair of classes and each cheat: raw distances, then what the rules make of them."""
    for name, samples in measured.honest.items():
        yield "honest work", {"model": title, "worker > verifier": name, **_raw(samples), **_judged(rules.honest[name])}
    for name, samples in measured.cheating.items():
        yield (
            "cheats, same kernel looks",
            {"model": title, "cheat": name, **_raw(samples), **_judged(rules.cheating[name])},
        )
    for name, outcome in rules.crossed.items():
        yield "cheats, the other kernel looks", {"model": title, "cheat": name, **_judged(outcome)}


def _raw(samples: list[SampleStatistics]) -> dict[str, Any]:
    errors = [error for sample in samples for error in sample.errors]
    agreeing = [error.mantissa_mean for error in errors if error.mantissa_mean < 2**32]
    distances = np.concatenate([sample.distances for sample in samples])
    return {
        "proofs": len(errors),
        "exponents, mean": float(np.mean([error.exponent_mismatches for error in errors])),
        "exponents, max": max(error.exponent_mismatches for error in errors),
        "mantissa, mean": float(np.mean(agreeing)) if agreeing else None,
        "mantissa, max": max(agreeing, default=None),
        "tokens": int(distances.size),
        "tokens outside": float(np.mean(distances > 0)),
        "farthest": float(distances.max()),
    }


def _judged(outcome: DecisionOutcome) -> dict[str, Any]:
    """By samples that did not make the rules. Files until suspicion and conviction are medians."""
    never = f"not within {MOST_FILES}"
    return {
        "proof distance": outcome.proof_distance,
        "sampling distance": outcome.sampling,
        "files refused": outcome.refused,
        "suspected after": outcome.suspected or never,
        "convicted after": outcome.convicted or never,
        "trials suspected, of 10": outcome.false_alarms,
    }


def _cuts(rules: Calibration) -> dict[str, Any]:
    thresholds = rules.verification
    return {
        "exponents": thresholds.exponent_mismatches,
        "mantissa mean": thresholds.mantissa_mean,
        "mantissa median": thresholds.mantissa_median,
        "sampling mean": thresholds.sampling_mean,
        "sampling outside": thresholds.sampling_outside,
        "pairs with thresholds of their own": len(thresholds.pairs),
    }


def _say(stage: str, done: int, total: int) -> None:
    if done == total:
        print(f"  proofs: {stage}, {total}", flush=True)
