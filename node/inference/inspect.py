"""A validator's look at a rollout file: every check of protocol.checks, cheapest first, one prefill, then the rewards.

A scorer reads what a stranger wrote, so it sees only files whose tokens have stood every check that this look makes:
a forged file is refused before anything is scored. Whatever the file holds, the result is a verdict: a stranger's bytes
never raise out of here.
"""

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from node.inference.engine import Engine, FinishedSequence, Prefill
from node.inference.errors import EngineError
from node.inference.proofs import compare_all
from node.inference.replay import replay_turns, transcript_of
from node.inference.session import EngineSession
from node.inference.tasks import DrawnTasks, heard
from node.inference.wire import Inspect, Inspected
from node.state.files import as_named, write_whole
from protocol import checks
from protocol.blobs import describe
from protocol.budgets import highest_capacity
from protocol.checks import ExpectedProblem, Fault, Reason
from protocol.decision import Evidence, Likelihoods, SampleStatistics
from protocol.messages import NO_PROMPTS
from protocol.rollout import (
    MAX_FILE_BYTES,
    MalformedRollout,
    ReportHeader,
    ReportRow,
    RolloutBatch,
    SampleRow,
    ValidatorReport,
    decode,
    encode_report,
)
from protocol.routing import load_of, table_of
from protocol.run import VerificationSpec
from protocol.sampling import distance, uniforms
from protocol.statements import VerdictOutcome, WorkCommitment
from protocol.thresholds import Thresholds
from protocol.toploc import ActivationProof, ProofErrors, proof_count
from protocol.values import mean_logprobs, prompts_hash, reward_tags

SCORED_TOGETHER = 4
"""Answers of a group between two looks at the clock: a group of 256 may all run into a deadline of seconds."""


def inspect(session: EngineSession, order: Inspect) -> Inspected:
    """Judge the file at `order.path`; on acceptance write the report. session: at that order. Raises EngineError for
    our own troubles only, and OwnFailure where the file is not what came any more."""
    started = time.monotonic()
    data = _read(order.path)
    found = _judge(session, order, data)
    # A stake hangs on it: a byte that this machine's disk turned over would look like a lie.
    if found.fault is not None and order.file_root:
        as_named(data, order.file_root, "a rollout file")
    fault, rewards, seen = found.fault, found.scores.rewards, found.replay
    written = fault is None and _write_report(session, order, data, found)
    return Inspected(
        id=order.id,
        outcome=int(fault.outcome if fault else VerdictOutcome.ACCEPT),
        reason=int(fault.reason if fault else Reason.NONE),
        detail=fault.detail if fault else "",
        report_path=order.report_path if written else "",
        rewards_mean=found.scores.mean(session.run.rollout.group_size),
        tokens=sum(row.units for row in seen.rows),
        seconds=time.monotonic() - started,
        statistics=seen.statistics,
        evidence=seen.evidence,
        group=fault.group if fault else -1,
        checked=seen.groups,
        rewards=reward_tags(rewards, session.run.rollout.group_size, found.scores.undecided),
        logprobs=b"" if order.second_look else _means(seen),
        verifier=seen.verifier,
        unreplayed=tuple(sorted(found.unreplayed)),
        prompts=found.prompts,
    )


@dataclass(frozen=True)
class Replay:
    """What came of the groups that went through the model. fault: what is wrong with them; verifier: class of the
    engine that looked; statistics, evidence: as in `Inspected`."""

    fault: Fault | None = None
    groups: tuple[int, ...] = ()
    rows: Sequence[SampleRow] = ()
    prefills: Sequence[Prefill] = ()
    verifier: str = ""
    statistics: dict[str, float] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=lambda: Evidence({}))


@dataclass(frozen=True)
class Scores:
    """rewards: of all samples; undecided: groups that could not be scored in time; judged: those of them whose rewards
    are a matter of opinion."""

    rewards: Sequence[float] = ()
    undecided: frozenset[int] = frozenset()
    judged: frozenset[int] = frozenset()

    def mean(self, group_size: int) -> float | None:
        """Of the groups that are decided; None where there are none."""
        known = [one for at, one in enumerate(self.rewards) if at // group_size not in self.undecided]
        return float(np.mean(known)) if known else None


@dataclass(frozen=True)
class InspectionFindings:
    """What the checks came to, up to the first fault. unreplayed: groups whose turns could not be replayed; prompts:
    hash of what the file was to answer."""

    fault: Fault | None
    prompts: bytes = NO_PROMPTS
    unreplayed: Collection[int] = ()
    replay: Replay = Replay()
    scores: Scores = Scores()


def _judge(session: EngineSession, order: Inspect, data: bytes) -> InspectionFindings:
    """Every check, cheapest first; the model sees the groups of the lot only, in one prefill. Then the rewards, in
    which there is nothing to be found wrong.

    Freshness comes last of the checks: whatever else is wrong says more, and counts in the worker's record. What the
    environment said stands before the prefill: that fault is objective, and all validators must see it, whatever
    groups they drew and whatever arithmetic found besides.
    """
    # Later checks rely on earlier ones: of a stranger's bytes nothing is believed that was not checked by then.
    batch = _parse(session, order, data)
    if isinstance(batch, Fault):
        return InspectionFindings(batch)
    tasks = _tasks(session, batch)
    if isinstance(tasks, Fault):
        return InspectionFindings(tasks)
    prompts = prompts_hash(tasks.prompts)
    proofs = _check_form(session, order, batch, tasks)
    if isinstance(proofs, Fault):
        return InspectionFindings(proofs, prompts)
    drawn = range(session.run.rollout.prompts_per_file) if order.groups is None else order.groups
    until = time.monotonic() + session.run.audit.scoring_seconds
    otherwise, unreplayed = replay_turns(session.environment, session.bounds, batch, tasks, first=drawn, until=until)
    if otherwise and otherwise.outcome is VerdictOutcome.SLASH:
        return InspectionFindings(otherwise, prompts, unreplayed)
    left = until - time.monotonic()  # the prefill waits for its turn on the engine, which is not the file's doing
    replay = _replay_tokens(session, batch, proofs, drawn, second_look=order.second_look)
    # `otherwise` is no proof here, or it would have been returned above: what the model finds says more.
    if fault := replay.fault or otherwise:
        return InspectionFindings(fault, prompts, unreplayed, replay)
    scores = _score(session, batch, tasks, unreplayed, time.monotonic() + left)
    return InspectionFindings(_check_heard(session, batch, tasks, scores), prompts, unreplayed, replay, scores)


def _check_heard(session: EngineSession, batch: RolloutBatch, tasks: DrawnTasks, scores: Scores) -> Fault | None:
    """Servers pay what the file says that they paid. Raises EngineError where one did not say it: another recorder may
    hear it, and this one has no word about the file."""
    witnessed = tasks.witnessed(session.environment)
    if open_ := scores.undecided.intersection(witnessed):
        why = f"of {len(witnessed)} groups {len(open_)} got no answer in time"
        raise EngineError("what a server said cannot be heard again", why, "see whether the server answers from here")
    if heard(witnessed, scores.rewards, session.run.rollout.group_size) != batch.header.heard:
        return Fault(Reason.HEARD_OTHERWISE, "the servers pay otherwise than the file says")
    return None


def _replay_tokens(
    session: EngineSession,
    batch: RolloutBatch,
    proofs: Sequence[Sequence[ActivationProof]],
    drawn: Collection[int],
    *,
    second_look: bool,
) -> Replay:
    """The groups of the lot through the model: activations, the sampler, and that the worker held the policy."""
    groups = tuple(sorted(set(drawn)))
    if not groups:
        return Replay()
    place = [i for i, row in enumerate(batch.rows) if row.group in groups]
    rows, worker = [batch.rows[i] for i in place], batch.header.engine
    engine = session.unlike(worker) if second_look else session.like(worker)
    prefills = _prefill(session, engine, rows)
    seen = RecomputedRows(rows, prefills, [proofs[i] for i in place], engine.name, worker)
    fault, statistics, evidence = _check_numbers(session, seen)
    if fault is None:
        fault = checks.check_freshness(batch, session.answer(session.challenge(batch.rows)))
    return Replay(fault, groups, rows, prefills, engine.name, statistics, evidence)


def _score(
    session: EngineSession, batch: RolloutBatch, tasks: DrawnTasks, unreplayed: Collection[int], until: float
) -> Scores:
    rewards, undecided = score_groups(session, batch, tasks, unreplayed, until)
    late = undecided.difference(unreplayed)
    judged = {group for group in late if session.environment.is_judged(tasks.problems[group])}
    return Scores(rewards, frozenset(undecided), frozenset(judged))


def score_groups(
    session: EngineSession, batch: RolloutBatch, tasks: DrawnTasks, unreplayed: Collection[int], until: float
) -> tuple[list[float], set[int]]:
    """(reward of every sample, groups without a dependable one): those that are `unreplayed`, and what is left when the
    clock says `until`.

    What cannot be scored in time is nobody's fault: such a group is not trained on and not compared. One answer makes
    its whole group undecided, so the others of it are not asked about any more: a group of answers that each run into
    a deadline costs as much as its first few.
    """
    environment = session.environment
    rewards: list[float] = []
    undecided = set(unreplayed)
    for group in range(len(tasks.problems)):
        transcripts = [transcript_of(row) for row in batch.rows if row.group == group]
        found: list[float] = []
        for start in range(0, len(transcripts), SCORED_TOGETHER):
            before = environment.gave_up
            if group not in undecided and time.monotonic() < until:
                some = transcripts[start : start + SCORED_TOGETHER]
                found += tasks.rewards(environment, [group] * len(some), some)
            # Short of rewards: its group was undecided already, or it is too late.
            if len(found) < min(start + SCORED_TOGETHER, len(transcripts)) or environment.gave_up != before:
                undecided.add(group)
        # Zeros keep the places of an undecided group, whose rewards nobody uses.
        rewards += found + [0.0] * (len(transcripts) - len(found))
    return rewards, undecided


def _means(found: Replay) -> bytes:
    """The mean log-probability of each recomputed group, as a verdict carries it."""
    by_group: dict[int, list[np.ndarray]] = {}
    for row, prefill in zip(found.rows, found.prefills, strict=True):
        by_group.setdefault(row.group, []).append(prefill.logprobs)
    return mean_logprobs(by_group)


def _read(path: str) -> bytes:
    """At most one byte more than a file may have, which the decoder then refuses."""
    with open(path, "rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def _parse(session: EngineSession, order: Inspect, data: bytes) -> RolloutBatch | Fault:
    rollout = session.run.rollout
    # More than any rollout may have: what is longer is refused before it stands in memory as numbers.
    tokens = rollout.max_prompt_tokens + rollout.max_output_tokens + rollout.max_environment_tokens
    try:
        batch = decode(data, rollout.samples_per_file, rollout.samples_per_file * tokens)
    except MalformedRollout as error:
        return Fault(Reason.MALFORMED, error.why[:200])
    return checks.check_identity(batch, _commitment(session, order)) or batch


def _commitment(session: EngineSession, order: Inspect) -> WorkCommitment:
    about = session.submission
    return WorkCommitment(order.pool, about.node, about.policy_root, about.index, order.file_root, order.units)


def _tasks(session: EngineSession, batch: RolloutBatch) -> DrawnTasks | Fault:
    """What the file must be about, given the capacity class that it states."""
    capacity, highest = batch.header.capacity, highest_capacity(session.run)
    # Compared before a problem is read: what this machine's environment raises is no fault of the file's, and this one
    # costs a stake.
    if not 0 <= capacity <= highest:
        return Fault(Reason.MALFORMED, f"the header's capacity class {capacity} of {highest}")
    return session.tasks(capacity)


def _check_form(
    session: EngineSession, order: Inspect, batch: RolloutBatch, tasks: DrawnTasks
) -> list[list[ActivationProof]] | Fault:
    """Everything that needs no model: form, units, draw, termination, the proofs' form."""
    run = session.run
    if batch.header.heard and not tasks.witnessed(session.environment):
        return Fault(Reason.MALFORMED, "the header speaks of servers, and no problem of the file has one")
    fault = (
        checks.check_groups(batch, run)
        or checks.check_form(batch, run, session.engine.vocabulary, session.bounds.turns, session.engine.routing)
        or checks.check_units(batch, _commitment(session, order))
    )
    if fault:
        return fault
    expected = [
        ExpectedProblem(problem.problem_id, prompt)
        for problem, prompt in zip(tasks.problems, tasks.prompts, strict=True)
    ]
    fault = checks.check_draw(batch, expected)
    fault = fault or checks.check_termination(batch, run, session.engine.eos, tasks.limits)
    return fault or checks.parse_proofs(batch, run.verification)


def _prefill(session: EngineSession, engine: Engine, rows: Sequence[SampleRow]) -> list[Prefill]:
    routing = engine.routing
    sequences = [
        FinishedSequence(row.prompt, row.output, row.segments, table_of(row.experts, routing) if routing else None)
        for row in rows
    ]
    return session.prefill(engine, sequences)


@dataclass(frozen=True)
class RecomputedRows:
    """What was recomputed of some rows, beside what their maker says. worker, verifier: classes of the engines that
    made the file, by its header, and that looked."""

    rows: Sequence[SampleRow]
    prefills: Sequence[Prefill]
    proofs: Sequence[Sequence[ActivationProof]]
    verifier: str
    worker: str


def _check_numbers(session: EngineSession, seen: RecomputedRows) -> tuple[Fault | None, dict[str, float], Evidence]:
    """Activations and the replay of the sampler: what is wrong, and what was measured."""
    rules = session.run.verification
    thresholds = rules.thresholds(seen.worker, seen.verifier)
    errors = compare_all(seen.proofs, [prefill.rows for prefill in seen.prefills], rules.toploc_batch)
    distances = _distances(session, seen)
    short = [prefill.routing for prefill in seen.prefills if prefill.routing is not None]
    mean, outside = checks.sampling_statistics(distances)
    statistics = {"sampling_mean": mean, "sampling_outside": outside, **_worst(errors)}
    statistics |= _routes(session, seen.rows, short)
    # Whatever a threshold decides: what a refused file measured counts in the worker's record, too.
    evidence = _evidence(rules, seen, errors, distances)
    if fault := checks.check_routing(short, thresholds):
        fault = msgspec.structs.replace(fault, group=_first_misrouted(seen, thresholds))
    elif fault := checks.check_activations(errors, thresholds):
        fault = msgspec.structs.replace(fault, group=_first_group(seen.rows, errors, thresholds, rules.toploc_batch))
    return fault or checks.check_sampling(distances, thresholds), statistics, evidence


def _routes(session: EngineSession, rows: Sequence[SampleRow], short: Sequence[np.ndarray]) -> dict[str, float]:
    """How the recomputed samples were spread over experts; nothing of a model without."""
    routing = session.engine.routing
    if routing is None:
        return {}
    shares = load_of(b"".join(row.experts for row in rows), routing) / sum(row.fed for row in rows)
    worst = float(np.concatenate(short).max())
    return {"routing": worst, "busiest_expert": float(shares.max()), "idle_experts": float((shares == 0).mean())}


def _first_misrouted(seen: RecomputedRows, thresholds: Thresholds) -> int:
    """The group of the first sample whose experts fail by themselves."""
    pairs = zip(seen.rows, seen.prefills, strict=True)
    return next(
        (row.group for row, one in pairs if one.routing is not None and one.routing.max() > thresholds.routing), -1
    )


def _first_group(rows: Sequence[SampleRow], errors: Sequence[ProofErrors], thresholds: Thresholds, batch: int) -> int:
    """The group of the first proof that fails by itself."""
    owners = [row.group for row in rows for _ in range(proof_count(row.units, batch))]
    failing = (
        group for group, error in zip(owners, errors, strict=True) if checks.check_activations([error], thresholds)
    )
    return next(failing, -1)


def _evidence(
    rules: VerificationSpec, seen: RecomputedRows, errors: Sequence[ProofErrors], distances: np.ndarray
) -> Evidence:
    """What the samples say about their worker, by the run's calibrated tables; nothing if none fits."""
    if not rules.decision.calibrated:
        return Evidence({})
    samples: list[SampleStatistics] = []
    proof, token = 0, 0
    for row in seen.rows:
        proofs, tokens = proof_count(row.units, rules.toploc_batch), row.units
        samples.append(
            SampleStatistics(tuple(errors[proof : proof + proofs]), distances[token : token + tokens], row.group)
        )
        proof, token = proof + proofs, token + tokens
    likelihoods = Likelihoods(rules.decision, rules.toploc_k, seen.verifier, seen.worker)
    return likelihoods.evidence(samples, seen.verifier)


def _worst(errors: Sequence[ProofErrors]) -> dict[str, float]:
    return {
        "exponent_mismatches": float(max((error.exponent_mismatches for error in errors), default=0)),
        "mantissa_mean": max((error.mantissa_mean for error in errors), default=0.0),
        "mantissa_median": max((error.mantissa_median for error in errors), default=0.0),
    }


def _distances(session: EngineSession, seen: RecomputedRows) -> np.ndarray:
    """float64[sampled tokens]: how far each drawn number lies outside its token's interval."""
    drawn = [uniforms(session.seed(row.group, row.sample), row.units) for row in seen.rows]
    lo = np.concatenate([prefill.lo for prefill in seen.prefills])
    hi = np.concatenate([prefill.hi for prefill in seen.prefills])
    return distance(np.concatenate(drawn), lo, hi)


def _write_report(session: EngineSession, order: Inspect, data: bytes, found: InspectionFindings) -> bool:
    """Write what was recomputed of the drawn groups; False if there is nothing that could be trained on. Where judges
    are to say the reward, it is NaN."""
    scores, size = found.scores, session.run.rollout.group_size
    rows = tuple(
        ReportRow(
            row.group,
            row.sample,
            math.nan if row.group in scores.judged else scores.rewards[row.group * size + row.sample],
            prefill.logprobs.tolist(),
        )
        for row, prefill in zip(found.replay.rows, found.replay.prefills, strict=True)
        if row.group not in scores.undecided - scores.judged
    )
    if not rows or not order.report_path:
        return False
    root = order.file_root or describe(data).root
    header = ReportHeader(root.hex(), order.policy_root.hex())
    write_whole(Path(order.report_path), encode_report(ValidatorReport(header, rows)))
    return True
