"""The model as the learner sees it: tokens in, log-probabilities of the sampled tokens out.

One forward pass does everything, embedding to log-probabilities, so that sharding (FSDP2) can wrap it as a whole; only
positions that were sampled reach the output head, a chunk at a time.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss
from torch.utils.checkpoint import checkpoint

from node.training.attention import NAME
from node.training.micro_batch import MicroBatch


class PolicyModel(nn.Module):
    """model: a causal language model of transformers."""

    def __init__(self, model: Any, temperature: float, logit_cells: int) -> None:
        super().__init__()
        self.model = model
        self._temperature = temperature
        self._cells = logit_cells

    def forward(self, batch: MicroBatch, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """(log-probability, entropy) of each sampled token, float32[n], in the distribution that was sampled from."""
        packing = {} if batch.pack is None else {"pack": batch.pack}
        config = self.model.config
        config._attn_implementation = NAME if packing else "sdpa"
        states = self.model.base_model(
            input_ids=batch.tokens, position_ids=batch.positions, use_cache=False, **packing
        ).last_hidden_state
        hidden = states.flatten(0, 1).index_select(0, batch.places)
        head = self.model.get_output_embeddings()
        size = max(1, self._cells // int(head.weight.shape[0]))
        if len(hidden) <= size:
            return self._read(head, hidden, batch.drawn, entropy_gradient)
        parts = []
        for at in range(0, len(hidden), size):
            arguments = (head, hidden[at : at + size], batch.drawn[at : at + size], entropy_gradient)
            recompute = torch.is_grad_enabled()
            parts.append(
                checkpoint(self._read, *arguments, use_reentrant=False) if recompute else self._read(*arguments)
            )
        logprobs, entropy = zip(*parts, strict=True)
        return torch.cat(logprobs), torch.cat(entropy)

    def _read(self, head: nn.Module, hidden: Tensor, drawn: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        weight: Any = head.weight
        logits = head(hidden.to(weight.dtype)).float() / self._temperature
        logs = torch.log_softmax(logits, dim=-1)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy = -(logs.exp() * logs).sum(-1)
        return -nll_loss(logs, drawn, reduction="none"), entropy
