"""What a step says of itself: sums over loss tokens of all ranks, and plain facts about its rows."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.training.batch import BatchRow
from node.training.losses import mismatch_kl
from node.training.micro_batch import MicroBatch
from node.training.objective import Loss
from node.training.world import World

MASKS = ("clip_share", "mask_share", "sample_mask_share", "truncated_weight_share")
PER_TOKEN = ("entropy", "mismatch_kl", "kl", "teacher_kl", *MASKS)
"""Means over loss tokens; those that the objective does not have are left out."""


class LossTally:
    """Sums over this rank's loss tokens. own: names of what the run's own loss measures besides."""

    def __init__(self, own: Sequence[str] = ()) -> None:
        self._names = (*PER_TOKEN, *(name for name in own if name not in PER_TOKEN))
        self._tokens = 0
        self._real = 0
        self._computed = 0
        self._loss: list[Tensor] = []
        self._furthest: list[Tensor] = []
        self._sums: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, batch: MicroBatch, loss: Loss, entropy: Tensor) -> None:
        """What is found on a device stays there until it is asked for."""
        inputs = loss.inputs
        self._loss.append(loss.total.detach())
        self._tokens += len(inputs.logprobs)
        self._real += batch.real
        self._computed += batch.computed
        mismatch = mismatch_kl(inputs.logprobs, inputs.sampler_logprobs)
        told = {"entropy": entropy, "mismatch_kl": mismatch, **loss.found.metrics, **loss.extra}
        for name, values in told.items():
            self._sums[name].append(values.detach().sum().to(loss.total.device))
        self._furthest.append((inputs.logprobs.detach() - inputs.sampler_logprobs).max())

    def metrics(self, world: World, updates: int) -> dict[str, float]:
        """Over all ranks, which all have to call this. loss: mean over `updates` optimiser steps. What is a mean over
        trained tokens is absent where there were none."""
        losses, furthest, *found = _numbers([self._loss, self._furthest, *(self._sums[name] for name in self._names)])
        sums = [sum(losses), self._tokens, self._real, self._computed, *map(sum, found)]
        loss, tokens, real, computed, *per_token = world.sums([float(value) for value in sums])
        # math.exp raises OverflowError above 709.
        ratio_max = max([0.0, *(math.exp(min(one, 700.0)) for one in furthest)])
        # A rank that had no rows has measured nothing, and takes the word of the others for what there is.
        ratio_max, *known = world.maxima([ratio_max, *(float(bool(one)) for one in found)])
        means = {n: v / max(tokens, 1.0) for n, v, there in zip(self._names, per_token, known, strict=True) if there}
        return {
            "loss": loss / updates,
            **means,
            "ratio_max": ratio_max,
            "trained_tokens": tokens,
            "fed_tokens": real,
            "padding_share": 1 - real / computed if computed else 0.0,
        }


def _numbers(lists: Sequence[Sequence[Tensor]]) -> list[list[float]]:
    """Tensors of one number each, after one wait for the device that they are on."""
    every = [one.double() for some in lists for one in some]
    numbers = iter(torch.stack(every).tolist() if every else [])
    return [[next(numbers) for _ in some] for some in lists]


def describe(rows: Sequence[BatchRow]) -> dict[str, Any]:
    """Rewards, lengths and tokens of a batch's rows."""
    if not rows:
        return {"reward_mean": 0.0, "tokens": 0.0}
    lengths = [row.length for row in rows]
    solved = 1 - 1e-6
    facts: dict[str, Any] = {
        "reward_mean": float(np.mean([row.reward for row in rows])),
        "task_reward_mean": float(np.mean([row.solved for row in rows])),
        "pass_rate": float(np.mean([row.solved >= solved for row in rows])),
        "length_mean": float(np.mean(lengths)),
        "length_max": float(max(lengths)),
        "truncated_share": float(np.mean([not row.finished for row in rows])),
        "tokens": float(sum(lengths)),
    }
    by_environment: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        by_environment[row.environment].append(row.reward)
    if set(by_environment) != {""}:
        facts["reward_by_environment"] = {name: float(np.mean(found)) for name, found in by_environment.items()}
    return facts
