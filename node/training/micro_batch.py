"""Rows -> the tensors of one forward pass: packed (end to end in one row) or padded to equal length."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from node.inference.transfer import sent
from node.training.attention import Pack
from node.training.batch import BatchRow
from node.training.experts import given
from protocol.routing import Routing
from protocol.segments import sampled_places


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """tokens, positions: int64[rows, width]; pack: None if padded; drawn: int64[n], the sampled tokens;

    places: int64[n] into the flattened rows: where the logits of each sampled token stand; real: tokens that are no
    padding; computed: positions that the costliest part works on, padding included; experts: int16[flattened, width],
    those on record, -1 where there is none (node.training.experts).
    """

    tokens: Tensor
    positions: Tensor
    pack: Pack | None
    places: Tensor
    drawn: Tensor
    real: int
    computed: int
    experts: Tensor | None = None


def packed(rows: Sequence[BatchRow], device: torch.device, routing: Routing | None = None) -> MicroBatch:
    """rows: by ascending length of prompt and output, as node.training.packing plans them."""
    # The last token is not fed: nobody asks what comes after it.
    fed = [[*row.prompt, *row.output[:-1]] for row in rows]
    lengths = np.array([len(ids) for ids in fed])
    ends = lengths.cumsum()
    pack = Pack(lengths.tolist(), device)
    return MicroBatch(
        tokens=_on(np.concatenate(fed), device)[None],
        positions=_on(np.arange(ends[-1]) - np.repeat(ends - lengths, lengths), device)[None],
        pack=pack,
        places=_on(_sampled(rows, ends), device),
        drawn=_on(np.concatenate([row.sampled for row in rows]), device),
        real=pack.tokens,
        computed=pack.padded,
        experts=_experts(rows, (ends - lengths).tolist(), int(ends[-1]), routing, device),
    )


def padded(rows: Sequence[BatchRow], device: torch.device, routing: Routing | None = None) -> MicroBatch:
    """Padding stands on the right, where a causal model cannot see it: no mask is needed."""
    fed = [[*row.prompt, *row.output[:-1]] for row in rows]
    width = max(map(len, fed))
    tokens = np.zeros((len(fed), width), dtype=np.int64)
    for line, ids in zip(tokens, fed, strict=True):
        line[: len(ids)] = ids
    ends = np.arange(len(fed)) * width + [len(ids) for ids in fed]
    return MicroBatch(
        tokens=_on(tokens, device),
        positions=torch.arange(width, device=device)[None].expand(len(fed), width),
        pack=None,
        places=_on(_sampled(rows, ends), device),
        drawn=_on(np.concatenate([row.sampled for row in rows]), device),
        real=sum(map(len, fed)),
        computed=tokens.size,
        experts=_experts(rows, range(0, tokens.size, width), tokens.size, routing, device),
    )


def nothing(packing: bool, device: torch.device) -> MicroBatch:
    """One token that counts for nothing: a rank without rows still takes part in its round."""
    zero = torch.zeros(1, dtype=torch.long, device=device)
    return MicroBatch(zero[None], zero[None], Pack([1], device) if packing else None, zero, zero, 0, 0)


def of_zeros(tokens: int, packing: bool, device: torch.device) -> MicroBatch:
    """An even number of tokens, half of them in each of two samples or rows, with one to be learnt."""
    half = tokens // 2
    shape = (1, tokens) if packing else (2, half)
    zeros = torch.zeros(shape, dtype=torch.long, device=device)
    positions = torch.arange(half, device=device).repeat(2).view(shape)
    one = zeros[0, :1]
    return MicroBatch(zeros, positions, Pack([half, half], device) if packing else None, one, one, tokens, tokens)


def _sampled(rows: Sequence[BatchRow], ends: np.ndarray) -> np.ndarray:
    """Where the logits of each row's sampled tokens stand. ends[i]: behind the last token that is fed of row i."""
    # A token's logits stand at the token before it: those of the first output token at the prompt's last one.
    firsts = ends - [len(row.output) for row in rows]
    return np.concatenate(
        [first + sampled_places(row.segments, len(row.output)) for first, row in zip(firsts, rows, strict=True)]
    )


def _experts(
    rows: Sequence[BatchRow], places: Sequence[int], tokens: int, routing: Routing | None, device: torch.device
) -> Tensor | None:
    found = given(rows, places, tokens, routing) if routing else None
    return None if found is None else sent(found, device)


def _on(values: np.ndarray, device: torch.device) -> Tensor:
    return sent(values.astype(np.int64, copy=False), device)
