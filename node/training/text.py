"""Text for pre-training: the run's token streams, rows as packed passes, and the loss over them.

A row's documents are cut apart at end tokens and packed (node.training.attention): none sees another, and positions
begin anew with each. The loss is the mean cross-entropy in nats per token plus z_loss * mean log(Z)^2, computed a
chunk of positions at a time together with its gradient, so no more than `cells` logits exist.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from node.inference.architectures import logit_cap, logit_divisor
from node.inference.transfer import sent
from node.state.files import mapped
from node.training.attention import NAME, Pack
from node.training.errors import TrainingError
from node.training.micro_batch import MicroBatch, nothing
from node.training.settings import CPU_LOGIT_CELLS
from protocol.run import RunSpec
from protocol.text import Cursor, RowPlace, cursor_of, tokens_of

Rows = NDArray[np.int64]
"""int64[rows, sequence + 1]: each token with the next one as its target."""


class TextData:
    """The data sets of a run, mapped from its assets. peers share the cursor's places."""

    def __init__(self, run: RunSpec, root: bytes, assets: Path) -> None:
        """root: names the run, whatever its length. Raises TextError, OSError."""
        assert run.pretraining and run.diloco  # a run of this kind was checked for them
        text, rounds = run.pretraining, run.diloco
        self.names = [part.name for part in text.data]
        self._sequence, self._held_back = text.sequence, text.held_back
        self._streams = [tokens_of(mapped(assets / part.file)) for part in text.data]
        self._counts = [header.rows(text.sequence) for header, _ in self._streams]
        self.end = self._streams[0][0].end
        total = run.recipe.steps * rounds.round_steps
        self.cursor: Cursor = cursor_of(
            root + run.recipe.seed.to_bytes(16, "little", signed=True),
            [text.weights(annealing=annealing) for annealing in (False, True)],
            tuple(count - text.held_back for count in self._counts),
            anneals_from=text.decays_from(total),
            batch=rounds.batch_tokens // text.sequence,
            replicas=rounds.max_contributions,
        )

    def rows(self, replica_id: int, step: int) -> Rows:
        """What a replica learns from at an inner step, counted over all rounds."""
        return np.stack([self._row(place) for place in self.cursor.places(replica_id, step)])

    def held_back(self, part: int) -> Rows:
        """The last rows of a data set, which nobody is trained on."""
        last = self._counts[part]
        return np.stack([self._row(RowPlace(part, row)) for row in range(last - self._held_back, last)])

    def _row(self, place: RowPlace) -> NDArray[np.int64]:
        first = place.row * self._sequence
        return self._streams[place.part][1][first : first + self._sequence + 1].astype(np.int64)


def packed_rows(rows: Rows, end: int, device: torch.device) -> MicroBatch:
    """One pass over rows whose documents do not see each other; an empty one for no rows."""
    if not len(rows):
        return nothing(True, device)
    fed, targets = rows[:, :-1].reshape(-1), rows[:, 1:].reshape(-1)
    # A document ends with its end token: what stands behind it begins another one, and sees nothing of it.
    behind = np.flatnonzero(fed == end) + 1
    width = rows.shape[1] - 1
    starts = np.unique(np.concatenate([np.arange(0, fed.size, width), behind[behind < fed.size]]))
    lengths = np.diff(np.append(starts, fed.size))
    # By ascending length, as a pack wants its samples.
    order = np.argsort(lengths, kind="stable")
    taken = np.concatenate([np.arange(fed.size)[starts[i] : starts[i] + lengths[i]] for i in order])
    ends = lengths[order].cumsum()
    pack = Pack(lengths[order].tolist(), device)
    return MicroBatch(
        tokens=sent(fed[taken], device)[None],
        positions=sent(np.arange(fed.size) - np.repeat(ends - lengths[order], lengths[order]), device)[None],
        pack=pack,
        places=sent(np.arange(fed.size), device),
        drawn=sent(targets[taken], device),
        real=fed.size,
        computed=pack.padded,
    )


class TextModel(nn.Module):
    """model: a causal language model of transformers, with its loss; sharding wraps the two as a whole."""

    def __init__(self, model: Any, logit_cells: int) -> None:
        super().__init__()
        if logit_cap(model.config) is not None or logit_divisor(model.config) != 1:
            why = f"the logits of {model.config.model_type} are scaled or capped, which only its rollouts' loss knows"
            raise TrainingError("this model cannot be pre-trained", why, "begin with another architecture")
        self.model = model
        self._cells = logit_cells

    def forward(self, batch: MicroBatch, scale: float, z_loss: float) -> tuple[Tensor, Tensor]:
        """(scale * the loss's sum over the tokens, its parts: float32[2], sums of cross-entropy and of log(Z)^2)."""
        self.model.config._attn_implementation = NAME
        hidden = self.model.base_model(
            input_ids=batch.tokens, position_ids=batch.positions, use_cache=False, pack=batch.pack
        ).last_hidden_state[0]
        head = self.model.get_output_embeddings()
        cells = min(self._cells, CPU_LOGIT_CELLS) if hidden.device.type == "cpu" else self._cells
        size = max(1, cells // head.weight.shape[0])
        found: Any = _CrossEntropy.apply(
            hidden, head.weight, getattr(head, "bias", None), batch.drawn, scale, z_loss, size
        )
        return found


class _CrossEntropy(torch.autograd.Function):
    """The gradient is known as soon as the logits are: d/dz of -l + w log(Z)^2 is p * (1 + 2 w log Z) - 1[target]."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        scale: float,
        z_loss: float,
        size: int,
    ) -> tuple[Tensor, Tensor]:
        needed = ctx.needs_input_grad[:3]
        grads = [
            torch.zeros_like(one) if need and one is not None else None
            for one, need in zip((hidden, weight, bias), needed, strict=True)
        ]
        sums = torch.zeros(2, device=hidden.device)
        # A few rows at a time: the logits of all of them would take more memory than the model.
        for at in range(0, len(hidden), size):
            cut = slice(at, at + size)
            given = hidden[cut].to(weight.dtype)
            logits = linear(given, weight, bias).float()
            log_total = torch.logsumexp(logits, -1)
            drawn = targets[cut, None]
            sums[0] += (log_total - logits.gather(1, drawn)[:, 0]).sum()
            sums[1] += log_total.square().sum()
            if any(needed):
                slope = torch.exp(logits.sub_(log_total[:, None]), out=logits)
                slope.mul_((1 + 2 * z_loss * log_total)[:, None])
                slope.scatter_add_(1, drawn, torch.full_like(drawn, -1, dtype=slope.dtype))
                _add(grads, cut, slope.mul_(scale).to(weight.dtype), given, weight)
        ctx.grads = grads
        ctx.mark_non_differentiable(sums)
        return scale * (sums[0] + z_loss * sums[1]), sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_loss: Tensor, by_sums: Tensor) -> tuple[Tensor | None, ...]:
        # Let go at once: one of them is as large as the head.
        grads, ctx.grads = ctx.grads, None
        return *(None if grad is None else grad.mul_(by_loss.to(grad.dtype)) for grad in grads), None, None, None, None


def _add(grads: list[Tensor | None], cut: slice, slope: Tensor, hidden: Tensor, weight: Tensor) -> None:
    by_hidden, by_weight, by_bias = grads
    if by_hidden is not None:
        by_hidden[cut] = (slope @ weight).to(by_hidden.dtype)
    if by_weight is not None:
        by_weight.addmm_(slope.t(), hidden)
    if by_bias is not None:
        by_bias += slope.sum(0)
