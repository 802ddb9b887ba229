"""One rollout step: batch in, new weights out, in one or several optimiser steps.

Knows the model, the objective and the optimiser; knows nothing of files or time, and of other processes only that they
hold shards and take their part of each batch. The same numbers come out for the same numbers in (one machine, one
world size): the trainer's exact resume rests on that.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from node.inference.transfer import sent
from node.training.batch import BatchRow
from node.training.beside import Beside, Weights, vocabulary_of
from node.training.compiling import compiled_by, make_graphs
from node.training.decay import decay_groups
from node.training.errors import TrainingError
from node.training.experts import describe_experts
from node.training.functions import functions_of
from node.training.lora import add_adapters
from node.training.losses import log_ratio
from node.training.memory import during
from node.training.micro_batch import MicroBatch, nothing, of_zeros, packed, padded
from node.training.objective import Loss, TokenSignals, loss_of, slopes_of
from node.training.packing import plan, plan_padded
from node.training.policy_model import PolicyModel
from node.training.rows import usable_rows
from node.training.settings import TrainerSettings
from node.training.sharding import ActivationsOnCpu, decoder_layers, fill, prepare_model, whole
from node.training.tally import LossTally, describe
from node.training.updates import Update, Updates
from node.training.world import World, compute_dtype
from protocol.lora import LORA_B
from protocol.recipe import Recipe
from protocol.sections import Distill

NO_TIMING: Any = lambda name: nullcontext()


class Learner:
    """A model with fp32 master weights and AdamW, sharded over the world if that has a mesh.

    With recipe.lora only the adapters' tensors are parameters; the rest is frozen and stays the start model's.
    """

    def __init__(
        self,
        model: Any,
        recipe: Recipe,
        temperature: float,
        settings: TrainerSettings | None = None,
        world: World | None = None,
        max_output_tokens: int = 1,
        assets: Path | None = None,
        inner_steps: int = 1,
        distill: Distill | None = None,
    ) -> None:
        """assets: where the source of the recipe's own functions lies; inner_steps: from one policy to the next, which
        several trainers make by themselves; distill: such a learner needs a teacher before its first step, unless all
        rows bring what theirs says. Raises OwnCodeError, TrainingError for an adapter that does not fit the model,
        and CannotCompile."""
        self._recipe = recipe
        self._objective = recipe.objective()
        self._functions = functions_of(self._objective, assets)
        self._settings = settings or TrainerSettings()
        self._world = world or World()
        self._inner_steps = inner_steps
        self._updates = Updates(recipe, self._functions, max_output_tokens, distilled=distill is not None)
        self.micro_batch_tokens = self._settings.micro_batch_tokens
        self.divisible = 0
        """Tokens of the last step's largest pass that a smaller `micro_batch_tokens` would make smaller; 0: none."""
        self.model = model
        self.vocabulary = vocabulary_of(model)
        if recipe.lora:
            sharded = self._world.mesh is not None
            # Only a mesh casts weights on the way: without one the frozen ones have the type of all others.
            dtype = compute_dtype(self._settings, self._world.device) if sharded else torch.float32
            add_adapters(model, recipe.lora, dtype)
        self.compiled = compiled_by(model, self._settings, self._world)
        """What compiles its layers; empty where they run eagerly."""
        compiles = bool(self.compiled)
        self.policy: PolicyModel = prepare_model(model, temperature, self._settings, self._world, compiles=compiles)
        if compiles:
            packing, device = self._settings.packing, self._world.device
            make_graphs(
                self.policy,
                lambda tokens: self.policy(of_zeros(tokens, packing, device))[0].sum(),
                self._settings.compile_seconds,
            )
        self._distill = distill
        self.beside = Beside(model, self.policy, recipe, temperature, self._settings, self._world, distill)
        # By name: AdamW's state and the published image must not depend on the order of modules.
        named: list[tuple[str, Tensor]] = sorted(model.named_parameters())
        self.parameters = {name: tensor for name, tensor in named if tensor.requires_grad}
        self.frozen = {name: tensor for name, tensor in named if not tensor.requires_grad}
        on_gpu = self._world.device.type == "cuda" and not self._settings.offload_parameters
        self.optimizer = torch.optim.AdamW(
            decay_groups(self.parameters.values(), recipe.weight_decay),
            lr=recipe.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            fused=self._world.mesh is None or on_gpu,
        )

    @property
    def updates(self) -> int:
        """How many steps AdamW has taken."""
        return next((int(slots["step"]) for slots in self.optimizer.state.values() if slots), 0)

    def restore_optimizer(self, updates: int, moments: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put AdamW back after `updates` steps. moments: parameter name -> its two moments, shards like its own."""
        self.optimizer.state.clear()
        for name, slots in moments.items():
            parameter = self.parameters[name]
            # The fused kernel reads the count where the parameter is; the other one wants it on the CPU.
            place = parameter.device if self.optimizer.defaults["fused"] else torch.device("cpu")
            count = torch.tensor(float(updates), device=place)
            self.optimizer.state[parameter] = {"step": count, **slots}

    def learning_rate(self, step: int, update: int = 0) -> float:
        """Linear warm-up, then linear decay to zero over `decay_steps` (0: constant), both counted in policies;
        interpolated between inner steps and updates. step: inner steps so far, of all policies."""
        recipe, share = self._recipe, 1 / (self._recipe.updates_per_step * self._inner_steps)
        now = step / self._inner_steps + update * share
        rate = recipe.learning_rate * min(1.0, (now + share) / max(recipe.warmup_steps, share))
        return rate * (max(0.0, 1 - now / recipe.decay_steps) if recipe.decay_steps else 1.0)

    def step(self, rows: Sequence[BatchRow], step: int, timing: Any = NO_TIMING) -> dict[str, Any]:
        """Turn policy `step` into policy `step + 1`, or make inner step `step`, counted over all policies; returns
        metrics. timing(name): a context that is timed.

        A batch in which nothing has a signal makes no update: what is measured at updates is then None or absent.

        Raises TrainingError if a number is not finite, if memory runs out, or if no row is usable.
        """
        # A row that cannot be used is counted, not raised: one bad file must not end a run.
        good, refused = usable_rows(rows, self.vocabulary, self.policy.routers.routing)
        with timing("pack"):
            updates = self._planned(self._updates.of(good, step))
        self.divisible = max(
            (
                sum(update.rows[i].fed for i in members)
                for update in updates
                for together in update.rounds
                for members in together
                if len(members) > 1
            ),
            default=0,
        )
        tally = LossTally(self._functions.metrics)
        norms: list[float] = []
        taught = len(good) if self._distill else sum(np.count_nonzero(u.advantages) for u in updates)
        # What holds the weights as they were belongs to the optimiser: it is as large in any pass.
        with during("optimizer", self._settings, step):
            self._find_proximal(updates, step)
            for number, update in enumerate(updates):
                # Not even with a gradient of zero: AdamW would still move the weights, by its moments and its decay.
                if not update.rounds:
                    continue
                with timing("forward_backward"), self.published():
                    self.optimizer.zero_grad(set_to_none=True)
                    for place in range(len(update.rounds)):
                        version = (step + number / len(updates)) / self._inner_steps
                        self._backward(update, place, version, tally, step)
                with timing("optimizer"):
                    norms.append(self._apply(step, number))
        return {
            **tally.metrics(self._world, max(len(updates), 1)),
            **describe(good),
            **describe_experts(good, self.policy.routers.routing),
            "grad_norm": float(np.mean(norms)) if norms else None,
            "grad_norm_max": max(norms, default=None),
            "learning_rate": self.learning_rate(step),
            "updates": len(norms),
            "micro_batches": sum(len(update.rounds) for update in updates),
            "informative_share": taught / max(len(rows), 1),
            "rejected_rows": sum(refused.values()),
        }

    def group_gradients(self, rows: Sequence[BatchRow], step: int) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """(group, its part of the gradient of `step` before clipping, by parameter), of each group that has one. Their
        sum is what a step with one update applies. No parameter changes; the tensors are valid until the next one."""
        good, _ = usable_rows(rows, self.vocabulary, self.policy.routers.routing)
        # Runs with several updates a step have none: audits say undecided of them before they come here.
        (update,) = self._updates.of(good, step)
        groups = np.array([row.group_key for row in update.rows])
        for group in np.unique(groups):
            own = np.flatnonzero(groups == group)
            # Weights were made over the whole batch, so the parts add up to its gradient.
            rows_of = [update.rows[i] for i in own]
            (part,) = self._planned([Update(rows_of, update.advantages[own], update.weights[own])])
            self.optimizer.zero_grad(set_to_none=True)
            with self.published():
                for place in range(len(part.rounds)):
                    self._backward(part, place, step, LossTally(self._functions.metrics), step)
            yield int(group), {n: p.grad.detach() for n, p in self.parameters.items() if p.grad is not None}
        self.optimizer.zero_grad(set_to_none=True)

    # What each update learns from

    def _planned(self, updates: list[Update]) -> list[Update]:
        """The same, with the rounds of passes that each is made of."""
        settings, ranks = self._settings, self._world.size
        for update in updates:
            fed = np.array([row.fed for row in update.rows], dtype=np.int64)
            if settings.packing:
                update.rounds = plan(fed, self.micro_batch_tokens, ranks, int(self.model.config.hidden_size))
            else:
                update.rounds = plan_padded(fed, self.micro_batch_tokens, ranks)
        return updates

    def _find_proximal(self, updates: Sequence[Update], step: int) -> None:
        """For losses that keep to the policy before the first update: its log-probs for all later ones."""
        objective = self._objective
        if not self._functions.needs_proximal or objective.proximal != "recompute":
            return
        # The first update's policy is the proximal one itself, so only later ones need its numbers.
        with torch.no_grad(), self.published(), during("forward", self._settings, step):
            for update in updates[1:]:
                for members in update.rounds:
                    rows = [update.rows[i] for i in members[self._world.rank]]
                    update.proximal.append(self.policy(self._micro_batch(rows))[0])

    # Gradient

    @contextmanager
    def published(self) -> Iterator[None]:
        """Inside, weights are what the published policy has: rounded to bf16, as engines compute with them.

        A step moves a weight by about the learning rate, which is often less than half of its last bit in bf16. With
        the unrounded ones the learner is another policy than the one that it learns from: SmolLM2 at 2e-5 had a
        mismatch KL of 0.04 to 0.28 so. Gradients are of the rounded weights and go to the
        unrounded ones, as where layers compute in bf16."""
        with torch.no_grad():
            kept = {name: parameter.detach().clone() for name, parameter in self._wide()}
            for name, weights in kept.items():
                self.parameters[name].copy_(self._rounded(name, weights))
        try:
            yield
        finally:
            with torch.no_grad():
                for name, weights in kept.items():
                    self.parameters[name].copy_(weights)

    def _wide(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters whose passes would not round them."""
        narrow = set[Tensor]()
        if self._world.mesh is not None and compute_dtype(self._settings, self._world.device) == torch.bfloat16:
            rounding = decoder_layers(self.model) if self._settings.fp32_logits else [self.model]
            narrow = {parameter for module in rounding for parameter in module.parameters()}
        return ((name, parameter) for name, parameter in self.parameters.items() if parameter not in narrow)

    def _rounded(self, name: str, weights: Tensor) -> Tensor:
        # The scale is in what was published, and the layer multiplies by it once more.
        rounded, scale = self.as_published(name, weights).bfloat16(), self._scale(name)
        return rounded if scale == 1 else rounded.float() / scale

    def _backward(self, update: Update, place: int, version: float, tally: LossTally, step: int) -> None:
        """Accumulate the gradient of this rank's share of one round."""
        with during("forward", self._settings, step):
            total, told = self._forward(update, place, version)
        with during("backward", self._settings, step):
            total.backward()
        if told is not None:
            tally.add(*told)

    def _forward(
        self, update: Update, place: int, version: float
    ) -> tuple[Tensor, tuple[MicroBatch, Loss, Tensor] | None]:
        """(what the gradient is of, what is told of it): the latter None where nothing is left for this rank."""
        members = update.rounds[place][self._world.rank]
        rows = [update.rows[i] for i in members]
        batch = self._micro_batch(rows)
        functions, objective, scale = self._functions, self._objective, self._world.size
        reference = self.beside.reference(batch)  # also without rows: a sharded reference is gathered by all ranks
        teacher = self.beside.teacher(batch, rows)
        known = self._known(update, place, members, reference, teacher, version) if rows else None
        slopes = slopes_of(functions, objective, known, scale) if known else None
        pinned = self._world.device.type == "cuda"
        with ActivationsOnCpu(pinned=pinned) if self._settings.offload_activations else nullcontext():
            logprobs, entropy = self.policy(batch, objective.entropy_bonus > 0, slopes)
        if known is None:  # the others wait for this rank's part of the collectives
            return logprobs.sum() * 0.0, None
        loss = loss_of(functions, objective, known, logprobs, entropy)
        # FSDP averages over ranks; the weights already count all of them.
        return loss.total * scale, (batch, loss, entropy)

    def _known(
        self,
        update: Update,
        place: int,
        members: NDArray[np.int64],
        reference: Tensor | None,
        teacher: Tensor | None,
        version: float,
    ) -> TokenSignals:
        rows, device = [update.rows[i] for i in members], self._world.device
        sampler = sent(np.concatenate([row.sampler_logprobs for row in rows]).astype(np.float32), device)
        advantages, closer = per_token(update.advantages[members], rows, device), None
        if self._distill is not None and teacher is not None:
            closer = log_ratio(teacher, sampler)
            advantages = self._distill.rewards * advantages + self._distill.coefficient * closer
        ages = None
        if self._functions.needs_proximal and self._objective.proximal == "loglinear":
            old = np.array([version - row.policy_step for row in rows]).clip(min=0)
            ages = per_token(old, rows, device).float()
        return TokenSignals(
            sampler,
            advantages,
            per_token(np.arange(len(rows)), rows, device),
            per_token(update.weights[members], rows, device),
            ages,
            update.proximal[place] if update.proximal else None,
            reference,
            None if closer is None else -closer,
        )

    def _micro_batch(self, rows: Sequence[BatchRow]) -> MicroBatch:
        if not rows:
            return nothing(self._settings.packing, self._world.device)
        return (packed if self._settings.packing else padded)(rows, self._world.device, self.policy.routers.routing)

    def logprobs(self, rows: Sequence[BatchRow]) -> tuple[Tensor, Tensor]:
        """(logprob, entropy) float32[sampled tokens], in the rows' order; the entropy carries no gradient."""
        return self.policy(padded(rows, self._world.device, self.policy.routers.routing))

    # Update

    def _apply(self, step: int, number: int) -> float:
        """Clip, step, and return the gradient's norm before clipping."""
        found: Any = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self._recipe.grad_clip)
        norm = float(found.full_tensor() if isinstance(found, DTensor) else found)
        # Before the weights change: the last checkpoint and the published policy stay sound.
        if not math.isfinite(norm):
            raise TrainingError(
                f"training diverged at step {step}",
                f"the gradient's norm is {norm}",
                "lower recipe.learning_rate and start the run again from an earlier checkpoint",
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step, number)
        self.optimizer.step()
        return norm

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the whole tensors, whatever part of them is here."""
        return {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights as bf16 tensors, one at a time and in name order, where they are: what is published.

        All ranks take part in each; whoever lets go of one before it asks for the next has one in memory. Ranks do not
        write their own slices: the digest needs all bytes in order on one host, and hosts share no disk.
        """
        for name, parameter in self.parameters.items():
            yield name, whole(self.as_published(name, parameter), torch.bfloat16)

    def image(self) -> dict[str, Tensor]:
        """All of them at once, on the first rank's CPU; the others get an empty dictionary."""
        found: dict[str, Tensor] = {}
        for name, tensor in self.tensors():
            if self._world.first:
                found[name] = tensor.cpu()
        return found

    @torch.no_grad()
    def as_published(self, name: str, tensor: Tensor) -> Tensor:
        """An adapter's scale goes into its second matrix: see protocol.lora."""
        scale = self._scale(name)
        return tensor if scale == 1 else tensor * scale

    def as_learnt(self, name: str, tensor: Tensor) -> Tensor:
        """The other way."""
        scale = self._scale(name)
        return tensor if scale == 1 else tensor / scale

    def _scale(self, name: str) -> float:
        lora = self._recipe.lora
        return lora.scale if lora and name.endswith(LORA_B) else 1.0

    @torch.no_grad()
    def load_weights(self, weights: Weights) -> None:
        """What learns, as it starts: policies of adapters have the scale in them, which parameters have not."""
        for name, parameter in self.parameters.items():
            fill(parameter, weights[name])

    @torch.no_grad()
    def load_frozen(self, weights: Weights) -> None:
        """What does not learn: nothing, but for adapters."""
        for name, parameter in self.frozen.items():
            fill(parameter, weights[name])


def per_token(values: NDArray[Any], rows: Sequence[BatchRow], device: torch.device) -> Tensor:
    """(tokens,): a value of each row, at each of its tokens."""
    return sent(np.repeat(values, [row.length for row in rows]), device)
