"""What is asked for, and what machine and run make of it."""

from dataclasses import replace

import pytest

from node.inference import settings
from node.inference.engines import TORCH, VLLM
from node.inference.errors import EngineError
from node.inference.options import EngineOptions, options_from
from node.inference.settings import EngineSettings


def _absent(device: str) -> None:
    raise EngineError("vLLM is not installed", device, "install it")


HERE = {"vllm": replace(VLLM, check=lambda device: None), "torch": TORCH}
NOT_HERE = {"vllm": replace(VLLM, check=_absent), "torch": TORCH}


@pytest.fixture(autouse=True)
def hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "hardware", lambda device: {"cpu": "x86", "cuda": "cuda-sm90"}[device])
    monkeypatch.setattr(settings, "multiprocessors", lambda device: 132)


@pytest.mark.parametrize(
    ("permitted", "device", "dtype"),
    [
        (["*/*/*"], "cuda", "bfloat16"),
        (["*/float32/*"], "cuda", "float32"),
        (["x86/*/*"], "cpu", "float32"),
        (["x86/bfloat16/*"], "cpu", "bfloat16"),
        (["arm/float32/*"], "cuda", "bfloat16"),
    ],
)
def test_the_best_device_computes_in_the_best_way_that_the_run_permits(
    permitted: list[str], device: str, dtype: str
) -> None:
    granted = EngineOptions().granted(permitted, ["cuda", "cpu"], NOT_HERE)
    assert (granted.device, granted.dtype) == (device, dtype)


def test_what_the_command_line_says_stays() -> None:
    options = options_from(["--device", "cpu", "--attention", "eager", "--batch-tokens", "64"])
    assert options.granted(["*/*/*"], ["cuda", "cpu"]) == EngineSettings("cpu", "float32", "eager", 64)
    forbidden = options_from(["--dtype", "bfloat16"]).granted(["*/float32/*"], ["cpu"])
    assert forbidden.dtype == "bfloat16"  # the node then says that the run does not permit it


def test_nonsense_on_the_command_line_ends_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--dtype", "fp4"], ["--batch-tokens", "0"], ["--engine", "vllm", "--attention", "sdpa"]):
        with pytest.raises(SystemExit):
            options_from(wrong)
    assert "batch-tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("permitted", "device", "dtype", "kernel"),
    [
        (["*/*/*"], "cuda", "bfloat16", "vllm"),
        (["*/float32/*"], "cuda", "float32", "vllm"),
        (["*/*/sdpa"], "cuda", "bfloat16", "sdpa"),
        (["x86/*/*"], "cpu", "float32", "sdpa"),  # on a CPU nobody takes vLLM unasked
    ],
)
def test_vllm_is_taken_unasked_on_a_gpu_where_the_run_admits_it(
    permitted: list[str], device: str, dtype: str, kernel: str
) -> None:
    granted = EngineOptions().granted(permitted, ["cuda", "cpu"], HERE)
    assert (granted.device, granted.dtype, granted.attention) == (device, dtype, kernel)


def test_an_engine_that_is_asked_for_by_name_is_taken_even_where_it_is_missing() -> None:
    for options in (options_from(["--engine", "vllm"]), options_from(["--attention", "vllm"])):
        assert options.granted(["*/*/*"], ["cpu"], NOT_HERE).name.startswith("x86/float32/vllm/ieee/tp1/")
    assert options_from(["--engine", "torch"]).granted(["*/*/*"], ["cuda"], HERE).attention == "sdpa"
