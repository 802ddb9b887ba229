"""Measure honest differences and cheats on a run's model, and derive cuts and tables from them.

Every variant of the engine that the run permits makes honest work; the first one also cheats, in every way that
`ways_of_cheating` lists; every variant looks at all of it. Half of the samples make the tables, the other half checks
what the tables promise; the tables that are kept count all of them. Computes for minutes: call from a thread or
a process of its own. Knows nothing of files beyond the model directory.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from node.calibration import alternatives
from node.calibration.alternatives import Sampler, Weights
from node.calibration.measure import Work, hand_over, look_at
from node.environments.base import Environment
from node.inference.engine import Request
from node.inference.settings import EngineSettings
from node.inference.torch_engine import TorchEngine
from protocol.checks import check_activations, check_sampling, sampling_statistics
from protocol.decision import (
    Decision,
    DecisionSpec,
    Evidence,
    Judge,
    Level,
    SampleStatistics,
    Table,
    count,
    proof_distance,
)
from protocol.run import RunSpec, VerificationSpec
from protocol.sampling import uniforms

Looks = dict[str, list[SampleStatistics]]
Progress = Callable[[str, int, int], None]
HONEST_MARGIN = 1.5
"""Hard cuts stand at this multiple of the largest honest value seen, and TOPLOC's never below FLOORS."""
FLOORS = {"exponent_mismatches": 4, "mantissa_mean": 0.25, "mantissa_median": 1.0}
FAR_TOKENS, FAR = 5, 0.1
"""A file of honest tokens may have this many so far outside on top of what was seen: rare flips are not gross."""
STANDARD_ERRORS = 4.0
MOST_FILES = 200
TRIALS = 10
DRAWN_FILES = 40


class Outcome(msgspec.Struct, frozen=True):
    """How the decision does on held-out samples of one kind. proof_distance, sampling: means of the two statistics;
    cut: share of files that a hard cut rejects; suspected, convicted: median files until then, None if not within
    MOST_FILES; false_alarms: honest trials that were suspected, of TRIALS."""

    proof_distance: float
    sampling: float
    outside: float
    proofs: int
    tokens: int
    cut: float
    suspected: float | None
    convicted: float | None
    false_alarms: int


class Calibration(msgspec.Struct, frozen=True):
    """verification: the section to write; expectation: the largest that the mean ratio of honest samples may be, by
    those that did not make the tables; what exceeds 1 is divided out (`allowance`); honest, cheating: by name."""

    verification: VerificationSpec
    expectation: float
    honest: dict[str, Outcome]
    cheating: dict[str, Outcome]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure with. samples: per kind of work; learning_rate: of the run's optimiser, for stale weights."""

    settings: Sequence[EngineSettings]
    samples: int = 192
    seed: int = 0
    previous: Path | None = None
    """An older image of the model, if there is one: its use is then one of the cheats."""


@dataclass(slots=True)
class Measured:
    """Raw statistics; the names are 'worker>verifier' and 'cheat>verifier'."""

    honest: Looks = field(default_factory=dict)
    cheating: Looks = field(default_factory=dict)


def calibrate(
    run: RunSpec, model: Path, environment: Environment, plan: Plan, progress: Progress
) -> tuple[Calibration, Measured]:
    """Measure and derive. Raises EngineError or ModelError if the model cannot be worked with."""
    measured = measure(run, model, environment, plan, progress)
    return derive(run, measured, plan.seed, progress), measured


def look_at_honest_work(run: RunSpec, model: Path, environment: Environment, plan: Plan, progress: Progress) -> Looks:
    """Everybody's honest work in the eyes of everybody, and nothing else."""
    return measure(run, model, environment, plan, progress, cheats=False).honest


def measure(
    run: RunSpec, model: Path, environment: Environment, plan: Plan, progress: Progress, *, cheats: bool = True
) -> Measured:
    """Everybody's work in the eyes of everybody."""
    honest, cheating = _work(run, model, environment, plan, progress, cheats=cheats)
    rows, temperature = run.verification.toploc_batch, run.rollout.temperature
    measured = Measured()
    done, total = 0, len(plan.settings) * (len(honest) + len(cheating))
    for settings in plan.settings:
        engine, weights = _engine(model, settings)
        engine.load(weights)
        for name, work in honest.items():
            measured.honest[f"{name}>{settings.dtype}/{settings.attention}"] = look_at(engine, work, temperature, rows)
            progress("looking at work", done := done + 1, total)
        for name, work in cheating.items():
            measured.cheating[f"{name}>{settings.dtype}/{settings.attention}"] = look_at(
                engine, work, temperature, rows
            )
            progress("looking at work", done := done + 1, total)
    return measured


def _engine(model: Path, settings: EngineSettings) -> tuple[TorchEngine, Weights]:
    engine = TorchEngine(model, settings)
    return engine, engine.read(str(model / "model.safetensors"))


def ways_of_cheating(weights: Weights, learning_rate: float, previous: Weights | None) -> dict[str, object]:
    """Name -> weights to sample with, or a way to draw tokens with the right ones."""
    ways: dict[str, object] = {
        "int8": alternatives.int8(weights),
        "int4": alternatives.int4(weights),
        "fp8": alternatives.fp8(weights),
        "stale-1": alternatives.stepped(weights, learning_rate),
        "stale-4": alternatives.stepped(weights, learning_rate, 4),
        "temperature-0.9": alternatives.at_temperature(0.9),
        "temperature-1.1": alternatives.at_temperature(1.1),
        "greedy": alternatives.greedy,
        "other-draw": alternatives.other_draw,
        "garbage": alternatives.garbage,
    }
    return ways if previous is None else {**ways, "previous": previous}


def _work(
    run: RunSpec, model: Path, environment: Environment, plan: Plan, progress: Progress, *, cheats: bool
) -> tuple[dict[str, Work], dict[str, Work]]:
    k, rows, temperature = run.verification.toploc_k, run.verification.toploc_batch, run.rollout.temperature
    requests = requests_of(run, environment, plan.samples, plan.seed)
    honest: dict[str, Work] = {}
    cheating: dict[str, Work] = {}
    for number, settings in enumerate(plan.settings):
        engine, weights = _engine(model, settings)
        engine.load(weights)
        made = engine.generate(requests, temperature)
        few = max(1, len(requests) // 4)
        alone = [completion for request in requests[:few] for completion in engine.generate([request], temperature)]
        # a quarter of the work is done one by one: another batch size is an honest difference, too
        mixed = [*alone, *made[few:]]
        honest[f"{settings.dtype}/{settings.attention}"] = hand_over(requests, mixed, k, rows)
        progress("making honest work", number + 1, len(plan.settings))
        if number == 0 and cheats:
            previous = None if plan.previous is None else engine.read(str(plan.previous))
            ways = ways_of_cheating(weights, run.recipe.learning_rate, previous)
            for done, (name, way) in enumerate(ways.items()):
                cheating[name] = _cheat(engine, weights, way, requests, temperature, k, rows)
                progress("cheating", done + 1, len(ways))
    return honest, cheating


def requests_of(run: RunSpec, environment: Environment, samples: int, seed: int) -> list[Request]:
    """The run's own problems, each once: answers to one problem say little new about an engine."""
    random = np.random.default_rng(seed)
    problems = [environment.problem(int(i)) for i in random.integers(environment.size, size=samples)]
    limit = run.rollout.max_output_tokens
    drawn = uniforms(random.bytes(32), samples * limit).reshape(samples, limit)
    return [Request(environment.prompt_tokens(problems[i]), u) for i, u in enumerate(drawn)]


def _cheat(
    engine: TorchEngine,
    weights: Weights,
    way: object,
    requests: Sequence[Request],
    temperature: float,
    k: int,
    rows: int,
) -> Work:
    """One kind of dishonest work; the engine has the right weights before and after."""
    if callable(way):
        return hand_over(requests, cast(Sampler, way)(engine, requests, temperature), k, rows)
    assert isinstance(way, dict)  # noqa: S101 - a way is one or the other
    engine.load(way)
    try:
        return hand_over(requests, engine.generate(requests, temperature), k, rows)
    finally:
        engine.load(weights)


def derive(run: RunSpec, measured: Measured, seed: int, progress: Progress) -> Calibration:
    """Cuts and tables, and what they are worth on samples that did not make them."""
    k = run.verification.toploc_k
    first, second = _halves(measured, seed)
    cuts = hard_cuts(run, measured.honest, seed)
    bounds = run.verification.decision
    trial = _tables(bounds, first, k)
    expectation = _largest_expectation(trial, second.honest, k)
    allowance = math.log(max(1.0, expectation))
    trial = msgspec.structs.replace(trial, allowance=allowance)
    before_first = {name: samples for name, samples in second.cheating.items() if name in _of_first_verifier(measured)}
    files = [*second.honest.items(), *before_first.items()]
    outcomes: dict[str, Outcome] = {}
    for done, (name, samples) in enumerate(files):
        outcomes[name] = outcome(run, cuts, trial, name, samples, seed)
        progress("replaying decisions", done + 1, len(files))
    decision = msgspec.structs.replace(_tables(bounds, measured, k), allowance=allowance)
    return Calibration(
        msgspec.structs.replace(cuts, decision=decision),
        expectation,
        {name: outcomes[name] for name in second.honest},
        {name.partition(">")[0]: outcomes[name] for name in before_first},
    )


def _of_first_verifier(measured: Measured) -> set[str]:
    """The cheats as the first engine sees them: enough for a report."""
    first = next(iter(measured.cheating), "").partition(">")[2]
    return {name for name in measured.cheating if name.endswith(f">{first}")}


def _halves(measured: Measured, seed: int) -> tuple[Measured, Measured]:
    first, second = Measured(), Measured()
    random = np.random.default_rng(seed)
    for source, one, other in (
        (measured.honest, first.honest, second.honest),
        (measured.cheating, first.cheating, second.cheating),
    ):
        for name, samples in source.items():
            order = random.permutation(len(samples))
            half = len(samples) // 2
            one[name] = [samples[i] for i in order[:half]]
            other[name] = [samples[i] for i in order[half:]]
    return first, second


def _tables(bounds: DecisionSpec, measured: Measured, k: int) -> DecisionSpec:
    honest = {name: count(samples, k) for name, samples in measured.honest.items()}
    ways: Looks = {}
    for name, samples in measured.cheating.items():
        ways.setdefault(name.partition(">")[0], []).extend(samples)
    cheating = {name: count(samples, k) for name, samples in ways.items()}
    return msgspec.structs.replace(bounds, honest=_usable(honest), cheating=_usable(cheating))


def _usable(tables: dict[str, Table]) -> dict[str, Table]:
    """Samples of one token have no proofs: a table without any says nothing about proofs, evenly."""
    return {
        name: table if any(table.proofs) else msgspec.structs.replace(table, proofs=(1,) * len(table.proofs))
        for name, table in tables.items()
    }


def _largest_expectation(spec: DecisionSpec, honest: Looks, k: int) -> float:
    """An upper confidence bound: held-out mean ratio against one's own table, plus STANDARD_ERRORS of it."""
    judge, largest = Judge(msgspec.structs.replace(spec, allowance=0.0), k), 0.0
    for name, samples in honest.items():
        ratios = np.exp(judge.of_samples(samples)[:, :, judge.honest_names.index(name)])
        bound = ratios.mean(axis=0) + STANDARD_ERRORS * ratios.std(axis=0) / math.sqrt(max(1, len(samples)))
        largest = max(largest, float(bound.max()))
    return largest


def hard_cuts(run: RunSpec, honest: Looks, seed: int) -> VerificationSpec:
    """Cuts that no honest proof or file came near: HONEST_MARGIN times the largest seen."""
    errors = [error for samples in honest.values() for sample in samples for error in sample.errors]
    mean, outside = map(max, zip(*(_sampling_cut(run, samples, seed) for samples in honest.values()), strict=True))
    k = run.verification.toploc_k

    def cut(name: str, values: Sequence[float]) -> float:
        usable = [value for value in values if value < 128]
        return max(FLOORS[name], HONEST_MARGIN * max(usable, default=0.0))

    mismatches = math.ceil(cut("exponent_mismatches", [error.exponent_mismatches for error in errors]))
    return msgspec.structs.replace(
        run.verification,
        exponent_mismatches=min(k, mismatches),
        mantissa_mean=_neat(cut("mantissa_mean", [error.mantissa_mean for error in errors])),
        mantissa_median=_neat(cut("mantissa_median", [error.mantissa_median for error in errors])),
        sampling_mean=_neat(mean),
        sampling_outside=_neat(outside),
    )


def _sampling_cut(run: RunSpec, samples: Sequence[SampleStatistics], seed: int) -> tuple[float, float]:
    """(mean, share outside) that files of these samples stay below with room to spare."""
    files = [np.concatenate([samples[i].distances for i in file]) for file in _files(run, len(samples), seed, 20)]
    tokens = min(file.size for file in files)
    means, outsides = zip(*(sampling_statistics(file) for file in files), strict=True)
    return HONEST_MARGIN * max(means) + FAR_TOKENS * FAR / tokens, HONEST_MARGIN * max(outsides) + FAR_TOKENS / tokens


def _neat(value: float) -> float:
    """Rounded up to two significant digits."""
    scale = 10 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / scale) * scale:.2g}")


def _files(run: RunSpec, samples: int, seed: int, files: int) -> np.ndarray:
    """int64[files, samples per file]: files drawn from samples, with replacement."""
    return np.random.default_rng(seed).integers(samples, size=(files, run.rollout.samples_per_file))


def outcome(
    run: RunSpec, cuts: VerificationSpec, spec: DecisionSpec, name: str, samples: Sequence[SampleStatistics], seed: int
) -> Outcome:
    """Replay the decision on files of these samples. name: 'worker>verifier' or 'cheat>verifier'."""
    k = cuts.toploc_k
    distances = np.concatenate([sample.distances for sample in samples])
    errors = [error for sample in samples for error in sample.errors]
    judge = Judge(spec, k, name.partition(">")[2])
    ratios = judge.of_samples(samples)
    files = _files(run, len(samples), seed, DRAWN_FILES)[:, : run.rollout.prompts_per_file]  # one answer per problem
    evidence = [Evidence(dict(zip(judge.names, judge.of_file(ratios[file]).tolist(), strict=True))) for file in files]
    suspected: list[float] = []
    convicted: list[float] = []
    random = np.random.default_rng(seed + 1)
    for _ in range(TRIALS):
        when = _first_files(spec, [evidence[i] for i in random.integers(len(evidence), size=MOST_FILES)])
        suspected.append(when[0])
        convicted.append(when[1])
    mean, outside = sampling_statistics(distances)
    return Outcome(
        proof_distance=float(np.mean([proof_distance(error, k) for error in errors])) if errors else 0.0,
        sampling=mean,
        outside=outside,
        proofs=len(errors),
        tokens=int(distances.size),
        cut=float(np.mean([_is_cut([samples[i] for i in file], cuts) for file in files])),
        suspected=_median(suspected),
        convicted=_median(convicted),
        false_alarms=sum(files < math.inf for files in suspected),
    )


def _first_files(spec: DecisionSpec, evidence: Sequence[Evidence]) -> tuple[float, float]:
    """After how many files a worker with this evidence is suspected and convicted; inf if never."""
    worker, suspected = Decision(spec), math.inf
    for number, one in enumerate(evidence, 1):
        level = worker.update(one).level
        if level >= Level.SUSPECT:
            suspected = min(suspected, number)
        if level >= Level.CONVICTED:
            return suspected, number
    return suspected, math.inf


def _is_cut(file: Sequence[SampleStatistics], cuts: VerificationSpec) -> bool:
    errors = [error for sample in file for error in sample.errors]
    distances = np.concatenate([sample.distances for sample in file])
    return bool(check_activations(errors, cuts) or check_sampling(distances, cuts))


def _median(values: Sequence[float]) -> float | None:
    middle = float(np.median(values))
    return middle if middle < math.inf else None
