"""The guest's file system: a few files in memory that nobody can change, below one directory. No links, no devices."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from node.sandbox.wasi.abi import Errno, FileType, WasiError


@dataclass(frozen=True, slots=True)
class Node:
    """A file or a directory. inode: its number, which follows from its place in the sorted tree."""

    inode: int
    data: bytes = b""
    children: Mapping[str, "Node"] | None = None

    @property
    def kind(self) -> FileType:
        return FileType.REGULAR_FILE if self.children is None else FileType.DIRECTORY

    def entries(self) -> list[tuple[str, "Node"]]:
        """What a directory holds, by name. Raises WasiError of a file."""
        if self.children is None:
            raise WasiError(Errno.NOTDIR)
        return sorted(self.children.items())


@dataclass(slots=True)
class OpenFile:
    """A node with a place to read on from."""

    node: Node
    offset: int = 0

    def read(self, size: int) -> bytes:
        data = self.read_at(size, self.offset)
        self.offset += len(data)
        return data

    def read_at(self, size: int, offset: int) -> bytes:
        if self.node.children is not None:
            raise WasiError(Errno.ISDIR)
        return self.node.data[offset : offset + size]

    def seek(self, offset: int, whence: int) -> int:
        """whence: 0 from the start, 1 from here, 2 from the end. Returns the new offset."""
        if whence > 2:
            raise WasiError(Errno.INVAL)
        target = offset + (0, self.offset, len(self.node.data))[whence]
        if not 0 <= target < 1 << 63:
            raise WasiError(Errno.INVAL)
        self.offset = target
        return target


@dataclass(slots=True)
class _Folder:
    children: dict[str, "_Folder | bytes"] = field(default_factory=dict)


def make_tree(files: Mapping[str, bytes]) -> Node:
    """path -> content. Raises ValueError where one file lies below another."""
    root = _Folder()
    for path, data in files.items():
        *folders, name = path.split("/")
        place = root
        for folder in folders:
            below = place.children.setdefault(folder, _Folder())
            if not isinstance(below, _Folder):
                raise ValueError(f"{path} lies below a file")
            place = below
        if name in place.children:
            raise ValueError(f"{path} is there already")
        place.children[name] = data
    return _numbered(root, [0])


def find(root: Node, path: bytes) -> Node:
    """Raises WasiError: NOENT, NOTDIR. `..` leads nowhere: there is nothing above the root that could be meant."""
    node = root
    for name in path.split(b"/"):
        if name in (b"", b"."):
            continue
        if node.children is None:
            raise WasiError(Errno.NOTDIR)
        found = node.children.get(name.decode("utf-8", "replace"))
        if found is None:
            raise WasiError(Errno.NOENT)
        node = found
    return node


def _numbered(folder: _Folder, counter: list[int]) -> Node:
    counter[0] += 1
    inode = counter[0]
    children: dict[str, Node] = {}
    for name, below in sorted(folder.children.items()):
        if isinstance(below, _Folder):
            children[name] = _numbered(below, counter)
        else:
            counter[0] += 1
            children[name] = Node(counter[0], below)
    return Node(inode, children=children)
