"""Merging: bytes a second and core, one thread beside sixteen, and how far from the plain float32 formula.

    python -m benchmarks.merging [--quick] [--models 2] [--gib 1]
    python -m benchmarks.merging --mergekit       only: beside mergekit, which must be importable (it is no dependency)

Models of random bf16 weights in tensors of a 1.5 B model's shapes. GB/s counts the bytes of all inputs that are read,
by the processor's seconds of everything: reading mapped files from memory, arithmetic, hashing and writing the result.
"Merge alone" leaves out hashing and writing. The reference is plain numpy in float32.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from node.state.files import mapped
from node.weights.merge import merge_models
from protocol.merging import Merge, merged
from protocol.policy import bf16_bits, bf16_values, decode_image, encode_image

SHAPES = {"embed": (15_194, 1536), "mlp.down": (1536, 8960), "mlp.up": (8960, 1536), "q": (1536, 1536)}
METHODS = ("average", "ties", "dare")


def made(folder: Path, count: int, gib: float) -> list[Path]:
    """A base and `count` models, as files."""
    one = sum(2 * rows * width for rows, width in SHAPES.values())
    copies = max(1, round(gib * 2**30 / one))
    source, paths = np.random.default_rng(0), list[Path]()
    base = {f"{i}.{name}": source.normal(0, 0.02, shape) for i in range(copies) for name, shape in SHAPES.items()}
    for number in range(count + 1):
        away = 0.0 if number == 0 else 1e-3
        tensors = {
            name: bf16_bits((values + away * source.normal(size=values.shape)).astype(np.float32))
            for name, values in base.items()
        }
        paths.append(folder / f"model-{number}.safetensors")
        paths[-1].write_bytes(encode_image(tensors))
    return paths


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """(the processor's seconds, the clock's, the result)."""
    before, began = time.process_time(), time.perf_counter()
    found = work()
    return time.process_time() - before, time.perf_counter() - began, found


def farthest(found: np.ndarray, expected: np.ndarray) -> int:
    """In units of the last bf16 place."""
    return int(_ulps(found, expected).max())


def reference(merge: Merge, base: np.ndarray, models: list[np.ndarray]) -> np.ndarray:
    """Whole tensors at a time, in float32, without a thought for memory."""
    weights = np.array(merge.weights, np.float32)[:, None]
    values, origin = np.stack([bf16_values(one) for one in models]), bf16_values(base)
    if merge.method == "average":
        return (values * weights).sum(axis=0) / weights.sum()
    t = values - origin
    kept = max(1, round(merge.density * base.size))
    border = -np.partition(-np.abs(t), kept - 1, axis=1)[:, kept - 1, None]
    t = np.where(np.abs(t) >= border, t, np.float32(0)) * weights
    agrees = (np.sign(t) == np.sign(t.sum(axis=0))) & (t != 0)
    return origin + (t * agrees).sum(axis=0) / np.maximum((weights * agrees).sum(axis=0), np.float32(1))


KIT = {"average": "linear", "ties": "ties", "dare": "dare_linear"}


def beside_mergekit(count: int) -> list[dict[str, Any]]:
    """Distances from mergekit's results in float32, rounded once, for each number in units of the last bf16 place. DARE
    keeps all, since the two draw differently.

    TIES differs by rule in two places, which are counted apart: of numbers as large as the smallest that is kept we
    keep all and mergekit as many as are missing; where the kept differences cancel we change nothing and mergekit
    follows those that are positive.
    """
    import torch
    from mergekit.merge_methods.api import merge_tensors  # type: ignore[import-not-found]

    source, rows = np.random.default_rng(0), list[dict[str, Any]]()
    values = source.normal(0, 0.02, count)
    base, *models = [bf16_bits((values + a * source.normal(size=count)).astype(np.float32)) for a in (0, 1e-3, 1e-3)]
    given = [torch.from_numpy(bf16_values(one).copy()) for one in (base, *models)]
    for weights, density in (((1, 1), 0.2), ((1, 1), 0.5), ((3, 5), 0.3)):
        for method, name in KIT.items():
            merge = Merge(method, weights, density=1.0 if method == "dare" else density)  # type: ignore[arg-type]
            ours = np.concatenate([window.copy() for window in merged(merge, "x", base, models)])
            asked: dict[str, Any] = {"weight": list(map(float, weights)), "normalize": True}
            tensors, first = given[1:], None
            if merge.needs_base:
                tensors, first = given, 0
                asked |= {"density": [merge.density] * 2}
                asked |= {} if method == "ties" else {"rescale": False}
            kit = merge_tensors(tensors, name, parameters=asked, base_index=first, out_dtype=torch.bfloat16)
            theirs = kit.view(torch.int16).numpy().view(np.uint16)
            apart = _ulps(ours, theirs)
            by_rule = _by_rule(merge, base, models) if method == "ties" else np.zeros(count, np.bool_)
            most = int(apart[~by_rule].max())
            row = {"method": method, "weights": weights, "density": merge.density, "numbers": count, "ulps": most,
                   "apart": int((apart > 1).sum()), "by_rule": int(by_rule.sum())}  # fmt: skip
            rows.append(row)
            print(
                f"{method:8} weights {weights} density {merge.density:g}: at most {most} ulp, in {count:,} numbers; by "
                f"rule others {row['by_rule']:,}, of which {row['apart']:,} differ by more",
                flush=True,
            )
    return rows


def _by_rule(merge: Merge, base: np.ndarray, models: list[np.ndarray]) -> np.ndarray:
    """Where TIES' border or a sum of nothing is."""
    t = np.stack([bf16_values(one) - bf16_values(base) for one in models])
    borders = [np.partition(np.abs(one), len(one) - place)[len(one) - place]
               for one in t for place in (round(merge.density * len(one)), int(merge.density * len(one)))]  # fmt: skip
    kept = np.where(np.abs(t) >= np.array(borders[::2])[:, None], t, np.float32(0))
    cancels = (kept * np.array(merge.weights, np.float32)[:, None]).sum(axis=0) == 0
    return np.isin(np.abs(t), np.array(borders, np.float32)).any(axis=0) | (cancels & (kept != 0).any(axis=0))


def _ulps(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    ordered = [np.where(bits >> 15, 0x8000 - bits.astype(np.int32), bits.astype(np.int32)) for bits in (one, other)]
    return np.abs(ordered[0] - ordered[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="0.1 GiB, three times instead of five")
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--gib", type=float, default=1.0, help="of each model")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--mergekit", action="store_true", help="only: beside mergekit")
    asked = parser.parse_args()
    if asked.mergekit:
        found = beside_mergekit(1 << 20 if asked.quick else 1 << 23)
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1) + "\n")
        return
    times, rows = 3 if asked.quick else 5, list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        base, *models = made(folder, asked.models, 0.1 if asked.quick else asked.gib)
        size = models[0].stat().st_size
        for method in METHODS:
            merge = Merge(method, (1,) * len(models), density=0.2)  # type: ignore[arg-type]
            read = size * (len(models) + merge.needs_base)
            runs = {
                workers: [_whole(merge, models, base, folder, workers) for _ in range(times)] for workers in (1, 16)
            }
            roots = {root for several in runs.values() for _, _, root in several}
            alone = [timed(lambda merge=merge: _alone(merge, base, models))[0] for _ in range(times)]
            off = None if method == "dare" else _off(merge, base, models)
            row = {
                "method": method,
                "gb_per_core_second": [read / 1e9 / cpu for cpu, _, _ in runs[1]],
                "merge_alone": [read / 1e9 / cpu for cpu in alone],
                "seconds_by_threads": {workers: [wall for _, wall, _ in several] for workers, several in runs.items()},
                "same_root": len(roots) == 1,
                "ulps": off,
            }
            rows.append(row)
            print(
                f"{method:8} {_spread(row['gb_per_core_second'])} GB/s a core with hashing and writing, "
                f"{_spread(row['merge_alone'])} merge alone; roots of 1 and 16 threads "
                f"{'equal' if row['same_root'] else 'DIFFER'}; at most {off if off is not None else '-'} ulp off",
                flush=True,
            )
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")


def _whole(merge: Merge, models: list[Path], base: Path, folder: Path, workers: int) -> tuple[float, float, bytes]:
    """Without the roots of the inputs, which are a pass of their own."""
    out = folder / "out"
    cpu, wall, found = timed(lambda: merge_models(merge, models, out, base=base, workers=workers, name_inputs=False))
    for path in out.iterdir():
        path.unlink()
    out.rmdir()
    return cpu, wall, found.root


def _alone(merge: Merge, base: Path, models: list[Path]) -> None:
    origin, several = _read(base), [_read(path) for path in models]
    for name, tensor in origin.items():
        for _ in merged(merge, name, tensor.reshape(-1), [one[name].reshape(-1) for one in several]):
            continue


def _off(merge: Merge, base: Path, models: list[Path]) -> int:
    origin, several = _read(base), [_read(path) for path in models]
    most = 0
    for name, tensor in list(origin.items())[:4]:
        flat = [one[name].reshape(-1) for one in several]
        found = np.concatenate([window.copy() for window in merged(merge, name, tensor.reshape(-1), flat)])
        most = max(most, farthest(found, bf16_bits(reference(merge, tensor.reshape(-1), flat))))
    return most


def _read(path: Path) -> dict[str, np.ndarray]:
    return {**decode_image(mapped(path))}


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
