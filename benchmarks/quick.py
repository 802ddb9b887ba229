"""Runs the benchmarks of benchmarks/README.md with --quick, one after the other, and says which failed.

python -m benchmarks.quick [NAME ...] [--limit 300]
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.command import SKIPPED

LISTED = re.compile(r"^\| `benchmarks\.([\w.]+)` \|", re.MULTILINE)
GPU_PARTS = "challenge,engine,costs"
"""Parts of benchmarks.gpu that a CPU rehearses in seconds."""


def listed() -> list[str]:
    """The names in the table of README.md."""
    return LISTED.findall(Path(__file__).with_name("README.md").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *listed()], metavar="NAME", help="default: all of them")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one")
    given = parser.parse_args()
    failed = [name for name in given.names or listed() if not _run(name, given.limit)]
    print(f"failed: {', '.join(failed)}" if failed else "all ran")
    return 1 if failed else 0


def _run(name: str, limit: float) -> bool:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick"]
    command += ["--device", "cpu", "--only", GPU_PARTS] if name == "gpu" else []
    started = time.monotonic()
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        if ended.returncode == SKIPPED:
            print(f"{name:24} {ended.stdout.strip()}", flush=True)
            return True
        said, ok = ended.stderr + ended.stdout, ended.returncode == 0
    except subprocess.TimeoutExpired:
        said, ok = f"not done after {limit:g} s", False
    print(f"{name:24} {'ran' if ok else 'FAILED'} in {time.monotonic() - started:.0f} s", flush=True)
    if not ok:
        print(said[-2000:], flush=True)
    return ok


if __name__ == "__main__":
    sys.exit(main())
