"""The compiler's settings that name a compiled interpreter. Light: whoever only looks for one needs no wasmtime."""

import hashlib
from dataclasses import dataclass
from importlib.metadata import version

STACK_BYTES = 96 << 20
"""For the guest's calls in native frames. So much that the interpreter's own limits come first, at any optimisation."""


@dataclass(frozen=True, slots=True)
class Settings:
    """optimised: False generates slow code at once, which must give the same outcomes (the tests' second compiler)."""

    optimised: bool = True

    @property
    def key(self) -> str:
        """Names what makes compiled code unfit for another program. Raises PackageNotFoundError without wasmtime."""
        text = f"wasmtime {version('wasmtime')} optimised {self.optimised} stack {STACK_BYTES}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


OPTIMISED = Settings()
