"""One optimiser step: batch in, new weights out.

Knows the model, the loss and the optimiser; knows nothing of files, processes or time. The same numbers
come out for the same numbers in (one thread, CPU): the trainer's exact resume rests on that.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from node.training.advantages import group_advantages
from node.training.batch import BatchRow
from node.training.errors import TrainingError
from node.training.losses.intellect2 import token_loss
from protocol.run import Recipe

BETAS = (0.9, 0.95)
"""AdamW's. A second-moment memory of 20 steps follows the gradient's size as groups become uniform (0.999 learnt
more slowly and less evenly over seeds, see benchmarks/recipe.py)."""
MICRO_BATCH_TOKENS = 1 << 14
"""Most padded tokens in one forward and backward pass."""


class Learner:
    """A model with fp32 master weights and AdamW."""

    def __init__(self, model: Any, recipe: Recipe, temperature: float) -> None:
        self.model = model
        self._head = model.get_output_embeddings()
        self._recipe = recipe
        self._temperature = temperature
        self.parameters: dict[str, Tensor] = dict(sorted(model.named_parameters()))
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=recipe.learning_rate,
            betas=BETAS,
            weight_decay=recipe.weight_decay,
            fused=True,
        )

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, then linear decay to zero over `decay_steps` (0: constant)."""
        recipe = self._recipe
        rate = recipe.learning_rate * min(1.0, (step + 1) / max(recipe.warmup_steps, 1))
        return rate * (max(0.0, 1 - step / recipe.decay_steps) if recipe.decay_steps else 1.0)

    def step(self, rows: Sequence[BatchRow], step: int) -> dict[str, float]:
        """Take optimiser step `step`; returns metrics. Raises TrainingError if a number is not finite."""
        advantages = group_advantages(
            np.array([row.group_key for row in rows]), np.array([row.reward for row in rows], dtype=np.float32)
        )
        tokens = sum(len(row.output) for row in rows)
        self.optimizer.zero_grad(set_to_none=True)
        totals: dict[str, float] = dict.fromkeys(("loss", "entropy", "clipped", "counted"), 0.0)
        ratio_max = 0.0
        for micro in _micro_batches(rows, np.flatnonzero(advantages)):
            parts = self._backward([rows[i] for i in micro], advantages[micro], tokens)
            ratio_max = max(ratio_max, parts.pop("ratio_max"))
            for name, value in parts.items():
                totals[name] += value
        grad_norm = self._update(step) if totals["counted"] else 0.0
        counted = max(totals["counted"], 1.0)
        return {
            "loss": totals["loss"] / max(tokens, 1),
            "reward_mean": float(np.mean([row.reward for row in rows])) if rows else 0.0,
            "grad_norm": grad_norm,
            "learning_rate": self.learning_rate(step),
            "entropy": totals["entropy"] / counted,
            "clip_share": totals["clipped"] / counted,
            "ratio_max": ratio_max,
            "tokens": float(tokens),
            "informative_share": len(np.flatnonzero(advantages)) / max(len(rows), 1),
        }

    def _backward(self, rows: Sequence[BatchRow], advantages: np.ndarray, tokens: int) -> dict[str, float]:
        """Accumulate the gradient of sum(token losses) / `tokens` (the whole batch's count, so packing is neutral)."""
        logprobs, entropy = self.logprobs(rows)
        lengths = torch.tensor([len(row.output) for row in rows])
        sampler = torch.tensor(np.concatenate([row.sampler_logprobs for row in rows]), dtype=torch.float32)
        advantage = torch.repeat_interleave(torch.from_numpy(advantages), lengths)
        recipe = self._recipe
        loss = token_loss(
            logprobs, sampler, advantage, low=recipe.clip_low, high=recipe.clip_high, cap=recipe.ratio_cap
        )
        total = loss.loss.sum()
        (total / tokens).backward()
        return {
            "loss": float(total.detach()),
            "entropy": float(entropy.sum()),
            "clipped": float(loss.clipped.sum()),
            "counted": float(len(logprobs)),
            "ratio_max": float(loss.ratio.max()),
        }

    def logprobs(self, rows: Sequence[BatchRow]) -> tuple[Tensor, Tensor]:
        """(logprob, entropy) float32[sum of output lengths]; the entropy carries no gradient.

        Rows are padded on the right, where a causal model cannot see it, so no mask is needed.
        """
        fed = [[*row.prompt, *row.output[:-1]] for row in rows]
        tokens = torch.zeros(len(fed), max(map(len, fed)), dtype=torch.long)
        for i, ids in enumerate(fed):
            tokens[i, : len(ids)] = torch.tensor(ids)
        counts = [len(row.output) for row in rows]
        sample = torch.repeat_interleave(torch.arange(len(fed)), torch.tensor(counts))
        place = torch.cat([torch.arange(len(ids) - n, len(ids)) for ids, n in zip(fed, counts, strict=True)])
        drawn = torch.tensor(np.concatenate([row.output for row in rows]))
        hidden = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        logits = self._head(hidden[sample, place]).float() / self._temperature
        logs = torch.log_softmax(logits, dim=-1)
        with torch.no_grad():
            entropy = -(logs.exp() * logs).sum(-1)
        return logs.gather(1, drawn[:, None])[:, 0], entropy

    def _update(self, step: int) -> float:
        """Clip, step, and return the gradient's norm before clipping."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), self._recipe.grad_clip))
        if not math.isfinite(norm):
            raise TrainingError(
                f"training diverged at step {step}",
                f"the gradient's norm is {norm}",
                "lower recipe.learning_rate and start the run again from an earlier checkpoint",
            )
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        self.optimizer.step()
        return norm

    @torch.no_grad()
    def image(self) -> dict[str, Tensor]:
        """The weights as bf16 tensors: what is published, and what samplers use."""
        return {name: tensor.to(torch.bfloat16) for name, tensor in self.parameters.items()}

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])


def _micro_batches(rows: Sequence[BatchRow], which: np.ndarray) -> Iterator[np.ndarray]:
    """Indices of rows, of similar length together, at most MICRO_BATCH_TOKENS padded tokens at a time."""
    width = np.array([len(row.prompt) + len(row.output) for row in rows])
    order = which[np.argsort(width[which], kind="stable")]
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * width[order[end]] > MICRO_BATCH_TOKENS:
            yield order[start:end]
            start = end
