"""Packages that one example alone needs, in a directory of its own: at the versions of constraints.txt, without what
they would bring along, and out of the way of the program's environment."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"


def fetch(packages: Sequence[str], place: Path) -> None:
    """Make `packages` importable, installed below `place` if they are not there yet. Raises SystemExit."""
    if not all(list(place.glob(f"{name.replace('-', '_')}-*.dist-info")) for name in packages):
        print(f"fetching {', '.join(packages)}", flush=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(place)]
        done = subprocess.run([*pip, "-c", str(CONSTRAINTS), *packages], check=False)
        if done.returncode:
            raise SystemExit(f"pip could not install {', '.join(packages)}: see above")
    sys.path.append(str(place))
