"""Runs the tutorials of docs/tutorials, command by command, as a reader would: `make tutorials`.

    python -m tests.tutorials [--keep]

All share one directory and one home, in an order in which each finds what the one before has left. A step is a line
of a ```bash block. A step that fails ends the run with its output; whatever runs in the background is stopped first.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "tutorials"
ORDER = ("train-mine", "run-a-pool", "lend-a-machine", "see-it")
WITHIN = {"run-a-pool": "lend-a-machine"}
"""What another tutorial does before the last section of this one: it says so."""
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
LIMIT = 600.0
"""Seconds for one step."""


def sections(name: str) -> list[list[str]]:
    """The steps of each ```bash block."""
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    return [[line for line in block.splitlines() if line.strip()] for block in BLOCK.findall(text)]


def steps() -> Iterator[tuple[str, str]]:
    """(tutorial, step), in the order in which they are run."""
    inner = set(WITHIN.values())
    for name in ORDER:
        if name in inner:
            continue
        *begun, last = sections(name)
        for block in begun:
            yield from ((name, step) for step in block)
        if guest := WITHIN.get(name):
            yield from ((guest, step) for block in sections(guest) for step in block)
        yield from ((name, step) for step in last)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the directory that they ran in")
    keep = parser.parse_args().keep
    place = Path(tempfile.mkdtemp(prefix="intellect-node-tutorials-"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "PYTHONPATH": str(ROOT), "INTELLECT_NODE_HOME": str(place / "home"), "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **own}
    try:
        return 0 if all(_done(name, step, place, environment) for name, step in steps()) else 1
    finally:
        _stop_all(place, environment)
        if keep:
            print(f"left: {place}")
        else:
            shutil.rmtree(place, ignore_errors=True)


def _done(name: str, step: str, place: Path, environment: dict[str, str]) -> bool:
    started, said = time.monotonic(), place / "said"
    with said.open("wb") as out:  # a file: what a step leaves in the background must not keep a pipe open
        try:
            ended = subprocess.run(
                ["bash", "-euc", step], cwd=place, env=environment, stdout=out, stderr=out, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            out.write(f"not done after {LIMIT:g} s\n".encode())
            ended = None
    print(f"{name}: {step}  ({time.monotonic() - started:.0f} s)", flush=True)
    if ended is None or ended.returncode:
        print(said.read_text(errors="replace")[-3000:], flush=True)
        return False
    return True


def _stop_all(place: Path, environment: dict[str, str]) -> None:
    """Daemons and chain that a failed step left. One that runs no more says so and is passed over."""
    program = [sys.executable, "-m", "cli"]
    for node in sorted(place.glob("nodes/*")):
        stop = [*program, "stop", "--now", "--state-dir", str(node)]
        subprocess.run(stop, cwd=place, env=environment, capture_output=True, check=False)
    subprocess.run([*program, "devnet", "down"], cwd=place, env=environment, capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
