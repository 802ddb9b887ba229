"""What vLLM is told about a machine and a model."""

from pathlib import Path
from typing import Any

import pytest

from node.inference.errors import EngineError, ModelError
from node.inference.room import GIB, NoRoom
from node.inference.settings import EngineSettings
from node.inference.vllm.arguments import DRAWING, Cards, arguments, environment, tensor_parallel
from node.training.sizing import KNOWN, engine_size

QWEN = {"model_type": "qwen2", "num_attention_heads": 12}
SMALL, MIDDLE, LARGE = "qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b"
SIZE = engine_size(KNOWN[SMALL])


def card(gib: int, count: int = 1) -> Cards:
    return Cards(count, gib * GIB, gib * GIB)


@pytest.mark.parametrize(
    ("gpus", "heads", "size"), [(1, 32, 1), (8, 32, 8), (6, 32, 4), (8, 12, 4), (8, 14, 2), (4, 9, 1)]
)
def test_a_model_is_split_over_as_many_gpus_as_its_heads_allow(gpus: int, heads: int, size: int) -> None:
    assert tensor_parallel(gpus, heads) == size


def told(cards: Cards | None, model: str = SMALL, parallel: int = 1, leave: int = 0) -> dict[str, Any]:
    settings = EngineSettings("cuda" if cards else "cpu", "bfloat16", "vllm", parallel=parallel, leave=leave)
    return arguments(Path("m"), settings, QWEN, cards, engine_size(KNOWN[model]))


def test_gpus_are_shared_out_and_a_cpu_is_not() -> None:
    on_gpus, on_cpu = told(card(80, 2), parallel=2), told(None)
    assert on_gpus["tensor_parallel_size"] == 2 and on_gpus["dtype"] == "bfloat16"
    assert "tensor_parallel_size" not in on_cpu and on_cpu["enforce_eager"]
    assert not on_gpus["async_scheduling"] and not on_gpus["trust_remote_code"]


def test_a_model_that_fits_one_gpu_has_one_and_a_larger_one_the_fewest_that_do() -> None:
    sizes = [(SMALL, 24, 1), (MIDDLE, 24, 1), (LARGE, 141, 1), (LARGE, 80, 1), (LARGE, 48, 2), (LARGE, 24, 4)]
    assert [told(card(gib, 4), model)["tensor_parallel_size"] for model, gib, _ in sizes] == [one[2] for one in sizes]
    assert told(card(80, 4), SMALL, parallel=4)["tensor_parallel_size"] == 4, "as a run's class asks"
    with pytest.raises(NoRoom, match="does not fit into the GPUs") as refusal:
        told(card(24, 1), LARGE)
    assert "24.0 are free" in refusal.value.why


def test_others_on_the_card_keep_their_share_and_so_does_our_own_head() -> None:
    alone, beside = (told(card(80), leave=gib * GIB)["gpu_memory_utilization"] for gib in (0, 36))
    head = 2 * 151_936 * 1536 + DRAWING
    assert alone * 80 * GIB + head <= 0.9 * 80 * GIB < (alone + 0.002) * 80 * GIB + head
    assert abs((alone - beside) * 80 - 36) < 0.1
    used = told(Cards(1, 40 * GIB, 80 * GIB))["gpu_memory_utilization"]
    assert used * 80 < 0.9 * 40, "what others have already is not there"
    with pytest.raises(NoRoom, match="learner and evaluator"):
        told(card(80), leave=70 * GIB)


def test_an_architecture_that_is_not_supported_is_named_with_those_that_are() -> None:
    with pytest.raises(ModelError, match="'mamba', and the vLLM engine supports llama, qwen2, qwen3"):
        arguments(Path("m"), EngineSettings(attention="vllm"), {"model_type": "mamba"}, None, SIZE)


def test_one_gpu_of_several_is_chosen_by_hiding_the_others() -> None:
    with pytest.raises(EngineError) as refusal:
        arguments(Path("m"), EngineSettings("cuda:3", "bfloat16", "vllm"), QWEN, card(80, 4), SIZE)
    assert "CUDA_VISIBLE_DEVICES=3" in refusal.value.remedy


def test_nothing_is_compiled_for_a_cpu() -> None:
    assert "TORCH_COMPILE_DISABLE" in environment("cpu") and "TORCH_COMPILE_DISABLE" not in environment("cuda")
