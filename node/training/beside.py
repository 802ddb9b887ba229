"""The models beside the learner's, which learn nothing: the reference that KL is measured to, and the teacher that
[distill] names. All ranks ask both for every pass, since sharded ones are gathered by all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.inference.transfer import sent
from node.training.batch import BatchRow
from node.training.errors import TrainingError
from node.training.lora import without_adapters
from node.training.micro_batch import MicroBatch
from node.training.policy_model import PolicyModel
from node.training.settings import TrainerSettings
from node.training.sharding import fill, prepare_model
from node.training.world import World
from protocol.recipe import Recipe
from protocol.sections import Distill

Weights = Mapping[str, Tensor]


class Beside:
    """Of one learner, whose model and policy these are."""

    def __init__(
        self,
        model: Any,
        policy: PolicyModel,
        recipe: Recipe,
        temperature: float,
        settings: TrainerSettings,
        world: World,
        distill: Distill | None,
    ) -> None:
        self._model, self._policy, self._lora = model, policy, recipe.lora is not None
        self._measured = recipe.objective().reference_kl > 0
        self._temperature, self._settings, self._world, self._distill = temperature, settings, world, distill
        self._reference: PolicyModel | None = None
        self._teacher: PolicyModel | None = None

    @property
    def needs_reference(self) -> bool:
        """Whether a second model is needed; an adapter's reference is the model without it."""
        return self._measured and not self._lora

    def set_reference(self, model: Any, weights: Weights) -> None:
        """Give the model that KL is measured to; `model` is a fresh one like the learner's."""
        self._reference = self._held(model, weights)

    @property
    def has_teacher(self) -> bool:
        return self._teacher is not None

    def set_teacher(self, model: Any, weights: Weights) -> None:
        """Give the model that [distill] names, of any architecture, without memory like the learner's. Raises
        TrainingError for one with fewer tokens than the learner's."""
        tokens, known = vocabulary_of(model), vocabulary_of(self._model)
        if tokens < known:
            raise TrainingError(
                "the teacher does not fit the model",
                f"it has {tokens} tokens, and the model has {known}",
                "name a teacher with the same tokenizer in [distill]",
            )
        self._teacher = self._held(model, weights)

    def _held(self, model: Any, weights: Weights) -> PolicyModel:
        model.requires_grad_(False)
        policy = prepare_model(model, self._temperature, self._settings, self._world)
        for name, parameter in model.named_parameters():
            fill(parameter, weights[name])
        return policy

    @torch.no_grad()
    def reference(self, batch: MicroBatch) -> Tensor | None:
        """What the reference says of the sampled tokens, None where there is none."""
        if self._lora and self._measured:
            with without_adapters(self._model):
                return self._policy(batch)[0]
        return None if self._reference is None else self._reference(batch)[0]

    @torch.no_grad()
    def teacher(self, batch: MicroBatch, rows: Sequence[BatchRow]) -> Tensor | None:
        """Of the sampled tokens; experts on record are the policy's, not the teacher's."""
        if self._distill is None:
            return None
        if self._teacher is None and all(row.teacher_logprobs for row in rows):
            brought = [row.teacher_logprobs for row in rows]
            return sent(np.concatenate(brought).astype(np.float32), self._world.device) if rows else None
        assert self._teacher is not None  # whoever makes such a learner gives it
        return self._teacher(replace(batch, experts=None))[0]


def vocabulary_of(model: Any) -> int:
    """How many tokens it knows."""
    return int(model.get_output_embeddings().weight.shape[0])
