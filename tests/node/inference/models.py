"""Tiny random models of every family, as transformers has them and as the engine does."""

import copy
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    FlexOlmoConfig,
    Gemma2Config,
    Gemma3TextConfig,
    Glm4MoeConfig,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MinistralConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoeConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    SeedOssConfig,
    SmolLM3Config,
)

from node.inference.experts import correct_as_parameters
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
_MIXED = ["sliding_attention", "full_attention"]
_DELTA = ["linear_attention", "full_attention"]
_DELTA_SIZES: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
}
_FAR = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_YARN = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "original_max_position_embeddings": 64}
CONFIGURATIONS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama, far": LlamaConfig(**_SIZES, rope_parameters={**_FAR, "original_max_position_embeddings": 64}),
    "qwen2": Qwen2Config(**_SIZES),
    "qwen2, windows": Qwen2Config(**_SIZES, layer_types=_MIXED, use_sliding_window=True, sliding_window=7),
    "qwen3": Qwen3Config(**_SIZES, head_dim=32),
    "qwen3_moe": Qwen3MoeConfig(
        **_SIZES, head_dim=32, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True
    ),
    "qwen3_moe, in part": Qwen3MoeConfig(
        **_SIZES,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=3,
        moe_intermediate_size=40,
        mlp_only_layers=[0],
    ),
    "gpt_oss": GptOssConfig(
        **_SIZES,
        head_dim=32,
        num_local_experts=6,
        num_experts_per_tok=2,
        sliding_window=7,
        swiglu_limit=0.5,
        rope_parameters={**_YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    ),
    "mistral": MistralConfig(**_SIZES, sliding_window=9),
    "mixtral": MixtralConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=9),
    "ministral": MinistralConfig(**_SIZES, head_dim=16, sliding_window=7, layer_types=_MIXED),
    "smollm3": SmolLM3Config(**_SIZES, no_rope_layers=[1, 0], pad_token_id=0),
    "phi3": Phi3Config(**_SIZES, sliding_window=None, pad_token_id=0),
    "phi3, in part": Phi3Config(
        **_SIZES,
        sliding_window=20,
        pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
    ),
    "olmo2": Olmo2Config(**_SIZES),
    "olmo3": Olmo3Config(**_SIZES, sliding_window=7, layer_types=_MIXED),
    "olmoe": OlmoeConfig(**_SIZES, num_experts=6, num_experts_per_tok=2, pad_token_id=0),
    "flex_olmo": FlexOlmoConfig(**_SIZES, num_experts=6, num_experts_per_tok=2, pad_token_id=0),
    "seed_oss": SeedOssConfig(**_SIZES, head_dim=32, residual_dropout=0.1, pad_token_id=0),
    "granite": GraniteConfig(
        **_SIZES,
        attention_multiplier=0.1,
        residual_multiplier=0.3,
        embedding_multiplier=5.0,
        logits_scaling=4.0,
        tie_word_embeddings=True,
    ),
    "gemma2": Gemma2Config(
        **_SIZES,
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=7,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    "gemma3_text": Gemma3TextConfig(
        **_SIZES, head_dim=16, query_pre_attn_scalar=24, sliding_window=7, layer_types=_MIXED
    ),
    "glm4_moe": Glm4MoeConfig(
        **_SIZES,
        head_dim=32,
        n_routed_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=24,
        routed_scaling_factor=1.7,
        use_qk_norm=True,
        attention_bias=True,
        pad_token_id=0,
    ),
    "qwen3_next": Qwen3NextConfig(
        **_SIZES,
        head_dim=32,
        layer_types=_DELTA,
        num_experts=300,
        num_experts_per_tok=3,
        moe_intermediate_size=8,
        shared_expert_intermediate_size=40,
        **_DELTA_SIZES,
    ),
    "qwen3_5_moe_text": Qwen3_5MoeTextConfig(
        **_SIZES,
        head_dim=32,
        layer_types=_DELTA,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=40,
        **_DELTA_SIZES,
    ),
    "qwen3_5_text": Qwen3_5TextConfig(**_SIZES, head_dim=32, layer_types=_DELTA, **_DELTA_SIZES),
}


def kernel_of(name: str) -> str:
    """What transformers computes it with: its other kernels leave out caps and sinks, silently."""
    return "eager" if name in ("gemma2", "gpt_oss") else "sdpa"


_MADE: dict[tuple[int, torch.dtype, str], Any] = {}


def transformers_model(config: PretrainedConfig, dtype: torch.dtype, attention: str) -> Any:
    """Random weights that are the same for every kernel. A copy is made in half the time."""
    key = id(config), dtype, attention
    if key not in _MADE:
        _MADE[key] = config, _random_model(config, dtype, attention)  # kept, so that its id is nobody else's
    return copy.deepcopy(_MADE[key][1])


def _random_model(config: PretrainedConfig, dtype: torch.dtype, attention: str) -> Any:
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention).eval()
    correct_as_parameters(model)
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
