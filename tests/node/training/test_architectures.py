"""Every row of the table of architectures, as the learner computes it: log-probabilities and gradients of
transformers' own pass, one sample at a time."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from node.inference.architectures import ARCHITECTURES
from node.inference.experts import CORRECTION, correct_as_parameters
from node.training.batch import BatchRow
from node.training.micro_batch import packed, padded
from node.training.policy_model import PolicyModel
from node.training.sizing import shape_of
from tests.node.inference.models import CONFIGURATIONS, VOCABULARY, kernel_of, transformers_model

TEMPERATURE = 0.7
_TOKENS = torch.randint(1, VOCABULARY, (3, 24), generator=torch.Generator().manual_seed(2)).tolist()
ROWS = [
    BatchRow(0, _TOKENS[i][:4], _TOKENS[i][4:length], [-1.0] * (length - 4), 0.0, 0)
    for i, length in enumerate((9, 17, 24))
]


def test_every_row_has_a_configuration() -> None:
    assert {config.model_type for config in CONFIGURATIONS.values()} == set(ARCHITECTURES)


def test_sizes_are_told_of_every_row(tmp_path: Path) -> None:
    for config in CONFIGURATIONS.values():
        (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        correct_as_parameters(model)
        counted = sum(parameter.numel() for parameter in model.parameters())
        assert shape_of(tmp_path).parameters == pytest.approx(counted, rel=0.02), config.model_type


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_packed_and_padded_samples_have_the_gradients_of_single_ones(name: str) -> None:
    model = transformers_model(CONFIGURATIONS[name], torch.float32, kernel_of(name))
    expected, slopes = [], {}
    for row in ROWS:
        logits = model(input_ids=torch.tensor([[*row.prompt, *row.output]]), use_cache=False).logits[0]
        table = (logits / TEMPERATURE).log_softmax(-1)[len(row.prompt) - 1 : -1]
        expected.append(table.gather(1, torch.tensor(row.output)[:, None])[:, 0])
    torch.cat(expected).square().sum().backward()
    slopes = {parameter: gradient.grad for parameter, gradient in model.named_parameters()}
    policy = PolicyModel(model, TEMPERATURE, logit_cells=7 * VOCABULARY)
    for made in (packed, padded):
        model.zero_grad()
        found, _ = policy(made(ROWS, torch.device("cpu")))
        assert torch.allclose(found, torch.cat(expected), atol=2e-5)
        found.square().sum().backward()
        for parameter, tensor in model.named_parameters():
            if parameter.endswith(CORRECTION):
                assert tensor.grad is None, "it decides, and is decided by nobody"
                continue
            assert tensor.grad is not None
            assert torch.allclose(tensor.grad, slopes[parameter], atol=1e-3, rtol=1e-3), parameter
