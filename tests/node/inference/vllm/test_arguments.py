"""What vLLM is told about a machine and a model."""

from pathlib import Path

import pytest

from node.inference.errors import EngineError, ModelError
from node.inference.settings import EngineSettings
from node.inference.vllm.arguments import arguments, environment, tensor_parallel

QWEN = {"model_type": "qwen2", "num_attention_heads": 12}


@pytest.mark.parametrize(
    ("gpus", "heads", "size"), [(1, 32, 1), (8, 32, 8), (6, 32, 4), (8, 12, 4), (8, 14, 2), (4, 9, 1)]
)
def test_a_model_is_split_over_as_many_gpus_as_its_heads_allow(gpus: int, heads: int, size: int) -> None:
    assert tensor_parallel(gpus, heads) == size


def test_gpus_are_shared_out_and_a_cpu_is_not() -> None:
    on_gpus = arguments(Path("m"), EngineSettings("cuda", "bfloat16", "vllm"), QWEN, gpus=2)
    on_cpu = arguments(Path("m"), EngineSettings("cpu", "float32", "vllm"), QWEN, gpus=0)
    assert on_gpus["tensor_parallel_size"] == 2 and on_gpus["dtype"] == "bfloat16"
    assert "tensor_parallel_size" not in on_cpu and on_cpu["enforce_eager"]
    assert not on_gpus["async_scheduling"] and not on_gpus["trust_remote_code"]


def test_an_architecture_that_is_not_supported_is_named_with_those_that_are() -> None:
    with pytest.raises(ModelError, match="'mamba', and the vLLM engine supports llama, qwen2, qwen3"):
        arguments(Path("m"), EngineSettings(attention="vllm"), {"model_type": "mamba"}, gpus=0)


def test_one_gpu_of_several_is_chosen_by_hiding_the_others() -> None:
    with pytest.raises(EngineError) as refusal:
        arguments(Path("m"), EngineSettings("cuda:3", "bfloat16", "vllm"), QWEN, gpus=4)
    assert "CUDA_VISIBLE_DEVICES=3" in refusal.value.remedy


def test_nothing_is_compiled_for_a_cpu() -> None:
    assert "TORCH_COMPILE_DISABLE" in environment("cpu") and "TORCH_COMPILE_DISABLE" not in environment("cuda")
