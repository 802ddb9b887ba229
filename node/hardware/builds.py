"""For which GPUs the installed torch was built: read from its files, because importing it takes seconds. Blocking."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple


class Builds(NamedTuple):
    """The versions of CUDA and ROCm that torch was built with; None for a build without."""

    torch_cuda: str | None = None
    torch_rocm: str | None = None


def torch_builds() -> Builds:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return Builds()
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    found = {kind: re.search(rf"^{kind}\b[^=]*=\s*'(\d+\.\d+)", text, re.M) for kind in ("cuda", "hip")}
    cuda, hip = (match.group(1) if match else None for match in found.values())
    return Builds(cuda, hip)
