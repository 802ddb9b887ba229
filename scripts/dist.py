"""`make dist`: builds wheel and sdist, installs the wheel into a new environment, and runs a demo from it.

The sdist must make the same wheel. The new environment finds the dependencies of the environment that runs this; the
program itself comes from the wheel alone. With --full pip installs the dependencies, too.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "dist"
SDIST = "from setuptools import build_meta; import sys; print(build_meta.build_sdist(sys.argv[1]))"
DEMO = ("demo", "--no-cheat", "--workers", "1", "--steps", "4", "--no-view", "--no-page", "--json")
WANTED = {"node/py.typed", "contracts/artifacts/sources.json", "contracts/artifacts/Swarm.json"}
UNWANTED = ("tests/", "benchmarks/", "node_modules/")


def build_sdist(source: Path, out: Path) -> Path:
    return out / run(sys.executable, "-c", SDIST, str(out), cwd=source).splitlines()[-1]


def build_wheel(source: Path, out: Path) -> Path:
    """As pip builds it for whoever installs a checkout or an sdist, but with the tools of this environment."""
    words = ("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(source))
    run(sys.executable, "-m", "pip", *words, cwd=out)
    return next(out.glob("*.whl"))


def unpack(sdist: Path, place: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    return next(place.iterdir())


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def environment(place: Path, wheel: Path, *, full: bool) -> Path:
    """A new one with the wheel in it; its `intellect-node`."""
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    if not full:
        code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        own = Path(run(str(python), "-c", code).strip())
        # a path in a .pth file: what stands in .pth files there, this checkout for one, is not looked at
        (own / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    what = [f"{wheel}[train]", "-c", str(ROOT / "constraints.txt")] if full else ["--no-deps", str(wheel)]
    run(str(python), "-m", "pip", "install", "--quiet", *what)
    return place / "bin" / "intellect-node"


def run(*command: str, cwd: Path | None = None) -> str:
    """What it prints. Its errors are shown; one that fails ends this program."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=clean, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)[:200]} ended with {done.returncode}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="Install the dependencies with pip: some GB.")
    parser.add_argument("--no-demo", action="store_true", help="Ask the installed program for its version only.")
    options = parser.parse_args()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    with tempfile.TemporaryDirectory(prefix="intellect-dist-") as folder:
        place = Path(folder)
        sdist = build_sdist(ROOT, OUT)
        wheel = build_wheel(unpack(sdist, place / "source"), OUT)
        names = contents(wheel)
        print(f"{sdist.name} {sdist.stat().st_size >> 10} KiB, {wheel.name} {wheel.stat().st_size >> 10} KiB")
        strange = sorted(name for name in names if name.startswith(UNWANTED))
        if strange or (lacking := WANTED - names):
            sys.exit(f"the wheel is not as it should be: {strange[:5] or f'it lacks {sorted(lacking)}'}")
        program = environment(place / "environment", wheel, full=options.full)
        elsewhere = place / "elsewhere"
        elsewhere.mkdir()
        print(run(str(program), "--version", cwd=elsewhere).strip())
        if not options.no_demo:
            told = json.loads(run(str(program), *DEMO, "--dir", "demo", cwd=elsewhere).splitlines()[-1])
            print(f"a demo from the wheel: {told['steps']} steps in {told['seconds_total']:.0f} s")


if __name__ == "__main__":
    main()
