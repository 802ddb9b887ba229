"""A researcher's own loss, advantage and reward, as own_functions.toml names them: docs/environments.md."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.environments.registry import DatasetRow
from node.training.functions import AdvantageSamples
from node.training.losses import LossInputs
from protocol.recipe import Objective


def loss(tokens: LossInputs, objective: Objective) -> Tensor:
    """Policy gradient with a truncated importance weight: -min(r, cap) * A * log p."""
    ratio = torch.exp(tokens.logprobs.detach() - tokens.sampler_logprobs)
    return -ratio.clamp(max=objective.ratio_cap) * tokens.advantages * tokens.logprobs


def advantage(samples: AdvantageSamples) -> NDArray[np.float32]:
    """REINFORCE with the batch's mean as its baseline."""
    return samples.rewards - samples.rewards.mean()


def score(row: DatasetRow, answer: str) -> float:
    """1 for the right number, and the nearer the better: half a point for one beside it."""
    if not answer.strip().lstrip("-").isdigit():
        return 0.0
    return 1 / (1 + abs(int(answer) - int(row["answer"][0])))


def anything(row: DatasetRow, answer: str) -> float:
    """1 for whatever is said: of lengths.toml, where only the length counts."""
    return 1.0
