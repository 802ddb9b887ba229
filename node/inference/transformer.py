"""The forward pass of the architectures of the table (node.inference.architectures), without anything that decoding
does not need: no masks, caches or hooks of its own, projections of one input in one matrix.

Knows how transformers names and computes these models, in which order it rounds too. Who attends to what is the
caller's: `Attend` gets the new queries, keys and values of each layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, silu

from node.inference.adapters import Adapters
from node.inference.architectures import (
    ARCHITECTURES,
    PLAIN,
    Architecture,
    Attending,
    DeltaShape,
    Gain,
    attending,
    embedding_scale,
    expert_layers,
    routing_of,
)
from node.inference.delta import DeltaWeights, Mix, fed_by, mixed
from node.inference.errors import EngineError
from node.inference.experts import Experts, Mlp, Routes
from node.inference.matrices import Fused, Norm, Projection

Attend = Callable[..., Tensor]
"""(layer, q [B, heads, T, D], k and v [B, kv heads, T, D]) -> [B, heads, T, D]. One with `by_shape` does what the
shape says of each layer, and takes a layer's sinks [heads] behind v; another only knows layers that are plain. It has
`recall`, too: (layer, `Mix` of a layer that remembers) -> its outputs."""


@dataclass(frozen=True, slots=True)
class TransformerShape:
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    eps: float
    attending: tuple[Attending, ...] = ()

    @property
    def plain(self) -> bool:
        return all(one.plain for one in self.attending)

    @property
    def remembers(self) -> bool:
        """Whether some layers know of tokens before by a state that each token changes."""
        return any(one.delta for one in self.attending)

    def at(self, layer: int) -> Attending:
        return self.attending[layer] if self.attending else PLAIN

    @classmethod
    def of(cls, config: Any) -> "TransformerShape":
        heads = config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        sizes = config.num_hidden_layers, heads, config.num_key_value_heads, dim, config.hidden_size
        return cls(*sizes, config.rms_norm_eps, tuple(attending(config)))


class Rotation:
    """Rotary positions: tables that grow as positions do. kind: which of the model's, where it has several."""

    def __init__(self, model: Any, kind: str, device: str, dtype: torch.dtype) -> None:
        # A new one: that of a model on the meta device has no numbers.
        rotary = type(model.base_model.rotary_emb)(config=model.config)
        self._frequencies = getattr(rotary, f"{kind}inv_freq").float().cpu()
        self._scale = float(getattr(rotary, f"{kind}attention_scaling"))
        self._device, self._dtype = device, dtype
        self._cos = self._sin = torch.empty(0)

    def at(self, positions: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """(cos, sin) [..., 1, D] of positions below `end`; sin with the sign that a half turned around needs."""
        cos, sin = self.tables(end)
        return cos[positions][..., None, :], sin[positions][..., None, :]

    def tables(self, end: int) -> tuple[Tensor, Tensor]:
        """(cos, sin) [at least end, D]; others take their place when positions grow."""
        if len(self._cos) < end:
            # Twice what is needed: tables are seldom made anew, and each captured step keeps those that it reads.
            self._grow(max(1024, 2 * end))
        return self._cos, self._sin

    def _grow(self, count: int) -> None:
        # In float32 whatever the layers compute in: bf16 cannot hold a position beyond 256 exactly.
        angles = torch.arange(count).float()[:, None] * self._frequencies
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        self._cos = torch.cat((cos, cos), 1).to(self._device, self._dtype)
        self._sin = torch.cat((-sin, sin), 1).to(self._device, self._dtype)


class Layer:
    def __init__(
        self, fused: Fused, name: str, shape: TransformerShape, row: Architecture, config: Any, *, number: int
    ) -> None:
        norms = [fused.stack(f"{name}.{part}.weight") if part else None for part in row.norms]
        self._before, self._behind, self._between, self._last = [_norm(one, shape, row) for one in norms]
        kind, routed = shape.at(number).delta, number in expert_layers(config)
        if kind is None:
            self._mixer: SelfAttention | GatedDelta = SelfAttention(fused, f"{name}.self_attn", shape, row)
        else:
            self._mixer = GatedDelta(fused, f"{name}.linear_attn", kind, shape.eps, row)
        parts = row.experts if routed else None
        mlp = f"{name}.mlp"
        self._mlp = Experts(fused, mlp, row, parts, config) if parts else Mlp(fused, mlp, row, config)
        self._share = float(getattr(config, "residual_multiplier", 1.0))

    def load(self, weights: Mapping[str, Tensor]) -> None:
        for part in (self._mixer, self._mlp):
            part.load(weights)

    def __call__(
        self, number: int, x: Tensor, rotation: "Turn | None", attend: Attend, routes: Routes | None = None
    ) -> Tensor:
        """x: [B, T, hidden], which is changed in place."""
        x.add_(self._behind(self._mixer(number, self._before(x), rotation, attend)), alpha=self._share)
        x.add_(self._last(self._mlp(self._between(x), routes)), alpha=self._share)
        return x


class SelfAttention:
    """Of one layer, with projections and norms of its own."""

    def __init__(self, fused: Fused, name: str, shape: TransformerShape, row: Architecture) -> None:
        self._shape, self._turned = shape, shape.heads + shape.kv_heads
        qkv = ["qkv_proj"] if row.fused else ["q_proj", "k_proj", "v_proj"]
        self._qkv = Projection(fused, *(f"{name}.{part}" for part in qkv))
        self._qk_norms = _qk_norms(fused, name, shape, row)
        self._out = Projection(fused, f"{name}.o_proj")
        self._sinks = (fused.required(f"{name}.sinks"),) if row.sinks else ()
        self._wide, self._gated = row.wide_positions, row.gated

    def load(self, weights: Mapping[str, Tensor]) -> None:
        self._qkv.load(weights)
        self._out.load(weights)

    def __call__(self, number: int, x: Tensor, rotation: "Turn | None", attend: Attend) -> Tensor:
        qk, v, gate = self._project(x)
        qk = self._qk_norms(qk)
        if rotation is not None:
            qk = self._turn(qk, *rotation)
        heads = self._shape.heads
        q, k, v = (part.transpose(1, 2) for part in (qk[..., :heads, :], qk[..., heads:, :], v))
        seen = attend(number, q, k, v, *self._sinks).transpose(1, 2)
        if gate is not None:
            seen = seen * gate.sigmoid()
        return self._out(seen.reshape(*x.shape[:2], -1))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """(queries and keys [B, T, heads of both, D], values [B, T, kv heads, D], gates like queries)."""
        shape, flat = self._shape, self._qkv(x)
        if not self._gated:
            widths = [count * shape.head_dim for count in (self._turned, shape.kv_heads)]
            qk, v = (part.unflatten(-1, (-1, shape.head_dim)) for part in flat.split(widths, -1))
            return qk, v, None
        widths = [count * shape.head_dim for count in (2 * shape.heads, shape.kv_heads, shape.kv_heads)]
        both, k, v = (part.unflatten(-1, (-1, shape.head_dim)) for part in flat.split(widths, -1))
        # Of each head first its query, then its gate.
        return torch.cat((both[..., ::2, :], k), -2), v, both[..., 1::2, :]

    def _turn(self, qk: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The first dimensions of each head by its position: all, but where the tables are narrower."""
        width = cos.shape[-1]
        if width < qk.shape[-1]:
            return torch.cat((self._turn(qk[..., :width], cos, sin), qk[..., width:]), -1)
        wide = qk.float() if self._wide else qk
        return (wide * cos).add_(wide.roll(width // 2, -1).mul_(sin)).to(qk.dtype)


class GatedDelta:
    """Of one layer (node.inference.delta), with projections and norm of its own."""

    def __init__(self, fused: Fused, name: str, kind: DeltaShape, eps: float, row: Architecture) -> None:
        self._kind, places = kind, [f"{name}.{part}" for part in row.delta]
        self._in = Projection(fused, *places)
        self._widths = [fused.width(place) for place in places]
        self._weights = DeltaWeights(
            *(fused.required(f"{name}.{part}") for part in ("conv1d.weight", "A_log", "dt_bias"))
        )
        # Whatever the norms around it are, this one's weight begins at 1.
        self._norm = Norm(fused.required(f"{name}.norm.weight"), eps, Gain.ROUNDED)
        self._out = Projection(fused, f"{name}.out_proj")

    def load(self, weights: Mapping[str, Tensor]) -> None:
        self._in.load(weights)
        self._out.load(weights)

    def __call__(self, number: int, x: Tensor, rotation: "Turn | None", attend: Any) -> Tensor:
        fed = fed_by(self._kind, self._in(x).split(self._widths, -1))
        mix: Mix = partial(mixed, self._kind, fed, self._weights)
        found = self._norm(attend.recall(number, mix)).float() * silu(fed.gate.float())
        return self._out(found.to(x.dtype).flatten(-2))


Turn = tuple[Tensor, Tensor]
"""(cos, sin) of `Rotation.at`."""


def _norm(weight: Tensor | None, shape: TransformerShape, row: Architecture) -> Callable[[Tensor], Tensor]:
    return (lambda x: x) if weight is None else Norm(weight, shape.eps, row.gain)


def _qk_norms(fused: Fused, attention: str, shape: TransformerShape, row: Architecture) -> Callable[[Tensor], Tensor]:
    """Of [..., heads of queries and keys, D], if the model has some."""
    names = f"{attention}.q_norm.weight", f"{attention}.k_norm.weight"
    if not row.whole_norms:
        return _norm(fused.stack(*names, repeats=(shape.heads, shape.kv_heads)), shape, row)
    norms = [Norm(fused.required(name), shape.eps, row.gain) for name in names]

    def whole(qk: Tensor) -> Tensor:
        parts = qk.split((shape.heads, shape.kv_heads), -2)
        normed = [norm(part.flatten(-2)) for norm, part in zip(norms, parts, strict=True)]
        return torch.cat(normed, -1).unflatten(-1, qk.shape[-2:])

    return whole


class Transformer:
    """model: of transformers, for its configuration, names and shapes; it may be on the meta device; adapters: that it
    computes with besides. Loaded before it computes."""

    def __init__(self, model: Any, device: str, dtype: torch.dtype, adapters: Adapters | None = None) -> None:
        names, config = dict(model.named_parameters()), model.config
        fused = Fused({name: tensor.shape for name, tensor in names.items()}, device, dtype, adapters)
        row = ARCHITECTURES[config.model_type]
        self.shape = TransformerShape.of(config)
        self.device, self.dtype = device, dtype
        self._embedding = fused.required("model.embed_tokens.weight")
        scale = embedding_scale(config)
        # Gemma rounds this factor to the type of its embeddings before it multiplies.
        self._scale = float(torch.tensor(scale, dtype=dtype)) if row.root_scale else scale
        self.routing = routing_of(config)
        places = [f"model.layers.{number}" for number in range(self.shape.layers)]
        self._layers = [Layer(fused, place, self.shape, row, config, number=i) for i, place in enumerate(places)]
        self._after = Norm(fused.required("model.norm.weight"), self.shape.eps, row.gain)
        self.head = fused.required("lm_head.weight") if "lm_head.weight" in names else self._embedding
        kinds = {one.positions for one in self.shape.attending if one.delta is None} - {None}
        tables = torch.float32 if row.wide_positions else dtype
        self._rotations = {kind: Rotation(model, str(kind), device, tables) for kind in kinds}
        self._fused = fused

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """weights: name -> values of each parameter, asked for one at a time, so that they need not exist together."""
        self._fused.load(weights)
        for layer in self._layers:
            layer.load(weights)

    def tables(self, end: int) -> tuple[Tensor, ...]:
        """What a pass over positions below `end` reads besides weights, for whoever must see that it stays."""
        return tuple(table for rotation in self._rotations.values() for table in rotation.tables(end))

    def __call__(
        self, tokens: Tensor, positions: Tensor, end: int, attend: Attend, routes: Routes | None = None
    ) -> Tensor:
        """Inputs of the output head [B, T, hidden]. tokens: int64[B, T]; positions: [B, T] or [T], all below `end`;
        routes: of the same tokens, row by row, where somebody gives or wants experts.
        Raises EngineError where `attend` does not know what the architecture needs."""
        # A way to attend that knows no windows would compute another model, and nobody would see it.
        if not self.shape.plain and not getattr(attend, "by_shape", False):
            why = "its attention has windows, caps or a scale of its own, or layers that remember instead"
            raise EngineError("this model cannot be computed this way", why, "use --attention sdpa or eager")
        if routes is None and self.routing:
            routes = Routes(self.routing)
        x = embedding(tokens, self._embedding)
        if self._scale != 1:
            x.mul_(self._scale)
        turns = {kind: rotation.at(positions, end) for kind, rotation in self._rotations.items()}
        for number, layer in enumerate(self._layers):
            x = layer(number, x, turns.get(self.shape.at(number).positions), attend, routes)
        return self._after(x)
