"""Finds the program that runs a local chain, or installs the pinned one; and talks to its special methods.

Knows npm's platform packages; leaves processes and state to `devnet.py`. npm runs no install scripts
here, so the platform package's binary is called directly.
"""

import platform
import shutil
import subprocess
from pathlib import Path

from contracts.javascript import JavaScriptError, find_installed
from node.chain.errors import DevnetError

LOCK_FOLDER = Path(__file__).resolve().parent / "anvil"
VERSION = "1.7.1"
_PACKAGES = {
    ("Linux", "x86_64"): "anvil-linux-amd64",
    ("Linux", "aarch64"): "anvil-linux-arm64",
    ("Linux", "arm64"): "anvil-linux-arm64",
    ("Darwin", "x86_64"): "anvil-darwin-amd64",
    ("Darwin", "arm64"): "anvil-darwin-arm64",
}
_BY_HAND = "install Foundry (it contains anvil) and put anvil into PATH"


def find_anvil(cache: Path) -> Path:
    """The anvil in PATH, else the pinned one in `cache`, installed now if need be (npm, about 40 MB).

    Blocking, up to minutes; raises DevnetError.
    """
    found = shutil.which("anvil")
    # One in PATH that does not run here is passed over for the pinned one.
    if found and _works(Path(found)) is None:
        return Path(found)
    package = _PACKAGES.get((platform.system(), platform.machine()))
    if package is None:
        why = f"there is no ready-made one for {platform.system()} on {platform.machine()}"
        raise DevnetError("anvil, the local chain's program, was not found", why, _BY_HAND)
    try:
        binary = find_installed(LOCK_FOLDER, cache / f"anvil-{VERSION}", f"@foundry-rs/{package}/bin/anvil")
    except JavaScriptError as error:
        remedy = f"{error.remedy}; or {_BY_HAND}"
        raise DevnetError("anvil, the local chain's program, cannot be installed", error.why, remedy) from error
    complaint = _works(binary)
    if complaint is not None:
        raise DevnetError("anvil, the local chain's program, does not run here", complaint, _BY_HAND)
    return binary


def _works(binary: Path) -> str | None:
    """What is wrong with the program; None if it runs."""
    try:
        result = subprocess.run([str(binary), "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{binary}: {error}"
    return None if result.returncode == 0 else f"{binary}: {result.stderr.strip()[:200]}"
