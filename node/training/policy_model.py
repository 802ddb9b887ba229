"""The model as the learner sees it: tokens in, log-probabilities of the sampled tokens out.

One forward pass does everything, embedding to log-probabilities, so that sharding (FSDP2) can wrap it as a whole; only
positions that were sampled reach the output head, a chunk at a time.
"""

from typing import Any

from torch import Tensor, nn

from node.inference.architectures import logit_cap, logit_divisor, written_out
from node.training.attention import NAME
from node.training.delta import replace_delta_layers
from node.training.experts import Routers
from node.training.head import Slopes, sampled_logprobs
from node.training.micro_batch import MicroBatch


class PolicyModel(nn.Module):
    """model: a causal language model of transformers."""

    def __init__(self, model: Any, temperature: float, logit_cells: int) -> None:
        super().__init__()
        self.model = model
        self.routers = Routers(model)
        replace_delta_layers(model)
        self._temperature = temperature
        self._cells = logit_cells

    def forward(
        self, batch: MicroBatch, entropy_gradient: bool = False, slopes: Slopes | None = None
    ) -> tuple[Tensor, Tensor]:
        """(log-probability, entropy) of each sampled token, float32[n], in the distribution that was sampled from."""
        packing = {} if batch.pack is None else {"pack": batch.pack}
        config = self.model.config
        # At each pass: one model is given packed samples and padded ones.
        config._attn_implementation = NAME if packing else "eager" if written_out(config) else "sdpa"
        self.routers.give(batch.experts)
        states = self.model.base_model(
            input_ids=batch.tokens, position_ids=batch.positions, use_cache=False, **packing
        ).last_hidden_state
        hidden = states.flatten(0, 1).index_select(0, batch.places)
        head = self.model.get_output_embeddings()
        return sampled_logprobs(
            hidden,
            head.weight,
            getattr(head, "bias", None),
            batch.drawn,
            temperature=self._temperature * logit_divisor(config),
            cap=logit_cap(config),
            cells=self._cells,
            entropy_gradient=entropy_gradient,
            slopes=slopes,
        )
