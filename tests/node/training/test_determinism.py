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
