"""What a part of the benchmark is told, and how it says what it found.

A part is a module of `benchmarks.gpu.parts` with a function `measure(job)`, which yields rows: (section, figures). Each
row is written down as it comes, so that a part that fails or hangs keeps what it had.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Row = tuple[str, dict[str, Any]]
"""The section that a row belongs to, and its figures by column."""
Rows = Iterator[Row]
BATCH_TOKENS = 1 << 18
"""Tokens in the cache of what is decoded: 256 sequences of a thousand, 7 GiB at 1.5 B parameters."""


class Skipped(Exception):
    """A part cannot be measured here; says why, and what would help."""


@dataclass(frozen=True, slots=True)
class Job:
    """quick: tiny sizes, to see that everything runs; scratch: a folder that the parts share; vllm_python: an
    interpreter that can import vLLM, if it is another one; seconds: until the part is ended."""

    device: str
    quick: bool
    scratch: Path
    vllm_python: Path | None
    seconds: float

    @property
    def dtype(self) -> str:
        return "bfloat16"

    @property
    def size(self) -> str:
        """The model's, in benchmarks.gpu.models."""
        return "tiny" if self.quick else "1.5b"

    def write(self, file: Path) -> Path:
        file.write_text(
            json.dumps({name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()})
        )
        return file

    @classmethod
    def read(cls, file: Path) -> "Job":
        told = json.loads(file.read_text())
        python = told.pop("vllm_python")
        return cls(**(told | {"scratch": Path(told["scratch"]), "vllm_python": Path(python) if python else None}))


def neat(value: Any) -> Any:
    """For JSON and for people: five digits, and words for what is no number."""
    if isinstance(value, dict):
        return {str(name): neat(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [neat(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value) < float("inf") else str(value)
    return value
