"""The guest's file system: files in memory below one directory. No links, no devices, and no times.

What was loaded cannot be changed. A session may write below one folder, the disk, which has room for so many bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from node.sandbox.wasi.abi import Errno, FileType, WasiError

ENTRY_BYTES = 512
"""What a file or directory takes of the disk beside its content: the host keeps it in memory."""
MAX_NAME = 255


@dataclass(slots=True, eq=False)
class GuestFile:
    """A file or a directory. inode: its number, which follows from its place in the sorted tree, then from the order of
    creation; opened: how many descriptors hold it; gone: no directory names it any more."""

    inode: int
    data: bytes | bytearray = b""
    children: dict[str, "GuestFile"] | None = None
    writable: bool = False
    opened: int = 0
    gone: bool = False

    @property
    def kind(self) -> FileType:
        return FileType.REGULAR_FILE if self.children is None else FileType.DIRECTORY

    def entries(self) -> list[tuple[str, "GuestFile"]]:
        """What a directory holds, by name. Raises WasiError of a file."""
        if self.children is None:
            raise WasiError(Errno.NOTDIR)
        return sorted(self.children.items())


@dataclass(slots=True)
class OpenFile:
    """A node with a place to read on from. append: every write goes to the end."""

    node: GuestFile
    offset: int = 0
    append: bool = False

    def read(self, size: int) -> bytes:
        data = self.read_at(size, self.offset)
        self.offset += len(data)
        return data

    def read_at(self, size: int, offset: int) -> bytes:
        if self.node.children is not None:
            raise WasiError(Errno.ISDIR)
        return bytes(self.node.data[offset : offset + size])

    def seek(self, offset: int, whence: int) -> int:
        """whence: 0 from the start, 1 from here, 2 from the end. Returns the new offset."""
        if whence > 2:
            raise WasiError(Errno.INVAL)
        target = offset + (0, self.offset, len(self.node.data))[whence]
        if not 0 <= target < 1 << 63:
            raise WasiError(Errno.INVAL)
        self.offset = target
        return target


class Disk:
    """The folder that a session may write to. room: bytes of all files and their entries together.

    Without room nothing is writable, and every change is refused with ROFS.
    """

    def __init__(self, root: GuestFile, folder: str, room: int) -> None:
        self.left = room
        # Above the numbers of what was loaded, so that no two files share one.
        self._next_inode = 1 << 32
        self._folder: GuestFile | None = None
        if room:
            if root.children is None or folder in root.children:
                raise ValueError(f"{folder} is the name of the disk")
            self._folder = root.children[folder] = self._node(directory=True)

    def create(self, folder: GuestFile, name: str, *, directory: bool) -> GuestFile:
        """A new entry. Raises WasiError: ROFS, NOSPC, EXIST, NAMETOOLONG."""
        children = _changeable(folder)
        if name in children:
            raise WasiError(Errno.EXIST)
        if len(name.encode()) > MAX_NAME:
            raise WasiError(Errno.NAMETOOLONG)
        self._take(ENTRY_BYTES)
        children[name] = made = self._node(directory=directory)
        return made

    def write(self, node: GuestFile, data: bytes, offset: int) -> None:
        """Raises WasiError, with nothing written."""
        self.resize(node, max(len(node.data), offset + len(data)))
        node.data[offset : offset + len(data)] = data  # type: ignore[index] - resize looked

    def resize(self, node: GuestFile, size: int) -> None:
        """Cut, or filled up with zeros. Raises WasiError."""
        if not node.writable or not isinstance(node.data, bytearray):
            raise WasiError(Errno.ROFS)
        # Room is taken first: a file is the host's memory.
        self._take(size - len(node.data))
        if size < len(node.data):
            del node.data[size:]
        else:
            node.data.extend(bytes(size - len(node.data)))

    def remove(self, folder: GuestFile, name: str, *, directory: bool) -> None:
        """Raises WasiError: ROFS, NOENT, ISDIR, NOTDIR, NOTEMPTY."""
        children = _changeable(folder)
        node = _named(children, name)
        if directory and node.children is None:
            raise WasiError(Errno.NOTDIR)
        if not directory and node.children is not None:
            raise WasiError(Errno.ISDIR)
        if node.children:
            raise WasiError(Errno.NOTEMPTY)
        del children[name]
        node.gone = True
        if not node.opened:
            self._give_back(node)

    def rename(self, folder: GuestFile, name: str, target: GuestFile, new: str) -> None:
        """What stands at the target is replaced. Raises WasiError; INVAL where a directory would go into itself."""
        children, others = _changeable(folder), _changeable(target)
        node = _named(children, name)
        if any(below is target for below in _below(node)):
            raise WasiError(Errno.INVAL)
        if len(new.encode()) > MAX_NAME:
            raise WasiError(Errno.NAMETOOLONG)
        # Onto itself: what stands at the target would be removed, and that is the file.
        if others.get(new) is node:
            return
        if new in others:
            self.remove(target, new, directory=node.children is not None)
        del children[name]
        others[new] = node

    def closed(self, node: GuestFile) -> None:
        """A descriptor of it is closed. A file that nothing names any more takes room until its last one is."""
        node.opened -= 1
        if node.gone and not node.opened:
            self._give_back(node)

    def content(self) -> Iterator[tuple[int, str, bytes | None]]:
        """(depth, name, content) of all that is there, each directory before what it holds; no content: a directory."""
        waiting = [(0, "", self._folder)] if self._folder is not None else []
        while waiting:
            depth, name, node = waiting.pop()
            yield depth, name, bytes(node.data) if node.children is None else None
            waiting += [(depth + 1, *below) for below in sorted((node.children or {}).items(), key=lambda one: one[0])]

    def _node(self, *, directory: bool) -> GuestFile:
        self._next_inode += 1
        return GuestFile(self._next_inode, bytearray(), {} if directory else None, writable=True)

    def _give_back(self, node: GuestFile) -> None:
        self.left += ENTRY_BYTES + len(node.data)

    def _take(self, size: int) -> None:
        if size > self.left:
            raise WasiError(Errno.NOSPC)
        self.left -= size


@dataclass(slots=True)
class _Folder:
    children: dict[str, "_Folder | bytes"] = field(default_factory=dict)


def make_tree(files: Mapping[str, bytes]) -> GuestFile:
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


def find(root: GuestFile, path: bytes) -> GuestFile:
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


def find_place(root: GuestFile, path: bytes) -> tuple[GuestFile, str]:
    """The directory that a path leads to, and the last name, which need not be there. Raises WasiError."""
    folder, _, name = path.rstrip(b"/").rpartition(b"/")
    if name in (b"", b".", b".."):
        raise WasiError(Errno.INVAL)
    try:
        return find(root, folder), name.decode()
    except UnicodeDecodeError:
        raise WasiError(Errno.INVAL) from None


def _changeable(folder: GuestFile) -> dict[str, GuestFile]:
    if folder.children is None:
        raise WasiError(Errno.NOTDIR)
    if not folder.writable or folder.gone:
        raise WasiError(Errno.ROFS)
    return folder.children


def _named(children: dict[str, GuestFile], name: str) -> GuestFile:
    if name not in children:
        raise WasiError(Errno.NOENT)
    return children[name]


def _below(node: GuestFile) -> Iterator[GuestFile]:
    """Itself and all below it. Without recursion: a guest may nest directories without end."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += (one.children or {}).values()


def _numbered(folder: _Folder, counter: list[int]) -> GuestFile:
    counter[0] += 1
    inode = counter[0]
    children: dict[str, GuestFile] = {}
    for name, below in sorted(folder.children.items()):
        if isinstance(below, _Folder):
            children[name] = _numbered(below, counter)
        else:
            counter[0] += 1
            children[name] = GuestFile(counter[0], below)
    return GuestFile(inode, children=children)
