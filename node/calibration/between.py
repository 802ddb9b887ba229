"""Calibration over many machines: what one made (`export`) is a file, what another saw in such files (`look`) is one,
too, and the run's owner derives thresholds and tables from any number of looks (`gather`).

A file names what it was measured on (`subject`), so that none of another model, data set or rule of proofs is mixed in,
and looks name the work that they saw by its root. Problems and random numbers are not in them: they follow from a seed.
Files are strangers' words: everything is bounded and checked before it is computed with. What they cannot show is that
their maker was honest; whose files to take is the owner's choice.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from blake3 import blake3

from node.calibration.calibrate import CalibrationPlan, Measured, exercise_of, look_with, make_work
from node.calibration.measure import MeasuredWork, Progress
from node.environments.base import Environment
from node.errors import RunFileError
from node.inference.architectures import routing_of
from node.inference.engine import FinishedSequence
from node.inference.settings import EngineSettings
from node.inference.torch_engine import build_model
from protocol.decision import SampleStatistics
from protocol.engines import is_engine_class, missing_pairs, pair
from protocol.errors import UNREADABLE
from protocol.routing import Routing, table_of
from protocol.routing import objection as odd_experts
from protocol.run import RunSpec
from protocol.segments import objection
from protocol.toploc import MalformedProof, ProofErrors, proof_count, split_proofs

VERSION = 1
MAX_BYTES = 1 << 28
MAX_SAMPLES, MAX_KINDS = 1 << 16, 64
_WAY = re.compile(r"[a-z0-9][a-z0-9.-]{0,31}")
# What a proof has in place of a mean where no exponent agrees (protocol.toploc.ProofErrors).
_NO_MEAN = float(1 << 64)


class Made(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One answer. segments as in protocol.segments; proofs: concatenated; experts as in protocol.routing."""

    output: list[int]
    segments: list[int]
    proofs: bytes
    experts: bytes = b""


class Export(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="work"):
    """What one machine made. honest: by class; cheating: by way, made by the class `maker`."""

    version: int
    subject: str
    seed: int
    maker: str
    honest: dict[str, list[Made]]
    cheating: dict[str, list[Made]]


class VerifiedAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One answer as a verifier saw it: of each proof (exponent mismatches, mantissa mean, median), float64 bytes of
    the tokens' distances, and what its experts lacked, at most (protocol.decision)."""

    errors: list[tuple[int, float, float]]
    distances: bytes
    routing: float | None = None


class VerifierLook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """work: root of the export; way: "" for honest work."""

    work: str
    maker: str
    way: str
    verifier: str
    samples: list[VerifiedAnswer]


class MachineLooks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="looks"):
    """What one machine saw in others' work."""

    version: int
    subject: str
    looks: list[VerifierLook]


T = TypeVar("T", Export, MachineLooks)


def subject(run: RunSpec) -> str:
    """What a measurement is about: the model's and the problems' files, and all that decides what is measured."""
    parts = (run.assets, run.environment, run.rollout, run.verification.toploc_k, run.verification.toploc_batch)
    # Sorted keys: the same run gives the same subject on every machine.
    return blake3(msgspec.json.encode(parts, order="sorted")).hexdigest()


def root_of(data: bytes) -> str:
    """The name of a file: its first 16 digits stand in the file's name, too."""
    return blake3(data).hexdigest()


def export(
    run: RunSpec,
    model: Path,
    environment: Environment,
    plan: CalibrationPlan,
    progress: Progress,
    *,
    cheats: bool = True,
) -> bytes:
    """Make work with every engine of this machine. Raises EngineError, ModelError."""
    honest, cheating = make_work(run, model, environment, plan, progress, cheats=cheats)
    made = {name: _made(work) for name, work in honest.items()}
    cheated = {name: _made(work) for name, work in cheating.items()}
    maker = next(iter(honest))
    return msgspec.msgpack.encode(Export(VERSION, subject(run), plan.seed, maker, made, cheated))


def _made(work: MeasuredWork) -> list[Made]:
    return [
        Made(
            list(sequence.output),
            list(sequence.segments),
            proofs,
            b"" if sequence.experts is None else sequence.experts.tobytes(),
        )
        for sequence, proofs in zip(work.sequences, work.encoded, strict=True)
    ]


def look(
    run: RunSpec,
    model: Path,
    environment: Environment,
    settings: Sequence[EngineSettings],
    exports: Sequence[bytes],
    progress: Progress,
) -> bytes:
    """What every engine of this machine sees in others' work. Raises RunFileError for a file that cannot be used."""
    config = build_model(model, "meta").config
    vocabulary, routing = int(config.vocab_size), routing_of(config)
    works: list[tuple[str, str, str, MeasuredWork]] = []
    for data in exports:
        file = _read(data, Export, run)
        kinds = [(name, "", made) for name, made in file.honest.items()]
        kinds += [(file.maker, way, made) for way, made in file.cheating.items()]
        works += [
            (root_of(data), maker, way, _work(run, environment, file.seed, made, vocabulary, routing))
            for maker, way, made in kinds
        ]
    looks: list[VerifierLook] = []
    for verifier, number, samples in look_with(run, model, settings, [work for *_, work in works], progress):
        root, maker, way, _ = works[number]
        looks.append(VerifierLook(root, maker, way, verifier, [_seen(one) for one in samples]))
    return msgspec.msgpack.encode(MachineLooks(VERSION, subject(run), looks))


def _work(
    run: RunSpec, environment: Environment, seed: int, made: Sequence[Made], vocabulary: int, routing: Routing | None
) -> MeasuredWork:
    """What a file says, beside the problems and numbers that it must be about."""
    exercise = exercise_of(run, environment, len(made), seed)
    k, rows = run.verification.toploc_k, run.verification.toploc_batch
    most = run.rollout.max_output_tokens + (run.rollout.max_environment_tokens if exercise.bounds.turns > 1 else 0)
    work = MeasuredWork([], [], [], [])
    for request, one in zip(exercise.requests, made, strict=True):
        if not 1 <= len(one.output) <= most or objection(one.segments, len(one.output)):
            raise _unusable("an answer in it is empty, too long or not in form")
        if not 0 <= min(one.output) <= max(one.output) < vocabulary:
            raise _unusable("an answer in it has tokens that the model does not know")
        if odd := odd_experts(one.experts, len(request.prompt) + len(one.output) - 1, routing):
            raise _unusable(f"an answer in it has {odd}")
        experts = table_of(one.experts, routing) if routing else None
        sequence = FinishedSequence(list(request.prompt), one.output, tuple(one.segments), experts)
        sampled = len(sequence.sampled)
        if sampled > run.rollout.max_output_tokens:
            raise _unusable("an answer in it is too long")
        try:
            work.proofs.append(split_proofs(one.proofs, k, proof_count(sampled, rows)))
        except MalformedProof as error:
            raise _unusable(f"{error.what}: {error.why}") from None
        work.sequences.append(sequence)
        work.uniforms.append(request.uniforms[:sampled])
        work.encoded.append(one.proofs)
    return work


def _seen(sample: SampleStatistics) -> VerifiedAnswer:
    errors = [(one.exponent_mismatches, one.mantissa_mean, one.mantissa_median) for one in sample.errors]
    return VerifiedAnswer(errors, sample.distances.astype("<f8").tobytes(), sample.routing)


def gather(run: RunSpec, files: Sequence[bytes]) -> Measured:
    """All looks together. Cheats are those of one class, the one that most others looked at: a table of cheats is one
    of one arithmetic. Raises RunFileError for files that cannot be used, and for a pair of classes that nobody saw."""
    found: dict[tuple[str, str, str, str], list[SampleStatistics]] = {}
    for data in files:
        for one in _read(data, MachineLooks, run).looks:
            key = one.work, one.maker, one.way, one.verifier
            # Twice the same samples would count as twice as many.
            if key in found:
                raise _unusable(f"{one.verifier} looked at {one.maker}'s work {one.work[:16]} twice: one file too many")
            found[key] = _checked(run, one)
    measured = Measured(maker=_cheat(list(found)))
    for (_, maker, way, verifier), samples in sorted(found.items()):
        if not way:
            measured.honest.setdefault(pair(maker, verifier), []).extend(samples)
        elif maker == measured.maker:
            looks, key = measured.crossed, pair(way, verifier)
            if verifier == maker:
                looks, key = measured.cheating, way
            looks.setdefault(key, []).extend(samples)
    if lacking := missing_pairs(measured.honest):
        who = "; ".join(" by ".join(name.split(">")) for name in lacking[:3])
        raise _unusable(f"nobody looked at the work of {who}", "look at all exports on all machines, then merge again")
    if not measured.cheating:
        why = "no file shows cheats as their own maker sees them"
        raise _unusable(why, "export with cheats on one machine, and look at that file there, too")
    return measured


def _cheat(keys: Sequence[tuple[str, str, str, str]]) -> str:
    """The class whose cheats are taken."""
    seen = {maker: {key[3] for key in keys if key[1] == maker and key[2]} for maker in {key[1] for key in keys}}
    own = {maker: verifiers for maker, verifiers in seen.items() if maker in verifiers} or seen
    # Ties by name, so that the same files give the same tables in any order.
    return min(own, key=lambda maker: (-len(own[maker]), maker)) if own else ""


def _checked(run: RunSpec, look: VerifierLook) -> list[SampleStatistics]:
    """The numbers of a look, if they are any that an engine can have given."""
    good = is_engine_class(look.maker) and is_engine_class(look.verifier) and (not look.way or _WAY.fullmatch(look.way))
    # Two at least: one half of them makes the tables, the other one checks these.
    if not good or not 2 <= len(look.samples) <= MAX_SAMPLES:
        raise _unusable("a look in it names no classes, no way of cheating, or too few or many samples")
    k, most = run.verification.toploc_k, run.rollout.max_output_tokens
    samples: list[SampleStatistics] = []
    most_routing = 1e6
    for one in look.samples:
        if not 8 <= len(one.distances) <= 8 * most or len(one.distances) % 8:
            raise _unusable("the distances of a sample are not one for each token")
        distances = np.frombuffer(one.distances, "<f8").astype(np.float64)
        if len(one.errors) != proof_count(distances.size, run.verification.toploc_batch):
            raise _unusable("a sample has more or fewer proofs than its tokens have")
        if not (np.isfinite(distances).all() and distances.min() >= 0 and distances.max() <= 1):
            raise _unusable("a distance is no number from 0 to 1")
        if not all(0 <= e <= k and _is_step(mean) and _is_step(median) for e, mean, median in one.errors):
            raise _unusable("a proof's error is out of bounds")
        if one.routing is not None and not 0 <= one.routing < most_routing:
            raise _unusable("what the experts of a sample lack is out of bounds")
        errors = tuple(ProofErrors(*error) for error in one.errors)
        samples.append(SampleStatistics(errors, distances, routing=one.routing))
    return samples


def _is_step(value: float) -> bool:
    return 0 <= value <= 128 or value == _NO_MEAN


def _read(data: bytes, kind: type[T], run: RunSpec) -> T:
    try:
        file = msgspec.msgpack.decode(data, type=kind)
    # msgspec lets the latter two through: text that is no UTF-8, and brackets without end.
    except UNREADABLE as error:
        raise _unusable(str(error)[:300]) from None
    if file.version != VERSION:
        raise _unusable(f"it is of version {file.version}, and this program reads {VERSION}")
    if file.subject != subject(run):
        raise _unusable("it was measured on another model, data set or rule than this run's", "measure this run's")
    if isinstance(file, Export):
        _check(file)
    return file


def _check(file: Export) -> None:
    kinds = [*file.honest.values(), *file.cheating.values()]
    named = all(map(is_engine_class, file.honest)) and all(_WAY.fullmatch(way) for way in file.cheating)
    # numpy refuses a negative seed.
    if not named or file.maker not in file.honest or not 0 <= file.seed < 1 << 63:
        raise _unusable("its classes, ways of cheating or seed are not in form")
    if len(kinds) > MAX_KINDS or not all(2 <= len(made) <= MAX_SAMPLES for made in kinds):
        raise _unusable("it has too few or too many samples")


def read_file(path: Path) -> bytes:
    """Raises RunFileError."""
    try:
        with path.open("rb") as file:
            # One byte more than may be: a file of any length shows that it is too long, and is not read any further.
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RunFileError(f"cannot read {path}", error.strerror or str(error), "name a calibration file") from error
    if len(data) > MAX_BYTES:
        raise _unusable(f"{path} has more than {MAX_BYTES >> 20} MiB")
    return data


AGAIN = "make the file again: intellect-node calibrate export, calibrate look"


def _unusable(why: str, remedy: str = AGAIN) -> RunFileError:
    return RunFileError("this calibration file cannot be used", why, remedy)
