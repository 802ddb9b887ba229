"""The same for vLLM's second model runner, which has another interface for logits processors.

Written from its source (0.32.0) and tried on no GPU: node.inference.vllm.arguments asks for the first runner unless
VLLM_USE_V2_MODEL_RUNNER=1 is set.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor, LogitsProcRequestState  # pyright: ignore[reportMissingImports]

from node.inference.vllm.draws import Draw, draw_of
from node.inference.vllm.hooks import Hooks

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import SamplingParams  # pyright: ignore[reportMissingImports]


class ReplayableSampler(LogitsProcessor):
    """Leaves a greedy sampler one choice a row: the token that the request's next uniform draws."""

    hooks: Hooks | None = None

    def __init__(self, vllm_config: "VllmConfig", req_states: LogitsProcRequestState) -> None:
        self._states = req_states
        self._draws: dict[int, Draw] = {}

    def add_request(self, req_idx: int, sampling_params: "SamplingParams") -> bool:
        # A slot is given on, perhaps to a request that brings no draws.
        self._draws.pop(req_idx, None)
        draw = draw_of(sampling_params.extra_args)
        if draw is not None:
            self._draws[req_idx] = draw
        return draw is not None

    def apply(self, logits: Tensor, ctx: LogitsContext) -> Tensor:
        """A row's position is that of the token before the one to draw; inside of a prompt nothing is drawn."""
        slots, positions = ctx.expanded_idx_mapping.tolist(), ctx.pos.tolist()
        places = [at + 1 - int(self._states.prompt_len.np[slot]) for slot, at in zip(slots, positions, strict=True)]
        rows = [row for row, slot in enumerate(slots) if slot in self._draws and places[row] >= 0]
        if rows and self.hooks is not None:
            self.hooks.draw(logits, rows, [self._draws[slots[row]] for row in rows], [places[row] for row in rows])
        return logits


def sampler_of(runner: Any) -> ReplayableSampler:
    """The one that vLLM made for this runner."""
    return next(one for one in runner.sampler.logits_processors if isinstance(one, ReplayableSampler))
