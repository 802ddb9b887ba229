"""The vLLM engine: many requests at a time on a GPU, through vLLM's public hooks only.

vLLM schedules, computes and keeps the cache; which token is drawn, by which head, and what of the activations is kept
is ours (node.inference.vllm.hooks), the same on every engine. Weights are swapped in place and read back
(node.inference.vllm.readback).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from node.inference.architectures import routing_of
from node.inference.device_sampling import not_finite
from node.inference.engine import (
    MOST_IN_FLIGHT,
    Completion,
    Decoder,
    FinishedSequence,
    GenerationRequest,
    Prefill,
    Weights,
)
from node.inference.errors import EngineError
from node.inference.image import ImageFile, PatchedWeights, read_image
from node.inference.layers import PatchFile
from node.inference.model_files import read_json
from node.inference.out_of_memory import let_go
from node.inference.proofs import ProofRows
from node.inference.room import FULL_TOKENS, ModelSize
from node.inference.settings import EngineSettings
from node.inference.tokenizer import LocalTokenizer
from node.inference.torch_engine import build_model, image_names
from node.inference.vllm import installed
from node.inference.vllm.arguments import MOST_AT_ONCE, Cards, arguments
from node.inference.vllm.core import VllmCore
from node.inference.vllm.draws import extra_args
from node.inference.vllm.hooks import NOT_A_NUMBER
from protocol.segments import sampled_places


class VllmDecoder:
    """`node.inference.engine.Decoder`. Decoders of one engine advance together: whoever steps, all are served."""

    def __init__(self, engine: "VllmEngine", temperature: float) -> None:
        self._engine, self._temperature = engine, temperature
        self._going: set[int] = set()
        self._ready: list[tuple[int, Completion]] = []

    def submit(self, request: GenerationRequest) -> int:
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

    def __len__(self) -> int:
        return len(self._going)

    @property
    def room(self) -> int:
        return self._engine.room


class VllmEngine:
    """`node.inference.engine.Engine` for one model directory. Raises EngineError, ModelError."""

    def __init__(self, model_dir: Path, settings: EngineSettings) -> None:
        self._model_dir = model_dir
        self._batch_tokens = settings.batch_tokens or FULL_TOKENS
        self.tokenizer = LocalTokenizer(model_dir)
        shell = build_model(model_dir, "meta")
        self.routing = None
        if routing_of(shell.config):
            raise EngineError(
                "vLLM cannot make rollouts of this model",
                f"{shell.config.model_type} has experts, and this engine does not hear which of them computed a token",
                "use --attention sdpa",
            )
        self._names = image_names(shell)
        self.device, self.dtype = settings.device, settings.dtype
        self.eos = self.tokenizer.eos
        self.parameters = sum(tensor.numel() for tensor in self._names.values())
        self.description = f"vllm {installed.PIN} / torch {torch.__version__}"
        config = read_json(model_dir / "config.json")
        self.vocabulary = int(shell.config.vocab_size)
        self.tokenizer.check_fits(self.vocabulary)
        cards = _cards(settings.device, settings.most)
        told = arguments(model_dir, settings, config, cards, ModelSize.of(shell.config, self.parameters))
        self.name = replace(settings, parallel=told.get("tensor_parallel_size", 1)).name
        self._core = VllmCore(told, settings.device)
        self._numbers = count(1)
        self._load = self._loads = 0
        self._flights: dict[int, VllmDecoder] = {}
        self._looks: set[int] = set()

    def sibling(self, dtype: str, attention: str) -> None:
        """None: an engine that fills its device leaves no room for another."""
        return

    def close(self) -> None:
        self._core.close()
        let_go()

    # Weights

    def read(self, path: str, patches: Sequence[PatchFile] = (), digests: bytes = b"") -> Weights:
        # Names and shapes are checked here. Its processes open the files for themselves.
        weights = read_image(path, self._names, patches, digests)
        return weights if patches else ImageFile(Path(path))

    def load(self, weights: Weights) -> None:
        if self._flights:
            raise EngineError(
                "the weights are in use",
                f"{len(self._flights)} requests are in flight",
                "wait until they have finished",
            )
        self._loads += 1
        self._load = 0  # there are none, should this fail half-way
        if isinstance(weights, ImageFile):  # every process opens it for itself
            what: tuple[Any, ...] = "intellect_load", str(weights.path), weights.digest
        elif isinstance(weights, PatchedWeights):
            layers = [msgspec.structs.astuple(one) for one in weights.patches]
            what = "intellect_load_patched", weights.path, layers, weights.digests
        else:
            what = "intellect_use", weights
        self._core.everywhere(*what, str(self._model_dir), self._loads)
        self._load = self._loads

    # Decoding

    def decoder(self, temperature: float) -> Decoder:
        return VllmDecoder(self, temperature)

    @property
    def room(self) -> int:
        """How many more requests would begin at the next step, were they short."""
        return max(0, MOST_AT_ONCE - len(self._flights))

    def begin(self, request: GenerationRequest, temperature: float, decoder: VllmDecoder) -> int:
        """Put a request in flight for a decoder; its number."""
        number = next(self._numbers)
        rows = request.rows if request.rows and not request.rows.count else None  # later answers' are kept whole
        extra = extra_args(number, temperature, request.uniforms, (rows.k, rows.batch) if rows else None)
        self._submit(number, request.prompt, len(request.uniforms), extra_args=extra)
        self._flights[number] = decoder
        return number

    def abort(self, number: int) -> None:
        """Forget a request in flight."""
        self._flights.pop(number, None)
        self._core.abort([number])
        self._core.everywhere("intellect_forget", number)

    def advance(self) -> None:
        """One token for every request that has room; completions go to their decoders."""
        for number, output, finished in self._core.step():
            self._looks.discard(number)
            decoder = self._flights.pop(number, None)
            if decoder is not None:
                decoder.give(number, self._completion(number, output, finished))

    def _completion(self, number: int, output: list[int], finished: bool) -> Completion:
        heads = self._core.everywhere("intellect_take", number, len(output))
        if isinstance(heads, ProofRows):
            return Completion(output, finished, np.empty((0, 0), dtype=np.uint16), kept=heads)
        if (heads == NOT_A_NUMBER).all(axis=1).any():
            raise not_finite()
        return Completion(output, finished, heads)

    def _submit(self, number: int, prompt: Sequence[int], limit: int, **more: Any) -> str:
        """What vLLM calls the request. Blocks of the cache that were computed with other weights are not read."""
        self._check_request(prompt, limit)
        # Salted, not reset: a reset refuses to work while requests run, and one of before a swap would fill it again.
        return self._core.submit(number, prompt, limit, salt=str(self._load), ends=sorted(self.eos), **more)

    def _check_request(self, prompt: Sequence[int], limit: int) -> None:
        if not self._load:
            raise EngineError("the engine has no weights", "no policy was loaded", "load one first")
        if len(self._flights) >= MOST_IN_FLIGHT:
            raise EngineError("too many requests", f"{MOST_IN_FLIGHT} are in flight", "wait until some have ended")
        if not prompt or not limit or min(prompt) < 0 or max(prompt) >= self.vocabulary:
            why = "its prompt is empty or has unknown tokens, or it may have no output"
            raise EngineError("a request cannot be served", why, "correct it")
        if len(prompt) + limit > self._core.longest:
            raise EngineError(
                "a request cannot be served",
                f"{len(prompt)} tokens and {limit} more are over the {self._core.longest} that the cache has room for",
                "lower the run's limits, or use a device with more memory",
            )

    # Verification

    def prefill(self, sequences: Sequence[FinishedSequence], temperature: float) -> list[Prefill]:
        done: list[Prefill] = []
        for batch in _batches(sequences, self._batch_tokens):
            done += self._prefill(batch, temperature)
        return done

    def _prefill(self, sequences: Sequence[FinishedSequence], temperature: float) -> list[Prefill]:
        try:
            names = [self._watch(sequence) for sequence in sequences]
            while self._looks:
                self.advance()
            drawn = [np.asarray(sequence.sampled, np.int64) for sequence in sequences]
            return [
                Prefill(*self._core.everywhere("intellect_look", name, tokens, temperature))
                for name, tokens in zip(names, drawn, strict=True)
            ]
        finally:
            # Also after an error: rows that were kept, and requests that still run, would be found by the next look.
            self._core.everywhere("intellect_unwatch")
            self._core.abort([*self._looks])
            self._looks.clear()

    def _watch(self, sequence: FinishedSequence) -> str:
        """Submit a sequence for one token more, and have its rows kept; nothing of it is read from the cache, where
        decoding left what is to be checked."""
        if min(sequence.output) < 0 or max(sequence.output) >= self.vocabulary:
            raise EngineError("a sequence cannot be checked", "it has tokens outside the vocabulary", "reject it")
        number = next(self._numbers)
        fed = [*sequence.prompt, *sequence.output[:-1]]
        name = self._submit(number, fed, 1, skip_reading_prefix_cache=True)
        self._looks.add(number)
        places = len(sequence.prompt) - 1 + sampled_places(sequence.segments, len(sequence.output))
        self._core.everywhere("intellect_watch", name, places)
        return name


def _cards(device: str, most: int) -> Cards | None:
    """None on a CPU. most: bytes of each that may be used, 0 for all."""
    if not device.startswith("cuda"):
        return None
    free, total = torch.cuda.mem_get_info()
    return Cards(torch.cuda.device_count(), min(free, most or free), total)


def _batches(sequences: Sequence[FinishedSequence], most: int) -> list[list[FinishedSequence]]:
    """Consecutive runs of at most `most` tokens, or of one sequence."""
    batches: list[list[FinishedSequence]] = []
    room = 0
    for sequence in sequences:
        size = len(sequence.prompt) + len(sequence.output)
        if not batches or size > room:
            batches.append([])
            room = most
        batches[-1].append(sequence)
        room -= size
    return batches
