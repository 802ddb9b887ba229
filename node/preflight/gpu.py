"""GPUs, their driver, and the build of torch that would use them. Blocking: call from a thread."""

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from node.hardware import Hardware
from node.preflight.finding import Finding, ok, warning

LEAST_DRIVER = {11: 450.80, 12: 525.60, 13: 580.65}
"""CUDA's major version -> the oldest driver for it on Linux (NVIDIA, CUDA Compatibility; minor versions agree)."""
DRIVERS = "https://www.nvidia.com/drivers"


class Builds(NamedTuple):
    """The versions of CUDA and ROCm that torch was built with; None for a build without."""

    torch_cuda: str | None = None
    torch_rocm: str | None = None


def check_gpu(hardware: Hardware) -> Finding:
    return judge_gpu(hardware, torch_builds(), tool=shutil.which("nvidia-smi") is not None)


def judge_gpu(hardware: Hardware, builds: Builds, *, tool: bool) -> Finding:
    """tool: whether NVIDIA's driver has been installed here, so that a GPU was to be expected."""
    data = {"gpus": [msgspec.to_builtins(gpu) for gpu in hardware.gpus], "driver": hardware.driver, **builds._asdict()}
    makers = {gpu.vendor for gpu in hardware.gpus}
    if not makers:
        if tool:
            return warning("gpu", "nvidia-smi is here and shows no GPU", f"reinstall the driver ({DRIVERS})", **data)
        return ok("gpu", "no GPU: the engine computes on the CPU", **data)
    names = ", ".join(f"{gpu.name} ({gpu.memory / 2**30:.0f} GiB)" for gpu in hardware.gpus)
    if "nvidia" in makers:
        return _nvidia(names, hardware.driver, builds.torch_cuda, data)
    if builds.torch_rocm is None:
        what = f"{names}, and a build of torch that does not use it"
        return warning("gpu", what, "install torch's ROCm build: https://pytorch.org/get-started/locally", **data)
    return ok("gpu", f"{names}, torch with ROCm {builds.torch_rocm}", **data)


def _nvidia(names: str, driver: str, cuda: str | None, data: dict[str, Any]) -> Finding:
    if cuda is None:
        what = f"{names}, and a build of torch that does not use it"
        return warning("gpu", what, "install the CUDA build: make install TORCH=cuda", **data)
    least = LEAST_DRIVER.get(int(cuda.partition(".")[0]), 0.0)
    if _number(driver) < least:
        what = f"driver {driver} is too old for torch's CUDA {cuda}, which needs {least:g}"
        return warning("gpu", what, f"update the driver ({DRIVERS}); until then the engine uses the CPU", **data)
    return ok("gpu", f"{names}, driver {driver}, torch with CUDA {cuda}", **data)


def torch_builds() -> Builds:
    """Read from torch's files, because importing it takes seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return Builds()
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    found = {kind: re.search(rf"^{kind}\b[^=]*=\s*'(\d+\.\d+)", text, re.M) for kind in ("cuda", "hip")}
    cuda, hip = (match.group(1) if match else None for match in found.values())
    return Builds(cuda, hip)


def _number(version: str) -> float:
    found = re.match(r"\d+(\.\d+)?", version)
    return float(found.group()) if found else 0.0
