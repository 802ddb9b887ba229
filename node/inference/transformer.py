"""The forward pass of the architectures of the table (node.inference.architectures), without anything that decoding
does not need: no masks, caches or hooks of its own, projections of one input in one matrix.

Knows how transformers names and computes these models, in which order it rounds too. Who attends to what is the
caller's: `Attend` gets the new queries, keys and values of each layer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import embedding, rms_norm
from transformers.activations import ACT2FN

from node.inference.adapters import Adapters, Site
from node.inference.architectures import (
    ARCHITECTURES,
    PLAIN,
    Architecture,
    Attending,
    ExpertParts,
    Gain,
    attending,
    embedding_scale,
    expert_layers,
    routing_of,
)
from node.inference.errors import EngineError
from protocol.routing import Routing

# x @ weight.T + bias by the fastest kernel. In float32 on a CPU that is oneDNN's: 1.2 to 1.9 times faster than MKL's
# for 4 to 64 rows, most of all over a matrix that was packed for it once. Its sums do not depend on how many rows there
# are but where one row meets a long sum, so a validator that recomputes rows in other batches gets an engine's numbers.
_ONEDNN = torch.backends.mkldnn.is_available() and all(
    hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight")
)
_WORTH_A_CALL = 1 << 17
"""Cells of a matrix below which oneDNN's longer way to its kernel, some 20 us, costs more than the kernel saves."""


def packs(cells: int, device: str, dtype: torch.dtype) -> bool:
    """Whether a matrix of so many numbers is to be packed there."""
    return _ONEDNN and cells >= _WORTH_A_CALL and dtype == torch.float32 and torch.device(device).type == "cpu"


def packed(weight: Tensor) -> Tensor:
    """A copy of float32[out, in] that only `linear` can read."""
    # That oneDNN is told to pack for; for a single one it would pack nothing.
    return torch.ops.mkldnn._reorder_linear_weight(weight, 16)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., out]; x: [..., in]; weight: [out, in], as it is or `packed`; bias: [out]."""
    if packs(weight.numel(), x.device.type, x.dtype):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return functional.linear(x, weight, bias)


Attend = Callable[..., Tensor]
"""(layer, q [B, heads, T, D], k and v [B, kv heads, T, D]) -> [B, heads, T, D]. One with `by_shape` does what the
shape says of each layer, and takes a layer's sinks [heads] behind v; another only knows layers that are plain."""


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

    def at(self, layer: int) -> Attending:
        return self.attending[layer] if self.attending else PLAIN

    @classmethod
    def of(cls, config: Any) -> "TransformerShape":
        heads = config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        sizes = config.num_hidden_layers, heads, config.num_key_value_heads, dim, config.hidden_size
        return cls(*sizes, config.rms_norm_eps, tuple(attending(config)))


class Fused:
    """Tensors for the parameters of a model, several of them side by side in one. Their values are arbitrary until they
    are loaded."""

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], device: str, dtype: torch.dtype, adapters: Adapters | None = None
    ) -> None:
        self._shapes, self._device, self._dtype, self._adapters = shapes, device, dtype, adapters
        self._parts: dict[str, Tensor] = {}

    def packs(self, names: Sequence[str]) -> bool:
        """Whether the matrix of these is to be packed, instead of having a tensor here."""
        return packs(sum(math.prod(self._shapes[name]) for name in names), self._device, self._dtype)

    def site(self, layers: Sequence[str]) -> Site | None:
        """Where adapters of these come in, if there may be some."""
        if self._adapters is None:
            return None
        return self._adapters.site(layers, [self._shapes[f"{layer}.weight"][0] for layer in layers])

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take the values of the parameters that have a tensor here; a tensor may have more dimensions than they, over
        which they are repeated."""
        for name, part in self._parts.items():
            part.copy_(weights[name])

    def stack(self, *names: str, repeats: Sequence[int] = ()) -> Tensor | None:
        """The parameters of these names under each other; None if the model has none of them. repeats: how often each
        of them, which are vectors then, stands there."""
        if names[0] not in self._shapes:
            return None
        shapes = [tuple(self._shapes[name]) for name in names]
        rows = list(repeats) or [shape[0] for shape in shapes]
        size = sum(rows), *(shapes[0] if repeats else shapes[0][1:])
        whole = torch.empty(size, dtype=self._dtype, device=self._device)
        # Views: what is copied into them is in the one tensor that passes read.
        self._parts |= dict(zip(names, whole.split(rows), strict=True))
        return whole

    def required(self, *names: str) -> Tensor:
        """The same of parameters that every model of the families has."""
        whole = self.stack(*names)
        assert whole is not None, names
        return whole


class Projection:
    """x @ weight.T + bias, of one or several linear layers with the same input. Where kernels have a form of their own
    for `weight`, it is in memory in that form only."""

    def __init__(self, fused: Fused, *layers: str) -> None:
        names = [f"{layer}.weight" for layer in layers]
        self._to_pack = names if fused.packs(names) else []
        self.weight = torch.empty(0) if self._to_pack else fused.required(*names)
        self.bias = fused.stack(*(f"{layer}.bias" for layer in layers))
        self._site = fused.site(layers)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        if self._to_pack:
            self.weight = packed(torch.cat([weights[name].to("cpu", torch.float32) for name in self._to_pack]))

    def __call__(self, x: Tensor) -> Tensor:
        out = linear(x, self.weight, self.bias)
        return out if self._site is None else self._site.add(out, x)


class Norm:
    """Root mean square over the last dimension, rounded where transformers rounds."""

    def __init__(self, weight: Tensor, eps: float, gain: Gain) -> None:
        self._weight, self._eps, self._gain = weight, eps, gain

    def __call__(self, x: Tensor) -> Tensor:
        normed = rms_norm(x.float(), x.shape[-1:], eps=self._eps)
        if self._gain is Gain.ONE_MORE:
            return normed.mul_(1 + self._weight.float()).to(x.dtype)
        # In float32 nothing is rounded before the product: both orders give the same bits, and this one needs no copy.
        if x.dtype == torch.float32 or self._gain is Gain.PRODUCT:
            return normed.mul_(self._weight).to(x.dtype)
        return self._weight * normed.to(x.dtype)


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


class Routes:
    """The experts of one pass over n tokens: which a record gives, and which are computed with. given: int16[n, width]
    of a record, -1 where the router chooses; every: all experts compute all tokens, so that a token's numbers do not
    depend on which others its expert has."""

    def tile(self, lines: Tensor, size: int) -> "Routes":
        """Some of the tokens, int64[at most size], filled up, for a pass of their own in which every expert computes
        all of them."""
        given = None
        if self._given is not None:
            given = self._given.new_full((size, self._routing.width), -1)
            given[: len(lines)] = self._given[lines]
        return Routes(self._routing, given, every=True)

    def join(self, tiles: "Sequence[Routes]", lines: Tensor, whole: int) -> None:
        """What tiles over these of `whole` tokens found, one behind the other."""
        chosen, short = torch.cat([one.chosen for one in tiles]), torch.cat([one.short for one in tiles])
        self._chosen = [chosen.new_zeros(whole, self._routing.width)]
        self._short = [short.new_zeros(whole)]
        self._chosen[0][lines], self._short[0][lines] = chosen[: len(lines)], short[: len(lines)]

    def __init__(self, routing: Routing, given: Tensor | None = None, *, every: bool = False) -> None:
        self._routing, self._given, self.every = routing, given, every
        self._chosen: list[Tensor] = []
        self._short: list[Tensor] = []

    def choose(self, scores: Tensor) -> Tensor:
        """int64[n, chosen], ascending: the experts of the next layer. scores: float32[n, experts] of its router."""
        likeliest = scores.topk(self._routing.chosen, -1)
        chosen, at = likeliest.indices, len(self._chosen) * self._routing.chosen
        if self._given is not None:
            given = self._given[:, at : at + self._routing.chosen].long()
            chosen = torch.where(given < 0, chosen, given)
        # Ascending, as a record has them: shares are then summed in one order, whether experts are given or chosen.
        chosen = chosen.sort(-1).values
        self._short.append(likeliest.values[:, -1] - scores.gather(1, chosen).amin(-1))
        self._chosen.append(chosen.to(torch.uint8))
        return chosen

    @property
    def chosen(self) -> Tensor:
        """uint8[n, width], as a record has it."""
        return torch.cat(self._chosen, 1)

    @property
    def short(self) -> Tensor:
        """float32[n]: how much less likely the least likely of a token's experts was to its router than the last that
        it would have taken, as a difference of logarithms, in the layer where that is most; 0 if all are its own."""
        return torch.stack(self._short).amax(0)


class Mlp:
    def __init__(self, fused: Fused, name: str, row: Architecture, config: Any) -> None:
        gate_up = ["gate_up_proj"] if row.fused else ["gate_proj", "up_proj"]
        self._gate_up = Projection(fused, *(f"{name}.{part}" for part in gate_up))
        self._down = Projection(fused, f"{name}.down_proj")
        self._gate = _gated(config)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        self._gate_up.load(weights)
        self._down.load(weights)

    def __call__(self, x: Tensor, routes: Routes | None) -> Tensor:
        return self._down(self._gate(self._gate_up(x)))


class Experts:
    """Several MLPs, of which a router gives each token some, and what they say by their probabilities."""

    def __init__(self, fused: Fused, name: str, parts: ExpertParts, config: Any) -> None:
        self._router = fused.required(f"{name}.{parts.router}.weight")
        self._bias = fused.stack(f"{name}.{parts.router}.bias")
        stacks = [fused.required(f"{name}.experts.{part}") for part in ("gate_up_proj", "down_proj")]
        self._gate_up, self._down = (one.transpose(1, 2) if parts.clamped else one for one in stacks)
        self._biases = [fused.stack(f"{name}.experts.{part}") for part in ("gate_up_proj_bias", "down_proj_bias")]
        self._normed = getattr(config, "norm_topk_prob", True)
        self._gate = _clamped(config) if parts.clamped else _gated(config)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """What is in memory as it is was loaded with all else."""

    def __call__(self, x: Tensor, routes: Routes | None) -> Tensor:
        assert routes is not None  # a Transformer with experts makes them
        flat = x.flatten(0, -2)
        logits = linear(flat, self._router, self._bias)
        scores = logits.float()
        chosen = routes.choose(scores)
        shares = scores.softmax(-1).gather(1, chosen)
        if self._normed:
            shares /= shares.sum(-1, keepdim=True)
        add = self._add_all if routes.every else self._add_chosen
        return add(flat, chosen, shares.to(logits.dtype)).view_as(x)

    def _add_chosen(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Each expert over its own tokens; a token's are added up in their order."""
        summed, shares = torch.zeros_like(x), shares.flatten()
        order = chosen.flatten().argsort(stable=True)
        # The numbers come to the CPU here, which waits for a GPU. So layers with experts are in no graph.
        counts: list[int] = chosen.flatten().bincount(minlength=len(self._router)).tolist()
        for expert, places in enumerate(order.split(counts)):
            if len(places):
                tokens = places // chosen.shape[1]
                summed.index_add_(0, tokens, self._computed(expert, x[tokens]).mul_(shares[places, None]))
        return summed

    def _add_all(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """The same by passes of one shape."""
        summed = torch.zeros_like(x)
        for expert in range(len(self._router)):
            share = torch.where(chosen == expert, shares, 0).sum(-1, keepdim=True)
            summed += self._computed(expert, x).mul_(share)
        return summed

    def _computed(self, expert: int, x: Tensor) -> Tensor:
        first, last = (None if bias is None else bias[expert] for bias in self._biases)
        return linear(self._gate(linear(x, self._gate_up[expert], first)), self._down[expert], last)


def _gated(config: Any) -> Callable[[Tensor], Tensor]:
    """Of [..., gate and up] what goes down."""
    activation = ACT2FN[getattr(config, "hidden_act", None) or config.hidden_activation]

    def gated(both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return activation(gate).mul_(up)

    return gated


def _clamped(config: Any) -> Callable[[Tensor], Tensor]:
    """The same where gate and up take turns: gate * sigmoid(alpha gate) * (up + 1), both bounded before."""
    alpha, limit = getattr(config, "swiglu_alpha", 1.702), getattr(config, "swiglu_limit", 7.0)

    def clamped(both: Tensor) -> Tensor:
        gate, up = both[..., ::2].clamp(max=limit), both[..., 1::2].clamp(-limit, limit)
        return (up + 1).mul_(gate * torch.sigmoid(gate * alpha))

    return clamped


class Layer:
    def __init__(
        self, fused: Fused, name: str, shape: TransformerShape, row: Architecture, config: Any, *, routed: bool
    ) -> None:
        """routed: it is one of those with experts."""
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        self._shape, self._turned = shape, shape.heads + shape.kv_heads
        norms = [fused.stack(f"{name}.{part}.weight") if part else None for part in row.norms]
        self._before, self._behind, self._between, self._last = [_norm(one, shape, row) for one in norms]
        qkv = ["qkv_proj"] if row.fused else ["q_proj", "k_proj", "v_proj"]
        self._qkv = Projection(fused, *(f"{attention}.{part}" for part in qkv))
        self._qk_norms = _qk_norms(fused, attention, shape, row)
        self._out = Projection(fused, f"{attention}.o_proj")
        self._sinks = (fused.required(f"{attention}.sinks"),) if row.sinks else ()
        parts = row.experts if routed else None
        self._mlp = Experts(fused, mlp, parts, config) if parts else Mlp(fused, mlp, row, config)
        self._share = float(getattr(config, "residual_multiplier", 1.0))
        self._wide = row.wide_positions

    def load(self, weights: Mapping[str, Tensor]) -> None:
        for part in (self._qkv, self._out, self._mlp):
            part.load(weights)

    def __call__(
        self, number: int, x: Tensor, rotation: "Turn | None", attend: Attend, routes: Routes | None = None
    ) -> Tensor:
        """x: [B, T, hidden], which is changed in place."""
        q, k, v = self._project(self._before(x), rotation)
        seen = attend(number, q, k, v, *self._sinks).transpose(1, 2).reshape(*x.shape[:2], -1)
        x.add_(self._behind(self._out(seen)), alpha=self._share)
        x.add_(self._last(self._mlp(self._between(x), routes)), alpha=self._share)
        return x

    def _project(self, x: Tensor, rotation: "Turn | None") -> list[Tensor]:
        shape = self._shape
        flat = self._qkv(x)
        widths = [count * shape.head_dim for count in (self._turned, shape.kv_heads)]
        qk, v = (part.unflatten(-1, (-1, shape.head_dim)) for part in flat.split(widths, -1))
        qk = self._qk_norms(qk)
        if rotation is not None:
            qk = self._turn(qk, *rotation)
        parts = qk[..., : shape.heads, :], qk[..., shape.heads :, :], v
        return [part.transpose(1, 2) for part in parts]

    def _turn(self, qk: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The first dimensions of each head by its position: all, but where the tables are narrower."""
        width = cos.shape[-1]
        if width < qk.shape[-1]:
            return torch.cat((self._turn(qk[..., :width], cos, sin), qk[..., width:]), -1)
        wide = qk.float() if self._wide else qk
        return (wide * cos).add_(wide.roll(width // 2, -1).mul_(sin)).to(qk.dtype)


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
        self.routing, routed = routing_of(config), expert_layers(config)
        places = [(f"model.layers.{i}", i in routed) for i in range(self.shape.layers)]
        self._layers = [Layer(fused, place, self.shape, row, config, routed=has) for place, has in places]
        self._after = Norm(fused.required("model.norm.weight"), self.shape.eps, row.gain)
        self.head = fused.required("lm_head.weight") if "lm_head.weight" in names else self._embedding
        kinds = {one.positions for one in self.shape.attending} - {None}
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
            why = "its attention has windows, caps or a scale of its own"
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
