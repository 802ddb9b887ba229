"""Reinforcement learning at a desk by several trainers that meet once a round: rounds as node.training.pretrainer has
them, whose inner steps learn from rollouts.

Each replica learns from its own share of them, batch by batch. The daemon puts these into the spool, each with the
manifest that it was made from: inner step n of replica s in round r is batch (r * peers + s) * inner_steps + n. A
contribution names its manifests by root, so whoever has the files can make its steps again.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from node.inference.start_weights import StartWeights
from node.training.batch import Batch, BatchRow, decode_batch, unusable
from node.training.inner import Inner
from node.training.learner import Learner
from node.training.pretrainer import RoundTrainer, peers_of
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.world import World
from protocol.blobs import describe
from protocol.run import RunSpec

SUMS = ("tokens", "trained_tokens", "fed_tokens", "micro_batches", "rejected_rows", "updates")
"""Metrics of a step that are added up over a round; of others the mean is told, or the largest (`*_max`)."""


class ReplicaLearner(Inner):
    """The learner of a run with one trainer, as whatever replica's it is."""

    def __init__(self, learner: Learner, settings: TrainerSettings, world: World) -> None:
        super().__init__(settings, world)
        self._learner, self.model, self.compiled = learner, learner.model, learner.compiled
        self.parameters, self.optimizers = learner.parameters, [learner.optimizer]

    def _new_optimizers(self) -> list[torch.optim.Optimizer]:
        # Emptied and not replaced: the learner steps with the one that it has.
        self._learner.optimizer.state.clear()
        return [self._learner.optimizer]

    def step(self, rows: Sequence[BatchRow], step: int) -> dict[str, Any]:
        """Make inner step `step`, counted over all rounds; its metrics. Raises TrainingError."""
        metrics = self._learner.step(rows, step)
        self._updates += metrics["updates"]
        return metrics

    def rate(self, step: int) -> float:
        return self._learner.learning_rate(step)

    @property
    def divisible(self) -> int:
        return self._learner.divisible


class ReplicaRounds(RoundTrainer):
    """A run that learns from rollouts."""

    _learner: ReplicaLearner

    def __init__(self, spool: Spool, run: RunSpec, settings: TrainerSettings, world: World) -> None:
        """Raises TrainingError, OwnCodeError."""
        super().__init__(spool, run, settings, world)
        rollout, assets = run.rollout, spool.assets
        most, inner = rollout.max_output_tokens, self._rules.inner_steps
        learner = Learner(
            self._new_model(), run.recipe, rollout.temperature, self._settings, world, most, assets, inner_steps=inner
        )
        if learner.beside.needs_reference:
            learner.beside.set_reference(self._new_model(), StartWeights(assets / "model"))
        self._learner = ReplicaLearner(learner, self._settings, world)
        self._batch = rollout.prompts_per_step * rollout.group_size
        self._peers = peers_of(spool, run)
        self._learnt: dict[str, int] = {}
        """Group -> the batch that it was learnt from, since this process began."""

    def _number(self, round_: int, replica_id: int, number: int) -> int:
        return (round_ * self._peers + replica_id) * self._rules.inner_steps + number

    def _inner_step(self, round_: int, replica_id: int, number: int) -> dict[str, Any]:
        place = self._number(round_, replica_id, number)
        with self._timed("wait"):
            data = self._world.hand_out(self._handed(place, number) if self._world.first else b"")
        batch = self._admit(decode_batch(data), round_, place)
        metrics = self._learner.step(batch.rows, round_ * self._rules.inner_steps + number)
        # a batch in which no group has a signal makes no update, and has no gradient
        return metrics | {name: metrics[name] or 0.0 for name in ("grad_norm", "grad_norm_max")}

    def _handed(self, place: int, number: int) -> bytes:
        """The batch of inner step `number` of a replica's round, as soon as it is there."""
        return self._spool.batch(place)

    def _is_used_up(self, files: Sequence[str], place: int) -> bool:
        """Whether a group was learnt from for another batch."""
        # The same place is no second use: steps that were broken off are made again.
        return any(self._learnt.get(one, place) != place for one in files)

    def _admit(self, batch: Batch, round_: int, place: int) -> Batch:
        """Only batches of this round, of rollouts that are fresh and that no replica has learnt from."""
        most, files = self._run.recipe.max_staleness, batch.header.files
        ages = [round_ - row.policy_step for row in batch.rows] or [-1]
        if batch.header.step != round_ or min(ages) < 0 or max(ages) > most:
            why = f"it is of round {batch.header.step}, with rollouts {min(ages)} to {max(ages)} old"
            raise unusable(f"batch {place}", why)
        if self._is_used_up(files, place) or len(set(files)) != len(files):
            raise unusable(f"batch {place}", "some of its groups were learnt from before")
        self._learnt |= dict.fromkeys(files, place)
        oldest = self._number(round_ - most, 0, 0)  # what is forgotten here is too stale to be admitted
        self._learnt = {one: at for one, at in self._learnt.items() if at >= oldest}
        return batch

    def _batches(self, round_: int, replica_id: int, count: int) -> tuple[bytes, ...]:
        places = (self._number(round_, replica_id, number) for number in range(count))
        found = (self._spool.works_path(place).read_bytes() if self._world.first else b"" for place in places)
        return tuple(describe(self._world.hand_out(data)).root for data in found)

    # What is told of a round

    def _said(self, steps: list[dict[str, Any]]) -> dict[str, Any]:
        return combined(steps) | super()._said(steps)

    def _apply(self, round_: int, peers: int) -> dict[str, Any]:
        metrics = super()._apply(round_, peers)
        del metrics["tokens"]  # of a contribution they are rollouts here
        told = combined(self._told(round_, peers))
        return told | metrics | {"updates": told["updates"], "rollouts": peers * self._rules.inner_steps * self._batch}

    def _rate(self, round_: int) -> float:
        return self._learner.rate((round_ + 1) * self._rules.inner_steps - 1)

    def _length(self, metrics: dict[str, Any]) -> float:
        share = metrics.get("fed_tokens", 0.0) / max(metrics.get("trained_tokens", 0.0), 1.0)
        return share * metrics.get("length_mean", 0.0)

    def _publish(self, round_: int, metrics: dict[str, Any]) -> None:
        super()._publish(round_, metrics | {"replicas": self._peers})

    def _forget(self, round_: int) -> None:
        super()._forget(round_)
        if self._world.first:
            self._spool.forget_batches(self._number(round_ - 1, 0, 0))


def combined(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What several steps, or several replicas, come to. A figure that some of them lack is that of the others; those by
    environment are the batch log's to tell."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in told for name in one):
        values = [one[name] for one in told if isinstance(one.get(name), int | float)]
        if values:
            reduced = sum if name in SUMS else max if name.endswith("_max") else np.mean
            found[name] = float(reduced(values))
    return found
