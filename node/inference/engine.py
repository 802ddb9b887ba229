"""The interface of an inference engine: weights in, tokens and activations out.

An engine knows one model architecture and swaps weight images in and out. It knows nothing of policies,
problems, files or the network: seeds become uniforms and rows become proofs elsewhere.

Conventions, the same for every engine:
- output[t] is drawn from the logits at the position before it by `protocol.sampling`;
- *heads* are the inputs of the output head (after the final norm), as bf16 bits: heads[t] is what output[t] was drawn
  from. *Rows*, which are proven, are all but the first, as in the published core: n output tokens have n-1 rows;
- *experts* are those that computed each token of prompt and output without the last, uint8[n, width] as in
  protocol.routing: a request and a finished sequence may bring some of them along, and are computed with these;
- `prefill` recomputes the same heads, and the sampling interval of every sampled token, in one pass.

Many requests are in flight at a time: a decoder takes them whenever there is room and gives each completion as soon as
it ends. What a request gets does not depend on what else is in flight, up to rounding.

An engine gives one answer. Rollouts of several turns are made of them, each from a prompt that holds all tokens before
it (node.inference.turns); only `prefill` sees them whole.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from node.inference.layers import PatchFile
from node.inference.proofs import ProofRows
from protocol.routing import Routing
from protocol.segments import sampled_tokens

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]

Weights = Mapping[str, Any]
"""Tensor name -> the engine's own representation, as returned by `Engine.read`."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """prompt: token ids, at least one; uniforms: float64[max output tokens], one per token to draw; experts: of the
    prompt's first tokens, which were computed before; adapter: the name of one that is held (`Apart`); rows: where
    heads go instead of into the completion, if the engine can; on_progress: hears each token as it is drawn, at once
    and in the engine's thread, and ends the answer by True, if the engine can."""

    prompt: Sequence[int]
    uniforms: F64
    experts: U8 | None = None
    adapter: bytes = b""
    rows: ProofRows | None = None
    on_progress: Callable[[int], bool] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """output: token ids, at least one; finished: ended by an end token; heads: uint16[n, hidden];
    experts: None of a model that has none; kept: the request's rows, with those of the output: heads has none then."""

    output: list[int]
    finished: bool
    heads: U16
    experts: U8 | None = None
    kept: ProofRows | None = None

    @property
    def rows(self) -> U16:
        return self.heads[1:]


@dataclass(frozen=True, slots=True)
class FinishedSequence:
    """A finished sequence to recompute. prompt and output: token ids, at least one each; segments: which of the output
    were sampled (protocol.segments), all of them if there are none; experts: of all tokens, else routers choose;
    adapter: as of a request; top: how many of the likeliest tokens are wanted beside each sampled one."""

    prompt: Sequence[int]
    output: Sequence[int]
    segments: Sequence[int] = ()
    experts: U8 | None = None
    adapter: bytes = b""
    top: int = 0

    @property
    def sampled(self) -> Sequence[int]:
        return sampled_tokens(self.output, self.segments)


@dataclass(frozen=True, slots=True)
class Prefill:
    """lo, hi: float64[n] sampling interval of each sampled token; logprobs: float32[n]; heads: uint16[n, hidden];
    experts: that were computed with; routing: float32[tokens], how much less likely (difference of logarithms) the
    least likely of a token's experts was than the last that the router takes, at most over all layers; top: int64[n,
    k] and float32[n, k], the likeliest tokens and their logarithms, where they are wanted and the engine has them."""

    lo: F64
    hi: F64
    logprobs: F32
    heads: U16
    experts: U8 | None = None
    routing: F32 | None = None
    top: tuple[I64, F32] | None = None

    @property
    def rows(self) -> U16:
        return self.heads[1:]


class Decoder(Protocol):
    """Requests in flight, on the weights that were in use when they were submitted, at one temperature."""

    def submit(self, request: GenerationRequest) -> int:
        """A number of its own. Raises EngineError for a request that cannot be served and while MOST_IN_FLIGHT are."""
        ...

    def cancel(self, number: int) -> None:
        """Forget a request; unknown or finished numbers are ignored."""
        ...

    def step(self) -> list[tuple[int, Completion]]:
        """One token for every request that is being decoded; those that finished. Raises EngineError."""
        ...

    def __len__(self) -> int:
        """How many are submitted and unfinished."""
        ...

    @property
    def room(self) -> int:
        """How many more would begin at the next step, at least one while nothing is in flight; further ones wait. Who
        shares a decoder submits no more than that, so that whoever comes next need not wait behind a long queue."""
        ...


MOST_IN_FLIGHT = 8192
"""Requests that a decoder holds, most of them waiting for their turn."""


class Engine(Protocol):
    """One model; one set of weights at a time. Raises EngineError."""

    @property
    def description(self) -> str:
        """Name and version, for people."""
        ...

    @property
    def name(self) -> str:
        """Class of this engine, e.g. x86_64-avx2/float32/sdpa (protocol.engines): files and evidence carry it."""
        ...

    def sibling(self, dtype: str, attention: str) -> "Engine | None":
        """An engine for the same model on the same device that computes in another way; None if there is none."""
        ...

    @property
    def device(self) -> str: ...

    @property
    def dtype(self) -> str:
        """Compute type of the forward pass."""
        ...

    @property
    def parameters(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def routing(self) -> Routing | None:
        """What the model's routers do, None if it has no experts."""
        ...

    @property
    def eos(self) -> frozenset[int]:
        """Token ids that end a completion."""
        ...

    def read(self, path: str, patches: Sequence[PatchFile] = (), digests: bytes = b"") -> Weights:
        """Read a bf16 safetensors image, or what patches make of it, and check its names and shapes. digests: of its
        tensors, which are compared where there are patches. Raises ModelError."""
        ...

    def load(self, weights: Weights) -> None:
        """Make `weights` the ones in use. Raises EngineError while a decoder has requests in flight."""
        ...

    def decoder(self, temperature: float) -> Decoder:
        """A decoder with nothing in flight."""
        ...

    def prefill(self, sequences: Sequence[FinishedSequence], temperature: float) -> list[Prefill]:
        """Recompute finished sequences in one forward pass each."""
        ...

    def close(self) -> None:
        """Give the device's memory back. Nothing is asked of the engine afterwards."""
        ...


@runtime_checkable
class Apart(Protocol):
    """What an engine can besides that computes with adapters without merging them: policies of one base are in use side
    by side, in one decoder and in one prefill. Requests and sequences name theirs."""

    def hold(self, name: bytes, weights: Weights, others: Collection[bytes] = ()) -> None:
        """Compute with an adapter for whoever names it, while others are in flight, too; one that is held stays. Of all
        others those are forgotten that are not among `others` and not in flight. Raises EngineError."""
        ...


def generate(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    temperature: float,
    on_progress: Callable[[], object] = lambda: None,
) -> list[Completion]:
    """Sample one completion per request, in order. on_progress: hears of each. Raises EngineError; nothing stays in
    flight then."""
    decoder = engine.decoder(temperature)
    waiting = iter(enumerate(requests))
    places: dict[int, int] = {}
    done: dict[int, Completion] = {}
    try:
        while len(done) < len(requests):
            for place, request in islice(waiting, MOST_IN_FLIGHT - len(decoder)):
                places[decoder.submit(request)] = place
            for number, completion in decoder.step():
                done[places.pop(number)] = completion
                on_progress()
    finally:
        for number in places:
            decoder.cancel(number)
    return [done[place] for place in range(len(requests))]
