"""What a processor is called, and which of the abilities that make engines faster it has. From /proc/cpuinfo."""

import platform
import re
from pathlib import Path
from typing import NamedTuple

FEATURES = {
    "avx2": "avx2",
    "avx512": "avx512f",
    "bf16": "avx512_bf16",
    "amx": "amx_tile",
    "neon": "asimd",
    "sve": "sve",
    "arm-bf16": "bf16",
}
"""Our name -> the kernel's flag."""
INFO = Path("/proc/cpuinfo")


class Processor(NamedTuple):
    """features: of FEATURES, in that order."""

    name: str
    features: tuple[str, ...]


def look(info: Path = INFO) -> Processor:
    """Of other systems than Linux only the name is known."""
    try:
        with info.open(encoding="utf-8", errors="replace") as file:
            text = file.read(256 * 1024)  # bytes that are looked at: the first processors say it
    except OSError:
        return Processor(platform.processor() or platform.machine(), ())
    flags = set((_value(text, "flags") or _value(text, "Features")).split())
    name = _value(text, "model name") or platform.machine()
    return Processor(" ".join(name.split()), tuple(ours for ours, flag in FEATURES.items() if flag in flags))


def _value(text: str, key: str) -> str:
    found = re.search(rf"^{key}\s*:(.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else ""
