"""The head in chunks: the numbers of full logits, and never more of them than allowed."""

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from node.training.head import sampled_logprobs

N, H, V = 37, 16, 101


def parts(bias: bool, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    random = torch.Generator().manual_seed(1)
    hidden = torch.randn(N, H, generator=random).to(dtype).requires_grad_()
    weight = torch.randn(V, H, generator=random).requires_grad_()
    drawn = torch.randint(V, (N,), generator=random)
    return hidden, weight, torch.randn(V, generator=random).requires_grad_() if bias else None, drawn


def plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """From full logits, differentiated by torch."""
    logs = torch.log_softmax(nn.functional.linear(hidden.float(), weight, bias) / 0.7, -1)
    return logs[torch.arange(N), drawn], -(logs.exp() * logs).sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("entropy", "bias"), [(0.0, False), (0.3, True)])
@pytest.mark.parametrize("cells", [1, 5 * V, 100 * V])
def test_chunks_give_the_numbers_and_the_gradient_of_full_logits(
    cells: int, entropy: float, bias: bool, dtype: torch.dtype
) -> None:
    """To 1e-5, with layers in float32 and in bfloat16; the head's weights are float32 masters."""
    weights = torch.linspace(-1, 1, N)
    found: list[list[Tensor]] = []
    for chunked in (False, True):
        given = parts(bias, dtype)
        how = {"temperature": 0.7, "cells": cells, "entropy_gradient": entropy > 0}
        logprobs, spread = sampled_logprobs(*given, **how) if chunked else plain(*given)
        assert logprobs.dtype == torch.float32
        (weights * logprobs + entropy * spread).sum().backward()
        gradients = [tensor.grad.float() for tensor in given[:3] if tensor is not None]
        found.append([logprobs.detach(), spread.detach(), *gradients])
    for mine, theirs in zip(found[1], found[0], strict=True):
        close = 1e-5 if mine.shape != (N, H) or dtype == torch.float32 else 2e-2  # one rounding to bfloat16
        assert torch.allclose(mine, theirs, atol=close, rtol=close)


@pytest.mark.parametrize("true", [True, False])
@pytest.mark.parametrize("entropy", [0.0, 0.3])
def test_a_gradient_told_ahead_saves_a_pass_and_a_wrong_one_does_no_harm(true: bool, entropy: float) -> None:
    weights = torch.linspace(-1, 1, N)
    calls: list[int] = []

    def slopes(cut: slice, logprobs: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(logprobs))
        return weights[cut] * (1 if true else 2), torch.full_like(spread, entropy)

    found = []
    for told in (None, slopes):
        given = parts(bias=True)
        how = {"temperature": 0.7, "cells": 5 * V, "entropy_gradient": entropy > 0, "slopes": told}
        with Products() as both:
            logprobs, spread = sampled_logprobs(*given, **how)
            (weights * logprobs + entropy * spread).sum().backward()
        found.append((both.count, [tensor.grad for tensor in given[:3] if tensor is not None]))
    assert sum(calls) == N
    passes = [count / len(calls) for count, _ in found]
    assert passes == [4, 3 if true else 6]
    for mine, theirs in zip(found[1][1], found[0][1], strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


class Products(TorchDispatchMode):
    """How many matrices are multiplied inside."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_)
        return function(*args, **(kwargs or {}))


class LargestTable(TorchDispatchMode):
    """The most numbers of any one tensor that is made inside."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else [found]:
            if isinstance(tensor, Tensor):
                self.most = max(self.most, tensor.numel())
        return found


@pytest.mark.parametrize("frozen", [False, True])
def test_neither_pass_makes_a_table_of_all_tokens(frozen: bool) -> None:
    """Nor, where the head is frozen, a gradient of it."""
    hidden, weight, _, drawn = parts(bias=False)
    weight.requires_grad_(not frozen)
    with LargestTable() as seen:
        logprobs, _ = sampled_logprobs(hidden, weight, None, drawn, temperature=1.0, cells=3 * V)
        logprobs.sum().backward()
    assert seen.most <= max(3 * V, V * H) < N * V
    assert (weight.grad is None) is frozen
