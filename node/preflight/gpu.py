"""GPU, its driver, and the build of torch that would use it. Blocking: call from a thread."""

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from node.hardware import Hardware
from node.preflight.finding import Finding, ok, warning

LEAST_DRIVER = {11: 450.80, 12: 525.60, 13: 580.65}
"""CUDA's major version -> the oldest driver for it on Linux (NVIDIA, CUDA Compatibility; minor versions agree)."""
DRIVERS = "https://www.nvidia.com/drivers"


def check_gpu(hardware: Hardware) -> Finding:
    return judge_gpu(hardware, driver_version(), torch_cuda())


def judge_gpu(hardware: Hardware, driver: str | None, cuda: str | None) -> Finding:
    """driver: '550.54', empty where nvidia-smi fails, None without it; cuda: of torch, None for the CPU."""
    data = {"gpus": [gpu.name for gpu in hardware.gpus], "driver": driver, "torch_cuda": cuda}
    if driver is None:
        return ok("gpu", "no GPU: the engine computes on the CPU", **data)
    if not driver or not hardware.gpus:
        return warning("gpu", "nvidia-smi is here and shows no GPU", f"reinstall the driver ({DRIVERS})", **data)
    names = ", ".join(gpu.name for gpu in hardware.gpus)
    if cuda is None:
        what = f"{names}, and a build of torch that does not use it"
        return warning("gpu", what, "install the CUDA build: make install TORCH=cuda", **data)
    least = LEAST_DRIVER.get(int(cuda.partition(".")[0]), 0.0)
    if _number(driver) < least:
        what = f"driver {driver} is too old for torch's CUDA {cuda}, which needs {least:g}"
        return warning("gpu", what, f"update the driver ({DRIVERS}); until then the engine uses the CPU", **data)
    return ok("gpu", f"{names}, driver {driver}, torch with CUDA {cuda}", **data)


def driver_version() -> str | None:
    """None without nvidia-smi, empty if it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        return ""
    return answer.strip().split("\n")[0].strip()


def torch_cuda() -> str | None:
    """The CUDA version that torch was built with; read from its files, because importing it takes seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = Path(spec.origin).with_name("version.py")
    found = re.search(r"^cuda\b[^=]*=\s*'(\d+\.\d+)'", version.read_text(encoding="utf-8"), re.M)
    return found.group(1) if found else None


def _number(version: str) -> float:
    found = re.match(r"\d+(\.\d+)?", version)
    return float(found.group()) if found else 0.0
