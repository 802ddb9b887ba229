"""A validator's look at a rollout file: every check of protocol.checks, cheapest first, one prefill.

Whatever the file holds, the result is a verdict: a stranger's bytes never raise out of here.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from node.environments.base import Problem
from node.inference.engine import Finished, Prefill
from node.inference.produce import write_atomically
from node.inference.proofs import compare_all
from node.inference.session import Session, checked_address
from node.inference.wire import Inspect, Inspected
from protocol import checks
from protocol.blobs import describe
from protocol.checks import ExpectedProblem, Fault, Reason
from protocol.decision import Evidence, Judge, SampleStatistics
from protocol.draw import sample_seed
from protocol.rollout import (
    MAX_FILE_BYTES,
    MalformedRollout,
    Report,
    ReportHeader,
    ReportRow,
    RolloutBatch,
    decode,
    encode_report,
)
from protocol.sampling import distance, uniforms
from protocol.statements import Outcome, WorkCommitment
from protocol.toploc import Proof, ProofErrors, proof_count


def inspect(session: Session, order: Inspect) -> Inspected:
    """Judge the file at `order.path`; on acceptance write the report. Raises EngineError for our own troubles only."""
    started = time.monotonic()
    statistics: dict[str, float] = {}
    evidence = Evidence({})
    rewards: list[float] = []
    tokens = 0
    data = _read(order.path)
    batch = _parse(session, order, data)
    if isinstance(batch, Fault):
        fault: Fault | None = batch
    else:
        problems = session.problems(order.policy_root, checked_address(order.node), order.index)
        proofs = _check_form(session, order, batch, problems)
        if isinstance(proofs, Fault):
            fault = proofs
        else:
            tokens = batch.units
            prefills = _prefill(session, order, batch)
            fault, evidence = _check_numbers(session, order, batch, proofs, prefills, statistics)
            if fault is None:
                solved = [problems[row.group] for row in batch.rows]
                rewards = session.environment.score(solved, [row.output for row in batch.rows])
                _write_report(order, data, batch, prefills, rewards)
    return Inspected(
        id=order.id,
        outcome=int(fault.outcome if fault else Outcome.ACCEPT),
        reason=int(fault.reason if fault else Reason.NONE),
        detail=fault.detail if fault else "",
        report_path="" if fault else order.report_path,
        rewards_mean=float(np.mean(rewards)) if rewards else 0.0,
        tokens=tokens,
        seconds=time.monotonic() - started,
        statistics=statistics,
        evidence=evidence,
    )


def _read(path: str) -> bytes:
    """At most one byte more than a file may have, which the decoder then refuses."""
    with open(path, "rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def _parse(session: Session, order: Inspect, data: bytes) -> RolloutBatch | Fault:
    try:
        batch = decode(data, session.run.rollout.samples_per_file)
    except MalformedRollout as error:
        return Fault(Reason.MALFORMED, error.why[:200])
    return checks.check_identity(batch, _commitment(order)) or batch


def _commitment(order: Inspect) -> WorkCommitment:
    node = checked_address(order.node)
    return WorkCommitment(order.pool, node, order.policy_root, order.index, order.file_root, order.units)


def _check_form(
    session: Session, order: Inspect, batch: RolloutBatch, problems: Sequence[Problem]
) -> list[list[Proof]] | Fault:
    """Everything that needs no model: form, units, draw, termination, the proofs' form."""
    run, environment = session.run, session.environment
    fault = (
        checks.check_groups(batch, run)
        or checks.check_form(batch, run, session.engine.vocabulary)
        or checks.check_units(batch, _commitment(order))
    )
    if fault:
        return fault
    expected = [ExpectedProblem(problem.problem_id, environment.prompt_tokens(problem)) for problem in problems]
    fault = checks.check_draw(batch, expected) or checks.check_termination(batch, run, session.engine.eos)
    return fault or checks.parse_proofs(batch, run.verification)


def _prefill(session: Session, order: Inspect, batch: RolloutBatch) -> list[Prefill]:
    session.use(order.policy_root)
    sequences = [Finished(row.prompt, row.output) for row in batch.rows]
    return session.engine.prefill(sequences, session.run.rollout.temperature)


def _check_numbers(
    session: Session,
    order: Inspect,
    batch: RolloutBatch,
    proofs: Sequence[Sequence[Proof]],
    prefills: Sequence[Prefill],
    statistics: dict[str, float],
) -> tuple[Fault | None, Evidence]:
    """Activations and the replay of the sampler; fills `statistics`."""
    cuts = session.run.verification
    errors = compare_all(proofs, [prefill.rows for prefill in prefills], cuts.toploc_batch)
    distances = _distances(order, batch, prefills)
    mean, outside = checks.sampling_statistics(distances)
    statistics |= {"sampling_mean": mean, "sampling_outside": outside, **_worst(errors)}
    fault = checks.check_activations(errors, cuts) or checks.check_sampling(distances, cuts)
    return fault, _evidence(session, batch, errors, distances)


def _evidence(session: Session, batch: RolloutBatch, errors: Sequence[ProofErrors], distances: np.ndarray) -> Evidence:
    """What the file says about its worker, by the run's calibrated tables; nothing if it has none."""
    cuts = session.run.verification
    if not cuts.decision.calibrated:
        return Evidence({})
    samples: list[SampleStatistics] = []
    proof, token = 0, 0
    for row in batch.rows:
        proofs, tokens = proof_count(len(row.output), cuts.toploc_batch), len(row.output)
        samples.append(SampleStatistics(tuple(errors[proof : proof + proofs]), distances[token : token + tokens]))
        proof, token = proof + proofs, token + tokens
    return Judge(cuts.decision, cuts.toploc_k).evidence(samples, session.engine.name)


def _worst(errors: Sequence[ProofErrors]) -> dict[str, float]:
    return {
        "exponent_mismatches": float(max((error.exponent_mismatches for error in errors), default=0)),
        "mantissa_mean": max((error.mantissa_mean for error in errors), default=0.0),
        "mantissa_median": max((error.mantissa_median for error in errors), default=0.0),
    }


def _distances(order: Inspect, batch: RolloutBatch, prefills: Sequence[Prefill]) -> np.ndarray:
    """float64[output tokens of the file]: how far each drawn number lies outside its token's interval."""
    node = checked_address(order.node)
    drawn = [
        uniforms(sample_seed(order.policy_root, node, order.index, row.group, row.sample), len(row.output))
        for row in batch.rows
    ]
    lo = np.concatenate([prefill.lo for prefill in prefills])
    hi = np.concatenate([prefill.hi for prefill in prefills])
    return distance(np.concatenate(drawn), lo, hi)


def _write_report(
    order: Inspect, data: bytes, batch: RolloutBatch, prefills: Sequence[Prefill], rewards: Sequence[float]
) -> None:
    root = order.file_root or describe(data).root
    rows = tuple(
        ReportRow(row.group, row.sample, reward, prefill.logprobs.tolist())
        for row, prefill, reward in zip(batch.rows, prefills, rewards, strict=True)
    )
    header = ReportHeader(root.hex(), order.policy_root.hex())
    write_atomically(Path(order.report_path), encode_report(Report(header, rows)))
