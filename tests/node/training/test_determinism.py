"""What has no deterministic form is named, instead of a replay that differs one day."""

import pytest
import torch

from node.training.determinism import as_deterministic_as_set
from node.training.errors import TrainingError
from node.training.settings import TrainerSettings

GPU = torch.device("cuda")


def test_an_operation_without_a_deterministic_form_ends_the_training_and_is_named() -> None:
    with pytest.raises(TrainingError, match="deterministically") as caught:
        with as_deterministic_as_set(TrainerSettings(), GPU):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
            raise RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation, but you set ...")
    assert "cumsum" in caught.value.why and "trainer.deterministic" in caught.value.remedy
    assert not torch.are_deterministic_algorithms_enabled(), "as it was before"
    with pytest.raises(RuntimeError, match="another"):
        with as_deterministic_as_set(TrainerSettings(), GPU):
            raise RuntimeError("another reason")


def test_who_does_not_ask_for_it_does_not_pay_for_it() -> None:
    for settings, device in ((TrainerSettings(deterministic=False), GPU), (TrainerSettings(), torch.device("cpu"))):
        with as_deterministic_as_set(settings, device):
            assert not torch.are_deterministic_algorithms_enabled()


def test_what_trains_and_what_replays_multiply_in_one_precision() -> None:
    """A replay in another one gave other bits on an H100, and accused its honest trainer."""
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    for deterministic in (True, False):
        with as_deterministic_as_set(TrainerSettings(deterministic=deterministic), GPU):
            assert torch.get_float32_matmul_precision() == "high"
            assert not matmul.allow_bf16_reduced_precision_reduction
        assert before == (torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction)
