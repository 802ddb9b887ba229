"""The output head: bfloat16 in, float32 sums, by whichever way a device has."""

import pytest
import torch

from node.inference import head
from node.inference.head import OutputHead, has_float32_sums
from tests.pretended_cuda import pretended_cuda

HIDDEN, VOCABULARY = 48, 203


def tables(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    shapes = (7, HIDDEN), (VOCABULARY, HIDDEN), (VOCABULARY,)
    hidden, weight, bias = (torch.randn(shape, generator=random).to(dtype) for shape in shapes)
    return hidden, weight, bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sums", [True, False])
def test_logits_are_those_of_the_same_product_in_float32(
    dtype: torch.dtype, sums: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, weight, bias = tables(dtype)
    wanted = (hidden.double() @ weight.double().T + bias.double()).float()
    assert torch.allclose(OutputHead(weight, bias)(hidden), wanted, atol=1e-5)
    monkeypatch.setattr(head, "CHUNK_CELLS", 10 * HIDDEN)
    with pretended_cuda() as gpu:
        if not sums:
            monkeypatch.setattr(head, "_summed", _refused)
        there = OutputHead(weight.to("cuda"), bias.to("cuda"))
        assert there.wide == (dtype == torch.float32)
        made = there(hidden.to("cuda"))
        assert made.dtype == torch.float32 and torch.allclose(made.cpu(), wanted, atol=1e-5)
        assert set(gpu.waits) <= {"a copy to the device", "a copy to the CPU"}


def _refused(*_: torch.Tensor) -> torch.Tensor:
    raise TypeError("mm() got an unexpected keyword argument 'out_dtype'")


def test_a_gpu_multiplies_in_bfloat16_and_keeps_no_copy() -> None:
    hidden, weight, _ = tables(torch.bfloat16)
    seen: list[str] = []
    with pretended_cuda() as gpu:
        there = OutputHead(weight.to("cuda"))
        rows = hidden.to("cuda")
        gpu.before_memory = seen.append
        there(rows)
        assert seen == ["aten.mm"], "neither side is turned into float32"
        assert has_float32_sums(rows)
    assert not has_float32_sums(hidden), "a CPU has no such product: there a copy in float32 is kept"


def test_another_weight_is_seen() -> None:
    hidden, weight, _ = tables(torch.bfloat16)
    ours = OutputHead(weight)
    weight.mul_(2)
    ours.load()
    assert torch.allclose(ours(hidden), (hidden.double() @ weight.double().T).float(), atol=1e-4)
