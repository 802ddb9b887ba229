"""Rows that can be learnt from, and those that cannot: one bad report must neither poison a step nor end the run."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from node.training.batch import BatchRow
from node.training.errors import TrainingError
from protocol.routing import Routing
from protocol.routing import objection as odd_experts
from protocol.segments import objection


def usable_rows(
    rows: Sequence[BatchRow], vocabulary: int, routing: Routing | None = None
) -> tuple[list[BatchRow], Counter[str]]:
    """The good rows in order, and why others were left out: "empty", "vocabulary", "logprobs", "reward", "experts",
    "teacher".
    routing: of the model.

    Raises TrainingError if no row of a batch is usable: then something larger is wrong than a report.
    """
    kept: list[BatchRow] = []
    refused: Counter[str] = Counter()
    for row in rows:
        fault = _fault(row, vocabulary, routing)
        if fault is None:
            kept.append(row)
        else:
            refused[fault] += 1
    if rows and not kept:
        fault, count = refused.most_common(1)[0]
        raise TrainingError("nothing in a batch can be learnt from", _WHY[fault].format(count), _REMEDY[fault])
    return kept, refused


def _fault(row: BatchRow, vocabulary: int, routing: Routing | None) -> str | None:
    # First of all: the least and the most of nothing, below, would raise.
    if not row.prompt or not row.output or objection(row.segments, len(row.output)):
        return "empty"
    if row.length != len(row.sampler_logprobs):
        return "empty"
    tokens = (*row.prompt, *row.output)
    if min(tokens) < 0 or max(tokens) >= vocabulary:
        return "vocabulary"
    logprobs = np.asarray(row.sampler_logprobs)
    least_logprob = -1e4
    most_logprob = 1e-3  # rounding of a certain token's log-probability, a little above zero
    if not np.isfinite(logprobs).all() or logprobs.max() > most_logprob or logprobs.min() < least_logprob:
        return "logprobs"
    taught = np.asarray(row.teacher_logprobs)
    if len(taught) not in (0, row.length) or not np.isfinite(taught).all():
        return "teacher"
    if row.experts and odd_experts(row.experts, row.fed, routing):
        return "experts"
    return None if math.isfinite(row.reward) else "reward"


_WHY = {
    "empty": "{} rows have no output, no prompt, no proper turns, or another number of log-probabilities than tokens",
    "vocabulary": "{} rows have tokens outside the model's vocabulary",
    "logprobs": "{} rows have log-probabilities that are not finite, or above zero",
    "reward": "{} rows have a reward that is not finite",
    "teacher": "{} rows have a teacher's log-probabilities that are not finite, or not one for each sampled token",
    "experts": "{} rows name experts that the model does not have, or not of each of their tokens",
}
_REMEDY = {
    "empty": "see the validators' logs: their reports do not fit the rollouts",
    "vocabulary": "the run's model and tokenizer do not belong together, or the batch is another run's",
    "logprobs": "see the validators' logs: their engine computes with broken weights",
    "reward": "see the environment's scores: they must be finite numbers",
    "teacher": "see the validators' logs: they accepted a teacher's result that fits no rollout",
    "experts": "the run's model is not the one that made the rollouts, or the batch is another run's",
}
