"""How much memory one rank of the trainer needs, from a model's shape: exact for what can be counted.

Counted: parameters, gradients, optimiser, what the backward pass keeps of each token (as torch keeps it for Llama,
Qwen2 and Qwen3 in transformers; tests/node/training/test_sizing.py compares with torch), the head's tables, what FSDP2
gathers. Estimated: what allocators lose and libraries take, as a share and RESERVE. Imports nothing heavy.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from node.inference.architectures import (
    ARCHITECTURES,
    DELTA_SIZES,
    EXPERT_COUNTS,
    DeltaShape,
    ExpertParts,
    beyond_bounds,
    recalling_layers,
)
from node.inference.model_files import TIED, language_config
from node.inference.room import CHUNK, ModelSize
from node.inference.weight_files import has_own_head
from node.training.errors import TrainingError
from node.training.settings import CPU_LOGIT_CELLS, TrainerSettings
from node.units import GIB
from protocol.lora import Lora
from protocol.recipe import Recipe

RESERVE = 3 * GIB // 4
"""Bytes that libraries take of a GPU (CUDA's context, NCCL's buffers), or of a process on a CPU."""


class DecoderShape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder of one of the architectures; what some have of further norms is left out. hidden, intermediate: widths;
    layers, heads, key_heads, head: counts, and a head's width; tied: one matrix for embedding and output; norms:
    queries and keys are normed; biases: those of the attention's input layers; routed: layers with experts;
    experts, chosen, expert: how many each of these has, how many of them compute a token, and their width;
    expert_biases: of all their matrices, and of routers; beside: width of the MLP beside experts; beside_gate: it has
    one; corrected: each expert has a correction; gated: queries bring gates; delta: of layers that remember
    instead of attending, `recalling` of them."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    head: int
    vocabulary: int
    tied: bool = False
    norms: bool = False
    biases: bool = False
    experts: int = 0
    chosen: int = 0
    expert: int = 0
    expert_biases: bool = False
    routed: int = 0
    beside: int = 0
    beside_gate: bool = False
    corrected: bool = False
    gated: bool = False
    delta: DeltaShape | None = None
    recalling: int = 0

    @property
    def query(self) -> int:
        """Width of all queries."""
        return self.heads * self.head

    @property
    def key(self) -> int:
        """Width of all keys, and of all values."""
        return self.key_heads * self.head

    @property
    def _mlps(self) -> tuple[int, int]:
        """Parameters behind the attention of a layer without experts and of one with them; 0 where there is none."""
        plain = 3 * self.hidden * self.intermediate if self.routed < self.layers else 0
        if not self.routed:
            return plain, 0
        biases = (2 * self.expert + self.hidden + 1) * self.expert_biases + self.corrected
        beside = self.hidden * (3 * self.beside + self.beside_gate)
        return plain, self.experts * (self.hidden * (3 * self.expert + 1) + biases) + beside

    @property
    def _around(self) -> tuple[int, int]:
        """Parameters besides those of a layer that attends, and of one that remembers."""
        attention = self.hidden * ((2 + self.gated) * self.query + 2 * self.key)
        extras = 2 * self.head * self.norms + ((1 + self.gated) * self.query + 2 * self.key) * self.biases
        attends, kind = attention + 2 * self.hidden + extras, self.delta
        if kind is None:
            return attends, 0
        into = self.hidden * (kind.channels + 2 * kind.values + 2 * kind.heads)
        return attends, into + kind.channels * kind.kernel + 2 * kind.heads + kind.value_dim + 2 * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Of the largest."""
        return max(self._around) + max(self._mlps)

    @property
    def computing(self) -> int:
        """Width of all that computes one token between gate and down, at most."""
        return max(self.intermediate if self.routed < self.layers else 0, self.chosen * self.expert + self.beside)

    @property
    def root_parameters(self) -> int:
        """Embedding, output head, last norm: what is gathered as one."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden + self.hidden

    @property
    def parameters(self) -> int:
        plain, routed = self._mlps
        mlps = (self.layers - self.routed) * plain + self.routed * routed
        attends, remembers = self._around
        around = (self.layers - self.recalling) * attends + self.recalling * remembers
        return around + mlps + self.root_parameters

    def kept_per_token(self, size: int) -> int:
        """Bytes that a layer keeps of each token for the backward pass, where it computes in `size` bytes a number: of
        two kinds of layers, the one that keeps more.

        Of samples of unlike length, packed: queries, keys, values and what comes of them are there a second time, cut.
        """
        normed = self.norms * (4 + size)
        widths = (8 + 4 * size) * self.hidden + 4 * size * self.computing
        widths += 3 * size * self.hidden * self.chosen + 8 * self.experts
        attends = (4 * size + normed) * (self.query + self.key) + 3 * size * self.query * self.gated
        attends += 4 * self.heads + 4 * self.norms * (self.heads + self.key_heads)
        return widths + 8 + max(attends, self._remembers(size))

    def _remembers(self, size: int) -> int:
        """The same of a gated delta layer's own part, of samples that fill their chunks: a chunk's tokens have tables
        of each other, and a chunk has what is remembered before it."""
        kind = self.delta
        if kind is None:
            return 0
        wide = 4 * kind.heads * (5 * CHUNK + 8 * kind.key_dim + 5 * kind.value_dim + 8)
        convolved = 3 * size * kind.channels + 16 * kind.keys
        return wide + convolved + 8 * kind.remembered // CHUNK + (12 + 2 * size) * kind.values

    def adapter_parameters(self, lora: Lora) -> int:
        """Of adapters to the layers that `lora` names, as far as this kind of decoder has them."""
        ends = {
            "q_proj": (self.hidden, (1 + self.gated) * self.query),
            "k_proj": (self.hidden, self.key),
            "v_proj": (self.hidden, self.key),
            "o_proj": (self.query, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }
        attends, dense = self.layers - self.recalling, self.layers - self.routed
        found = {name: (attends if name[0] in "qkvo" else dense, sum(widths)) for name, widths in ends.items()}
        if (kind := self.delta) is not None:
            out = {
                "in_proj_qkv": kind.channels,
                "in_proj_z": kind.values,
                "in_proj_b": kind.heads,
                "in_proj_a": kind.heads,
                "in_proj_qkvz": kind.channels + kind.values,
                "in_proj_ba": 2 * kind.heads,
                "out_proj": kind.values,
            }
            found |= {name: (self.recalling, self.hidden + width) for name, width in out.items()}
        learnt = sum(math.prod(found[name]) for name in lora.targets if name in found)
        beside = sum(name in ("gate_proj", "up_proj", "down_proj") for name in lora.targets) * bool(self.beside)
        return lora.rank * (learnt + self.routed * beside * (self.hidden + self.beside))


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one rank. state: its shards of weights, gradients, moments; gathered: whole units of the model in use;
    activations: kept of each token; tables: of logits; reserve: what allocators and libraries take; host: what the
    settings put in the CPU's memory instead; evaluator: on the device that the evaluator is on."""

    state: int
    gathered: int
    activations: int
    tables: int
    reserve: int
    host: int
    evaluator: int

    @property
    def device(self) -> int:
        return self.state + self.gathered + self.activations + self.tables + self.reserve


def memory_of_a_rank(
    shape: DecoderShape,
    settings: TrainerSettings,
    *,
    ranks: int,
    lora: Lora | None = None,
    held: int = 0,
    gpu: bool = True,
) -> RankMemory:
    """At the peak of a step with full micro-batches. held: parameters of other models, for KL or as a teacher; gpu:
    layers compute in bfloat16 unless the settings say otherwise."""
    bfloat16 = settings.dtype == "bfloat16" or (settings.dtype == "auto" and gpu)
    size = 2 if bfloat16 else 4
    # As `join_world` decides it.
    sharded = ranks > 1 or bfloat16 or settings.offload_parameters
    state = _state(shape, settings, size, lora, held) // ranks
    activations = _activations(shape, settings, size)
    gathered = _gathered(shape, settings, size, frozen=lora is not None) if sharded else 0
    cells = settings.logit_cells if gpu else min(settings.logit_cells, CPU_LOGIT_CELLS)
    # Tables of `logit_cells` float32 numbers that are alive at once: two of node.training.head, one of an entropy.
    tables = 3 * 4 * min(cells, settings.micro_batch_tokens * shape.vocabulary)
    host = (state if settings.offload_parameters else 0) + (activations if settings.offload_activations else 0)
    # The layer that computes has its own on the device still.
    kept = _one_layer(shape, settings, size) if settings.offload_activations else activations
    shards = 0 if settings.offload_parameters else state
    reserve_share = 0.1
    return RankMemory(
        state=shards,
        gathered=gathered,
        activations=kept,
        tables=tables,
        reserve=int(reserve_share * (shards + gathered + kept + tables)) + RESERVE,
        host=host,
        evaluator=shape.parameters * (2 if gpu else 4),
    )


def held_beside(shape: DecoderShape, recipe: Recipe, teacher: DecoderShape | None = None) -> int:
    """Parameters of the models that are held beside one that learns: a reference, which an adapter has in itself, and a
    teacher."""
    reference = recipe.objective().reference_kl > 0 and recipe.lora is None
    return shape.parameters * reference + (teacher.parameters if teacher else 0)


def _state(shape: DecoderShape, settings: TrainerSettings, size: int, lora: Lora | None, held: int) -> int:
    learnt = shape.parameters if lora is None else shape.adapter_parameters(lora)
    wide = learnt
    if size == 2:
        # As `Learner._wide` has it: bf16 layers round by themselves, a float32 root unit does not.
        wide = shape.root_parameters if settings.fp32_logits and lora is None else 0
    frozen = 0 if lora is None else shape.parameters * size
    # Bytes per parameter: float32 weights, their gradient, AdamW's two moments; where passes compute in float32, the
    # weights once more, while those that were published stand in their place.
    master = 4
    return frozen + learnt * (master + 4 + 8) + wide * 4 + held * master


def _activations(shape: DecoderShape, settings: TrainerSettings, size: int) -> int:
    """Of a full micro-batch: all layers, or their inputs and one layer; and around the layers, in float32."""
    tokens = settings.micro_batch_tokens
    around = 4 * 4 * shape.hidden * tokens
    if not settings.activation_checkpointing:
        return around + tokens * shape.layers * shape.kept_per_token(size)
    return around + tokens * shape.layers * size * shape.hidden + _one_layer(shape, settings, size)


def _one_layer(shape: DecoderShape, settings: TrainerSettings, size: int) -> int:
    return settings.micro_batch_tokens * shape.kept_per_token(size)


def _gathered(shape: DecoderShape, settings: TrainerSettings, size: int, *, frozen: bool) -> int:
    """Whole weights of a few layers and of the root unit, their gradients, and the float32 buffer that is reduced."""
    head = 4 if settings.fp32_logits and not frozen else size
    # What is not freed after the forward pass stands there until the backward pass, of every layer.
    # Layers whose weights are gathered at once: the one that computes and the one that is fetched meanwhile.
    layers = 2 if settings.reshard_after_forward else shape.layers
    weights = head * shape.root_parameters + size * layers * shape.layer_parameters
    gradient = 0 if frozen else max((head + 4) * shape.root_parameters, (size + 4) * shape.layer_parameters)
    return weights + gradient


def shape_like(parameters: int) -> DecoderShape:
    """A decoder of about so many parameters, where only their number is known: as broad and deep as such models are."""
    hidden = max(64, round((parameters * 128 / 12) ** (1 / 3)) // 64 * 64)
    around = DecoderShape(
        hidden=hidden,
        intermediate=3 * hidden,
        layers=1,
        heads=max(hidden // 64, 1),
        key_heads=max(hidden // 256, 1),
        head=64,
        vocabulary=min(150_000, max(parameters // (4 * hidden), 256)),
        tied=True,
    )
    layers = max(1, round((parameters - around.root_parameters) / around.layer_parameters))
    return msgspec.structs.replace(around, layers=layers)


def engine_size(shape: DecoderShape) -> ModelSize:
    """The same model as an engine counts it."""
    return ModelSize.counted(
        parameters=shape.parameters,
        layers=shape.layers - shape.recalling,
        delta=shape.delta,
        recalling=shape.recalling,
        queries=shape.query,
        keys=shape.key,
        hidden=shape.hidden,
        intermediate=shape.computing + shape.chosen * shape.hidden,
        vocabulary=shape.vocabulary,
    )


def shape_of(model_dir: Path) -> DecoderShape:
    """From a model directory's config.json. Raises TrainingError for one that is none, or of another kind."""
    path = model_dir / "config.json"
    try:
        config: dict[str, Any] = language_config(json.loads(path.read_bytes()))
        if why := beyond_bounds(config):
            raise ValueError(why)
        kind, heads, hidden = config["model_type"], config["num_attention_heads"], config["hidden_size"]
        return msgspec.convert(
            {
                "hidden": hidden,
                # Where all layers have experts, some configurations do not say it.
                "intermediate": config.get("intermediate_size") or config["moe_intermediate_size"],
                "layers": config["num_hidden_layers"],
                "heads": heads,
                "key_heads": config.get("num_key_value_heads") or heads,
                # Where config.json leaves a name out, the default of its kind in transformers holds.
                "head": config.get("head_dim") or (256 if kind in (*GEMMA, *QWEN_DELTA) else hidden // heads),
                "vocabulary": config["vocab_size"],
                "tied": config.get(TIED, kind in ("qwen2", "smollm3", *GEMMA)) and not has_own_head(model_dir),
                "norms": kind in ("qwen3", "qwen3_moe", "gemma3_text", *QWEN_DELTA) or config.get("use_qk_norm", False),
                "biases": kind == "qwen2" or bool(config.get("attention_bias", kind == "gpt_oss")),
            }
            | _experts(kind, config)
            | _delta(kind, config),
            DecoderShape,
        )
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        why = f"{path}: {type(error).__name__} {error}"
        raise TrainingError(
            "the model's size cannot be told", why[:300], "name a model directory in Hugging Face form"
        ) from None


def _experts(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    parts = ARCHITECTURES[kind].experts
    if parts is None:
        return {}
    every, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    first = config.get("first_k_dense_replace", 1 if kind == "glm4_moe" else 0)
    layers = range(first, config["num_hidden_layers"])
    with_experts = [at for at in layers if at not in dense and (at + 1) % every == 0]
    if not with_experts:
        return {}
    return {
        "experts": next((config[name] for name in EXPERT_COUNTS if config.get(name)), 0),
        "chosen": config["num_experts_per_tok"],
        "expert": config[parts.width],
        "expert_biases": parts.clamped,
        "routed": len(with_experts),
        "corrected": parts.corrected,
        "beside_gate": bool(parts.shared_gate),
        "beside": _beside(parts, config),
    }


def _beside(parts: ExpertParts, config: dict[str, Any]) -> int:
    if not parts.shared:
        return 0
    if parts.shared_gate:
        return config.get("shared_expert_intermediate_size", 512)
    return config[parts.width] * config.get("n_shared_experts", 1)


def _delta(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    row, recalling = ARCHITECTURES[kind], recalling_layers(config)
    sizes = [config.get(name, default) for name, default in zip(DELTA_SIZES, _DELTA_DEFAULTS, strict=True)]
    return {
        "gated": row.gated,
        "recalling": recalling,
        "delta": msgspec.to_builtins(DeltaShape(*sizes)) if recalling else None,
    }


_DELTA_DEFAULTS = (16, 32, 128, 128, 4)
GEMMA = ("gemma2", "gemma3_text")
QWEN_DELTA = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
KNOWN = {
    "smollm2-135m": DecoderShape(
        hidden=576, intermediate=1536, layers=30, heads=9, key_heads=3, head=64, vocabulary=49_152, tied=True
    ),
    "qwen3-0.6b": DecoderShape(
        hidden=1024, intermediate=3072, layers=28, heads=16, key_heads=8, head=128, vocabulary=151_936, tied=True,
        norms=True,
    ),
    "qwen2.5-1.5b": DecoderShape(
        hidden=1536, intermediate=8960, layers=28, heads=12, key_heads=2, head=128, vocabulary=151_936, tied=True,
        biases=True,
    ),
    "qwen3-1.7b": DecoderShape(
        hidden=2048, intermediate=6144, layers=28, heads=16, key_heads=8, head=128, vocabulary=151_936, tied=True,
        norms=True,
    ),
    "qwen3-4b": DecoderShape(
        hidden=2560, intermediate=9728, layers=36, heads=32, key_heads=8, head=128, vocabulary=151_936, tied=True,
        norms=True,
    ),
    "qwen2.5-7b": DecoderShape(
        hidden=3584, intermediate=18_944, layers=28, heads=28, key_heads=4, head=128, vocabulary=152_064, biases=True
    ),
    "qwen3-14b": DecoderShape(
        hidden=5120, intermediate=17_408, layers=40, heads=40, key_heads=8, head=128, vocabulary=151_936, norms=True
    ),
    "qwen2.5-32b": DecoderShape(
        hidden=5120, intermediate=27_648, layers=64, heads=40, key_heads=8, head=128, vocabulary=152_064, biases=True
    ),
}  # fmt: skip
"""Shapes as their makers publish them in config.json."""
