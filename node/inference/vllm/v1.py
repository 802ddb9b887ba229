"""The replayable sampler as a logits processor of vLLM's first model runner, and the rows that this one is given."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor  # pyright: ignore[reportMissingImports]
from vllm.v1.sample.logits_processor.builtin import process_dict_updates  # pyright: ignore[reportMissingImports]

from node.inference.vllm.draws import RequestDraw, draw_of
from node.inference.vllm.hooks import Hooks

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]


class ReplayableSampler(LogitsProcessor):
    """Leaves a greedy sampler one choice a row: the token that the request's next uniform draws."""

    hooks: Hooks | None = None
    """of this process, once it has them (node.inference.vllm.worker)"""

    def __init__(self, vllm_config: "VllmConfig", device: "torch.device", is_pin_memory: bool) -> None:
        self._draws: dict[int, RequestDraw] = {}

    def is_argmax_invariant(self) -> bool:
        # True would let vLLM leave it out for greedy requests, and all of ours are greedy.
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._draws, batch_update, lambda params, _, output: draw_of(params.extra_args, output))

    def apply(self, logits: Tensor) -> Tensor:
        rows = [row for row in range(len(logits)) if row in self._draws]
        if rows and self.hooks is not None:
            draws = [self._draws[row] for row in rows]
            self.hooks.draw(logits, rows, draws, [len(draw.output) for draw in draws])
        return logits


def sampler_of(runner: Any) -> ReplayableSampler:
    """The one that vLLM made for this runner."""
    return next(one for one in runner.input_batch.logitsprocs.all if isinstance(one, ReplayableSampler))


def pieces(runner: Any) -> Iterator[tuple[str, int, int, int]]:
    """(request, first position, begin, end) of each request's part of the batch that is being computed."""
    batch, bounds = runner.input_batch, runner.query_start_loc.np
    for i, name in enumerate(batch.req_ids):
        yield name, int(batch.num_computed_tokens_cpu[i]), int(bounds[i]), int(bounds[i + 1])
