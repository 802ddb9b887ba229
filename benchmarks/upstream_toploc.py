"""An environment of its own with the PyPI package `toploc` 0.1.6, built from its sdist, for comparisons.

The published wheel does not load beside today's torch, so the sdist is compiled (about two minutes, once). The
environment sees this one's torch through a .pth file; nothing is installed here.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

VERSION = "0.1.6"


def python_with_toploc(work: Path) -> Path:
    """The interpreter of WORK/toploc-venv, made and filled if need be; raises CalledProcessError if that fails."""
    home = (work / "toploc-venv").absolute()
    python = home / "bin" / "python"
    ready = home / f"toploc-{VERSION}.ready"
    if ready.exists():
        return python
    print(f"building toploc {VERSION} from its sdist in {home} (about two minutes, once)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    site = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    paths = sysconfig.get_paths()
    (Path(site) / "ours.pth").write_text("\n".join(dict.fromkeys([paths["purelib"], paths["platlib"]])) + "\n")
    tools = [str(python), "-m", "pip", "install", "--quiet", "setuptools", "wheel", "ninja"]
    subprocess.run(tools, check=True)
    subprocess.run(
        [
            *(str(python), "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"),
            *("--no-binary", "toploc", f"toploc=={VERSION}"),
        ],
        check=True,
        env={**os.environ, "MAX_JOBS": "2", "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"},
    )
    subprocess.run([str(python), "-c", "import toploc"], check=True, cwd=work)
    ready.touch()
    return python
