"""Recomputed values in a form that fits a verdict, so that validators can be compared without fetching reports.

Rewards are exact: per group 16 bytes of a hash. Log-probabilities are floating point: per group their mean. What a
verdict says must be what its report holds; the trainer checks that before it believes either.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from blake3 import blake3

from protocol.disputes import UNDECIDED, Conflict, VerdictConflict, group_means
from protocol.lots import unpack_groups
from protocol.messages import DIGEST, MAX_VALUES, Judgement
from protocol.rollout import ReportRow, ValidatorReport

_REWARDS = "intellect-node group rewards v2"
_PROMPTS = "intellect-node prompts v1"


def prompts_hash(prompts: Sequence[Sequence[int]]) -> bytes:
    """32 bytes over the prompts' tokens of a file: of each the number of tokens and the tokens, 32 bits, little-endian.

    What a validator computes from problem and template, never what the file says. So it tells those who were to see
    the same thing from those who were not."""
    hashed = blake3(derive_key_context=_PROMPTS)
    for prompt in prompts:
        hashed.update(np.asarray([len(prompt), *prompt], dtype="<u4").tobytes())
    return hashed.digest()


def reward_tag(rewards: Sequence[float]) -> bytes:
    """DIGEST bytes over the rewards of one group, float32."""
    return blake3(np.asarray(rewards, dtype="<f4").tobytes(), derive_key_context=_REWARDS).digest(DIGEST)


def reward_tags(rewards: Sequence[float], group_size: int, undecided: Collection[int]) -> bytes:
    """The tags of all groups of a file; empty for more groups than a verdict carries."""
    groups = len(rewards) // group_size
    if groups > MAX_VALUES:
        return b""
    tags = [
        UNDECIDED if group in undecided else reward_tag(rewards[group * group_size : (group + 1) * group_size])
        for group in range(groups)
    ]
    return b"".join(tags)


def mean_logprobs(logprobs: Mapping[int, Sequence[np.ndarray]]) -> bytes:
    """group -> log-probabilities of its samples, to one float32 mean per group in ascending order."""
    if len(logprobs) > MAX_VALUES:
        return b""
    means = [float(np.concatenate(list(logprobs[group])).astype(np.float64).mean()) for group in sorted(logprobs)]
    return np.minimum(np.asarray(means, dtype="<f4"), 0.0).astype("<f4").tobytes()


def _tag(rewards: Sequence[float]) -> bytes:
    """Of a group in a report: without a reward it is one that the verdict leaves undecided."""
    return UNDECIDED if all(math.isnan(reward) for reward in rewards) else reward_tag(rewards)


def report_fault(report: ValidatorReport, message: Judgement, groups: int, group_size: int) -> str | None:
    """Why a report cannot be what the verdict speaks of, None if it is."""
    drawn = unpack_groups(message.checked, groups)
    present = sorted({row.group for row in report.rows})
    if drawn is None or not set(present) <= set(drawn):
        return "it holds groups that the verdict does not"
    # By their numbers, too: reports are compared row by row, and one that numbers them otherwise fits no file.
    samples: dict[int, list[int]] = {}
    for row in report.rows:
        samples.setdefault(row.group, []).append(row.sample)
    if any(numbers != [*range(group_size)] for numbers in samples.values()):
        return "it holds groups that are not whole"
    if len(message.rewards) != DIGEST * groups:
        return None if groups > MAX_VALUES else "the verdict carries no rewards"
    means = group_means(message, groups)
    for group in present:
        rows = [row for row in report.rows if row.group == group]
        if _tag([row.reward for row in rows]) != message.rewards[DIGEST * group : DIGEST * (group + 1)]:
            return f"its rewards of group {group} are not those of the verdict"
        mean = np.frombuffer(mean_logprobs({group: [np.asarray(r.logprobs, dtype=np.float32) for r in rows]}), "<f4")
        if group in means and not abs(float(mean[0]) - means[group]) <= 1e-4:
            return f"its log-probabilities of group {group} are not those of the verdict"
    return None


def rows_differ(ours: Sequence[ReportRow], theirs: Sequence[ReportRow], tolerance: float) -> VerdictConflict | None:
    """How two reports of one group contradict each other, token by token; None if both can be right.

    tolerance: nats per token between means, as in `AuditSpec.logprob_tolerance`. Both in the order of the samples.
    """
    rewards = [np.asarray([row.reward for row in rows], dtype="<f4") for rows in (ours, theirs)]
    if not np.array_equal(*rewards, equal_nan=True):
        return VerdictConflict(Conflict.CONTRADICTION, "the rewards are others", objective=True)
    if [len(row.logprobs) for row in ours] != [len(row.logprobs) for row in theirs]:
        return VerdictConflict(Conflict.CONTRADICTION, "the samples have other lengths", objective=True)
    values = [np.concatenate([np.asarray(row.logprobs, np.float64) for row in rows]) for rows in (ours, theirs)]
    gap = np.abs(values[0] - values[1])
    # How far one token may lie apart, in tolerances of a group's mean: bf16 kernels differ by up to 0.6 nats in single
    # tokens of 0.05 on average. A mean alone hides one token at -17 among 31 at 0.
    if gap.size and not (gap.max() <= 20.0 * tolerance and gap.mean() <= tolerance):
        what = f"log-probabilities differ by {gap.max():.3g} nats in one token, {gap.mean():.3g} on average"
        return VerdictConflict(Conflict.CONTRADICTION, what)
    return None
