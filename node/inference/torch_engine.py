"""The reference engine: a transformers model in plain torch, decoded with a KV cache.

Correctness first: compute is fp32 unless the settings say otherwise, decoding is left-padded and batched, and a
prefill of the same tokens gives the same rows and intervals up to rounding. The output head always computes
in fp32: sampling is decided by the last digits of its logits. Knows the Hugging Face directory form
(config.json, safetensors names); never contacts a hub and never runs code from a model directory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from node.inference.engine import MOST_IN_FLIGHT, Completion, Decoder, Finished, Prefill, Request, Weights
from node.inference.errors import EngineError, ModelError
from node.inference.lora import expected_tensors, whole_weights
from node.inference.settings import ATTENTIONS, DEFAULT, DTYPES, EngineSettings
from node.inference.tokenizer import LocalTokenizer, read_json
from protocol import sampling
from protocol.policy import MalformedPolicy, decode_image
from protocol.segments import sampled_places

LOGIT_CELLS = 1 << 23
"""Most logits (rows * vocabulary) turned into float64 at a time."""

_SCALED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


def build_model(
    model_dir: Path, device: str = "cpu", dtype: torch.dtype = torch.float32, attention: str = "sdpa"
) -> Any:
    """A freshly initialised transformers model of `model_dir`/config.json, in eval mode.

    Raises ModelError for anything that is not a plain causal language model of the installed transformers.
    """
    raw = read_json(model_dir / "config.json")
    refused = [key for key in (*_SCALED_LOGITS, "quantization_config") if raw.get(key) not in (None, 1, 1.0)]
    if refused:
        raise _model_error(model_dir, f"config.json uses {', '.join(refused)}, which this engine does not support")
    try:
        config = AutoConfig.from_pretrained(str(model_dir), local_files_only=True, trust_remote_code=False)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention, trust_remote_code=False
            )
    except Exception as error:  # transformers raises whatever the config's values break
        raise _model_error(model_dir, f"config.json: {type(error).__name__}: {error}") from None
    model.eval()
    return model


def _model_error(where: Path | str, why: str) -> ModelError:
    return ModelError(
        "the model cannot be loaded",
        f"{where}: {why}",
        "use a model directory in Hugging Face form whose architecture the installed transformers supports",
    )


def image_names(model: Any) -> dict[str, Tensor]:
    """The tensors of a weight image: the model's parameters by name, tied ones once, in canonical order."""
    return dict(sorted(model.named_parameters()))


def read_image(path: str, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """bf16 tensors of a canonical policy image; names and shapes must be exactly those of `expected`, or of an adapter
    to it (node.inference.lora)."""
    try:
        return _copy_tensors(path, decode_image(Path(path).read_bytes()), expected)
    except (OSError, ValueError, MalformedPolicy) as error:
        raise _model_error(path, str(error)) from None


def _copy_tensors(path: str, tensors: dict[str, np.ndarray], parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    expected = expected_tensors({name: bits.shape for name, bits in tensors.items()}, parameters)
    if set(tensors) != set(expected):
        wrong = sorted(set(tensors) ^ set(expected))
        raise _model_error(path, f"tensor {wrong[0]!r} is missing or not expected ({len(wrong)} in all)")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            shapes = f"{tensors[name].shape} instead of {shape}"
            raise _model_error(path, f"tensor {name!r} has shape {shapes}")
    return {name: torch.from_numpy(bits.astype(np.int16)).view(torch.bfloat16) for name, bits in tensors.items()}


def bf16_bits(values: Tensor) -> np.ndarray:
    """The bf16 bit patterns of float `values` as uint16, on the CPU."""
    return values.to(torch.bfloat16).view(torch.int16).cpu().numpy().view(np.uint16)


class TorchEngine:
    """`node.inference.engine.Engine` for one model directory."""

    def __init__(self, model_dir: Path, settings: EngineSettings = DEFAULT) -> None:
        self._model_dir, self._settings = model_dir, settings
        self._tokenizer = LocalTokenizer(model_dir)
        self._batch_tokens = settings.batch_tokens
        self._model = build_model(model_dir, settings.device, getattr(torch, settings.dtype), settings.attention)
        self._parameters = image_names(self._model)
        self._head = self._model.get_output_embeddings()
        if self._head is None:
            raise _model_error(model_dir, "the architecture has no output embeddings")
        self._exact_head: tuple[Tensor, Tensor | None] | None = None
        self.device = settings.device
        self.dtype = settings.dtype
        self.name = settings.name
        self.eos = self._tokenizer.eos
        self.vocabulary = int(self._head.weight.shape[0])
        self.parameters = sum(tensor.numel() for tensor in self._parameters.values())
        self.description = f"torch {torch.__version__} / transformers {transformers.__version__}"
        if max(self.eos) >= self.vocabulary or self._tokenizer.vocabulary > self.vocabulary:
            raise _model_error(model_dir, "the tokenizer has more tokens than the model")

    @property
    def tokenizer(self) -> LocalTokenizer:
        return self._tokenizer

    def sibling(self, dtype: str, attention: str) -> "TorchEngine | None":
        if dtype not in DTYPES or attention not in ATTENTIONS:
            return None
        return TorchEngine(self._model_dir, replace(self._settings, dtype=dtype, attention=attention))

    def read(self, path: str) -> Weights:
        return read_image(path, self._parameters)

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        weights = whole_weights(self._model_dir, weights, self.device)
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])
        bias = getattr(self._head, "bias", None)
        self._exact_head = (self._head.weight.float(), None if bias is None else bias.float())

    # Decoding

    def decoder(self, temperature: float) -> Decoder:
        return _Batches(self, temperature)

    @torch.inference_mode()
    def decode(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        done: list[Completion] = []
        for batch in _batches(requests, self._batch_tokens, lambda r: len(r.prompt) + len(r.uniforms)):
            done += self._decode(batch, temperature)
        return done

    def _decode(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        count = len(requests)
        limit = np.array([len(request.uniforms) for request in requests])
        uniforms = np.zeros((count, int(limit.max())))
        for i, request in enumerate(requests):
            uniforms[i, : limit[i]] = request.uniforms

        hidden, cache, mask, positions = self._prompts(requests)
        output = np.full((count, uniforms.shape[1]), -1, dtype=np.int64)
        length = np.zeros(count, dtype=np.int64)
        finished = np.zeros(count, dtype=bool)
        done = np.zeros(count, dtype=bool)
        alive = np.arange(count)  # the request of each row of the batch
        steps: list[tuple[np.ndarray, np.ndarray]] = []
        eos = np.array(sorted(self.eos))
        for t in range(uniforms.shape[1]):
            steps.append((alive, bf16_bits(hidden)))
            tokens = sampling.choose(self._logits(hidden), uniforms[alive, t], temperature)
            fresh = ~done[alive]
            output[alive[fresh], t] = tokens[fresh]
            length[alive[fresh]] = t + 1
            ended = np.isin(tokens, eos)
            finished[alive[fresh & ended]] = True
            done[alive] |= ended | (t + 1 >= limit[alive])
            going = ~done[alive]
            if not going.any():
                break
            if going.sum() <= 0.75 * len(alive):  # until then, ended requests are decoded on and the surplus is cut
                keep = torch.from_numpy(np.flatnonzero(going)).to(self.device)
                cache.batch_select_indices(keep)
                mask = None if mask is None else mask[keep]
                positions, alive, tokens = positions[keep], alive[going], tokens[going]
            positions = positions + 1
            mask = None if mask is None else torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            hidden, cache = self._forward(
                torch.from_numpy(tokens)[:, None].to(self.device), mask, positions[:, None], cache
            )
        return [
            Completion(output[i, : length[i]].tolist(), bool(finished[i]), heads)
            for i, heads in enumerate(_gather(steps, length, hidden.shape[1]))
        ]

    def _prompts(self, requests: Sequence[Request]) -> tuple[Tensor, Any, Tensor | None, Tensor]:
        """Run each distinct prompt once.

        Returns (last hidden [n, H], cache, mask [n, P] or None, position of the last token [n]).
        """
        distinct: dict[tuple[int, ...], int] = {}
        which = [distinct.setdefault(tuple(request.prompt), len(distinct)) for request in requests]
        longest = max(map(len, distinct))
        tokens = torch.zeros(len(distinct), longest, dtype=torch.long)
        mask = torch.zeros(len(distinct), longest, dtype=torch.long)
        for prompt, i in distinct.items():
            tokens[i, longest - len(prompt) :] = torch.tensor(prompt)
            mask[i, longest - len(prompt) :] = 1
        mask = mask.to(self.device)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        padded = None if bool(mask.all()) else mask
        hidden, cache = self._forward(tokens.to(self.device), padded, positions, None)
        select = torch.tensor(which, device=self.device)
        cache.batch_select_indices(select)
        return hidden[select], cache, None if padded is None else padded[select], positions[select, -1]

    def _forward(self, tokens: Tensor, mask: Tensor | None, positions: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """(hidden of the last position [n, H], cache)."""
        result = self._model.base_model(
            input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        return result.last_hidden_state[:, -1], result.past_key_values

    def _logits(self, hidden: Tensor) -> np.ndarray:
        weight, bias = self._exact_head or (self._head.weight.float(), None)
        logits = torch.nn.functional.linear(hidden.float(), weight, bias).cpu().numpy()
        if not np.isfinite(logits).all():
            raise EngineError(
                "the model gives no valid probabilities",
                "its logits are not finite with the weights in use",
                "the policy is broken: stop the trainer of this run and resume it from an earlier checkpoint",
            )
        return logits

    # Verification

    @torch.inference_mode()
    def prefill(self, sequences: Sequence[Finished], temperature: float) -> list[Prefill]:
        by_length = sorted(range(len(sequences)), key=lambda i: len(sequences[i].prompt) + len(sequences[i].output))
        done: dict[int, Prefill] = {}
        lengths = [len(sequence.prompt) + len(sequence.output) for sequence in sequences]
        for batch in _batches(by_length, self._batch_tokens, lambda i: lengths[i]):
            done.update(zip(batch, self._prefill([sequences[i] for i in batch], temperature), strict=True))
        return [done[i] for i in range(len(sequences))]

    def _prefill(self, sequences: Sequence[Finished], temperature: float) -> Iterator[Prefill]:
        """Padding stands on the right, where a causal model cannot see it: no mask is needed."""
        fed = [[*sequence.prompt, *sequence.output[:-1]] for sequence in sequences]
        tokens = torch.zeros(len(fed), max(map(len, fed)), dtype=torch.long)
        for i, ids in enumerate(fed):
            tokens[i, : len(ids)] = torch.tensor(ids)
        hidden = self._model.base_model(input_ids=tokens.to(self.device), use_cache=False).last_hidden_state
        places = [
            len(sequence.prompt) - 1 + sampled_places(sequence.segments, len(sequence.output)) for sequence in sequences
        ]
        counts = list(map(len, places))
        sample = torch.repeat_interleave(torch.arange(len(fed)), torch.tensor(counts))
        heads = hidden[sample.to(self.device), torch.from_numpy(np.concatenate(places)).to(self.device)]
        drawn = np.concatenate([np.asarray(sequence.sampled, dtype=np.int64) for sequence in sequences])
        if drawn.min() < 0 or drawn.max() >= self.vocabulary:
            raise EngineError("a sequence cannot be checked", "it has tokens outside the vocabulary", "reject it")
        lo, hi, logprobs = self._intervals(heads, drawn, temperature)
        bits = bf16_bits(heads)
        start = 0
        for n in counts:
            cut = slice(start, start + n)
            yield Prefill(lo[cut], hi[cut], logprobs[cut], bits[cut])
            start += n

    def _intervals(self, heads: Tensor, drawn: np.ndarray, temperature: float) -> tuple[np.ndarray, ...]:
        size = max(1, LOGIT_CELLS // self.vocabulary)
        parts = [
            sampling.interval(self._logits(heads[at : at + size]), drawn[at : at + size], temperature)
            for at in range(0, len(drawn), size)
        ]
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


class _Batches:
    """Everything that was submitted, in one step."""

    def __init__(self, engine: TorchEngine, temperature: float) -> None:
        self._engine, self._temperature = engine, temperature
        self._waiting: dict[int, Request] = {}
        self._submitted = 0

    def submit(self, request: Request) -> int:
        self._submitted += 1
        self._waiting[self._submitted] = request
        return self._submitted

    def cancel(self, number: int) -> None:
        self._waiting.pop(number, None)

    def step(self) -> list[tuple[int, Completion]]:
        made = self._engine.decode(list(self._waiting.values()), self._temperature)
        numbers, self._waiting = list(self._waiting), {}
        return list(zip(numbers, made, strict=True))

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def room(self) -> int:
        return MOST_IN_FLIGHT - len(self)


def _batches(items: Sequence[Any], most: int, width: Any) -> Iterator[list[Any]]:
    """Consecutive runs of `items` of at most `most` padded tokens (or one item, if it alone is larger)."""
    batch: list[Any] = []
    widest = 0
    for item in items:
        widest = max(widest, width(item))
        if batch and widest * (len(batch) + 1) > most:
            yield batch
            batch, widest = [], width(item)
        batch.append(item)
    if batch:
        yield batch


def _gather(steps: list[tuple[np.ndarray, np.ndarray]], length: np.ndarray, hidden: int) -> Iterator[np.ndarray]:
    """Per request uint16[length, hidden] from the heads of each decode step (requests, heads)."""
    stacked = np.zeros((len(length), len(steps), hidden), dtype=np.uint16)
    for t, (requests, heads) in enumerate(steps):
        stacked[requests, t] = heads
    for i, n in enumerate(length):
        yield stacked[i, :n].copy()
