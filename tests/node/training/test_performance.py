from collections.abc import Callable

import pytest
import torch
from transformers import AutoModelForCausalLM

from node.inference.architectures import routing_of
from node.training.learner import Learner
from node.training.performance import computing_parameters, measured, peak_flops, training_flops
from tests.node.inference.models import CONFIGURATIONS


def test_flops_are_six_per_parameter_and_token_plus_attention() -> None:
    assert training_flops(10, 100, 0, 2, 8) == 6 * 10 * 100
    assert training_flops(0, 100, 50, 2, 8) == 6 * 2 * 8 * 50 * 100


def test_of_a_stack_of_experts_the_chosen_ones_compute() -> None:
    config = CONFIGURATIONS["qwen3_moe"]
    model = AutoModelForCausalLM.from_config(config)
    stacks = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    whole = sum(p.numel() for p in model.parameters())
    assert stacks == 2 * 6 * 3 * 64 * 24
    assert computing_parameters(model, routing_of(config)) == pytest.approx(whole - stacks * 4 / 6)
    assert computing_parameters(model, None) == whole


def test_the_share_of_the_peak_is_there_where_the_peak_is_known(make_learner: Callable[..., Learner]) -> None:
    cpu = torch.device("cpu")
    model = make_learner().model
    assert peak_flops(cpu, 0) is None and peak_flops(cpu, 2.0) == 2e12
    unknown = measured(model, 1000, 10, 2.0, cpu, 1, 0.0)
    assert unknown["tokens_per_second"] == 500 and "mfu" not in unknown and unknown["peak_memory_bytes"] > 1 << 20
    alone, pair = (measured(model, 1000, 10, 2.0, cpu, ranks, 1e-3)["mfu"] for ranks in (1, 2))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert alone == pytest.approx(2 * pair) and alone > 6 * parameters * 1000 / 2 / 1e9
    assert set(measured(model, 0, 0, 0.0, cpu, 1, 1.0)) == {"peak_memory_bytes"}, "nothing was fed"
