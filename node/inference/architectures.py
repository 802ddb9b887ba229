"""Architectures as a table of parts: what each family has of norms, positions, attention and scales.

A row says how a family is put together; numbers come from its configuration. Everything that computes a model reads
the same row: the engine's pass (transformer), the learner's attention and head (node.training). What no row describes
is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from protocol.routing import MAX_EXPERTS, Routing

CORRECTION = "e_score_correction_bias"
"""Of a router's experts, as transformers calls it: added to what decides, and not to what an expert counts."""


MAX_LAYERS = 1024
_SIZES = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step", "full_attention_interval",
    "shared_expert_intermediate_size", "n_shared_experts",
)  # fmt: skip
"""Of a config.json, of which none is nothing."""


class Gain(Enum):
    """How a norm's weight meets what it normed, and where the product is rounded."""

    ROUNDED = "weight * rounded"
    PRODUCT = "(weight * wide) rounded"
    ONE_MORE = "((1 + weight) * wide) rounded"


BEFORE = ("input_layernorm", "", "post_attention_layernorm", "")
AFTER = ("", "post_attention_layernorm", "", "post_feedforward_layernorm")
AROUND = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True, slots=True)
class ExpertParts:
    """Of a layer with experts. router: its name; width: what the configuration calls an expert's; clamped: experts have
    biases, their matrices are [in, out], columns of gate and up take turns in one, and both are clamped between;
    shared: an MLP beside them that computes every token; shared_gate: the layer that says how much it counts;
    corrected: experts are chosen by the logistic function of what the router says, and a correction of each."""

    router: str = "gate"
    width: str = "moe_intermediate_size"
    clamped: bool = False
    shared: str = ""
    shared_gate: str = ""
    corrected: bool = False


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """A gated delta layer (node.inference.delta). key_heads, heads: counts of keys and of values; kernel: tokens that
    its convolution sees."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def keys(self) -> int:
        """Width of all keys, and of all queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Width of all values, and of their gates."""
        return self.heads * self.value_dim

    @property
    def channels(self) -> int:
        """Queries, keys and values: what is convolved."""
        return 2 * self.keys + self.values

    @property
    def remembered(self) -> int:
        """Numbers that stand for all tokens before, in float32."""
        return self.heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True)
class Architecture:
    """norms: names of those before attention, behind it, before the MLP, behind it; empty: there is none. gain: of all
    norms. whole_norms: queries and keys are normed over all heads, not each. fused: queries, keys and values have one
    matrix, gate and up have one. wide_positions: rotated in float32. caps: scores and logits are capped where the
    configuration says by how much. root_scale: embeddings are multiplied by the root of their width. sinks: each head
    has a score that takes part in the softmax and has no value. gated: each query brings a gate for what it finds.
    delta: what goes into gated delta layers comes of these matrices, where the configuration has such layers. experts:
    layers have several MLPs and a router, where the configuration says which."""

    norms: tuple[str, str, str, str] = BEFORE
    gain: Gain = Gain.ROUNDED
    whole_norms: bool = False
    fused: bool = False
    wide_positions: bool = False
    caps: bool = False
    root_scale: bool = False
    sinks: bool = False
    gated: bool = False
    delta: tuple[str, ...] = ()
    experts: ExpertParts | None = None


_QWEN_DELTA = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
_WIDTH_OF_ALL = ExpertParts(width="intermediate_size")
_OLMO = Architecture(norms=AFTER, gain=Gain.PRODUCT, whole_norms=True, wide_positions=True)
ARCHITECTURES = {
    "llama": Architecture(),
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "qwen3_moe": Architecture(experts=ExpertParts()),
    "gpt_oss": Architecture(
        gain=Gain.PRODUCT, sinks=True, experts=ExpertParts(router="router", width="intermediate_size", clamped=True)
    ),
    "mistral": Architecture(),
    "mixtral": Architecture(experts=_WIDTH_OF_ALL),
    "ministral": Architecture(),
    "smollm3": Architecture(),
    "granite": Architecture(),
    "seed_oss": Architecture(),
    "phi3": Architecture(fused=True),
    "olmo2": _OLMO,
    "olmo3": _OLMO,
    "olmoe": Architecture(whole_norms=True, experts=_WIDTH_OF_ALL),
    "flex_olmo": replace(_OLMO, experts=_WIDTH_OF_ALL),
    "gemma2": Architecture(norms=AROUND, gain=Gain.ONE_MORE, caps=True, root_scale=True),
    "gemma3_text": Architecture(norms=AROUND, gain=Gain.ONE_MORE, root_scale=True),
    "qwen3_next": Architecture(
        gain=Gain.ONE_MORE,
        gated=True,
        delta=("in_proj_qkvz", "in_proj_ba"),
        experts=ExpertParts(shared="shared_expert", shared_gate="shared_expert_gate"),
    ),
    "glm4_moe": Architecture(experts=ExpertParts(shared="shared_experts", corrected=True)),
    "qwen3_5_text": Architecture(gain=Gain.ONE_MORE, gated=True, delta=_QWEN_DELTA),
    "qwen3_5_moe_text": Architecture(
        gain=Gain.ONE_MORE,
        gated=True,
        delta=_QWEN_DELTA,
        experts=ExpertParts(shared="shared_expert", shared_gate="shared_expert_gate"),
    ),
}
"""By model_type of config.json."""
FAMILIES = tuple(ARCHITECTURES)
ROPE = ("default", "linear", "llama3", "yarn")
"""Kinds of positions whose frequencies do not depend on a sequence's length."""
LAYERS = ("full_attention", "sliding_attention")
DELTA = "linear_attention"
"""Transformers' name of gated delta layers."""


@dataclass(frozen=True, slots=True)
class Attending:
    """How one layer attends. scale: of its scores, None: the root of a head's width; window: places that are seen, the
    own one among them, None: all; cap: scores are cap * tanh(score / cap); positions: which table of them, None: it
    has no positions; sinks: of its heads each has one; delta: it does not attend, but remembers in this way."""

    scale: float | None = None
    window: int | None = None
    cap: float | None = None
    positions: str | None = ""
    sinks: bool = False
    delta: DeltaShape | None = None

    @property
    def plain(self) -> bool:
        """Whether a kernel that knows nothing of these numbers computes it."""
        of_scores = self.scale is None and self.window is None and self.cap is None and not self.sinks
        return of_scores and self.delta is None


PLAIN = Attending()


def beyond_bounds(config: Mapping[str, Any]) -> str | None:
    """Why transformers must not see a config.json: what it does not support here may be anything, and it lists a kind
    for each layer before anybody asks whether the weights have so many. None if it may."""
    if (kind := str(config.get("model_type"))) not in ARCHITECTURES:
        return f"the architecture {kind[:80]!r} is not supported; supported are {', '.join(FAMILIES)}"
    most = dict.fromkeys(_SIZES, 1 << 31) | {
        "num_hidden_layers": MAX_LAYERS,
        **dict.fromkeys(EXPERT_COUNTS, MAX_EXPERTS),
    }
    for name, bound in most.items():
        # What is not said has the family's own number.
        if (count := config.get(name)) is not None and (type(count) is not int or not 1 <= count <= bound):
            return f"{name} must be a whole number from 1 to {bound}"
    return None


def unsupported(config: Any) -> str | None:
    """What in a transformers configuration no row describes; None if the model can be computed."""
    if not (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads):
        return f"{config.num_attention_heads} heads of a width of {config.hidden_size} together are not supported"
    rope = getattr(config, "rope_parameters", None) or {}
    tables = [table for table in (rope.values() if _by_layer(rope) else [rope]) if table]
    if not all(isinstance(table, Mapping) for table in tables):
        return "positions that are described by no table are not supported"
    kinds = {table.get("rope_type", "default") for table in tables}
    if odd := sorted(kinds - set(ROPE)):
        return f"positions of kind {odd[0]!r} are not supported; supported are {', '.join(ROPE)}"
    known = (*LAYERS, DELTA) if ARCHITECTURES[config.model_type].delta else LAYERS
    if odd := sorted(set(getattr(config, "layer_types", None) or ()) - set(known)):
        return f"layers of kind {odd[0]!r} are not supported; supported are {', '.join(known)}"
    if (kinds := getattr(config, "layer_types", None)) and kinds.count(DELTA) == len(kinds):
        return "a model in which no layer attends is not supported"
    if getattr(config, "use_bidirectional_attention", None):
        return "attention to what comes later is not supported"
    if getattr(config, "clip_qkv", None) is not None:
        return "queries, keys and values that are clipped are not supported"
    # A family whose row has no caps would be computed without this one, silently: other logits than the model's own.
    if logit_cap(config) is None and getattr(config, "final_logit_softcapping", None):
        return f"logits of {config.model_type} are capped, which is not supported"
    routing = routing_of(config)
    if routing and not 1 <= routing.chosen <= routing.experts <= MAX_EXPERTS:
        return f"{routing.chosen} of {routing.experts} experts are not supported; supported are up to {MAX_EXPERTS}"
    if routing and (groups := getattr(config, "n_group", None) or 1) != 1:
        return f"experts in {groups} groups, of which some are chosen first, are not supported"
    return None


def expert_layers(config: Any) -> list[int]:
    """The numbers of the layers that have experts."""
    if not ARCHITECTURES[config.model_type].experts:
        return []
    every, dense = getattr(config, "decoder_sparse_step", 1), set(getattr(config, "mlp_only_layers", None) or ())
    first = getattr(config, "first_k_dense_replace", 0)
    return [at for at in range(first, config.num_hidden_layers) if at not in dense and (at + 1) % every == 0]


def routing_of(config: Any) -> Routing | None:
    """What the routers of a model do; None if it has none."""
    layers = len(expert_layers(config))
    if not layers:
        return None
    # Under one name or the other; what transformers calls by both it writes into config.json by one.
    experts = next((int(found) for name in EXPERT_COUNTS if (found := getattr(config, name, None))), 0)
    return Routing(layers, experts, config.num_experts_per_tok)


EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""What configurations call how many experts a layer has."""


def shared_width(config: Any) -> int:
    """Of the MLP beside experts; 0 if there is none."""
    parts = ARCHITECTURES[config.model_type].experts
    if parts is None or not parts.shared:
        return 0
    return int(getattr(config, "shared_expert_intermediate_size", 0)) or expert_width(config) * config.n_shared_experts


def expert_width(config: Any) -> int:
    """Of each expert between gate and down, in a model that has some."""
    parts = ARCHITECTURES[config.model_type].experts
    assert parts is not None  # as the caller knows
    return int(getattr(config, parts.width))


def _by_layer(rope: Any) -> bool:
    # Gemma 3 has a table for each kind of layer, others one for all.
    return any(isinstance(table, dict) for table in rope.values())


def attending(config: Any) -> list[Attending]:
    """Of each layer."""
    row, count = ARCHITECTURES[config.model_type], config.num_hidden_layers
    scale, shape = _scale(config), delta_shape(config)
    cap = config.attn_logit_softcapping if row.caps else None
    return [
        Attending(positions=None, delta=shape)
        if shape and config.layer_types[at] == DELTA
        else Attending(scale, _window(config, at), cap, _positions(config, at), row.sinks)
        for at in range(count)
    ]


DELTA_SIZES = (
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)
"""Names in a configuration, in the order of DeltaShape's."""


def delta_shape(config: Any) -> DeltaShape | None:
    """Of the gated delta layers of a model; None if it has none."""
    if not ARCHITECTURES[config.model_type].delta or DELTA not in config.layer_types:
        return None
    return DeltaShape(*(getattr(config, name) for name in DELTA_SIZES))


def recalling_layers(config: Mapping[str, Any]) -> int:
    """How many layers remember instead of attending, by a config.json. Raises KeyError, TypeError, ZeroDivisionError
    for one that makes no sense."""
    row = ARCHITECTURES.get(config.get("model_type", ""))
    if row is None or not row.delta:
        return 0
    kinds, every = config.get("layer_types"), config.get("full_attention_interval", 4)
    if kinds is None:
        return sum((at + 1) % every != 0 for at in range(config["num_hidden_layers"]))
    return kinds.count(DELTA)


def written_out(config: Any) -> bool:
    """Whether attention has caps or sinks, which transformers' fast kernels leave out silently."""
    return any(one.cap is not None or one.sinks for one in attending(config))


def _scale(config: Any) -> float | None:
    if config.model_type == "granite":
        return float(config.attention_multiplier)
    natural = getattr(config, "query_pre_attn_scalar", None)
    return None if natural is None else float(natural) ** -0.5


def _window(config: Any, layer: int) -> int | None:
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    # A configuration with a window and no kinds of layers, as Mistral's is, has the window in all of them.
    return window if kinds is None or kinds[layer] == "sliding_attention" else None


def _positions(config: Any, layer: int) -> str | None:
    rotated = getattr(config, "no_rope_layers", None)
    # In spite of its name the list says 1 where a layer has positions.
    if rotated is not None and not rotated[layer]:
        return None
    return f"{config.layer_types[layer]}_" if _by_layer(config.rope_parameters) else ""


def embedding_scale(config: Any) -> float:
    if ARCHITECTURES[config.model_type].root_scale:
        return float(config.hidden_size**0.5)
    return float(getattr(config, "embedding_multiplier", 1.0))


def logit_divisor(config: Any) -> float:
    """Logits are divided by it."""
    return float(getattr(config, "logits_scaling", 1.0))


def logit_cap(config: Any) -> float | None:
    """Logits are cap * tanh(logit / cap)."""
    return getattr(config, "final_logit_softcapping", None) if ARCHITECTURES[config.model_type].caps else None
