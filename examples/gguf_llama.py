"""A Llama model in a GGUF file (llama.cpp's form) becomes a directory in Hugging Face form.

Knows names, order and metadata of the tensors that llama.cpp's converter writes for Llama; `gguf` knows how numbers
are packed. Weights that were quantised are rounded to bf16 once more: they are as good as the file, no better.
Transformers reads GGUF, too, but its tokenizer for it lacks the split into single digits that SmolLM2's own has.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from node.inference.torch_engine import bf16_bits
from protocol.policy import encode_image

Floats = NDArray[np.float32]
SPECIAL = 3
"""llama.cpp's type of a token that stands for no text."""
WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
OF_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def convert(source: Path, out: Path) -> int:
    """Write config.json, tokenizer.json, chat template and model.safetensors into `out`; returns the parameters.

    Raises ValueError for a file that holds another architecture or a tensor that Llama does not have.
    """
    from gguf import GGUFReader  # fetched by whoever calls

    reader = GGUFReader(source)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    if facts["general.architecture"] != "llama":
        raise ValueError(f"{source}: the architecture is {facts['general.architecture']}, not llama")
    out.mkdir(parents=True, exist_ok=True)
    names = {tensor.name for tensor in reader.tensors}
    _write_json(out / "config.json", config(facts, tied="output.weight" not in names))
    _write_json(out / "generation_config.json", _ends(facts))
    write_tokenizer(out, facts)
    bits = {name: bf16_bits(torch.from_numpy(values)) for name, values in _tensors(reader, facts)}
    (out / "model.safetensors").write_bytes(encode_image(bits))
    return sum(values.size for values in bits.values())


def config(facts: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """What Hugging Face's config.json says of the same model. tied: whether input and output share one embedding."""
    hidden, heads = facts["llama.embedding_length"], facts["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": float(f"{facts['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # float32 in the file
        "rope_theta": facts["llama.rope.freq_base"],
        "tie_word_embeddings": tied,
        "dtype": "bfloat16",
        **_ends(facts),
    }


def write_tokenizer(out: Path, facts: dict[str, Any]) -> None:
    """tokenizer.json of a byte-level BPE that takes each digit by itself, as SmolLM's does."""
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == SPECIAL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokens[facts["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[facts["tokenizer.ggml.padding_token_id"]],
        "chat_template": facts["tokenizer.chat_template"],
    }
    _write_json(out / "tokenizer_config.json", settings)


def hugging_face_name(name: str) -> str:
    """Of a tensor. Raises ValueError for one that Llama does not have."""
    found = _LAYER.fullmatch(name)
    if name in WHOLE:
        return WHOLE[name]
    if found is None or found.group(2) not in OF_LAYER:
        raise ValueError(f"tensor {name!r} is none of a Llama model")
    return f"model.layers.{found.group(1)}.{OF_LAYER[found.group(2)]}.weight"


def halves(weights: Floats, heads: int) -> Floats:
    """Rows of a query or key projection in Hugging Face's order: the halves of each head that rotary positions pair
    stand one behind the other. llama.cpp's converter puts each pair side by side."""
    paired = weights.reshape(heads, weights.shape[0] // heads // 2, 2, weights.shape[1])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(weights.shape)


def _tensors(reader: Any, facts: dict[str, Any]) -> Iterator[tuple[str, Floats]]:
    from gguf import dequantize

    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    for tensor in reader.tensors:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        part = tensor.name.split(".")[-2]
        yield hugging_face_name(tensor.name), halves(values, heads[part]) if part in heads else values


def _ends(facts: dict[str, Any]) -> dict[str, int]:
    """bos, eos and padding tokens, by number."""
    sources = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {f"{name}_token_id": int(facts[f"tokenizer.ggml.{source}_token_id"]) for name, source in sources.items()}


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
