"""The vLLM engine: many requests at a time on a GPU, through vLLM's public hooks only.

vLLM schedules, computes and keeps the cache; which token is drawn, by which head, and what of the activations is kept
is ours (node.inference.vllm.hooks), the same on every engine. Weights are swapped in place and read back
(node.inference.vllm.readback).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from node.inference.engine import MOST_IN_FLIGHT, Completion, Decoder, Finished, Prefill, Request, Weights
from node.inference.errors import EngineError, ModelError
from node.inference.lora import expected_tensors
from node.inference.settings import EngineSettings
from node.inference.tokenizer import LocalTokenizer, read_json
from node.inference.torch_engine import build_model, image_names
from node.inference.vllm import installed
from node.inference.vllm.arguments import MOST_AT_ONCE, arguments, environment
from node.inference.vllm.decoder import VllmDecoder
from node.inference.vllm.draws import extra_args
from node.inference.vllm.hooks import NOT_A_NUMBER
from node.inference.vllm.image import ImageFile
from node.inference.vllm.processors import processors
from protocol.segments import sampled_places

EXTENSION = "node.inference.vllm.worker.WorkerExtension"


class VllmEngine:
    """`node.inference.engine.Engine` for one model directory. Raises EngineError, ModelError."""

    def __init__(self, model_dir: Path, settings: EngineSettings) -> None:
        self._model_dir = model_dir
        self._batch_tokens = settings.batch_tokens
        self._tokenizer = LocalTokenizer(model_dir)
        self._expected = image_names(build_model(model_dir, "meta"))
        self.device, self.dtype, self.name = settings.device, settings.dtype, settings.name
        self.eos = self._tokenizer.eos
        self.parameters = sum(tensor.numel() for tensor in self._expected.values())
        self.description = f"vllm {installed.PIN} / torch {torch.__version__}"
        config = read_json(model_dir / "config.json")
        self.vocabulary = int(config["vocab_size"])
        if max(self.eos) >= self.vocabulary or self._tokenizer.vocabulary > self.vocabulary:
            raise ModelError(
                "the model cannot be loaded",
                f"{model_dir}: the tokenizer has more tokens than the model",
                "put the tokenizer that belongs to the model into its directory",
            )
        own = {"worker_extension_cls": EXTENSION, "logits_processors": processors()}
        self._core = start(arguments(model_dir, settings, config, _gpus(settings.device)) | own, settings.device)
        self._longest = self._core.model_config.max_model_len
        self._numbers = 0
        self._load = self._loads = 0
        self._flights: dict[int, VllmDecoder] = {}
        self._looks: set[int] = set()
        self._everywhere("intellect_attach")

    @property
    def tokenizer(self) -> LocalTokenizer:
        return self._tokenizer

    def sibling(self, dtype: str, attention: str) -> None:
        """None: an engine that fills its device leaves no room for another."""
        return

    # Weights

    def read(self, path: str) -> Weights:
        image = ImageFile(Path(path))
        image.check(expected_tensors({name: tuple(tensor.shape) for name, tensor in image.items()}, self._expected))
        return image

    def load(self, weights: Weights, *, interrupt: bool = False) -> None:
        """interrupt: though requests are in flight."""
        if self._flights and not interrupt:
            raise EngineError(
                "the weights cannot be replaced",
                f"{len(self._flights)} requests are in flight",
                "report this: the engine's owner must drain or cancel them first",
            )
        self._loads += 1
        self._load = 0  # there are none, should this fail half-way
        if isinstance(weights, ImageFile):  # every process opens it for itself
            self._everywhere("intellect_load", str(self._model_dir), str(weights.path), weights.digest, self._loads)
        else:
            self._everywhere("intellect_use", str(self._model_dir), weights, self._loads)
        self._load = self._loads

    # Decoding

    def decoder(self, temperature: float) -> Decoder:
        return VllmDecoder(self, temperature)

    def begin(self, request: Request, temperature: float, decoder: VllmDecoder) -> int:
        """Put a request in flight for a decoder; its number."""
        number = self._number()
        extra = extra_args(number, temperature, request.uniforms)
        self._submit(number, request.prompt, len(request.uniforms), extra_args=extra)
        self._flights[number] = decoder
        return number

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _submit(self, number: int, prompt: Sequence[int], limit: int, **more: Any) -> str:
        """What vLLM calls the request."""
        from vllm.inputs import TokensPrompt  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import RequestOutputKind, SamplingParams  # pyright: ignore[reportMissingImports]

        self._check_request(prompt, limit)
        sampling = SamplingParams(
            temperature=0.0,  # greedy: the logits leave it one choice
            max_tokens=limit,
            stop_token_ids=sorted(self.eos),
            ignore_eos=True,  # what vLLM takes for the end; ours stand in stop_token_ids
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **more,
        )
        # blocks of the cache that were computed with other weights are never read
        tokens = TokensPrompt(prompt_token_ids=list(prompt), cache_salt=str(self._load))
        return self._core.add_request(str(number), tokens, sampling)

    def _check_request(self, prompt: Sequence[int], limit: int) -> None:
        if not self._load:
            raise EngineError("the engine has no weights", "no policy was loaded", "load one first")
        if len(self._flights) >= MOST_IN_FLIGHT:
            raise EngineError("too many requests", f"{MOST_IN_FLIGHT} are in flight", "wait until some have ended")
        if not prompt or min(prompt) < 0 or max(prompt) >= self.vocabulary:
            raise EngineError("a request cannot be served", "its prompt is empty or has unknown tokens", "correct it")
        if len(prompt) + limit > self._longest:
            raise EngineError(
                "a request cannot be served",
                f"its {len(prompt)} tokens and {limit} more are over the {self._longest} that fit this machine's cache",
                "lower the run's limits, or use a device with more memory",
            )

    def advance(self) -> None:
        """One token for every request that has room; completions go to their decoders."""
        for output in self._guarded(self._core.step):
            number = int(output.request_id)
            self._looks.discard(number)
            flight = self._flights.pop(number, None)
            if flight is not None:
                flight.give(number, self._completion(output))

    def _completion(self, output: Any) -> Completion:
        said = output.outputs[0]
        tokens = list(said.token_ids)
        heads, loads = self._everywhere("intellect_take", int(output.request_id), len(tokens))
        if (heads == NOT_A_NUMBER).all(axis=1).any():
            raise EngineError(
                "the model gives no valid probabilities",
                "its logits are not finite with the weights in use",
                "the policy is broken: stop the trainer of this run and resume it from an earlier checkpoint",
            )
        swaps = tuple(place for place in range(1, len(loads)) if loads[place] != loads[place - 1])
        return Completion(tokens, said.finish_reason == "stop", heads, swaps)

    @property
    def room(self) -> int:
        """How many more requests would begin at the next step, were they short."""
        return max(0, MOST_AT_ONCE - len(self._flights))

    def abort(self, number: int) -> None:
        """Forget a request in flight."""
        self._flights.pop(number, None)
        self._core.abort_request([str(number)])
        self._everywhere("intellect_forget", number)

    # Verification

    def prefill(self, sequences: Sequence[Finished], temperature: float) -> list[Prefill]:
        done: list[Prefill] = []
        for batch in _batches(sequences, self._batch_tokens):
            done += self._prefill(batch, temperature)
        return done

    def _prefill(self, sequences: Sequence[Finished], temperature: float) -> list[Prefill]:
        try:
            names = [self._watch(sequence) for sequence in sequences]
            while self._looks:
                self.advance()
            drawn = [np.asarray(sequence.sampled, np.int64) for sequence in sequences]
            return [
                Prefill(*self._everywhere("intellect_look", name, tokens, temperature))
                for name, tokens in zip(names, drawn, strict=True)
            ]
        finally:
            self._everywhere("intellect_unwatch")
            self._core.abort_request([str(number) for number in self._looks])
            self._looks.clear()

    def _watch(self, sequence: Finished) -> str:
        """Submit a sequence for one token more, and have its rows kept; nothing of it is read from the cache, where
        decoding left what is to be checked."""
        if min(sequence.output) < 0 or max(sequence.output) >= self.vocabulary:
            raise EngineError("a sequence cannot be checked", "it has tokens outside the vocabulary", "reject it")
        number = self._number()
        fed = [*sequence.prompt, *sequence.output[:-1]]
        name = self._submit(number, fed, 1, skip_reading_prefix_cache=True)
        self._looks.add(number)
        places = len(sequence.prompt) - 1 + sampled_places(sequence.segments, len(sequence.output))
        self._everywhere("intellect_watch", name, places)
        return name

    # vLLM's processes

    def _everywhere(self, method: str, *arguments: Any) -> Any:
        """Call a method of node.inference.vllm.worker in all of them; what the first answers."""
        return self._guarded(lambda: self._core.collective_rpc(method, args=arguments))[0]

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (EngineError, ModelError):
            raise
        except torch.OutOfMemoryError as error:
            raise EngineError("the device has no memory left", str(error)[:300], "use a GPU with more") from error


def _batches(sequences: Sequence[Finished], most: int) -> list[list[Finished]]:
    """Consecutive runs of at most `most` tokens, or of one sequence."""
    batches: list[list[Finished]] = []
    room = 0
    for sequence in sequences:
        size = len(sequence.prompt) + len(sequence.output)
        if not batches or size > room:
            batches.append([])
            room = most
        batches[-1].append(sequence)
        room -= size
    return batches


def _gpus(device: str) -> int:
    return torch.cuda.device_count() if device.startswith("cuda") else 0


def start(arguments: Mapping[str, Any], device: str) -> Any:
    """vLLM's engine. Its variables are set before it is imported. Raises EngineError."""
    for name, value in environment(device).items():
        os.environ.setdefault(name, value)
    from vllm.engine.arg_utils import EngineArgs  # pyright: ignore[reportMissingImports]
    from vllm.v1.engine.llm_engine import LLMEngine  # pyright: ignore[reportMissingImports]

    try:
        return LLMEngine.from_engine_args(EngineArgs(**arguments))
    except (ValueError, RuntimeError) as error:
        raise EngineError(
            "vLLM did not start",
            " ".join(str(error).split())[:500],
            "see the engine's log; --engine torch does without vLLM",
        ) from error
