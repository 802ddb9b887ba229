"""What many scores say of a policy or of a problem: means with their errors, pass@k. Pure."""

import math
from collections.abc import Mapping, Sequence

import msgspec

SOLVED = 1.0
"""A score from which on a problem counts as solved."""


class Measures(msgspec.Struct, frozen=True):
    """problems, answers: how many were scored; undecided: problems without a score; mean: over problems of the mean
    score of their answers; standard_error: of that mean, from the spread between problems; pass_at: k -> the chance
    that of k answers at least one solves a problem. Figures of nothing are None."""

    problems: int
    answers: int
    undecided: int
    mean: float | None
    standard_error: float | None
    pass_at: dict[int, float | None]


def measure(scores: Mapping[str, Sequence[float]], ks: Sequence[int]) -> Measures:
    """scores: problem id -> scores of its answers."""
    decided = [list(found) for found in scores.values() if found]
    means = [sum(found) / len(found) for found in decided]
    mean = _mean(means)
    passes = {k: _mean([pass_at_k(found, k) for found in decided if len(found) >= k]) for k in ks}
    return Measures(
        problems=len(decided),
        answers=sum(map(len, decided)),
        undecided=len(scores) - len(decided),
        mean=mean,
        standard_error=None if mean is None else _standard_error(means, mean),
        pass_at=passes,
    )


def solve_rate(scores: Sequence[float]) -> float | None:
    """The share of the answers that solve the problem; None if none was scored."""
    return sum(score >= SOLVED for score in scores) / len(scores) if scores else None


def pass_at_k(scores: Sequence[float], k: int) -> float:
    """The unbiased estimate from n >= k answers (Chen et al. 2021, arXiv 2107.03374): 1 - C(n - c, k) / C(n, k)."""
    n, c = len(scores), sum(score >= SOLVED for score in scores)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _standard_error(means: Sequence[float], mean: float) -> float:
    """Of the mean over problems: answers to one problem are not independent, problems are."""
    n = len(means)
    return math.sqrt(sum((one - mean) ** 2 for one in means) / (n * (n - 1))) if n > 1 else 0.0
