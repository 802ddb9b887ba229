"""Tiny random models of every family, as transformers has them and as the engine does."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from node.inference.language_model import LanguageModel

VOCABULARY = 97
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_FAR = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGURATIONS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama, far": LlamaConfig(**_SIZES, rope_parameters={**_FAR, "original_max_position_embeddings": 64}),
    "qwen2": Qwen2Config(**_SIZES),
    "qwen3": Qwen3Config(**_SIZES, head_dim=32),
}


def transformers_model(config: PretrainedConfig, dtype: torch.dtype, attention: str) -> Any:
    """Random weights that are the same for every kernel."""
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention).eval()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.1)
    return model


def engine_model(theirs: Any, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> LanguageModel:
    """The same model."""
    model = LanguageModel(theirs, "cpu", dtype, attention)
    with torch.no_grad():
        model.load(dict(theirs.named_parameters()))
    return model
