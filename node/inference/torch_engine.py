"""The engine that runs everywhere: plain torch, on a CPU or a GPU, in float32 or bfloat16.

Puts together what decodes (node.inference.decoding), what verifies (prefilling) and what both compute with
(language_model, transformer). Knows the Hugging Face directory form (config.json, safetensors names); never contacts a
hub and never runs code from a model directory.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import structlog
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from node.inference.adapters import MOST_ADAPTERS
from node.inference.architectures import FAMILIES, beyond_bounds, unsupported, written_out
from node.inference.decoding import TorchDecoder
from node.inference.engine import Decoder, FinishedSequence, Prefill, Weights
from node.inference.errors import EngineError, ModelError, ran_out
from node.inference.experts import correct_as_parameters
from node.inference.fixed import model_for
from node.inference.image import read_image
from node.inference.language_model import bf16_bits
from node.inference.layers import PatchFile
from node.inference.lora import whole_weights
from node.inference.model_files import NESTED, QUANTIZATION, TIED, is_mxfp4, language_config, read_json
from node.inference.out_of_memory import left_out, let_go
from node.inference.prefilling import Prefiller
from node.inference.room import MemoryPlan, ModelSize, NoRoom, plan, room_for_adapters
from node.inference.settings import ATTENTIONS, DEFAULT, DTYPES, EngineSettings, free_memory, keep_precision
from node.inference.start_weights import StartWeights
from node.inference.tokenizer import LocalTokenizer
from node.inference.weight_files import has_own_head
from protocol.engines import LORA, arithmetic
from protocol.lora import WEIGHT, is_adapter

__all__ = ["TorchEngine", "bf16_bits", "build_model", "image_names"]

_log = structlog.get_logger(__name__)
_SCALED_LOGITS = ("logit_scale", "lm_head_multiplier")


def build_model(model_dir: Path, device: str = "cpu") -> Any:
    """A freshly initialised transformers model of `model_dir`/config.json, in float32 and in eval mode.

    Raises ModelError for anything that is not a plain causal language model of a family that the engine computes.
    """
    raw = read_json(model_dir / "config.json")
    refused = [key for key in _SCALED_LOGITS if raw.get(key) not in (None, 1, 1.0)]
    if raw.get(QUANTIZATION) is not None and not is_mxfp4(raw):
        refused.append(f"{QUANTIZATION} (other than MXFP4)")
    if refused:
        raise _model_error(model_dir, f"config.json uses {', '.join(refused)}, which this engine does not support")
    if why := beyond_bounds(language_config(raw)):
        raise _model_error(model_dir, f"config.json: {why}")
    try:
        config = AutoConfig.from_pretrained(str(model_dir), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises whatever the config's values break
        raise _model_error(model_dir, f"config.json: {type(error).__name__}: {error}") from None
    if config.model_type in NESTED:
        config = config.get_text_config()
        setattr(config, TIED, language_config(raw).get(TIED, getattr(config, TIED, False)))
    if raw.get(QUANTIZATION) is not None:
        delattr(config, QUANTIZATION)  # what was in MXFP4 is read in bf16 (node.inference.start_weights)
    # A head of its own is part of the model, whatever its description says: other loaders keep it, too.
    if getattr(config, TIED, False) and has_own_head(model_dir):
        setattr(config, TIED, False)
    if why := unsupported(config):
        raise _model_error(model_dir, f"config.json: {why}")
    try:
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(
                config,
                dtype=torch.float32,
                attn_implementation="eager" if written_out(config) else "sdpa",
                trust_remote_code=False,
            )
    except Exception as error:  # as above
        raise _model_error(model_dir, f"config.json: {type(error).__name__}: {error}") from None
    model.eval()
    correct_as_parameters(model)
    return model


def _model_error(where: Path | str, why: str) -> ModelError:
    return ModelError(
        "the model cannot be loaded",
        f"{where}: {why}",
        f"use a model directory in Hugging Face form of the families {', '.join(FAMILIES)}",
    )


def image_names(model: Any) -> dict[str, Tensor]:
    """The tensors of a weight image: the model's parameters by name, tied ones once, in canonical order."""
    return dict(sorted(model.named_parameters()))


def _plan(model: ModelSize, settings: EngineSettings, adapters: int) -> MemoryPlan:
    """What a device has room for, before anything is put there. adapters: bytes of those kept apart. Raises NoRoom."""
    gpu = settings.device != "cpu"
    wide = not gpu and settings.dtype == "bfloat16"
    divide = partial(plan, model, free_memory(settings.device, settings.most), settings.dtype, gpu=gpu, wide_head=wide)
    fits = divide(leave=settings.leave + adapters)
    if fits.small and not settings.batch_tokens:
        _log.warning("engine.little_room", device=settings.device, room=fits.text)
    return fits


class TorchEngine:
    """`node.inference.engine.Engine` for one model directory."""

    def __init__(
        self, model_dir: Path, settings: EngineSettings = DEFAULT, tokenizer: LocalTokenizer | None = None
    ) -> None:
        """tokenizer: of a model whose directory has none."""
        keep_precision()
        self._model_dir, self._settings = model_dir, settings
        self.tokenizer = tokenizer or LocalTokenizer(model_dir)
        shell = build_model(model_dir, "meta")
        self._names = image_names(shell)
        self.parameters = sum(tensor.numel() for tensor in self._names.values())
        fits = _plan(ModelSize.of(shell.config, self.parameters), settings, self._for_adapters(settings))
        limits = {name: getattr(fits, name) for name in ("logit_cells", "pass_tokens", "row_tokens")}
        self._model = model_for(shell, settings.device, getattr(torch, settings.dtype), settings.attention, **limits)
        self._batch_tokens = settings.batch_tokens or fits.batch_tokens
        self._prefiller = Prefiller(self._model, min(fits.pass_tokens, self._batch_tokens))
        # Weak: a decoder that its user has dropped must not keep other weights out for ever.
        self._decoders: WeakSet[TorchDecoder] = WeakSet()
        self._on_start = False
        self.device = settings.device
        self.dtype = settings.dtype
        self.name = settings.name
        self.eos = self.tokenizer.eos
        self.vocabulary, self.routing = self._model.vocabulary, self._model.routing
        room = f"room for {self._batch_tokens:,} tokens" if settings.batch_tokens else fits.text
        self.description = f"torch {torch.__version__} / transformers {transformers.__version__}, {room}"
        self.tokenizer.check_fits(self.vocabulary)

    def _for_adapters(self, settings: EngineSettings) -> int:
        # Of all layers, though an adapter may have a part in few of them: what is needed at most.
        shapes = [tensor.shape for name, tensor in self._names.items() if name.endswith(WEIGHT)]
        return room_for_adapters(shapes, settings.columns, settings.dtype) if settings.attention == LORA else 0

    def sibling(self, dtype: str, attention: str) -> "TorchEngine | None":
        """None also where there is no memory for another."""
        kernel = attention.partition("-")[0]
        if dtype not in DTYPES or kernel not in ATTENTIONS:
            return None
        settings = replace(self._settings, dtype=dtype, attention=kernel)
        if arithmetic(settings.name) != (dtype, attention):
            return None  # of a GPU with other multiprocessors
        try:
            return TorchEngine(self._model_dir, settings)
        except (NoRoom, RuntimeError, MemoryError) as error:
            if not isinstance(error, NoRoom) and not ran_out(error):
                raise
            left_out(settings.name, error)
            return None

    def read(self, path: str, patches: Sequence[PatchFile] = (), digests: bytes = b"") -> Weights:
        return read_image(path, self._names, patches, digests)

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        if busy := sum(map(len, self._decoders)):
            raise EngineError(
                "the weights are in use", f"{busy} requests are in flight", "wait until they have finished"
            )
        adapters = self._model.adapters
        if adapters is None:
            self._model.load(whole_weights(self._model_dir, weights, self.device))
        elif is_adapter(weights):
            self._begin()
            # Under no name: requests that name no policy compute with it.
            adapters.hold(b"", weights)
        else:
            # First of all: a load that fails leaves weights that are nobody's.
            self._on_start = False
            # Adapters are to the start model, which these weights replace.
            for name in adapters.names:
                adapters.drop(name)
            self._model.load(weights)

    @property
    def adapter_bytes(self) -> int:
        """That adapters take beside the weights."""
        return self._model.adapters.size if self._model.adapters else 0

    @torch.no_grad()
    def hold(self, name: bytes, weights: Weights, others: Collection[bytes] = ()) -> None:
        adapters = self._model.adapters
        if adapters is None or not name or not is_adapter(weights):
            why = f"{self.name} merges adapters" if adapters is None else "it is no adapter, or has no name"
            raise EngineError("a policy cannot be held beside others", why, "load it")
        if name in adapters.names:
            return
        self._begin()
        # Requests in flight compute with theirs to the end, though its policy is kept no longer.
        flying = {one for decoder in self._decoders for one in decoder.adapters}
        for one in set(adapters.names) - {*others, *flying}:
            adapters.drop(one)
        # More may be kept than there are slots: one that nobody uses is held again when somebody does.
        idle = [one for one in others if one in adapters.names and one not in flying]
        if idle and len(adapters.names) == MOST_ADAPTERS:
            adapters.drop(idle[0])
        adapters.hold(name, weights)

    def _begin(self) -> None:
        """With the start model's weights, which all adapters are to. Raises EngineError."""
        if self._on_start:
            return
        if busy := sum(map(len, self._decoders)):
            raise EngineError("the weights are in use", f"{busy} requests are in flight", "wait until they end")
        self._model.load(StartWeights(self._model_dir))
        self._on_start = True

    def decoder(self, temperature: float) -> Decoder:
        decoder = TorchDecoder(self._model, self.eos, self._batch_tokens, temperature)
        self._decoders.add(decoder)
        return decoder

    def prefill(self, sequences: Sequence[FinishedSequence], temperature: float) -> list[Prefill]:
        return self._prefiller.prefill(sequences, temperature)

    def close(self) -> None:
        del self._model, self._prefiller
        self._decoders.clear()
        let_go()
