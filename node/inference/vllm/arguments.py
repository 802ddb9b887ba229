"""What vLLM is told before it starts: its environment, its arguments, what it may take of this machine. Pure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.inference.errors import EngineError, ModelError
from node.inference.settings import EngineSettings

MOST_AT_ONCE = 256
"""Sequences that are decoded together; more wait."""
VLLM_FAMILIES = ("llama", "qwen2", "qwen3")
"""Model types whose numbers beside the torch engine's were measured. Other rows of node.inference.architectures have
logits or weights' names of their own, which the hooks would have to know."""
CPU_CACHE_BYTES = 1 << 30
GPU_SHARE = 0.85
"""Of a GPU's memory, for weights and cache; the rest is for the output head in fp32 and what is drawn from it."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler in this process: one fewer to die on its own
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the second has another interface, tried nowhere (node.inference.vllm.v2)
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several nodes share a machine
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""Where nobody said otherwise."""
CPU_ENVIRONMENT = {"TORCH_COMPILE_DISABLE": "1"}  # compiling costs 19 s at the first request


def environment(device: str) -> Mapping[str, str]:
    """Variables to be set before vLLM is imported, unless they are."""
    return ENVIRONMENT if device.startswith("cuda") else {**ENVIRONMENT, **CPU_ENVIRONMENT}


def arguments(model_dir: Path, settings: EngineSettings, config: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    """Of vLLM's EngineArgs. config: config.json; gpus: how many are visible. Raises EngineError, ModelError."""
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
    return common | (_on_gpus(settings, config, gpus) if settings.device.startswith("cuda") else _on_cpu())


def _on_cpu() -> dict[str, Any]:
    return {"enforce_eager": True, "kv_cache_memory_bytes": CPU_CACHE_BYTES}


def _on_gpus(settings: EngineSettings, config: Mapping[str, Any], gpus: int) -> dict[str, Any]:
    if settings.device != "cuda":
        raise EngineError(
            "vLLM takes all GPUs that it sees",
            f"{settings.device} is one of them",
            f"set CUDA_VISIBLE_DEVICES={settings.device.rpartition(':')[2]} and --device cuda",
        )
    heads = int(config["num_attention_heads"])
    return {"tensor_parallel_size": tensor_parallel(gpus, heads), "gpu_memory_utilization": GPU_SHARE}


def tensor_parallel(gpus: int, heads: int) -> int:
    """Over how many GPUs a model is split: the largest power of two that there are and that divides its heads."""
    size = 1
    while size * 2 <= gpus and heads % (size * 2) == 0:
        size *= 2
    return size
