"""Everything a validator checks, cheapest first; one small pure function each.

A check returns None or a Fault with the reason and, in words, what was seen. Reasons are of two kinds.
*Objective* ones follow from bytes that the worker signed: every honest validator sees the same, and a quorum
costs the stake. *Statistical* ones come from a model's arithmetic: the file earns nothing, the stake stays
(one file decides about one file; evidence over many files is for a later decision rule).
"""

from collections.abc import Sequence
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from protocol.rollout import RolloutBatch
from protocol.run import RunSpec, VerificationSpec
from protocol.statements import Outcome, WorkCommitment
from protocol.toploc import MalformedProof, Proof, ProofErrors, proof_count, split_proofs


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


OBJECTIVE = frozenset(
    {
        Reason.MALFORMED,
        Reason.WRONG_IDENTITY,
        Reason.WRONG_DRAW,
        Reason.WRONG_PROMPT,
        Reason.BAD_PROOF_FORM,
        Reason.TERMINATION,
        Reason.UNITS,
    }
)


class Fault(msgspec.Struct, frozen=True):
    """detail: one line for people."""

    reason: Reason
    detail: str

    @property
    def outcome(self) -> Outcome:
        return Outcome.SLASH if self.reason in OBJECTIVE else Outcome.REJECT


class ExpectedProblem(msgspec.Struct, frozen=True):
    """What the draw says one group must be about."""

    problem_id: str
    prompt: list[int]


def check_identity(batch: RolloutBatch, commitment: WorkCommitment) -> Fault | None:
    """The file says inside what the commitment says outside."""
    header = batch.header
    inside = (header.pool, header.node, header.policy_root, header.index)
    outside = (commitment.pool, commitment.node, commitment.policy_root.hex(), commitment.index)
    if inside != outside:
        return Fault(Reason.WRONG_IDENTITY, "the file names another pool, node, policy or index than its commitment")
    return None


def check_form(batch: RolloutBatch, run: RunSpec, vocabulary: int) -> Fault | None:
    """Every slot of the draw is filled exactly once, in order, within the run's limits."""
    rollout = run.rollout
    slots = [(group, sample) for group in range(rollout.prompts_per_file) for sample in range(rollout.group_size)]
    if [(row.group, row.sample) for row in batch.rows] != slots:
        return Fault(Reason.MALFORMED, f"{len(batch.rows)} samples do not fill the {len(slots)} slots in order")
    for row in batch.rows:
        if not 1 <= len(row.prompt) <= rollout.max_prompt_tokens:
            return Fault(Reason.MALFORMED, f"a prompt of {len(row.prompt)} tokens")
        if not 1 <= len(row.output) <= rollout.max_output_tokens:
            return Fault(Reason.MALFORMED, f"an output of {len(row.output)} tokens")
        if min(row.prompt + row.output) < 0 or max(row.prompt + row.output) >= vocabulary:
            return Fault(Reason.MALFORMED, "a token outside the vocabulary")
    return None


def check_units(batch: RolloutBatch, commitment: WorkCommitment) -> Fault | None:
    """Units are output tokens, no more and no less."""
    if batch.units != commitment.units:
        return Fault(Reason.UNITS, f"{commitment.units} units claimed, {batch.units} output tokens present")
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
    """An output ends at its first end token or at the length limit, and says which.

    limits: most output tokens of each group, where length budgets cut answers (protocol.budgets).
    """
    for row in batch.rows:
        limit = limits[row.group] if limits else run.rollout.max_output_tokens
        ends = [i for i, token in enumerate(row.output) if token in eos]
        finished = bool(ends)
        if finished and ends[0] != len(row.output) - 1:
            return Fault(Reason.TERMINATION, f"tokens after the end of text in group {row.group}")
        if len(row.output) > limit or (not finished and len(row.output) != limit):
            return Fault(Reason.TERMINATION, f"an output of {len(row.output)} tokens stops without an end token")
        if row.finished != finished:
            return Fault(Reason.TERMINATION, "the finished flag contradicts the tokens")
    return None


def parse_proofs(batch: RolloutBatch, cuts: VerificationSpec) -> list[list[Proof]] | Fault:
    """The activation proofs of every sample, exactly as many as its length demands."""
    proofs: list[list[Proof]] = []
    for row in batch.rows:
        try:
            proofs.append(split_proofs(row.proofs, cuts.toploc_k, proof_count(len(row.output), cuts.toploc_batch)))
        except MalformedProof as error:
            return Fault(Reason.BAD_PROOF_FORM, f"group {row.group} sample {row.sample}: {error.why}")
    return proofs


def check_activations(errors: Sequence[ProofErrors], cuts: VerificationSpec) -> Fault | None:
    """No proof is further from the validator's activations than the run's cuts allow."""
    for error in errors:
        if (
            error.exponent_mismatches > cuts.exponent_mismatches
            or error.mantissa_mean > cuts.mantissa_mean
            or error.mantissa_median > cuts.mantissa_median
        ):
            seen = f"{error.exponent_mismatches} exponents differ, mantissa mean {error.mantissa_mean:.3g}"
            return Fault(Reason.ACTIVATIONS, f"activations are not this policy's: {seen}")
    return None


SAMPLING_MARGIN = 0.01


def sampling_statistics(distances: NDArray[np.float64]) -> tuple[float, float]:
    """(mean distance, share of tokens more than 0.01 outside their interval)."""
    if distances.size == 0:
        return 0.0, 0.0
    return float(distances.mean()), float((distances > SAMPLING_MARGIN).mean())


def check_sampling(distances: NDArray[np.float64], cuts: VerificationSpec) -> Fault | None:
    """distances: float64[tokens of the file], from sampling.distance."""
    mean, outside = sampling_statistics(distances)
    if not np.isfinite(mean) or mean > cuts.sampling_mean or outside > cuts.sampling_outside:
        return Fault(
            Reason.SAMPLING, f"tokens were not drawn from this policy: distance {mean:.3g}, {outside:.1%} outside"
        )
    return None


def check_staleness(policy_step: int, newest_step: int, run: RunSpec) -> Fault | None:
    """The policy that made the file is at most max_staleness steps old."""
    age = newest_step - policy_step
    if age > run.recipe.max_staleness:
        return Fault(Reason.STALE, f"made by policy {policy_step}, {age} steps before {newest_step}")
    return None
