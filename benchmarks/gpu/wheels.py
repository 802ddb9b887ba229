"""The wheels that a borrowed machine lacks beside torch, transformers, safetensors and numpy, to be carried there.

They are chosen for its Python and not for this one, at the versions of constraints.txt, without what they would bring
along: `NEEDED` has that.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.parts import Part
from benchmarks.gpu.result import REPOSITORY

CARRIED = 50
"""MB that can be carried to a machine without a network."""
_ENGINE = ("blake3", "msgspec", "structlog")
_SWAP = (*_ENGINE, "platformdirs")
_PROOFS = (
    *(*_SWAP, "base58", "cffi", "coincurve", "eth-hash", "eth-typing", "eth-utils"),
    *("pycparser", "pycryptodome", "toolz"),
)
_CHALLENGE = (
    *(*_PROOFS, "annotated-types", "psutil", "pydantic", "pydantic-core", "pydantic-settings", "python-dotenv"),
    *("typing-extensions", "typing-inspection"),
)
_TRIO = ("attrs", "idna", "outcome", "sniffio", "sortedcontainers", "trio")
NEEDED = {
    "engine": _ENGINE,
    "costs": _ENGINE,
    "invariance": _ENGINE,
    "swap": _SWAP,
    "vllm": _SWAP,
    "proofs": _PROOFS,
    "learner": _PROOFS,
    "memory": _PROOFS,
    "challenge": _CHALLENGE,
    "tests": (*_PROOFS, *_TRIO, "iniconfig", "packaging", "pluggy", "pygments", "pytest"),
    "smollm": (*_CHALLENGE, *_TRIO, "antlr4-python3-runtime", "latex2sympy2-extended", "pyarrow"),
}
"""By part."""
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def collect(parts: Sequence[Part], python: str, out: Path) -> str:
    """Fetches the wheels of these parts for Python `python` (3.12) into `out`; what there is to do with them. Raises
    SystemExit."""
    out.mkdir(parents=True, exist_ok=True)
    abi = "cp" + python.replace(".", "")
    chosen = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    chosen += [word for name in (abi, "abi3", "none") for word in ("--abi", name)]
    chosen += [word for name in _PLATFORMS for word in ("--platform", name)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(out), *chosen]
    pip += ["-c", str(REPOSITORY / "constraints.txt"), *packages(parts)]
    if subprocess.run(pip, check=False).returncode:
        raise SystemExit("pip could not fetch the wheels: see above")
    wheels = sorted(out.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels) / 1e6
    told = f"{len(wheels)} wheels, {size:.1f} MB. There: python -m pip install --no-index --no-deps {out}/*.whl"
    if size <= CARRIED:
        return told
    most = max(wheels, key=lambda wheel: wheel.stat().st_size)
    return f"{told}\nmore than {CARRIED} MB, {most.name} most of all: name fewer parts with --only"


def packages(parts: Sequence[Part]) -> list[str]:
    return sorted({name for part in parts for name in NEEDED[part.name]})
