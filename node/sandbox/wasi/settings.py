"""The compiler's settings that name a compiled interpreter. Light: whoever only looks for one needs no wasmtime."""

import hashlib
import platform
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

_PORTABLE = "-pulley"
STACK_BYTES = 96 << 20
"""For the guest's calls in native frames. So much that the interpreter's own limits come first, at any optimisation."""


@dataclass(frozen=True, slots=True)
class Settings:
    """optimised: False generates slow code at once, which must give the same outcomes (the tests' second compiler);
    portable: code for wasmtime's own virtual machine (Pulley), which no processor runs: another architecture, to
    compare with."""

    optimised: bool = True
    portable: bool = False

    @classmethod
    def of(cls, compiled: Path) -> "Settings":
        """What a compiled interpreter was made for, as far as loading it depends on that."""
        return cls(portable=compiled.stem.endswith(_PORTABLE))

    @property
    def key(self) -> str:
        """Names what makes compiled code unfit for another program. Raises PackageNotFoundError without wasmtime."""
        text = f"wasmtime {version('wasmtime')} optimised {self.optimised} stack {STACK_BYTES} {_processor()}"
        return hashlib.sha256(text.encode()).hexdigest()[:16] + (_PORTABLE if self.portable else "")


OPTIMISED = Settings()


@cache
def _processor() -> str:
    """What its code generator may use: homes are shared between machines, and compiled code is not for all of them."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.platform()
    return platform.machine() + next((line for line in lines if line.startswith(("flags", "Features"))), "")
