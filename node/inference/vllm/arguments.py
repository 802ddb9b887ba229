"""What vLLM is told before it starts: its environment, its arguments, what it may take of this machine. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.inference.errors import EngineError, ModelError
from node.inference.model_files import TIED
from node.inference.room import SIZES, ModelSize, NoRoom
from node.inference.settings import EngineSettings
from node.inference.weight_files import has_own_head
from node.units import GIB

MOST_AT_ONCE = 256
"""Sequences that are decoded together; more wait."""
VLLM_FAMILIES = ("llama", "qwen2", "qwen3")
"""Model types whose numbers beside the torch engine's were measured. Other rows of node.inference.architectures have
logits or weights' names of their own, which the hooks would have to know."""
DRAWING = GIB
"""Bytes of each GPU for logits and what is drawn from them."""
LEAST_CACHE = GIB
"""Bytes without which a model does not fit."""
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler in this process: one fewer to die on its own
    RUNNER: "0",  # the second has another interface for logits processors, and does not say which rows are whose
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several nodes share a machine
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""Where nobody said otherwise."""
CPU_ENVIRONMENT = {"TORCH_COMPILE_DISABLE": "1"}  # compiling costs 19 s at the first request


def environment(device: str) -> Mapping[str, str]:
    """Variables to be set before vLLM is imported, unless they are."""
    return ENVIRONMENT if device.startswith("cuda") else {**ENVIRONMENT, **CPU_ENVIRONMENT}


@dataclass(frozen=True, slots=True)
class Cards:
    """GPUs that are visible, and the bytes that are free, and there, on the first of them."""

    count: int
    free: int
    total: int


def arguments(
    model_dir: Path, settings: EngineSettings, config: Mapping[str, Any], cards: Cards | None, model: ModelSize
) -> dict[str, Any]:
    """Of vLLM's EngineArgs. config: config.json; cards: None on a CPU. Raises EngineError, ModelError."""
    kind = config.get("model_type")
    if kind not in VLLM_FAMILIES:
        raise ModelError(
            "the model cannot be loaded",
            f"its architecture is {kind!r}, and the vLLM engine supports {', '.join(VLLM_FAMILIES)}",
            "use a model of one of these families",
        )
    common = {
        "model": str(model_dir),
        "dtype": settings.dtype,
        "load_format": "dummy",  # weights come as policies
        "skip_tokenizer_init": True,
        "trust_remote_code": False,
        "max_model_len": -1,  # what the model has positions for, or as much as the cache holds
        "max_num_seqs": MOST_AT_ONCE,
        "enable_prefix_caching": True,
        "async_scheduling": False,  # a token's place in the output is not known in time otherwise
        "disable_log_stats": True,
    }
    if config.get(TIED, True) and has_own_head(model_dir):
        common["hf_overrides"] = {TIED: False}  # it would take the embedding for the head
    cpu_cache_bytes = 1 << 30
    if cards is None:
        return common | {"enforce_eager": True, "kv_cache_memory_bytes": cpu_cache_bytes}
    return common | _on_gpus(settings, config, cards, model)


def _on_gpus(settings: EngineSettings, config: Mapping[str, Any], cards: Cards, model: ModelSize) -> dict[str, Any]:
    if settings.device != "cuda":
        raise EngineError(
            "vLLM takes all GPUs that it sees",
            f"{settings.device} is one of them",
            f"set CUDA_VISIBLE_DEVICES={settings.device.rpartition(':')[2]} and --device cuda",
        )
    most = tensor_parallel(cards.count, int(config["num_attention_heads"]))
    size = min(settings.parallel, most)
    while size < most and share(model, settings, cards, size) is None:
        size *= 2
    found = share(model, settings, cards, size)
    if found is None:
        needed, kept = needs(model, settings.dtype, size), settings.leave / GIB
        raise NoRoom(
            "the model does not fit into the GPUs' memory",
            f"split over {size} it needs {needed / GIB:.1f} GiB of each, and {cards.free / GIB:.1f} are free, of which "
            f"{kept:.1f} are for learner and evaluator",
            "use bfloat16, a smaller model or more GPUs, or end what else is on them",
        )
    return {"tensor_parallel_size": size, "gpu_memory_utilization": found}


def tensor_parallel(gpus: int, heads: int) -> int:
    """Over how many GPUs a model can be split: the largest power of two that there are and that divides its heads."""
    size = 1
    while size * 2 <= gpus and heads % (size * 2) == 0:
        size *= 2
    return size


def needs(model: ModelSize, dtype: str, size: int) -> int:
    """Bytes of each of `size` GPUs without which a model cannot be served: its part, our own head, some cache."""
    return SIZES[dtype] * (model.parameters // size + model.vocabulary * model.hidden) + DRAWING + LEAST_CACHE


def share(model: ModelSize, settings: EngineSettings, cards: Cards, size: int) -> float | None:
    """The part of a GPU's memory that vLLM may have, so that what others take and our own head have room; None where
    the model does not fit then."""
    own = SIZES[settings.dtype] * model.vocabulary * model.hidden + DRAWING
    # Of what is free on a GPU: vLLM refuses to start where its share is not there.
    usable = int(0.9 * cards.free) - settings.leave
    if usable < needs(model, settings.dtype, size):
        return None
    # Rounded down: vLLM does not start where its share is more than what is free.
    return math.floor(1000 * (usable - own) / cards.total) / 1000
