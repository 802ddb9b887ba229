"""What the device and the programs are that a result belongs to.

`python -m benchmarks.gpu.machine cuda` prints it: a process of its own, so that nothing of it stays on the device.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PROGRAMS = ("torch", "transformers", "vllm", "safetensors", "tokenizers", "numpy", "triton")
REPOSITORY = Path(__file__).resolve().parents[2]


def look(device: str) -> dict[str, Any]:
    """By a process of its own. Raises SystemExit where there is no such device."""
    command = [sys.executable, "-m", "benchmarks.gpu.machine", device]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=REPOSITORY)
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def describe(device: str) -> dict[str, Any]:
    import torch

    common = {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "versions": {name: found for name in PROGRAMS if (found := _version(name))},
    }
    if device != "cuda":
        return {"name": f"CPU {platform.machine()} {torch.backends.cpu.get_cpu_capability()}", **common}
    if not torch.cuda.is_available():
        raise SystemExit(
            f"torch {torch.__version__} finds no CUDA device here. `--device cpu` rehearses everything on a CPU, with"
            " tiny models."
        )
    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "memory_gib": round(found.total_memory / 2**30, 1),
        "capability": f"{found.major}.{found.minor}",
        "driver": _driver(),
        **common,
    }


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def revision() -> str | None:
    """The commit that is measured, with a + where files differ from it; None outside of a repository."""
    try:
        run = ["git", "-C", str(REPOSITORY), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _driver() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else None


if __name__ == "__main__":
    print(json.dumps(describe(sys.argv[1])))
