"""Products of rows with matrices: the numbers of torch's own, whatever kernel makes them."""

import pytest
import torch

from node.inference import matrices
from node.inference.matrices import linear, packed, packs

OUT, IN = 512, 384
RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(40, IN, generator=RANDOM)
WEIGHT, BIAS = torch.randn(OUT, IN, generator=RANDOM), torch.randn(OUT, generator=RANDOM)

needs_packing = pytest.mark.skipif(not packs(OUT * IN, "cpu", torch.float32), reason="this torch has no oneDNN")


@needs_packing
@pytest.mark.parametrize("bias", [None, BIAS])
def test_a_packed_matrix_gives_what_a_plain_one_gives(bias: torch.Tensor | None) -> None:
    exact = torch.nn.functional.linear(X.double(), WEIGHT.double(), None if bias is None else bias.double())
    for weight in (WEIGHT, packed(WEIGHT)):
        assert torch.allclose(linear(X[:, None], weight, bias)[:, 0].double(), exact, atol=1e-4)


@needs_packing
def test_a_row_is_the_same_beside_any_number_of_others() -> None:
    weight = packed(WEIGHT)
    every = linear(X, weight)
    assert all(torch.equal(linear(X[:rows], weight), every[:rows]) for rows in (1, 2, 3, 4, 7, 16, 33))


def test_only_large_float32_matrices_on_a_cpu_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not packs(64 * 64, "cpu", torch.float32)
    assert not packs(OUT * IN, "cpu", torch.bfloat16)
    assert not packs(OUT * IN, "cuda", torch.float32)
    monkeypatch.setattr(matrices, "_ONEDNN", False)
    assert not packs(OUT * IN, "cpu", torch.float32)
    assert torch.equal(linear(X, WEIGHT, BIAS), torch.nn.functional.linear(X, WEIGHT, BIAS))
