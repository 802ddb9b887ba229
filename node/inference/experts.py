"""What stands behind a layer's attention: an MLP, or several, of which a router gives each token some.

Which experts computed a token is noted (`Routes`), and given where somebody wrote it down (protocol.routing)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN

from node.inference.architectures import CORRECTION, Architecture, ExpertParts
from node.inference.matrices import Fused, Projection, linear
from protocol.routing import Routing


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
        """int64[n, chosen], ascending: the experts of the next layer. scores: float32[n, experts] of its router, of
        which differences are those of logarithms."""
        likeliest = scores.topk(self._routing.chosen, -1)
        chosen, at = likeliest.indices, len(self._chosen) * self._routing.chosen
        if self._given is not None:
            given = self._given[:, at : at + self._routing.chosen].long()
            chosen = torch.where(given < 0, chosen, given)
        # Ascending, as a record has them: shares are then summed in one order, whether experts are given or chosen.
        chosen = chosen.sort(-1).values
        self._short.append(likeliest.values[:, -1] - scores.gather(1, chosen).amin(-1))
        self._chosen.append(chosen.to(torch.uint8 if self._routing.entry == 1 else torch.int16))
        return chosen

    @property
    def chosen(self) -> Tensor:
        """uint8[n, width], or int16, as a record has it."""
        return torch.cat(self._chosen, 1)

    @property
    def short(self) -> Tensor:
        """float32[n]: how much less likely the least likely of a token's experts was to its router than the last that
        it would have taken, as a difference of logarithms, in the layer where that is most; 0 if all are its own."""
        return torch.stack(self._short).amax(0)


def as_recorded(chosen: NDArray[Any]) -> NDArray[Any]:
    """`Routes.chosen` on the CPU: experts that need two bytes are unsigned, which not all devices have."""
    return chosen.view(np.uint16) if chosen.dtype == np.int16 else chosen


def correct_as_parameters(model: Any) -> None:
    """Make the corrections of a model of transformers, which has them as buffers, parameters: part of a policy, as all
    that decides. They have no gradient, so they stay as they are."""
    for module in model.modules():
        if (found := module._buffers.pop(CORRECTION, None)) is not None:
            module.register_parameter(CORRECTION, nn.Parameter(found))


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
    """Several MLPs, of which a router gives each token some, and what they say by their shares; and one beside them
    that computes every token, where the model has it."""

    def __init__(self, fused: Fused, name: str, row: Architecture, parts: ExpertParts, config: Any) -> None:
        self._router = fused.required(f"{name}.{parts.router}.weight")
        self._bias = fused.stack(f"{name}.{parts.router}.bias")
        self._correction = fused.required(f"{name}.{parts.router}.{CORRECTION}") if parts.corrected else None
        stacks = [fused.required(f"{name}.experts.{part}") for part in ("gate_up_proj", "down_proj")]
        self._gate_up, self._down = (one.transpose(1, 2) if parts.clamped else one for one in stacks)
        self._biases = [fused.stack(f"{name}.experts.{part}") for part in ("gate_up_proj_bias", "down_proj_bias")]
        self._normed = getattr(config, "norm_topk_prob", True)
        self._factor = float(getattr(config, "routed_scaling_factor", 1.0))
        self._gate = _clamped(config) if parts.clamped else _gated(config)
        self._beside = Mlp(fused, f"{name}.{parts.shared}", row, config) if parts.shared else None
        self._beside_gate = Projection(fused, f"{name}.{parts.shared_gate}") if parts.shared_gate else None

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """What is in memory as it is was loaded with all else."""
        for part in (self._beside, self._beside_gate):
            if part is not None:
                part.load(weights)

    def __call__(self, x: Tensor, routes: Routes | None) -> Tensor:
        assert routes is not None  # a Transformer with experts makes them
        flat = x.flatten(0, -2)
        chosen, shares = self._routed(flat, routes)
        if routes.every:
            summed = self._add_all(flat, chosen, shares)
        else:
            add = self._add_grouped if groups(flat, self._down) else self._add_chosen
            summed = add(flat, chosen, shares)
        summed = summed.view_as(x)
        if self._beside is not None:
            # Row by row, as adapters are.
            beside = self._beside(x, routes)
            summed += beside if self._beside_gate is None else self._beside_gate(x).sigmoid() * beside
        return summed

    def _routed(self, x: Tensor, routes: Routes) -> tuple[Tensor, Tensor]:
        """(int64[n, chosen], the shares of these)."""
        if self._correction is None:
            logits = linear(x, self._router, self._bias)
            scores = logits.float()
            chosen = routes.choose(scores)
            shares = scores.softmax(-1).gather(1, chosen)
            if self._normed:
                shares /= shares.sum(-1, keepdim=True)
            return chosen, shares.to(logits.dtype)
        scores = linear(x.float(), self._router.float()).sigmoid()
        # Where this function is steepest, a difference of its values is a quarter of one of logarithms.
        chosen = routes.choose((scores + self._correction.float()) * 4)
        shares = scores.gather(1, chosen)
        if self._normed:
            shares /= shares.sum(-1, keepdim=True) + 1e-20
        return chosen, shares * self._factor

    def _add_chosen(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Each expert over its own tokens; a token's are added up in their order."""
        summed, shares = torch.zeros_like(x), shares.flatten()
        order = chosen.flatten().argsort(stable=True)
        # The numbers come to the CPU here, which waits for a GPU that has no grouped products.
        counts: list[int] = chosen.flatten().bincount(minlength=len(self._router)).tolist()
        for expert, places in enumerate(order.split(counts)):
            if len(places):
                tokens = places // chosen.shape[1]
                summed.index_add_(0, tokens, self._computed(expert, x[tokens]).mul_(shares[places, None]))
        return summed

    def _add_grouped(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """The same by one product for all experts over tokens in their order, without a wait: nobody has to know how
        many tokens an expert has."""
        experts = chosen.flatten()
        order = experts.argsort(stable=True)
        experts = experts[order]
        ends = torch.searchsorted(experts, torch.arange(len(self._router), device=x.device), right=True)
        first, last = (None if bias is None else bias[experts] for bias in self._biases)
        inner = self._gate(_grouped(x[order // chosen.shape[1]], self._gate_up, ends, first))
        found = _grouped(inner, self._down, ends, last).mul_(shares.flatten()[order, None])
        # Back to their tokens, whose experts ascend: added up one by one as they are without groups.
        parts = found[order.argsort()].unflatten(0, chosen.shape)
        summed = parts[:, 0].clone()
        for number in range(1, chosen.shape[1]):
            summed += parts[:, number]
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


def groups(x: Tensor, weight: Tensor) -> bool:
    """Whether torch has a kernel for products of all experts at once, which waits for nothing: on GPUs, in bf16, of
    matrices whose rows begin at multiples of 16 bytes. On a CPU its own loop over experts is up to seven times slower
    than ours."""
    whole = all(size % 8 == 0 for size in weight.shape[1:])
    return x.is_cuda and x.dtype == torch.bfloat16 and whole and hasattr(functional, "grouped_mm")


def _grouped(x: Tensor, weights: Tensor, ends: Tensor, bias: Tensor | None) -> Tensor:
    """[n, out]; x: [n, in], by expert; weights: [experts, out, in]; ends: behind the last line of each expert; bias:
    [n, out]."""
    found = functional.grouped_mm(x, weights.transpose(1, 2), offs=ends.to(torch.int32))
    return found if bias is None else found.add_(bias)


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
