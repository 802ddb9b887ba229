"""Matrices and norms of a model in memory: several that read one input as one, by the kernel that is fastest for
them, rounded where transformers rounds."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import rms_norm

from node.inference.adapters import Adapters, Site
from node.inference.architectures import Gain
from node.inference.image import one_by_one

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
    rows = 16  # rows that oneDNN is told to pack for; for a single one it would pack nothing
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., out]; x: [..., in]; weight: [out, in], as it is or `packed`; bias: [out]."""
    if packs(weight.numel(), x.device.type, x.dtype):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return functional.linear(x, weight, bias)


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

    def width(self, layer: str) -> int:
        """Of what a linear layer gives."""
        return self._shapes[f"{layer}.weight"][0]

    def site(self, layers: Sequence[str]) -> Site | None:
        """Where adapters of these come in, if there may be some."""
        if self._adapters is None:
            return None
        return self._adapters.site(layers, [self.width(layer) for layer in layers])

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take the values of the parameters that have a tensor here; a tensor may have more dimensions than they, over
        which they are repeated."""
        for part, tensor in zip(self._parts.values(), one_by_one(weights, self._parts), strict=True):
            part.copy_(tensor)

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
