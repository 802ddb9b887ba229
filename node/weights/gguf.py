"""A model directory as one GGUF file, for llama.cpp and what stands on it, by the library `gguf` (extra [gguf]).

Six families whose tokenizers are byte-level BPE, each proven against llama.cpp (tests/node/weights/test_gguf.py). What
it would compute or cut otherwise than here is refused by name, before a byte is written. Blocking: call in a thread.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from node.inference.chat_template import stated
from node.inference.model_files import CONFIG, read_json
from node.state.files import sync_directory
from node.weights.errors import WeightsError, disk_errors

Kind = Literal["bf16", "f16", "q8_0"]
KINDS: tuple[str, ...] = get_args(Kind)
FAMILIES = {
    "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "smollm3": "smollm3", "olmo2": "olmo2",
}  # fmt: skip
"""model_type of config.json -> llama.cpp's architecture."""
INTERLEAVED = ("llama", "mistral", "smollm3")
"""llama.cpp turns neighbouring numbers of a head together, transformers those that are half a head apart: the rows of
queries and keys are exchanged."""
BIASED: Mapping[str, tuple[str, ...]] = {"qwen2": ("q_proj", "k_proj", "v_proj")}
"""Layers that have a bias in llama.cpp; of llama and mistral all."""
OLLAMA = ("llama", "qwen2", "gemma2", "gemma3_text", "phi3", "olmo3", "gpt_oss")
"""Families of which ollama reads a directory as it is."""
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_PATTERNS = {(_QWEN2, False): "qwen2", (_LLAMA3, True): "llama-bpe", (_LLAMA3, False): "dbrx"}
"""(pattern, whether whole words are looked up before merges) -> llama.cpp's name for such a split."""
OnBytes = Callable[[int], object]


@dataclass
class GgufPlan:
    """What is written of a model: architecture and facts of its configuration; tokens."""

    model: Path
    arch: str
    config: Any
    names: dict[str, tuple[int, ...]]
    tokens: list[str]
    types: list[int]
    merges: list[str]
    split: str
    ends: list[int]
    begin: tuple[int | None, bool]


def planned(model: Path) -> GgufPlan:
    """Raises WeightsError for what llama.cpp would take for something else, ModelError for no model at all."""
    from node.inference.torch_engine import build_model, image_names

    try:
        import gguf  # noqa: F401 - asked for before anything is computed
    except ImportError:
        raise WeightsError(
            "GGUF needs the library gguf", "it is not installed", "pip install 'intellect-node[gguf]'"
        ) from None
    family = read_json(model / CONFIG).get("model_type")
    if family not in FAMILIES:
        raise _refused(f"{family!r} is not written here; written are {', '.join(FAMILIES)}")
    built = build_model(model, "meta")
    names = {name: tuple(tensor.shape) for name, tensor in image_names(built).items()}
    _check(built.config, names)
    return GgufPlan(model, FAMILIES[family], built.config, names, *_tokens(model, built.config.vocab_size))


def _check(config: Any, names: Mapping[str, tuple[int, ...]]) -> None:
    from node.inference.architectures import attending

    family, layers = config.model_type, attending(config)
    if any(layer.window is not None for layer in layers):
        raise _refused(f"its layers see a window of {config.sliding_window} places, and llama.cpp's {family} all")
    some_places = 4  # layers of llama.cpp's smollm3: each so manieth is without positions
    if family == "smollm3" and [layer.positions is None for layer in layers] != [
        (at + 1) % some_places == 0 for at in range(len(layers))
    ]:
        raise _refused(f"other layers than each {some_places}th are without positions")
    if (kind := _rope(config).get("rope_type", "default")) not in ("default", "linear", "llama3"):
        raise _refused(f"its positions are of kind {kind!r}")
    if config.hidden_act != "silu":
        raise _refused(f"its activation is {config.hidden_act!r}, and llama.cpp's is silu")
    if FAMILIES[family] != "llama":
        biased = [name for name in names if name.endswith(".bias")]
        if odd := [name for name in biased if name.split(".")[-2] not in BIASED.get(family, ())]:
            raise _refused(f"{odd[0]} has no place in llama.cpp's {family}")


def _rope(config: Any) -> Mapping[str, Any]:
    return getattr(config, "rope_parameters", None) or {}


# --- tokens --------------------------------------------------------------------------------------


def _tokens(model: Path, size: int) -> tuple[list[str], list[int], list[str], str, list[int], tuple[int | None, bool]]:
    """(tokens, their types, merges, the split's name, ends, (the token of beginnings, whether one is put there))."""
    from node.inference.tokenizer import LocalTokenizer

    tokenizer = LocalTokenizer(model)  # which refuses what is broken, drawn at random, or grows
    tokenizer.check_fits(size)
    said = json.loads((model / "tokenizer.json").read_bytes())
    bpe = said["model"]
    split = _split(said)
    normal, control, user, unused = 1, 3, 4, 5  # kinds of tokens in GGUF
    tokens, types = [f"[PAD{at}]" for at in range(size)], [unused] * size
    for text, at in bpe["vocab"].items():
        tokens[at], types[at] = text, normal
    for one in said.get("added_tokens") or ():
        tokens[one["id"]], types[one["id"]] = one["content"], control if one["special"] else user
    merges = [one if isinstance(one, str) else " ".join(one) for one in bpe["merges"]]
    # What the tokenizer puts before and behind a text by itself.
    bare, with_ends = tokenizer.encode("a"), tokenizer.encode_whole("a")
    before = with_ends[: len(with_ends) - len(bare)]
    if len(before) > 1 or with_ends[len(before) :] != bare:
        raise _refused("its tokenizer puts more around a text than one token before it")
    begin = before[0] if before else read_json(model / CONFIG).get("bos_token_id")
    ends = [tokenizer.end, *sorted(tokenizer.eos - {tokenizer.end})]
    return tokens, types, merges, split, ends, (begin if isinstance(begin, int) else None, bool(before))


def _split(said: Mapping[str, Any]) -> str:
    """llama.cpp's name for how a tokenizer.json cuts texts before it merges."""
    bpe, step = said["model"], said.get("pre_tokenizer") or {}
    steps = step.get("pretokenizers") or [step]
    kinds = [one.get("type") for one in steps]
    if bpe.get("type") != "BPE" or kinds[-1] != "ByteLevel" or steps[-1].get("add_prefix_space"):
        raise _refused("its tokenizer is no byte-level BPE")
    odd = [key for key in ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix") if bpe.get(key)]
    normalizer = (said.get("normalizer") or {"type": "NFC"}).get("type")
    if odd or normalizer != "NFC":
        raise _refused(f"its tokenizer has {', '.join(odd) or f'a normalizer of type {normalizer!r}'}")
    direct, own = bool(bpe.get("ignore_merges")), steps[-1].get("use_regex", True)
    if own and not direct and kinds == ["ByteLevel"]:
        return "gpt-2"
    if own and not direct and kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    cut = steps[0] if kinds == ["Split", "ByteLevel"] and not own else {}
    plain = cut.get("behavior") == "Isolated" and not cut.get("invert")
    found = _PATTERNS.get((cut.get("pattern", {}).get("Regex"), direct)) if plain else None
    if found is None:
        raise _refused("its tokenizer cuts texts by a pattern that llama.cpp was not compared with here")
    return found


# --- the file ------------------------------------------------------------------------------------


def write_gguf(plan: GgufPlan, weights: Path, out: Path, kind: Kind, on_progress: OnBytes = lambda _: None) -> int:
    """Write `out`; its bytes. weights: the directory with the tensors, which may be another than the plan's with the
    configuration. told: bytes of bf16 done. Raises WeightsError, ModelError."""
    import gguf

    from node.inference.start_weights import StartWeights

    start = StartWeights(weights)
    naming = gguf.get_tensor_name_map(gguf.MODEL_ARCH[plan.arch.upper()], plan.config.num_hidden_layers)
    partial = out.with_name(f".{out.name}.partial")
    writer = gguf.GGUFWriter(None, plan.arch)
    _write_facts(writer, plan, out.stem, kind)
    order = [(name, _type_of(gguf, shape, kind)) for name, shape in plan.names.items()]
    more = {"rope_freqs.weight": factors} if (factors := _factors(plan.config)) is not None else {}
    for name, values in more.items():
        writer.add_tensor_info(name, values.shape, values.dtype, values.nbytes)
    for name, quantised in order:
        there = naming.get_name(name, try_suffixes=(".weight", ".bias"))
        if there is None:
            raise _refused(f"{name} has no place there")
        shape, dtype = plan.names[name], np.dtype(np.float32)
        if quantised != gguf.GGMLQuantizationType.F32:
            shape, dtype = gguf.quant_shape_to_byte_shape(shape, quantised), np.dtype(np.uint8)
        writer.add_tensor_info(there, shape, dtype, int(np.prod(shape)) * dtype.itemsize, raw_dtype=quantised)
    try:
        with disk_errors(f"the file {out}"):
            writer.write_header_to_file(partial)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for values in more.values():
                writer.write_tensor_data(values)
            for name, quantised in order:
                writer.write_tensor_data(_packed(gguf, name, _numbers(plan, name, start), quantised))
                on_progress(2 * int(np.prod(plan.names[name])))
            writer.close()
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(partial, out)
            sync_directory(out.parent)
    finally:
        writer.close()
        partial.unlink(missing_ok=True)
    return out.stat().st_size


def _write_facts(writer: Any, plan: GgufPlan, name: str, kind: Kind) -> None:
    import gguf

    config, rope = plan.config, _rope(plan.config)
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.upper()}"])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(float(rope.get("rope_theta", 10000.0)))
    writer.add_vocab_size(config.vocab_size)
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    begin, put = plan.begin
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(plan.split)
    writer.add_token_list(plan.tokens)
    writer.add_token_types(plan.types)
    writer.add_token_merges(plan.merges)
    writer.add_eos_token_id(plan.ends[0])
    for other in plan.ends[1:2]:
        writer.add_eot_token_id(other)
    if begin is not None:
        writer.add_bos_token_id(begin)
    writer.add_add_bos_token(put)
    if template := stated(plan.model):
        writer.add_chat_template(template.text)


def _type_of(gguf: Any, shape: tuple[int, ...], kind: Kind) -> Any:
    """Of a tensor: norms and biases stay whole, and what has no whole blocks is in half precision."""
    if len(shape) == 1:
        return gguf.GGMLQuantizationType.F32
    return gguf.GGMLQuantizationType["F16" if kind == "q8_0" and shape[-1] % 32 else kind.upper()]


def _numbers(plan: GgufPlan, name: str, start: Mapping[str, Any]) -> NDArray[np.float32]:
    values: NDArray[np.float32] = start[name].float().numpy()
    config, part = plan.config, name.split(".")[-2]
    if config.model_type not in INTERLEAVED or part not in ("q_proj", "k_proj"):
        return values
    heads = config.num_attention_heads if part == "q_proj" else config.num_key_value_heads
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _packed(gguf: Any, name: str, values: NDArray[np.float32], quantised: Any) -> NDArray[Any]:
    if quantised == gguf.GGMLQuantizationType.F16 and np.abs(values).max(initial=0.0) > np.finfo(np.float16).max:
        raise _refused(f"{name} has numbers that half precision does not hold: bf16 does")
    packed = gguf.quants.quantize(values, quantised)
    return packed if packed.dtype == np.float32 else packed.view(np.uint8)


def _factors(config: Any) -> NDArray[np.float32] | None:
    """float32[head / 2]: by what each frequency of Llama 3's long positions is divided (transformers, rope_type
    `llama3`); None for other positions."""
    rope = _rope(config)
    if rope.get("rope_type") != "llama3":
        return None
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    low, high, length = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    wave = 2 * np.pi * float(rope["rope_theta"]) ** (np.arange(0, head, 2) / head)
    smooth = np.clip((length / wave - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32)


def modelfile(model: Path, gguf: str | None = None) -> str | None:
    """What ollama is told of a directory: to take it as it is, or the GGUF file in it; None where it reads neither."""
    if read_json(model / CONFIG).get("model_type") in OLLAMA:
        return "FROM .\n"
    return f"FROM ./{gguf}\n" if gguf else None


def _refused(why: str) -> WeightsError:
    return WeightsError("no GGUF is written of this model", why, "try llama.cpp's convert_hf_to_gguf.py DIR")
