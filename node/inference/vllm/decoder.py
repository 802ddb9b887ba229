"""Requests in flight inside of vLLM, as a decoder of ours."""

from typing import TYPE_CHECKING

from node.inference.engine import Completion, Request, Weights

if TYPE_CHECKING:
    from node.inference.vllm.engine import VllmEngine


class VllmDecoder:
    """`node.inference.engine.Decoder`. Decoders of one engine advance together: whoever steps, all are served."""

    def __init__(self, engine: "VllmEngine", temperature: float) -> None:
        self._engine, self._temperature = engine, temperature
        self._going: set[int] = set()
        self._ready: list[tuple[int, Completion]] = []

    def submit(self, request: Request) -> int:
        number = self._engine.begin(request, self._temperature, self)
        self._going.add(number)
        return number

    def cancel(self, number: int) -> None:
        if number in self._going:
            self._engine.abort(number)
            self._going.discard(number)

    def step(self) -> list[tuple[int, Completion]]:
        if self._going and not self._ready:
            self._engine.advance()
        ready, self._ready = self._ready, []
        self._going.difference_update(number for number, _ in ready)
        return ready

    def give(self, number: int, completion: Completion) -> None:
        """What the engine finished of this decoder's requests."""
        self._ready.append((number, completion))

    def swap(self, weights: Weights) -> None:
        """Go on with other weights between two tokens: `Completion.swaps` says where. What was computed of the
        sequences so far stays as it is. Raises EngineError, ModelError."""
        self._engine.load(weights, interrupt=True)

    def __len__(self) -> int:
        return len(self._going)

    @property
    def room(self) -> int:
        return self._engine.room
