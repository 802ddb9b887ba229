"""Gated delta layers over a pack: what a layer remembers of one sample does not reach the next, and neither does its
convolution. Projections go over the whole pack; what goes from token to token (node.inference.delta) over each bucket
of samples, as attention does. transformers' own pass goes over boundaries, but with kernels that only GPUs have.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from node.inference.architectures import ARCHITECTURES, DeltaShape, attending
from node.inference.delta import DeltaWeights, Fed, fed_by, mixed
from node.training.attention import Pack


def replace_delta_layers(model: Any) -> None:
    """model: of transformers; may have no such layers."""
    names = ARCHITECTURES[model.config.model_type].delta
    for layer, how in zip(model.base_model.layers, attending(model.config), strict=True):
        if how.delta is not None:
            layer.linear_attn.forward = partial(_computed, layer.linear_attn, how.delta, names)


def _computed(
    module: nn.Module,
    shape: DeltaShape,
    names: tuple[str, ...],
    hidden_states: Tensor,
    pack: Pack | None = None,
    **unused: Any,
) -> Tensor:
    """[B, T, hidden]; B is 1 of a pack. Rows that are padded are so on the right."""
    inner: Any = module
    fed = fed_by(shape, [getattr(inner, name)(hidden_states) for name in names])
    weights = DeltaWeights(inner.conv1d.weight, inner.A_log, inner.dt_bias)
    found = mixed(shape, fed, weights)[0] if pack is None else _packed(shape, fed, weights, pack)
    return inner.out_proj(inner.norm(found, fed.gate).flatten(-2))


def _packed(shape: DeltaShape, fed: Fed, weights: DeltaWeights, pack: Pack) -> Tensor:
    widths = [shape.channels, shape.heads, shape.heads]
    whole = torch.cat((fed.qkv, fed.rate, fed.decay), -1)[0]
    found: list[Tensor] = []
    for part, tokens in zip(pack.parts, whole.split([part.bucket.tokens for part in pack.parts]), strict=True):
        qkv, rate, decay = part.samples(tokens).split(widths, -1)
        out, _ = mixed(shape, Fed(qkv, fed.gate, rate, decay), weights)
        found.append(part.tokens(out))
    return torch.cat(found)[None]
