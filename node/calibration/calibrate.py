"""Measure honest differences and cheats on a run's model, and derive thresholds and tables from them.

Every class of engine that the run permits makes honest work; the first one also cheats, in every way that
node.calibration.measure lists; every class looks at all of it. Thresholds and honest tables are kept per pair of
classes: a verifier computes as the worker says that it did, and then hardly anything is forgiven. Half of the samples
make the tables, the other half checks what the tables promise; the tables that are kept count all of them. Computes
for minutes: call from a thread or a process of its own. Knows nothing of files beyond the model directory.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import torch

from node.calibration.measure import (
    OTHER_DRAWS,
    MeasuredWork,
    MeasureStage,
    Progress,
    Weights,
    adapter_for,
    hand_over,
    look_at,
    most_samples,
    other_weights,
)
from node.calibration.thresholds import Looks, draw_files, hard_thresholds
from node.environments.base import Environment, Problem
from node.inference.engine import Engine, GenerationRequest, generate
from node.inference.engines import make_engine
from node.inference.lora import merged
from node.inference.settings import DTYPES, EngineSettings
from node.inference.start_weights import StartWeights
from node.inference.turns import Bounds, Generate, PlayedRollout, bounds_of, play
from protocol.checks import check_activations, check_sampling, sampling_statistics
from protocol.decision import (
    SAMPLE_BOUND,
    CalibrationTable,
    Decision,
    DecisionSpec,
    Evidence,
    Likelihoods,
    SampleStatistics,
    SuspicionLevel,
    bound_of,
    count,
    proof_distance,
)
from protocol.engines import pair
from protocol.lora import is_adapter
from protocol.run import RunSpec, VerificationSpec
from protocol.sampling import uniforms
from protocol.thresholds import Thresholds

MOST_FILES = 200


class DecisionOutcome(msgspec.Struct, frozen=True):
    """How the decision does on held-out samples of one kind. proof_distance, sampling: means of the two statistics;
    refused: share of files that a hard threshold rejects; suspected, convicted: median files until then, None if not
    within MOST_FILES; false_alarms: honest trials that were suspected, of all."""

    proof_distance: float
    sampling: float
    outside: float
    proofs: int
    tokens: int
    refused: float
    suspected: float | None
    convicted: float | None
    false_alarms: int


class Calibration(msgspec.Struct, frozen=True):
    """verification: the section to write; honest: by pair of classes; expectation: by the same, the largest that the
    mean ratio of honest samples may be, by those that did not make the tables: what exceeds 1 is divided out
    (`allowance`); cheating: by way, as a verifier sees it that computes like the cheat says; crossed: as another does,
    empty if there is one class only."""

    verification: VerificationSpec
    expectation: dict[str, float]
    honest: dict[str, DecisionOutcome]
    cheating: dict[str, DecisionOutcome]
    crossed: dict[str, DecisionOutcome]


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """What to measure with."""

    settings: Sequence[EngineSettings]
    samples: int | None = None
    """Per kind of work; None: as many as the size of the model suits (node.calibration.measure)."""
    seed: int = 0
    previous: Path | None = None
    """An older image of the model, if there is one: its use is then one of the cheats."""
    makers: Sequence[str] = DTYPES
    """Types in which workers may compute; the others look only, for a second kind of look at a suspect."""


@dataclass(slots=True)
class Measured:
    """Raw statistics. honest: by 'worker>verifier'; cheating: by way, as the class sees it that made it; crossed: the
    same by 'way>verifier' of other classes; maker: the class that cheated."""

    honest: Looks = field(default_factory=dict)
    cheating: Looks = field(default_factory=dict)
    crossed: Looks = field(default_factory=dict)
    maker: str = ""


def calibrate(
    run: RunSpec, model: Path, environment: Environment, plan: CalibrationPlan, progress: Progress
) -> tuple[Calibration, Measured]:
    """Measure and derive. Raises EngineError or ModelError if the model cannot be worked with."""
    measured = measure(run, model, environment, plan, progress)
    return derive(run, measured, plan.seed, progress), measured


def look_at_honest_work(
    run: RunSpec, model: Path, environment: Environment, plan: CalibrationPlan, progress: Progress
) -> Looks:
    """Everybody's honest work in the eyes of everybody, and nothing else."""
    return measure(run, model, environment, plan, progress, cheats=False).honest


def measure(
    run: RunSpec,
    model: Path,
    environment: Environment,
    plan: CalibrationPlan,
    progress: Progress,
    *,
    cheats: bool = True,
) -> Measured:
    """Everybody's work in the eyes of everybody."""
    *_, measured = measuring(run, model, environment, plan, progress, cheats=cheats)
    return measured


def measuring(
    run: RunSpec,
    model: Path,
    environment: Environment,
    plan: CalibrationPlan,
    progress: Progress,
    *,
    cheats: bool = True,
) -> Iterator[Measured]:
    """The same, as far as it has come: once nobody has looked, and again after each look."""
    honest, cheating = make_work(run, model, environment, plan, progress, cheats=cheats)
    measured = Measured(maker=next(iter(honest), ""))
    names = [*honest, *cheating]
    works = [*honest.values(), *cheating.values()]
    yield measured
    for verifier, number, samples in look_with(run, model, plan.settings, works, progress):
        name, looks = names[number], measured.honest
        key = pair(name, verifier)
        # The cheats are numbered on from the honest works.
        if number >= len(honest):
            looks, key = (measured.cheating, name) if verifier == measured.maker else (measured.crossed, key)
        looks[key] = samples
        yield measured


def look_with(
    run: RunSpec, model: Path, settings: Sequence[EngineSettings], works: Sequence[MeasuredWork], progress: Progress
) -> Iterator[tuple[str, int, list[SampleStatistics]]]:
    """(class of the verifier, number of the work, what it sees), engine by engine. Raises EngineError, ModelError."""
    rows, temperature = run.verification.toploc_batch, run.rollout.temperature
    stage = MeasureStage(progress, "looking at work", len(settings) * sum(len(work.sequences) for work in works))
    for one in settings:
        engine, weights = _engine(run, model, one)
        engine.load(weights)
        for number, work in enumerate(works):
            yield engine.name, number, look_at(engine, work, temperature, rows, stage)
        engine.close()
        del engine, weights  # their memory, before the next take as much


def _engine(run: RunSpec, model: Path, settings: EngineSettings) -> tuple[Engine, Weights]:
    """The engine of a node, but for its single thread: nothing else runs here. With a policy of the run: where that
    learns adapters, one with numbers in it, since engines that keep them apart add rounding of their own."""
    threads = torch.get_num_threads()
    engine, _ = make_engine(model, settings)
    torch.set_num_threads(threads)
    start = engine.read(str(model / "model.safetensors"))
    lora = run.recipe.lora
    return engine, start if lora is None else adapter_for(start, lora, run.recipe.learning_rate)


def make_work(
    run: RunSpec, model: Path, environment: Environment, plan: CalibrationPlan, progress: Progress, *, cheats: bool
) -> tuple[dict[str, MeasuredWork], dict[str, MeasuredWork]]:
    """(honest work by class, cheats by way). Raises EngineError, ModelError."""
    makers = [one for one in plan.settings if one.dtype in plan.makers]
    samples = plan.samples or most_samples(run, model, plan.settings)
    exercise = exercise_of(run, environment, samples, plan.seed)
    making = MeasureStage(progress, "making honest work", samples * len(makers))
    honest: dict[str, MeasuredWork] = {}
    cheating: dict[str, MeasuredWork] = {}
    for number, settings in enumerate(makers):
        engine, weights = _engine(run, model, settings)
        engine.load(weights)
        honest[engine.name] = _handed_over(run, exercise, _honestly(engine, exercise, making))
        if number == 0 and cheats:
            cheating = _cheat(run, model, engine, weights, plan.previous, exercise, progress)
        engine.close()
        del engine, weights  # as in look_with
    return honest, cheating


def _honestly(engine: Engine, exercise: "Exercise", stage: MeasureStage) -> list[PlayedRollout]:
    """A quarter of it one by one: another batch size is an honest difference, too."""
    few = max(1, len(exercise.requests) // 4)
    alone = [slice(i, i + 1) for i in range(few)]
    parts = [*alone, *stage.parts(len(exercise.requests), few)]
    return exercise.played(partial(generate, engine), parts, stage)


def _handed_over(run: RunSpec, exercise: "Exercise", made: Sequence[PlayedRollout]) -> MeasuredWork:
    return hand_over(exercise.requests, made, run.verification.toploc_k, run.verification.toploc_batch)


@dataclass(frozen=True, slots=True)
class Exercise:
    """What everybody does, honestly or not: rollouts of `problems`, from `requests`."""

    environment: Environment
    problems: list[Problem]
    requests: list[GenerationRequest]
    temperature: float
    bounds: Bounds

    def played(self, generate: Generate, parts: Iterable[slice], stage: MeasureStage) -> list[PlayedRollout]:
        """The rollouts of these parts, each played at once."""
        rollouts: list[PlayedRollout] = []
        for part in parts:
            problems, requests = self.problems[part], self.requests[part]
            rollouts += play(generate, self.environment, problems, requests, self.temperature, self.bounds)
            stage.advance(len(requests))
        return rollouts


def exercise_of(run: RunSpec, environment: Environment, samples: int, seed: int) -> Exercise:
    """The run's own problems, each once: answers to one problem say little new about an engine."""
    # In this order: an export names the seed alone, and whoever looks at it draws the same.
    random = np.random.default_rng(seed)
    problems = [environment.problem(int(i)) for i in random.integers(environment.size, size=samples)]
    limit = run.rollout.max_output_tokens
    drawn = uniforms(random.bytes(32), samples * limit).reshape(samples, limit)
    requests = [GenerationRequest(environment.prompt_tokens(problems[i]), u) for i, u in enumerate(drawn)]
    return Exercise(environment, problems, requests, run.rollout.temperature, bounds_of(run, environment))


def _cheat(
    run: RunSpec,
    model: Path,
    engine: Engine,
    weights: Weights,
    previous: Path | None,
    exercise: Exercise,
    progress: Progress,
) -> dict[str, MeasuredWork]:
    """Every kind of dishonest work; the engine has the right weights before and after."""
    whole = merged(StartWeights(model), weights) if is_adapter(weights) else weights
    # vLLM's processes are handed what they are to use, and each puts it on its device by itself.
    place = "cpu" if "/vllm" in engine.name else engine.device
    others = other_weights(whole, run.recipe.learning_rate, place)
    if previous is not None:
        others["previous"] = partial(engine.read, str(previous))
    count = len(exercise.requests)
    stage = MeasureStage(progress, "cheating", count * (len(others) + len(OTHER_DRAWS)))

    def made(generate: Generate) -> MeasuredWork:
        return _handed_over(run, exercise, exercise.played(generate, stage.parts(count), stage))

    work: dict[str, MeasuredWork] = {}
    try:
        for name, make in others.items():
            engine.load(make())
            work[name] = made(partial(generate, engine))
    finally:
        # The cheats below draw otherwise, with the right weights.
        engine.load(weights)
    return work | {name: made(partial(draw, engine)) for name, draw in OTHER_DRAWS.items()}


def derive(run: RunSpec, measured: Measured, seed: int, progress: Progress) -> Calibration:
    """Thresholds and tables, and what they are worth on samples that did not make them."""
    k, bounds = run.verification.toploc_k, run.verification.decision
    first, second = _halves(measured, seed)
    thresholds = hard_thresholds(run, measured.honest, seed)
    # Samples that did not make a table say how far it may be trusted: by its own samples it would look too good.
    # As many honest samples as there are say how far one of them may be out.
    most = {name: bound_of(len(samples)) for name, samples in measured.honest.items()}
    expectation = _expectations(_tables(bounds, first, k, {}, most), second.honest, k)
    allowances = {name: math.log(max(1.0, most)) for name, most in expectation.items()}
    trial = _tables(bounds, first, k, allowances, most)
    crossed = _of_one_verifier(second.crossed)
    total = len(second.honest) + len(second.cheating) + len(crossed)
    done = 0

    def replay(looks: Looks, worker: str = "") -> dict[str, DecisionOutcome]:
        nonlocal done
        outcomes: dict[str, DecisionOutcome] = {}
        for name, samples in looks.items():
            maker, _, verifier = name.partition(">")
            maker, verifier = worker or maker, verifier or measured.maker
            outcomes[name] = outcome(run, thresholds, trial, (maker, verifier), samples, seed)
            progress("replaying decisions", done := done + 1, total)
        return outcomes

    decision = _tables(bounds, measured, k, allowances, most)
    # The classes that were measured, and no others: equality is earned.
    engines = tuple(sorted({name.partition(">")[0] for name in measured.honest}))
    return Calibration(
        verification=msgspec.structs.replace(thresholds, decision=decision, engines=engines),
        expectation=expectation,
        honest=replay(second.honest),
        cheating=replay(second.cheating, measured.maker),
        crossed={name.partition(">")[0]: one for name, one in replay(crossed, measured.maker).items()},
    )


def _of_one_verifier(crossed: Looks) -> Looks:
    """The cheats as one other class sees them: enough for a report."""
    first = next(iter(crossed), "").partition(">")[2]
    return {name: samples for name, samples in crossed.items() if name.endswith(f">{first}")}


def _halves(measured: Measured, seed: int) -> tuple[Measured, Measured]:
    first, second = Measured(maker=measured.maker), Measured(maker=measured.maker)
    random = np.random.default_rng(seed)
    for source, one, other in (
        (measured.honest, first.honest, second.honest),
        (measured.cheating, first.cheating, second.cheating),
        (measured.crossed, first.crossed, second.crossed),
    ):
        for name, samples in source.items():
            order = random.permutation(len(samples))
            half = len(samples) // 2
            one[name] = [samples[i] for i in order[:half]]
            other[name] = [samples[i] for i in order[half:]]
    return first, second


def _tables(
    bounds: DecisionSpec, measured: Measured, k: int, allowances: Mapping[str, float], most: Mapping[str, float]
) -> DecisionSpec:
    honest = {
        name: _usable(count(samples, k), allowances.get(name, 0.0), most[name])
        for name, samples in measured.honest.items()
    }
    cheating = {name: _usable(count(samples, k)) for name, samples in measured.cheating.items()}
    others: Looks = {}
    for name, samples in measured.crossed.items():
        others.setdefault(name.partition(">")[0], []).extend(samples)
    crossed = {name: _usable(count(samples, k)) for name, samples in others.items()}
    return msgspec.structs.replace(bounds, honest=honest, cheating=cheating, crossed=crossed)


def _usable(table: CalibrationTable, allowance: float = 0.0, bound: float = SAMPLE_BOUND) -> CalibrationTable:
    """Samples of one token have no proofs: a table without any says nothing about proofs, evenly."""
    proofs = table.proofs if any(table.proofs) else (1,) * len(table.proofs)
    return msgspec.structs.replace(table, proofs=proofs, allowance=allowance, bound=bound)


def _expectations(spec: DecisionSpec, honest: Looks, k: int) -> dict[str, float]:
    """Per pair of classes an upper confidence bound: the mean ratio of samples that did not make its table, plus
    standard errors of it."""
    bounds: dict[str, float] = {}
    standard_errors = 4.0
    for name, samples in honest.items():
        worker, _, verifier = name.partition(">")
        ratios = np.exp(Likelihoods(spec, k, verifier, worker).of_samples(samples))
        bound = ratios.mean(axis=0) + standard_errors * ratios.std(axis=0) / math.sqrt(max(1, len(samples)))
        bounds[name] = float(bound.max())
    return bounds


def outcome(
    run: RunSpec,
    rules: VerificationSpec,
    spec: DecisionSpec,
    classes: tuple[str, str],
    samples: Sequence[SampleStatistics],
    seed: int,
) -> DecisionOutcome:
    """Replay the decision on files of these samples. classes: that the worker states, and the verifier's."""
    k, thresholds = rules.toploc_k, rules.thresholds(*classes)
    distances = np.concatenate([sample.distances for sample in samples])
    errors = [error for sample in samples for error in sample.errors]
    likelihoods = Likelihoods(spec, k, verifier=classes[1], worker=classes[0])
    ratios = likelihoods.of_samples(samples)
    drawn_files = 40
    files = draw_files(run, len(samples), seed, drawn_files)[
        :, : run.rollout.prompts_per_file
    ]  # one answer per problem
    evidence = [
        Evidence(dict(zip(likelihoods.names, likelihoods.of_file(ratios[file]).tolist(), strict=True)))
        for file in files
    ]
    suspected: list[float] = []
    convicted: list[float] = []
    random = np.random.default_rng(seed + 1)
    for _ in range(10):
        when = _first_files(spec, [evidence[i] for i in random.integers(len(evidence), size=MOST_FILES)])
        suspected.append(when[0])
        convicted.append(when[1])
    mean, outside = sampling_statistics(distances)
    return DecisionOutcome(
        proof_distance=float(np.mean([proof_distance(error, k) for error in errors])) if errors else 0.0,
        sampling=mean,
        outside=outside,
        proofs=len(errors),
        tokens=int(distances.size),
        refused=float(np.mean([_is_refused([samples[i] for i in file], thresholds) for file in files])),
        suspected=_median(suspected),
        convicted=_median(convicted),
        false_alarms=sum(files < math.inf for files in suspected),
    )


def _first_files(spec: DecisionSpec, evidence: Sequence[Evidence]) -> tuple[float, float]:
    """After how many files a worker with this evidence is suspected and convicted; inf if never."""
    worker, suspected = Decision(spec), math.inf
    for number, one in enumerate(evidence, 1):
        level = worker.update(one).level
        if level >= SuspicionLevel.SUSPECT:
            suspected = min(suspected, number)
        if level >= SuspicionLevel.CONVICTED:
            return suspected, number
    return suspected, math.inf


def _is_refused(file: Sequence[SampleStatistics], thresholds: Thresholds) -> bool:
    errors = [error for sample in file for error in sample.errors]
    distances = np.concatenate([sample.distances for sample in file])
    return bool(check_activations(errors, thresholds) or check_sampling(distances, thresholds))


def _median(values: Sequence[float]) -> float | None:
    middle = float(np.median(values))
    return middle if middle < math.inf else None
