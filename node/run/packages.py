"""Environment packages that are known here: this user's own copies, by their roots, and what the nodes here hold.

What was read from a file or a directory is kept as its archive, so that a run can bring it and another run can name it
by its root alone.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from node.blobs.store import BlobStore
from node.config import default_home
from node.environments.errors import PackageError
from node.environments.package.archive import MAX_BYTES, pack, read_source, root_of, unpack
from node.environments.package.manifest import Manifest, read_manifest
from node.state.directory import StateDir
from node.state.files import write_whole

# A path of this form would have to be written with ./ before it.
_ROOT = re.compile(r"([a-z][a-z0-9_-]{0,62}@)?[0-9a-f]{64}")
_STORES = "nodes/*/*/blobs/complete"


class KnownPackage(msgspec.Struct, frozen=True):
    """A package and its archive on this disk. root: 64 hex digits; size: bytes."""

    manifest: Manifest
    root: str
    path: Path
    size: int


def directory() -> Path:
    """Where this user's packages lie, each an archive called after its root."""
    return default_home() / "environments"


def named(text: str, base: Path) -> KnownPackage:
    """The package of a path (relative to `base`), a root of 64 hex digits or NAME@ROOT, kept here. Raises
    PackageError."""
    if not is_root(text):
        return keep(pack(read_source(base / text)))
    name, _, root = text.rpartition("@")
    found = by_root(root)
    if name and found.manifest.name != name:
        why = f"the package {root[:16]}... calls itself {found.manifest.name!r}"
        raise PackageError(f"this is not {name!r}", why, "look at both: intellect-node env search")
    return found


def is_root(text: str) -> bool:
    """Whether it has the form of a root, 64 lower-case hex digits, perhaps behind NAME@."""
    return bool(_ROOT.fullmatch(text))


def placed(text: str, base: Path) -> str:
    """The same reference, independent of where the run file lies; a root or nothing stays as it is."""
    return text if not text or is_root(text) else str((base / text).absolute())


def keep(archive: bytes) -> KnownPackage:
    """Put an archive among this user's packages. Raises PackageError for one that cannot be used."""
    # Read before it is kept: what lies in this directory can be used.
    manifest = read_manifest(unpack(archive))
    root = root_of(archive)
    path = directory() / f"{root}.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, archive)
    return KnownPackage(manifest, root, path, len(archive))


def by_root(root: str) -> KnownPackage:
    """Raises PackageError where nobody here has it."""
    for path in (directory() / f"{root}.tar", *sorted(default_home().glob(f"{_STORES}/{root}"))):
        if path.is_file() and path.stat().st_size <= MAX_BYTES:
            archive = path.read_bytes()
            # A file's name is a claim, and a disk may have changed it since.
            if root_of(archive) == root:
                return keep(archive)
    raise PackageError(
        "the environment package is not here",
        f"neither {directory()} nor a node of this user has {root[:16]}...",
        "name its file, or fetch it: intellect-node env fetch ROOT --from URL",
    )


async def put_into_store(package: KnownPackage, state_dir: Path) -> None:
    """Make a node that does not run a holder of the package. Raises StateError, StoreFull."""
    # Its lock keeps a daemon out: two writers of one store would each forget what the other holds.
    directory = StateDir(state_dir)
    try:
        # How much the node may keep is its daemon's to know: by another quota its policies would make room here.
        await BlobStore(state_dir / "blobs", sys.maxsize).add(package.path)
    finally:
        directory.close()


def known() -> Iterator[KnownPackage]:
    """This user's packages by name; what cannot be read is left out."""
    found: list[KnownPackage] = []
    for path in sorted(directory().glob("*.tar")):
        try:
            found.append(by_root(path.stem))
        except PackageError:
            continue  # damaged or of another version: not a package any more
    yield from sorted(found, key=lambda one: (one.manifest.name, one.root))
