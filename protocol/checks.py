"""Everything a validator checks, cheapest first; one small pure function each.

A check returns None or a Fault with the reason and, in words, what was seen. Reasons are of two kinds.
*Objective* ones follow from bytes that the worker signed: every honest validator sees the same, and a quorum
costs the stake. *Statistical* ones come from a model's arithmetic: the file earns nothing, the stake stays
(one file decides about one file; evidence over many files is for a later decision rule).
"""

from collections.abc import Collection, Sequence
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from protocol import segments
from protocol.envelope import ProofSubject, open_envelope
from protocol.rollout import STATE_BYTES, RolloutBatch, RolloutHeader, SampleRow
from protocol.routing import Routing
from protocol.routing import objection as odd_experts
from protocol.run import RolloutSpec, RunSpec, VerificationSpec
from protocol.statements import VerdictOutcome, WorkCommitment
from protocol.thresholds import Thresholds
from protocol.toploc import ActivationProof, MalformedProof, ProofErrors


class Reason(IntEnum):
    """Why a file was not accepted. The numbers stand in signed verdicts and on chain: never renumber."""

    NONE = 0
    MALFORMED = 1
    WRONG_IDENTITY = 2
    STALE = 3
    DUPLICATE = 4
    WRONG_DRAW = 5
    WRONG_PROMPT = 6
    BAD_PROOF_FORM = 7
    ACTIVATIONS = 8
    SAMPLING = 9
    TERMINATION = 10
    UNITS = 11
    GAP = 12
    UNAVAILABLE = 13
    INCOMPLETE_GROUP = 14
    FRESHNESS = 15
    NOT_A_MEMBER = 16
    SUSPECTED = 17
    CONVICTED = 18
    NOT_LEASED = 19
    FORGED_TURN = 20
    WRONG_REPORT = 21
    NOT_REPRODUCED = 22
    """of a contribution: who makes the same steps in the same arithmetic comes to other bits"""
    NO_GAIN = 23
    """of a contribution: it does not lower the loss on its own rows"""
    HEARD_OTHERWISE = 24
    """of rollouts behind a server (class witnessed): it says, or pays, something else when it is asked again"""
    OTHER_MACHINE = 25
    """of sessions: the words are right, and the machine that said them is not the one that its calls lead to"""
    ROUTING = 26
    """of rollouts: a token was computed by experts that its router would not have chosen"""
    INNER_STATE = 27
    """of a contribution: the state that its steps begin with is not the one that its node's last contribution left, or
    nobody hands it over"""
    BATCHES = 28
    """of a contribution: a batch that its steps learnt from breaks a rule, or nobody hands over a part of it"""
    STATE = 30
    """of a trainer's step: whoever replays it in its class comes to another state, or AdamW's equations do not hold"""
    RULE = 31
    """of a step: its batch manifest breaks a rule of the run, or a part of it is not what it says"""
    DISTANCE = 32
    """of a step: in another class, the applied gradient or the state is further away than classes are"""
    LEFT_OUT = 34
    """of a step: batch after batch, due works of one worker were left out while others' that stand behind were used"""


OBJECTIVE = frozenset(
    {
        Reason.MALFORMED,
        Reason.INCOMPLETE_GROUP,
        Reason.WRONG_IDENTITY,
        Reason.WRONG_DRAW,
        Reason.WRONG_PROMPT,
        Reason.BAD_PROOF_FORM,
        Reason.TERMINATION,
        Reason.UNITS,
        Reason.FORGED_TURN,
    }
)

# DISTANCE is not here: it compares two arithmetics by a measured bound, and a bound that is measured can be wrong.
STEP_PROOF = frozenset({Reason.STATE, Reason.RULE})
"""What of a trainer's step is proof: whoever has its public bytes sees the same. The rest is measured between classes
and costs the term, never a stake."""

HEARSAY = frozenset(
    {
        Reason.STALE,
        Reason.DUPLICATE,
        Reason.GAP,
        Reason.UNAVAILABLE,
        Reason.NOT_A_MEMBER,
        Reason.SUSPECTED,
        Reason.CONVICTED,
        Reason.NOT_LEASED,
        Reason.HEARD_OTHERWISE,
        Reason.INNER_STATE,
        Reason.BATCHES,
    }
)
"""Reasons that rest on what a validator had heard or seen by then, so that two honest ones may differ in them. They
cost a file its pay and never a stake, with one exception: CONVICTED, the odds over a worker's whole record, which
needs two validators on different kinds of engines (protocol.engines) besides the quorum."""

PUBLIC_HEARSAY = frozenset({Reason.GAP, Reason.STALE})
"""Hearsay that all validators should have heard alike: a run may let it cost the stake (`audit.hearsay_costs`)."""


def reason_name(reason: int) -> str:
    """The name of a reason, whatever number a stranger wrote."""
    try:
        return Reason(reason).name.lower()
    except ValueError:
        return f"reason {reason}"


class Fault(msgspec.Struct, frozen=True):
    """detail: one line for people; group: where it was seen, -1 for the whole file."""

    reason: Reason
    detail: str
    group: int = -1

    @property
    def outcome(self) -> VerdictOutcome:
        return VerdictOutcome.SLASH if self.reason in OBJECTIVE else VerdictOutcome.REJECT


class ExpectedProblem(msgspec.Struct, frozen=True):
    """What the draw says one group must be about."""

    problem_id: str
    prompt: list[int]


def check_identity(batch: RolloutBatch, commitment: WorkCommitment) -> Fault | None:
    """The file says inside what the commitment says outside."""
    header = batch.header
    inside = (header.pool, header.node, header.policy_root, header.index)
    outside = (commitment.pool, commitment.node, commitment.policy_root.hex(), commitment.index)
    # The file's header is not signed by itself: without this a copied file would pass under any commitment.
    if inside != outside:
        return Fault(Reason.WRONG_IDENTITY, "the file names another pool, node, policy or index than its commitment")
    return None


def check_groups(batch: RolloutBatch, run: RunSpec) -> Fault | None:
    """Every slot of the draw is filled exactly once, in order: whole groups, none left out."""
    rollout = run.rollout
    # Compared as lists, order included: a left-out, repeated or added sample would be best-of-many.
    slots = [(group, sample) for group in range(rollout.prompts_per_file) for sample in range(rollout.group_size)]
    filled = [(row.group, row.sample) for row in batch.rows]
    if filled == slots:
        return None
    missing = sorted(set(slots) - set(filled))
    where = f", group {missing[0][0]} sample {missing[0][1]} is missing" if missing else ""
    detail = f"{len(filled)} samples do not fill the {len(slots)} slots in order{where}"
    return Fault(Reason.INCOMPLETE_GROUP, detail, missing[0][0] if missing else -1)


def check_form(
    batch: RolloutBatch, run: RunSpec, vocabulary: int, turns: int = 1, routing: Routing | None = None
) -> Fault | None:
    """Prompts, outputs, turns and token ids are within the run's limits, the engine is one that it admits, and experts
    are named for every token of a model that has some.

    turns: most answers in one rollout, as run and environment say; routing: of the model.
    """
    rollout, engine = run.rollout, batch.header.engine
    objection = run.verification.objection(engine)
    if objection:
        return Fault(Reason.MALFORMED, f"made with the engine {engine[:80]!r}: {objection}")
    for row in batch.rows:
        # Before any model sees it: lengths decide how much memory a prefill takes.
        if not 1 <= len(row.prompt) <= rollout.max_prompt_tokens:
            return Fault(Reason.MALFORMED, f"a prompt of {len(row.prompt)} tokens", row.group)
        # Turns come before units: what counts as sampled follows from how the output is cut.
        odd = _segments_fault(row, rollout, turns)
        if odd:
            return Fault(Reason.MALFORMED, odd, row.group)
        # One hash for each time that the environment spoke, which is every second segment.
        if row.states and len(row.states) != STATE_BYTES * (len(row.segments) // 2):
            return Fault(Reason.MALFORMED, f"{len(row.states)} bytes of states", row.group)
        if not 1 <= row.units <= rollout.max_output_tokens:
            return Fault(Reason.MALFORMED, f"an output of {row.units} tokens", row.group)
        # Before the model: an id outside the table would be read beyond it, or end a CUDA process.
        if min(row.prompt + row.output) < 0 or max(row.prompt + row.output) >= vocabulary:
            return Fault(Reason.MALFORMED, "a token outside the vocabulary", row.group)
        if odd := odd_experts(row.experts, row.fed, routing):
            return Fault(Reason.MALFORMED, odd, row.group)
    return None


def _segments_fault(row: SampleRow, rollout: RolloutSpec, turns: int) -> str:
    """What is wrong with how a rollout is cut into turns; empty if nothing is."""
    if not row.segments:
        return ""
    odd = segments.objection(row.segments, len(row.output))
    if odd or segments.turns(row.segments) > turns:
        return odd or f"{segments.turns(row.segments)} turns where there are {turns} at most"
    # Unpaid and unproven tokens, but the validator's prefill reads them: so they have a bound of their own.
    said = len(row.output) - row.units
    return f"{said} tokens of the environment" if said > rollout.max_environment_tokens else ""


def check_states(row: SampleRow, replayed: bytes) -> Fault | None:
    """The machine of a session stands where its calls lead, turn by turn: the next call may show what the words so far
    do not. replayed: of all turns.

    Costs the pay only. Every honest machine comes to the same hash; but no word is wrong yet, and a hash over all of a
    machine's memory is a hard thing to lose a stake by.
    """
    if row.states == replayed:
        return None
    size = STATE_BYTES
    same = next(n for n in range(len(replayed) + size) if row.states[n : n + 1] != replayed[n : n + 1])
    where = f"group {row.group} sample {row.sample}, behind answer {same // size + 1}"
    return Fault(Reason.OTHER_MACHINE, f"{where}: the session's machine is in another state", row.group)


def check_units(batch: RolloutBatch, commitment: WorkCommitment) -> Fault | None:
    """Units are sampled tokens, no more and no less."""
    if batch.units != commitment.units:
        return Fault(Reason.UNITS, f"{commitment.units} units claimed, {batch.units} sampled tokens present")
    return None


def check_draw(batch: RolloutBatch, expected: Sequence[ExpectedProblem]) -> Fault | None:
    """Each group solves the problem that (policy root, node, index) drew, from the exact prompt."""
    for row in batch.rows:
        drawn = expected[row.group]
        if row.problem_id != drawn.problem_id:
            return Fault(
                Reason.WRONG_DRAW,
                f"group {row.group} solves {row.problem_id[:40]!r}, drawn was {drawn.problem_id[:40]!r}",
            )
        if row.prompt != drawn.prompt:
            return Fault(
                Reason.WRONG_PROMPT, f"group {row.group} does not start from the prompt of {row.problem_id[:40]!r}"
            )
    return None


def check_termination(
    batch: RolloutBatch, run: RunSpec, eos: frozenset[int], limits: Sequence[int] = ()
) -> Fault | None:
    """An answer ends at its first end token, the last one there or at the length limit, and the row says which.

    limits: most sampled tokens of each group, where length budgets cut answers (protocol.budgets). Whether a rollout
    ought to have gone on for another turn is the environment's to say: see check_turn.
    """
    for row in batch.rows:
        limit = limits[row.group] if limits else run.rollout.max_output_tokens
        # Each turn but the last ends because the policy said so; only the last one may be cut by the limit.
        *earlier, last = (answer for answer, sampled in segments.pieces(row.output, row.segments) if sampled)
        if not all(_first_end(answer, eos) == len(answer) - 1 for answer in earlier):
            return Fault(Reason.TERMINATION, f"a turn in group {row.group} does not end at its end token", row.group)
        end = _first_end(last, eos)
        finished = end is not None
        # Tokens behind the end are units that nobody sampled from the policy, and would be paid.
        if finished and end != len(last) - 1:
            return Fault(Reason.TERMINATION, f"tokens after the end of text in group {row.group}")
        if row.units > limit or (not finished and row.units != limit):
            return Fault(Reason.TERMINATION, f"an output of {row.units} tokens stops without an end token")
        # The flag is the worker's word; learners mask by it, so it must be what the tokens say.
        if row.finished != finished:
            return Fault(Reason.TERMINATION, "the finished flag contradicts the tokens")
    return None


def _first_end(answer: Sequence[int], eos: frozenset[int]) -> int | None:
    return next((i for i, token in enumerate(answer) if token in eos), None)


def check_turn(row: SampleRow, turn: int, said: Sequence[int] | None, replayed: Sequence[int] | None) -> Fault | None:
    """What a rollout has behind its answer number `turn` is what the environment says there. None: it is over.

    Objective, since an environment that is not a matter of opinion says the same everywhere; whoever could not replay
    it (it took too long, a part is missing) gives no verdict on the group, and contradicts nobody.
    """
    if said == replayed:
        return None
    where = f"group {row.group} sample {row.sample}, behind answer {turn + 1}"
    if said is None or replayed is None:
        what = (
            "it goes on where the environment is done" if replayed is None else "it ends where the environment asks on"
        )
    else:
        what = f"{len(said)} tokens are not the {len(replayed)} of the environment"
    return Fault(Reason.FORGED_TURN, f"{where}: {what}", row.group)


def subject_of(header: RolloutHeader, row: SampleRow) -> ProofSubject:
    """What the proofs of one sample of a file are about."""
    root = bytes.fromhex(header.policy_root)
    place = header.pool, header.node, root, header.index, row.group, row.sample
    return ProofSubject(*place, row.prompt, row.output, row.segments, row.experts)


def parse_proofs(batch: RolloutBatch, thresholds: VerificationSpec) -> list[list[ActivationProof]] | Fault:
    """The activation proofs of every sample, exactly as many as its length demands, in envelopes of their own.

    The header's fields are those of the commitment by now: `check_identity` comes first.
    """
    proofs: list[list[ActivationProof]] = []
    for row in batch.rows:
        try:
            subject = subject_of(batch.header, row)
            proofs.append(open_envelope(row.proofs, subject, thresholds.toploc_k, thresholds.toploc_batch))
        except MalformedProof as error:
            detail = f"group {row.group} sample {row.sample}: {error.why}"
            return Fault(Reason.BAD_PROOF_FORM, detail, row.group)
    return proofs


def check_activations(errors: Sequence[ProofErrors], thresholds: Thresholds) -> Fault | None:
    """No proof is further from the validator's activations than the run's thresholds allow."""
    for error in errors:
        if (
            error.exponent_mismatches > thresholds.exponent_mismatches
            or error.mantissa_mean > thresholds.mantissa_mean
            or error.mantissa_median > thresholds.mantissa_median
        ):
            seen = f"{error.exponent_mismatches} exponents differ, mantissa mean {error.mantissa_mean:.3g}"
            return Fault(Reason.ACTIVATIONS, f"activations are not this policy's: {seen}")
    return None


def sampling_statistics(distances: NDArray[np.float64]) -> tuple[float, float]:
    """(mean distance, share of tokens more than 0.01 outside their interval)."""
    if distances.size == 0:
        return 0.0, 0.0
    sampling_margin = 0.01
    return float(distances.mean()), float((distances > sampling_margin).mean())


def check_sampling(distances: NDArray[np.float64], thresholds: Thresholds) -> Fault | None:
    """distances: float64[tokens of the file], from sampling.distance."""
    mean, outside = sampling_statistics(distances)
    # Not finite: logits of NaN compare false with everything, and would pass a plain `>`.
    if not np.isfinite(mean) or mean > thresholds.sampling_mean or outside > thresholds.sampling_outside:
        return Fault(
            Reason.SAMPLING, f"tokens were not drawn from this policy: distance {mean:.3g}, {outside:.1%} outside"
        )
    return None


def check_routing(short: Sequence[NDArray[np.float32]], thresholds: Thresholds) -> Fault | None:
    """No token was computed by an expert that its router finds less likely than its own last choice by more than
    engines differ. short: by how much, per sample, a number for each token (node.inference.engine.Prefill).

    Without this an engine might name any experts, and who computes with the named ones would agree with all of it.
    """
    worst = float(np.concatenate(short).max(initial=0.0)) if short else 0.0
    if worst <= thresholds.routing:
        return None
    seen = f"one is {np.exp(min(worst, 50.0)):.3g} times less likely than the last that it takes"
    return Fault(Reason.ROUTING, f"tokens went to experts that their router does not choose: {seen}")


def check_freshness(batch: RolloutBatch, expected: str) -> Fault | None:
    """The worker held the policy it names: its header answers the challenge that its own samples posed.

    Not a fault that costs a stake: a worker's bad disk would answer wrongly, too.
    """
    if batch.header.freshness != expected:
        return Fault(Reason.FRESHNESS, "the header does not answer the challenge over this policy's bytes")
    return None


def check_membership(node: str, member: bool) -> Fault | None:
    """The worker is a member of the pool at this moment."""
    # Membership is hearsay: a joining may be some blocks old here, and not there.
    return None if member else Fault(Reason.NOT_A_MEMBER, f"{node} is not a member of the pool")


Slot = tuple[str, bytes, int]
"""(node, policy root, index): what one commitment may be about."""


def slot_of(commitment: WorkCommitment) -> Slot:
    return commitment.node, commitment.policy_root, commitment.index


def check_duplicate(commitment: WorkCommitment, owner: Slot | None) -> Fault | None:
    """The file was not read before as another slot's. owner: whose header stands in that file, if it was read.

    The header decides, not who was heard first: a copier can be faster than its victim.
    """
    if owner is not None and owner != slot_of(commitment):
        return Fault(Reason.DUPLICATE, f"this file is submission {owner[2]} of {owner[0]}")
    return None


def check_gap(index: int, known: Collection[int]) -> Fault | None:
    """Submissions of one policy are contiguous from 0: an unlucky one cannot be left out and drawn again.

    known: indices of the same node and policy that have been heard of. Absence cannot be proven to others, so
    it costs the file, not the stake.
    """
    # Best-of-many, again: a worker could make ten files, look at the rewards, and commit to the best.
    missing = next((one for one in range(index) if one not in known), None)
    if missing is not None:
        return Fault(Reason.GAP, f"submission {index} without submission {missing}")
    return None


def check_staleness(policy_step: int, newest_step: int, run: RunSpec) -> Fault | None:
    """The policy that made the file is at most max_staleness steps old.

    newest_step: when the commitment was *heard*, not when somebody found the time to judge it.
    """
    # Steps, not seconds: what an old policy's samples are worth depends on how often it was changed since.
    age = newest_step - policy_step
    if age > run.recipe.max_staleness:
        return Fault(Reason.STALE, f"made by policy {policy_step}, {age} steps before {newest_step}")
    return None
