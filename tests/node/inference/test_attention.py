"""One token a row of a cache: what each row sees."""

import pytest
import torch
from torch import Tensor

from node.inference import attention
from node.inference.attention import KERNELS, Chunk, DecodeStep, KVCache
from node.inference.transformer import TransformerShape

SHAPE = TransformerShape(layers=1, heads=8, kv_heads=2, head_dim=16, hidden=64, eps=1e-6)


def attended(kernel: str, places: list[int], *, level: bool) -> Tensor:
    """What rows at these places get of a cache full of numbers."""
    random = torch.Generator().manual_seed(0)
    cache = KVCache(SHAPE, "cpu", torch.float32)
    cache.resize(len(places), 32, 0, 0)
    for kept in (cache.keys[0], cache.values[0]):
        kept.normal_(generator=random)
    q, k, v = (torch.randn(len(places), heads, 1, 16, generator=random) for heads in (8, 2, 2))
    step = DecodeStep(KERNELS[kernel], cache, torch.tensor(places), max(places) + 1, level=level)
    return step(0, q, k, v)


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_rows_at_one_place_need_no_mask(kernel: str) -> None:
    assert torch.equal(attended(kernel, [7] * 4, level=True), attended(kernel, [7] * 4, level=False))


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_a_row_sees_what_stands_up_to_its_own_place(kernel: str) -> None:
    places = [3, 9, 5, 7]
    together = attended(kernel, places, level=False)
    for row, place in enumerate(places):
        assert torch.allclose(together[row], attended(kernel, [place] * 4, level=True)[row], atol=1e-6)


def test_a_chunk_sees_the_same_where_a_kernel_needs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 5, 16, generator=random) for heads in (8, 2, 2))
    found = []
    for unmasked in (False, True):
        monkeypatch.setattr(attention, "sees_without_a_mask", lambda *_, unmasked=unmasked: unmasked)
        cache = KVCache(SHAPE, "cpu", torch.float32)
        cache.resize(2, 32, 0, 0)
        for kept in (cache.keys[0], cache.values[0]):
            kept.normal_(generator=torch.Generator().manual_seed(1))
        found.append(Chunk(KERNELS["sdpa"], cache, 1, 9)(0, q, k, v))
    assert torch.allclose(*found, atol=1e-6)
