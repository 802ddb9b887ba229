"""Makes the virtual environment that `make demo` and `make test` run in.

Knows pip and the three ways an installation fails on a bare machine; knows nothing of the program itself.
Uses the standard library only, because nothing else is there yet. pip's own words go to a log in the
environment; the terminal shows one moving line.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

OLDEST, TOO_NEW = (3, 11), (3, 14)
PIP_MINIMUM = (24, 1)  # from here on, looking at a wheel's metadata does not download the wheel
REPOSITORY = Path(__file__).resolve().parent.parent

DIAGNOSES = (
    (
        "gmp.h",
        "libp2p's dependency fastecdsa is compiled here and needs the GMP headers",
        "install them, e.g. `apt install libgmp-dev` or `brew install gmp`, and run the command again",
    ),
    (
        "Python.h",
        "a dependency is compiled here and needs the Python headers",
        "install them, e.g. `apt install python3-dev`, and run the command again",
    ),
    (
        "command 'gcc' failed: No such file",
        "a dependency is compiled here and there is no C compiler",
        "install one, e.g. `apt install build-essential`, and run the command again",
    ),
    (
        "command 'cc' failed: No such file",
        "a dependency is compiled here and there is no C compiler",
        "install one, e.g. `apt install build-essential`, and run the command again",
    ),
    (
        "DO NOT MATCH THE HASHES",
        "the package index offers a file that is not the one that was tried",
        "see the log for its name; ask whoever runs the index, or take another one",
    ),
    (
        "No space left on device",
        "the disk is full",
        "free about 2 GB (TMPDIR counts too) and run the command again",
    ),
    (
        "NewConnectionError",
        "the package index cannot be reached",
        "check the network or pip's configuration (`pip config list`) and run the command again",
    ),
    (
        "No matching distribution found",
        "the package index does not offer one of the pinned versions",
        "see the log for its name; an index mirror may be behind",
    ),
)


def main() -> int:
    options = _parse()
    _check_python()
    python = options.venv / "bin" / "python"
    log = options.venv / "install.log"
    started = time.monotonic()

    if not python.exists():
        say(f"making {options.venv} with Python {sys.version.split()[0]}")
        make_venv(options.venv)
    log.write_text("", encoding="utf-8")
    upgrade_pip(python, log)
    extras = [name for name in options.extras.split(",") if name]
    if "train" in extras and not _installed(python, "torch"):
        _check_torch(python, log)
    if shutil.which("anvil") is None and shutil.which("npm") is None:
        say("neither anvil nor npm is here: taking node from the package index for the local chain")
        extras.append("devnet")
    _install(python, extras, log)
    if "train" in extras:
        _prepare_sandbox(python, log)
    for stamp in options.stamp:
        stamp.touch()
    say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--extras", default="", help="comma-separated extras of pyproject.toml")
    parser.add_argument("--stamp", type=Path, action="append", default=[], help="file to touch when all is done")
    return parser.parse_args()


def _check_python() -> None:
    if OLDEST <= sys.version_info[:2] < TOO_NEW:
        return
    fail(
        f"Python {sys.version.split()[0]} cannot run this",
        "torch and libp2p are pinned to versions for Python 3.11, 3.12 and 3.13",
        "name another one: make demo PYTHON=python3.11",
    )


def make_venv(venv: Path) -> None:
    if importlib.util.find_spec("ensurepip") is None:
        fail(
            "no virtual environment can be made",
            "this Python comes without ensurepip",
            "install it, e.g. `apt install python3-venv`, and run the command again",
        )
    result = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True, check=False)
    if result.returncode:
        fail(
            "no virtual environment could be made",
            _last_line(result.stderr or result.stdout),
            f"rm -r {venv} and run again",
        )


def upgrade_pip(python: Path, log: Path) -> None:
    version = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(int(part) for part in version.split()[1].split(".")[:2]) < PIP_MINIMUM:
        pip(python, ["install", "--upgrade", "pip"], log, "renewing pip")


def _check_torch(python: Path, log: Path) -> None:
    """Stops before pip pulls gigabytes of CUDA libraries that this machine has no use for."""
    if os.environ.get("TORCH", "").lower() == "cuda":
        return
    wanted = _torch_requirement()
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"]
    result = subprocess.run(
        [*command, "--report", "-", *_index_options(), wanted], capture_output=True, text=True, check=False
    )
    if result.returncode:
        _append(log, result.stderr)
        _explain_failure(result.stderr, log)
    metadata = json.loads(result.stdout)["install"][0]["metadata"]
    cuda = [name for name in metadata.get("requires_dist", []) if _is_cuda_here(name)]
    if not cuda:
        return
    if _has_nvidia_gpu():
        say("an NVIDIA GPU is here: taking the CUDA build of torch (about 2.7 GB)")
        return
    fail(
        f"pip would install the CUDA build of {wanted}: about 2.7 GB that this machine has no GPU for",
        "the package index offers no CPU wheel of it",
        "one of:\n"
        "      make demo TORCH_INDEX=URL      the index of CPU wheels that PyTorch's install page names\n"
        "      PIP_FIND_LINKS=DIR make demo   a folder that holds a CPU wheel\n"
        "      make demo TORCH=cuda           take the CUDA build all the same",
    )


def _torch_requirement() -> str:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return next(line for line in project["optional-dependencies"]["train"] if line.startswith("torch"))


def _is_cuda_here(requirement: str) -> bool:
    name, _, marker = requirement.partition(";")
    if not name.strip().lower().startswith(("nvidia-", "cuda-")) or "extra" in marker:
        return False
    return sys.platform.startswith("linux")


def _has_nvidia_gpu() -> bool:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        return subprocess.run([tool, "-L"], capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _install(python: Path, extras: Sequence[str], log: Path) -> None:
    say("installing about 130 packages (1 GB on disk; half a minute from a near index, else some minutes)")
    # By hash and without looking for others: an index, or a mirror of it, can bring nothing that was not tried.
    files = [word for name in ("node", *extras) for word in ("-r", str(REPOSITORY / "locked" / f"{name}.txt"))]
    pip(python, ["install", "--require-hashes", "--no-deps", *files], log, "installing")
    if "train" in extras:
        # By its version alone: whose wheel it is, for which processors and cards, is for this machine's owner to say.
        constraints = ["-c", str(REPOSITORY / "constraints.txt")]
        pip(python, ["install", *constraints, *_index_options(), _torch_requirement()], log, "installing")
    pip(python, ["install", "--no-deps", "--no-build-isolation", "-e", str(REPOSITORY)], log, "installing")
    # pip compiles what it copies, and an editable installation is not copied: each process of the first swarm or of the
    # first tests would compile all modules for itself.
    packages = ("protocol", "contracts", "node", "cli")
    subprocess.run([python, "-m", "compileall", "-q", "-j", "0", *packages], cwd=REPOSITORY, check=False)


def _prepare_sandbox(python: Path, log: Path) -> None:
    """The interpreter for strangers' code, once for this user. Without it everything else works."""
    say("fetching and compiling the sandbox's interpreter (26 MB, half a minute; once)")
    command = [python, "-m", "cli", "sandbox", "install"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, errors="replace", check=False)
    _append(log, result.stdout + result.stderr)
    if result.returncode:
        why = next((line for line in result.stderr.splitlines() if "why:" in line), _last_line(result.stderr))
        say(f"it is not there: {why.replace('why:', '').strip()}\n    do: {python} -m cli sandbox install")


def _index_options() -> list[str]:
    url = os.environ.get("TORCH_INDEX")
    return ["--extra-index-url", url] if url else []


def pip(python: Path, arguments: Sequence[str], log: Path, label: str) -> None:
    """Runs pip, shows what it is at in one line, keeps its words in the log."""
    command = [python, "-m", "pip", *arguments, "--disable-pip-version-check"]
    quiet = {**os.environ, "PIP_PROGRESS_BAR": "off"}  # as an option, `pip uninstall` refuses it
    process = subprocess.Popen(
        command, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    output: list[str] = []
    collected = 0
    for line in _lines(process):
        output.append(line)
        words = line.split()
        if words[:1] == ["Collecting"]:
            collected += 1
            _progress(f"{label}: {words[1].split('=')[0].split('>')[0].split('<')[0]} ({collected})")
        elif words[:1] in (["Downloading"], ["Building"], ["Installing"]):
            _progress(f"{label}: {words[0].lower()} {' '.join(words[1:3])}")
    _progress("")
    _append(log, "".join(output))
    if process.wait():
        _explain_failure("".join(output), log)


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    if process.stdout is not None:
        yield from process.stdout


def _explain_failure(output: str, log: Path) -> NoReturn:
    for pattern, why, remedy in DIAGNOSES:
        if pattern in output:
            fail("the installation failed", why, f"{remedy} (pip's words: {log})")
    fail("the installation failed", _last_line(output), f"read {log}, mend the cause, run the command again")


def _installed(python: Path, package: str) -> bool:
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", probe], check=False).returncode == 0


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason was given"


def _append(log: Path, text: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(text)


def say(text: str) -> None:
    print(f"  - {text}", flush=True)


def _progress(text: str) -> None:
    if sys.stdout.isatty():
        print(f"\r\033[K    {text[:100]}", end="" if text else "\r", flush=True)


def fail(what: str, why: str, remedy: str) -> NoReturn:
    print(f"error: {what}\n  why: {why}\n  do:  {remedy}", file=sys.stderr)
    sys.exit(3)


if __name__ == "__main__":
    sys.exit(main())
