"""Whether vLLM computes with the weights that it was given: they are read back out of its layers.

A reload can go wrong without a word: kernels keep weights in packed copies of their own, and a copy that stays behind
samples from another policy, which is what a cheat does. So every layer is asked: a linear layer that gets a vector with
a single 1 gives back one column of its weights, exactly, in whatever form it keeps them. A few columns of each, drawn
anew for each load, cost about as much as one token.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import ColumnParallelLinear, LinearBase, QKVParallelLinear, RowParallelLinear  # pyright: ignore[reportMissingImports]
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding  # pyright: ignore[reportMissingImports]

from node.inference.errors import EngineError

COLUMNS = 8
"""Columns of each linear layer, and rows of the embedding, that are read back."""


def check_weights(model: nn.Module, weights: Mapping[str, Tensor], seed: int) -> None:
    """Raises EngineError naming a layer that does not compute with `weights` (by the names of the model's files).

    Of weights that are no numbers nothing can be read back: logits will tell.
    """
    random = torch.Generator().manual_seed(seed)
    # vLLM joins matrices of one input. This says which of the file's matrices such a layer is made of.
    packed: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    for name, module in model.named_modules():
        for what, found, wanted in _read(name, module, weights, packed, random):
            # Equal to the bit: a 1 times a weight and zeros round nothing.
            if torch.isfinite(found).all() and not torch.equal(found.cpu(), wanted.to(found.dtype).cpu()):
                raise EngineError(
                    "the weights were not taken over",
                    f"vLLM computes with others in {what}",
                    "restart the engine; if it happens again, use --engine torch and report this",
                )


Reading = tuple[str, Tensor, Tensor]
"""(where, what is in use, what should be)"""


def _read(
    name: str,
    module: nn.Module,
    weights: Mapping[str, Tensor],
    packed: Mapping[str, Sequence[str]],
    random: torch.Generator,
) -> Iterator[Reading]:
    if isinstance(module, LinearBase):
        yield _linear(name, module, weights, packed, random)
    elif isinstance(module, VocabParallelEmbedding):
        if not isinstance(module, ParallelLMHead):  # the output head is our own (node.inference.vllm.hooks)
            yield _embedding(name, module, weights, random)
    else:
        for own, parameter in module.named_parameters(recurse=False):
            yield f"{name}.{own}", parameter, weights[f"{name}.{own}"]


def _linear(
    name: str,
    module: LinearBase,
    weights: Mapping[str, Tensor],
    packed: Mapping[str, Sequence[str]],
    random: torch.Generator,
) -> Reading:
    above, _, last = name.rpartition(".")
    parts = [weights[f"{above}.{part}.weight"] for part in packed.get(last, (last,))]
    whole = _own_part(module, parts)
    columns = torch.randint(whole.shape[1], (COLUMNS,), generator=random)
    device, dtype = _place_of(module)
    ones = torch.zeros(COLUMNS, whole.shape[1], device=device, dtype=dtype)
    ones[torch.arange(COLUMNS), columns.to(device)] = 1
    assert module.quant_method is not None  # every linear layer has one
    found = module.quant_method.apply(module, ones, None)  # type: ignore[call-arg]
    return name, found, whole[:, columns].T


def _place_of(module: LinearBase) -> tuple[torch.device, torch.dtype]:
    """Where a layer computes and in what; of its weights nothing may be left but a packed copy."""
    from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

    return torch.device(current_platform.device_type), module.params_dtype


def _own_part(module: LinearBase, parts: Sequence[Tensor]) -> Tensor:
    """The rows or columns of a layer's matrices that this process has."""
    rank, size = module.tp_rank, module.tp_size
    if isinstance(module, RowParallelLinear):
        return parts[0].chunk(size, dim=1)[rank]
    if isinstance(module, QKVParallelLinear):
        shared = module.num_kv_head_replicas
        q, k, v = parts
        of_kv = (rank // shared, size // shared)
        return torch.cat([q.chunk(size)[rank], *(one.chunk(of_kv[1])[of_kv[0]] for one in (k, v))])
    if isinstance(module, ColumnParallelLinear):
        return torch.cat([part.chunk(size)[rank] for part in parts])
    return torch.cat(list(parts))


def _embedding(
    name: str, module: VocabParallelEmbedding, weights: Mapping[str, Tensor], random: torch.Generator
) -> Reading:
    whole = weights[f"{name}.weight"]
    rows = torch.randint(len(whole), (COLUMNS,), generator=random)
    return name, module(rows.to(next(module.parameters()).device)), whole[rows]
