"""Activation proofs: speed beside the PyPI package `toploc` 0.1.6, size, and what they cost a worker and a validator.

    python -m benchmarks.proofs [--models small,large] [--no-upstream] [--quick] [--json FILE]

Upstream is built from its sdist into an environment of its own (benchmarks/upstream_toploc.py); ours and theirs
then run by turns in one process, on the same rows and one thread, and each other's proofs are checked.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from protocol.toploc import build_proof, build_proofs, compare, parse_proof, proof_count, proof_size, top_positions

ROWS, HIDDEN, K = 32, 5120, 128
TOGETHER = "build, eight at a time"
REPOSITORY = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="small,large", help="models to time generation on; none: only the core")
    parser.add_argument("--no-upstream", action="store_true", help="without the package toploc")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--beside-upstream", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.beside_upstream:
        print(json.dumps(core(20 if a.quick else 100, upstream=True)))
        return
    from benchmarks.proof_models import WORK, subjects
    from benchmarks.verification_lab import save, show

    work = a.work or WORK
    work.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"core": core(20 if a.quick else 100, False) if a.no_upstream else beside(work, a.quick)}
    show(_speed(result["core"]), f"one proof of {ROWS} x {HIDDEN} bf16, k = {K}, one thread; median ms of the process")
    print("  " + "; ".join(f"{name}: {value}" for name, value in result["core"].items() if name.startswith("check")))
    result["bytes per token"] = sizes()
    show(result["bytes per token"], f"bytes per output token, k = {K}, {ROWS} rows per proof")
    result["engine"] = []
    for subject in subjects(work, [name for name in a.models.split(",") if name not in ("", "none")]):
        result["engine"].append({"model": subject.name, **costs(subject, 2 if a.quick else 5)})
    if result["engine"]:
        show(result["engine"], "on TorchEngine, fp32, one thread: one file; median of pairs, seconds of the process")
    save(a.json, result)


def beside(work: Path, quick: bool) -> dict[str, Any]:
    """`core` in the environment that has upstream's package, too."""
    from benchmarks.upstream_toploc import python_with_toploc

    python = python_with_toploc(work)
    command = [str(python), "-m", "benchmarks.proofs", "--beside-upstream", *(["--quick"] if quick else [])]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=REPOSITORY)
    return json.loads(done.stdout.splitlines()[-1])


def core(repeats: int, upstream: bool) -> dict[str, Any]:
    """Median milliseconds of each operation on one proof, of the process and not of the clock; by turns."""
    random = np.random.default_rng(0)
    kept = [_bf16(random.standard_normal((ROWS, HIDDEN)).astype(np.float32)) for _ in range(8)]
    noisy = [
        _bf16(_floats(rows) * (1 + 0.004 * random.standard_normal(rows.shape)).astype(np.float32)) for rows in kept
    ]
    ours = [build_proof(rows, K) for rows in kept]
    parsed = [parse_proof(data, K) for data in ours]
    turns: dict[str, Callable[[int], object]] = {
        "build": lambda i: build_proof(kept[i], K),
        "of it choosing the top": lambda i: top_positions(kept[i], K),
        TOGETHER: lambda i: build_proofs(kept, K),
        "parse": lambda i: parse_proof(ours[i], K),
        "compare": lambda i: compare(parsed[i], noisy[i]),
    }
    result: dict[str, Any] = {}
    if upstream:
        result |= _upstream_turns(kept, noisy, ours, turns)
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for repeat in range(repeats + 3):
        for name, turn in turns.items():
            started = time.process_time()
            turn(repeat % len(kept))
            if repeat >= 3:
                seconds[name].append(time.process_time() - started)
    medians = {name: 1000 * statistics.median(taken) for name, taken in seconds.items()}
    medians[TOGETHER] /= len(kept)
    return {**{name: round(taken, 4) for name, taken in medians.items()}, **result}


def _upstream_turns(
    kept: list[np.ndarray], noisy: list[np.ndarray], ours: list[bytes], turns: dict[str, Callable[[int], object]]
) -> dict[str, Any]:
    """Add upstream's operations to `turns`; returns what the cross-checks say."""
    import torch
    from toploc import build_proofs_bytes, verify_proofs_bytes

    torch.set_num_threads(1)
    tensors = [torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16) for rows in kept]
    others = [torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16) for rows in noisy]

    def build(i: int) -> list[bytes]:
        return build_proofs_bytes([tensors[i]], decode_batching_size=ROWS, topk=K, skip_prefill=True)

    def verify(i: int, proof: bytes, seen: Any) -> Any:
        return verify_proofs_bytes(seen, [proof], decode_batching_size=ROWS, topk=K, skip_prefill=True)[0]

    theirs = [build(i)[0] for i in range(len(kept))]
    turns |= {
        "upstream build": build,
        "upstream compare": lambda i: verify(i, theirs[i], others[i]),
    }
    agree = sum(
        _agree(compare(parse_proof(theirs[i], K), noisy[i]), verify(i, theirs[i], others[i])) for i in range(len(kept))
    )
    same, clean = 0, 0
    plain = _rows_without_ties(8)
    for rows in plain:
        tensor = torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
        our, their = build_proof(rows, K), build_proofs_bytes([tensor], ROWS, K, skip_prefill=True)[0]
        seen, own = verify(0, our, tensor), compare(parse_proof(their, K), rows)
        same += our == their
        clean += seen.exp_mismatches == seen.mant_err_mean == own.exponent_mismatches == own.mantissa_mean == 0
    return {
        "check, rows without ties: same bytes": f"{same}/{len(plain)}",
        "check, rows without ties: each verifies the other's without an error": f"{clean}/{len(plain)}",
        "check, noisy rows with ties: both measure the same errors, a few points apart": f"{agree}/{len(kept)}",
    }


def _rows_without_ties(count: int) -> list[np.ndarray]:
    """Rows whose top is unique, half of them with positions that collide mod 65497, so that the modulus is smaller."""
    random, found = np.random.default_rng(1), []
    for number in range(count):
        rows = random.integers(0, 0x3C00, ROWS * HIDDEN).astype(np.uint16)
        places = random.choice(60_000, K, replace=False)
        if number % 2:
            places[1] = places[0] + 65_497
        rows[places] = 0x3F80 + np.arange(K) + (random.integers(0, 2, K) << 15)
        found.append(rows.reshape(ROWS, HIDDEN))
    return found


def _agree(ours: Any, theirs: Any) -> bool:
    """Positions that tie at the last place may differ between two top-k: a few of 128 points."""
    return (
        abs(ours.exponent_mismatches - theirs.exp_mismatches) <= 4
        and abs(ours.mantissa_mean - theirs.mant_err_mean) <= 0.25
        and abs(ours.mantissa_median - theirs.mant_err_median) <= 1
    )


def _speed(core: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name in ("build", "of it choosing the top", TOGETHER, "parse", "compare"):
        other = core.get("upstream build" if name == TOGETHER else f"upstream {name}")
        rows.append(
            {"operation": name, "ours": core[name], "upstream": other, "ratio": other and round(other / core[name], 1)}
        )
    return rows


def sizes() -> list[dict[str, Any]]:
    """With and without the envelope, for outputs of several lengths."""
    from protocol.envelope import ENVELOPE_BYTES

    rows = []
    for tokens in (8, 33, 256, 1024, 16384):
        core_bytes = proof_count(tokens, ROWS) * proof_size(K)
        rows.append(
            {
                "output tokens": tokens,
                "proofs alone": round(core_bytes / tokens, 2),
                "in their envelope": round((core_bytes + ENVELOPE_BYTES) / tokens, 2),
            }
        )
    return rows


def costs(subject: Any, repeats: int) -> dict[str, Any]:
    """Seconds of the process (not of the clock: other work on the machine does not count) of generation, of its proofs,
    of those proofs if no two answers were equal, of a whole submission, and of a validator's look at it."""
    from node.inference.engine import Finished, generate
    from node.inference.engines import torch_engine
    from node.inference.inspect import inspect
    from node.inference.produce import _requests, _tasks, produce
    from node.inference.proofs import prove_all
    from node.inference.session import Session
    from node.inference.wire import Inspect, Produce
    from protocol.identity import NodeKey

    node, root = NodeKey(b"\x07" * 32).address, bytes(32)
    session = Session(subject.run, subject.assets, torch_engine)
    session.keep(root, str(subject.model / "model.safetensors"))
    session.use(root)
    cuts, temperature = subject.run.verification, subject.run.rollout.temperature
    noise = np.random.default_rng(0)
    files: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        file, report = str(Path(folder) / "file"), str(Path(folder) / "report")
        for index in range(repeats + 1):
            seconds: dict[str, float] = {}
            order = Produce(policy_root=root, node=node, pool=1, index=index, out_path=file)
            requests = _requests(session, order, node, _tasks(session, order, node))
            made = _timed(seconds, "generate", generate, session.engine, requests, temperature)
            rows = [completion.rows for completion in made]
            unlike = [line ^ noise.integers(0, 2, line.shape).astype(np.uint16) for line in rows]
            _timed(seconds, "prove", prove_all, rows, cuts.toploc_k, cuts.toploc_batch)
            _timed(seconds, "prove unlike", prove_all, unlike, cuts.toploc_k, cuts.toploc_batch)
            produced = _timed(seconds, "produce", produce, session, order)
            asked = Inspect(
                policy_root=root, node=node, pool=1, index=index, units=produced.units, path=file, report_path=report
            )
            _timed(seconds, "inspect", inspect, session, asked)
            sequences = [Finished(r.prompt, c.output) for r, c in zip(requests, made, strict=True)]
            _timed(seconds, "prefill", session.engine.prefill, sequences, temperature)
            files.append({**seconds, "tokens": produced.units})
    session.close()
    return {
        "parameters": f"{subject.parameters / 1e6:.1f} M",
        "k": cuts.toploc_k,
        "tokens/file": round(statistics.mean(one["tokens"] for one in files[1:])),
        "generate s": round(statistics.median(one["generate"] for one in files[1:]), 3),
        "proofs/generation": f"{_ratio(files, 'prove', 'generate'):.2%}",
        "no two answers equal": f"{_ratio(files, 'prove unlike', 'generate'):.2%}",
        "validation/generation": round(_ratio(files, "inspect", "produce"), 3),
        "of it the prefill": round(_ratio(files, "prefill", "produce"), 3),
    }


def _timed(seconds: dict[str, float], name: str, work: Callable[..., Any], *arguments: Any) -> Any:
    started = time.process_time()
    result = work(*arguments)
    seconds[name] = time.process_time() - started
    return result


def _ratio(files: list[dict[str, float]], part: str, whole: str) -> float:
    """Median over the files but the first, which warms up."""
    return statistics.median(one[part] / one[whole] for one in files[1:])


def _bf16(values: np.ndarray) -> np.ndarray:
    """float32 -> bf16 bits, rounded to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _floats(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
