"""Merging: bytes a second and core of each method, beside what this machine copies, and beside another version's.

    python -m benchmarks.merging [--quick] [--models 2] [--beside FILE] [--json FILE]

Numbers are random bf16, in one tensor, in memory. GB/s counts the bytes of all inputs that a merge reads (models, and
the base where there is one), by the processor's seconds of the arithmetic alone: no hashing, no files. What it writes
comes on top, as many bytes as one model has. `memcpy` counts the bytes copied. All take turns, so other work on the
machine meets all of them; each has a median and the range. FILE is another protocol/merging.py, for instance of
`git show COMMIT:protocol/merging.py`.
"""

import importlib.util
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import parser_of, save
from protocol import merging
from protocol.policy import bf16_bits

DENSITY = 0.2


def made(size: int, count: int) -> list[Any]:
    """A base, and models that were trained from it."""
    source = np.random.default_rng(0)
    before = source.normal(0, 0.02, size).astype(np.float32)
    trained = (before + source.normal(0, 1e-3, size).astype(np.float32) for _ in range(count))
    return [bf16_bits(before), *map(bf16_bits, trained)]


def module_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("another_merging", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def merge_by(module: Any, method: str, base: Any, models: list[Any]) -> Callable[[], None]:
    merge = module.Merge(method, (1,) * len(models), density=DENSITY)

    def run() -> None:
        for _ in module.merged(merge, "x", base, models):
            continue

    return run


def main() -> None:
    parser = parser_of(__doc__, "a fourth of the numbers, five turns instead of nine")
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--beside", type=Path, metavar="FILE", help="another protocol/merging.py, measured in turns")
    asked = parser.parse_args()
    size, turns = (1 << 22, 5) if asked.quick else (1 << 24, 9)
    base, *models = made(size, asked.models)
    modules = {"": merging} | ({"before: ": module_of(asked.beside)} if asked.beside else {})
    work: dict[str, tuple[int, Callable[[], Any]]] = {}
    for method in merging.METHODS:
        read = 2 * size * (len(models) + (method != "average"))
        for name, module in modules.items():
            work[name + method] = (read, merge_by(module, method, base, models))
    copy = np.ones(4 * size, np.uint8)
    work["memcpy"] = (copy.size, partial(np.copyto, np.ones_like(copy), copy))
    rates: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(turns + 1):  # the first one warms up
        for name, (count, run) in work.items():
            began = time.process_time()
            run()
            if turn:
                rates[name].append(count / 1e9 / (time.process_time() - began))
    for name, found in rates.items():
        print(f"{name:16} {statistics.median(found):.2f} GB/s a core ({min(found):.2f} to {max(found):.2f})")
    save(asked.json, {"numbers": size, "models": len(models), "density": DENSITY, "rates": rates})


if __name__ == "__main__":
    main()
