"""The guest's operating system: every function of WASI that it may import, each determined by what came before.

Time is counted, not measured: a nanosecond for each unit of fuel, and sleeping takes none but advances the clock.
Randomness is one fixed stream. Files are those of `files`; nothing can be written but standard output and error, and
in a session the disk.
Every function costs fuel, because the host's work for the guest must be bounded by the guest's limit, too.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from blake3 import blake3
from wasmtime import Linker, Memory, Module, Store, ValType

from node.sandbox.wasi import abi
from node.sandbox.wasi.abi import Errno, FileType, GuestMemory, WasiError
from node.sandbox.wasi.channel import Channel, Exited
from node.sandbox.wasi.files import Disk, Node, OpenFile, find, find_place

CALL_FUEL = 50_000
"""A function of the host takes as long as so many instructions of the guest, 7 us (benchmarks.sandbox at af57af2)."""
BYTE_FUEL = 4
STDIN, STDOUT, STDERR, ROOT, CHANNEL = range(5)
DIRECTORY = "/app"
CHANNEL_NAME = ".channel"
"""What the guest opens in its directory to talk to the host; it gets the descriptor CHANNEL."""
BEGINNING = 1_600_000_000 * 10**9
"""Nanoseconds since 1970 when the guest's clock begins."""
FOR_EVER = 10**18
"""Nanoseconds that all sleeping together takes at most: three decades, so that the clock fits its 64 bits."""
MAX_OPEN = 256
_BLOCK = 1 << 16
_FIXED = {
    **dict.fromkeys("fd_allocate fd_filestat_set_times path_filestat_set_times".split(), Errno.ROFS),
    **dict.fromkeys("path_link path_symlink".split(), Errno.ROFS),
    **dict.fromkeys("sock_accept sock_recv sock_send sock_shutdown".split(), Errno.NOTSUP),
    **dict.fromkeys("fd_advise fd_datasync fd_sync fd_fdstat_set_flags sched_yield".split(), Errno.SUCCESS),
}


class System:
    """The functions bear their WASI names; their arguments are the guest's, so nothing about them is taken for granted.

    Integers of 32 bits come unsigned, those of 64 bits signed.
    """

    def __init__(self, store: Store, root: Node, channel: Channel, arguments: list[str], disk: Disk) -> None:
        self._store, self._root, self._channel, self._disk = store, root, channel, disk
        self._arguments = [argument.encode() + b"\0" for argument in arguments]
        self._environ = [b"PYTHONHASHSEED=0\0", b"PYTHONUTF8=1\0"]
        self._open: dict[int, OpenFile] = {}
        self._stdin_at = 0
        self._slept = 0
        self._drawn = 0
        self._spent = 0
        self._given = 0

    def link(self, linker: Linker, module: Module) -> None:
        """Give the module what it imports. Raises LookupError for what this system has not."""
        for wanted in module.imports:
            name = wanted.name or ""
            narrow = [kind == ValType.i32() for kind in wanted.type.params]  # type: ignore[union-attr]
            linker.define_func(wanted.module, name, wanted.type, self._function(name, narrow))  # type: ignore[arg-type]

    def attach(self, memory: Memory) -> None:
        self._memory = GuestMemory(self._store, memory)

    @property
    def memory_size(self) -> int:
        """Bytes that the guest has by now."""
        return self._memory.size

    def state(self) -> bytes:
        """32 bytes: a hash of the guest's memory, of its disk, and of what these functions remember of it."""
        hasher = blake3(self._memory.view())
        # Whatever a later call could notice is in the hash, or two sessions that differ would count as equal.
        opened = sorted((number, one.node.inode, one.offset) for number, one in self._open.items())
        hasher.update(repr((self._spent + self.used, self._slept, self._drawn, opened)).encode())
        for depth, name, content in self._disk.content():
            about = repr((depth, name, None if content is None else len(content)))
            hasher.update(about.encode("utf-8", "surrogatepass") + (content or b""))
        return hasher.digest()

    # fuel

    def fill(self, fuel: int) -> None:
        """From now on the guest may use `fuel`."""
        # What calls before used stays in the clock: for a guest that remembers, time never goes back.
        self._spent += self.used if self._given else 0
        self._given = fuel
        self._store.set_fuel(fuel)
        self._stdin_at = 0

    @property
    def used(self) -> int:
        """Of the fuel that was last given."""
        return self._given - self._store.get_fuel()

    def _charge(self, fuel: int) -> None:
        # What runs on our side costs the guest fuel, too: reading a megabyte for nothing would hold the host up unseen.
        self._store.set_fuel(max(self._store.get_fuel() - fuel, 0))

    # arguments and environment

    def args_sizes_get(self, count: int, size: int) -> None:
        self._sizes(self._arguments, count, size)

    def args_get(self, pointers: int, texts: int) -> None:
        self._texts(self._arguments, pointers, texts)

    def environ_sizes_get(self, count: int, size: int) -> None:
        self._sizes(self._environ, count, size)

    def environ_get(self, pointers: int, texts: int) -> None:
        self._texts(self._environ, pointers, texts)

    def proc_exit(self, code: int) -> None:
        raise Exited(code)

    # time and chance

    def clock_res_get(self, clock: int, result: int) -> None:
        self._memory.write(result, abi.TIME.pack(1))

    def clock_time_get(self, clock: int, precision: int, result: int) -> None:
        self._memory.write(result, abi.TIME.pack(self._now()))

    def poll_oneoff(self, wanted: int, events: int, count: int, written: int) -> None:
        """Sleeping: the clock goes on, nobody waits. Other waits are not supported."""
        if not 1 <= count <= 64:
            raise WasiError(Errno.INVAL)
        size = abi.SUBSCRIPTION_BYTES
        raw = self._memory.read(wanted, count * size)
        waits = [wait for i in range(count) if (wait := abi.clock_wait(raw[i * size : (i + 1) * size]))]
        if not waits:
            raise WasiError(Errno.NOTSUP)
        now = self._now()
        ends = ((data, ns if absolute else now + ns) for data, ns, absolute in waits)
        userdata, until = min(ends, key=lambda end: end[1])
        # Bounded: the clock is a number of 64 bits, and a guest may sleep for as long as it likes.
        self._slept = min(self._slept + max(until - now, 0), FOR_EVER)
        self._memory.write(events, abi.event(userdata))
        self._memory.write(written, abi.SIZE.pack(1))

    def random_get(self, address: int, size: int) -> None:
        self._charge(BYTE_FUEL * size)
        # In blocks: a guest may ask for 4 GiB, and the first block beyond its memory ends it with FAULT.
        for start in range(0, size, _BLOCK):
            self._memory.write(address + start, self._random(min(_BLOCK, size - start)))

    # descriptors

    def fd_prestat_get(self, descriptor: int, result: int) -> None:
        self._only_root(descriptor)
        self._memory.write(result, abi.PRESTAT.pack(0, len(DIRECTORY)))

    def fd_prestat_dir_name(self, descriptor: int, address: int, size: int) -> None:
        self._only_root(descriptor)
        self._memory.write(address, DIRECTORY.encode()[:size])

    def fd_fdstat_get(self, descriptor: int, result: int) -> None:
        self._memory.write(result, abi.fdstat(self._kind(descriptor)))

    def fd_filestat_get(self, descriptor: int, result: int) -> None:
        node = self._node(descriptor)
        size = len(node.data) if node else 0
        self._memory.write(result, abi.filestat(node.inode if node else 0, self._kind(descriptor), size))

    def fd_read(self, descriptor: int, vectors: int, count: int, result: int) -> None:
        places = self._memory.vectors(vectors, count)
        # A guest names any lengths. It cannot mean more than its memory.
        wanted = min(sum(size for _, size in places), self._memory.size)
        if descriptor == CHANNEL:
            data = self._channel.read(wanted)
        elif descriptor == STDIN:
            data = self._channel.stdin[self._stdin_at : self._stdin_at + wanted]
            self._stdin_at += len(data)
        else:
            data = self._file(descriptor).read(wanted)
        self._deliver(places, data, result)

    def fd_pread(self, descriptor: int, vectors: int, count: int, offset: int, result: int) -> None:
        places = self._memory.vectors(vectors, count)
        if offset < 0:
            raise WasiError(Errno.INVAL)
        wanted = min(sum(size for _, size in places), self._memory.size)
        self._deliver(places, self._file(descriptor).read_at(wanted, offset), result)

    def fd_write(self, descriptor: int, vectors: int, count: int, result: int) -> None:
        places = self._memory.vectors(vectors, count)
        size = sum(size for _, size in places)
        if descriptor == CHANNEL:
            # Refused before it is gathered: a guest names lengths, and its memory may be named many times in one call.
            self._channel.room(size)
            self._channel.write(self._memory.gather(places))
        elif descriptor in (STDOUT, STDERR):
            self._print(places, size, error=descriptor == STDERR)
        else:
            file = self._file(descriptor)
            file.offset = self._write_at(file.node, places, len(file.node.data) if file.append else file.offset)
        self._charge(BYTE_FUEL * size)
        self._memory.write(result, abi.SIZE.pack(size))

    def fd_pwrite(self, descriptor: int, vectors: int, count: int, offset: int, result: int) -> None:
        places = self._memory.vectors(vectors, count)
        size = sum(size for _, size in places)
        if offset < 0:
            raise WasiError(Errno.INVAL)
        self._write_at(self._file(descriptor).node, places, offset)
        self._charge(BYTE_FUEL * size)
        self._memory.write(result, abi.SIZE.pack(size))

    def fd_filestat_set_size(self, descriptor: int, size: int) -> None:
        if size < 0:
            raise WasiError(Errno.INVAL)
        node = self._file(descriptor).node
        self._charge(BYTE_FUEL * max(size - len(node.data), 0))
        self._disk.resize(node, size)

    def fd_seek(self, descriptor: int, offset: int, whence: int, result: int) -> None:
        if descriptor in (STDIN, STDOUT, STDERR, CHANNEL):
            raise WasiError(Errno.SPIPE)
        self._memory.write(result, abi.TIME.pack(self._file(descriptor).seek(offset, whence)))

    def fd_tell(self, descriptor: int, result: int) -> None:
        self.fd_seek(descriptor, 0, 1, result)

    def fd_close(self, descriptor: int) -> None:
        """Standard streams and the channel stay: the loop inside needs them, and one call has nothing to gain."""
        if descriptor > CHANNEL:
            self._disk.closed(self._file(descriptor).node)
            del self._open[descriptor]

    def fd_readdir(self, descriptor: int, address: int, size: int, cookie: int, result: int) -> None:
        """Entries from number `cookie` on, by name; the last may be cut, which says that there are more."""
        node = self._node(descriptor)
        if node is None:
            raise WasiError(Errno.NOTDIR)
        entries = node.entries()
        if not 0 <= cookie <= len(entries):
            raise WasiError(Errno.INVAL)
        told = bytearray()
        for following, (name, child) in enumerate(entries[cookie:], cookie + 1):
            told += abi.dirent(following, child.inode, child.kind, name.encode())
            if len(told) > size:
                break
        data = bytes(told[:size])
        # All entries were sorted for this, however few of them fit.
        self._charge(BYTE_FUEL * (len(data) + 64 * len(entries)))
        self._memory.write(address, data)
        self._memory.write(result, abi.SIZE.pack(len(data)))

    # paths

    def path_open(
        self, at: int, _: int, path: int, size: int, flags: int, rights: int, __: int, how: int, result: int
    ) -> None:
        # The one name outside the disk, for the loop inside that asks for work.
        if self._memory.read(path, min(size, 4096)) == CHANNEL_NAME.encode():
            self._memory.write(result, abi.SIZE.pack(CHANNEL))
            return
        if len(self._open) >= MAX_OPEN:
            raise WasiError(Errno.MFILE)
        node = self._found_or_made(at, path, size, flags)
        if node.children is None and rights & abi.RIGHT_WRITE and not node.writable:
            raise WasiError(Errno.ROFS)
        if flags & abi.OPEN_DIRECTORY and node.children is None:
            raise WasiError(Errno.NOTDIR)
        if flags & abi.OPEN_TRUNCATE:
            self._disk.resize(node, 0)
        self._memory.write(result, abi.SIZE.pack(self._opened(node, append=bool(how & abi.APPEND))))

    def _found_or_made(self, at: int, path: int, size: int, flags: int) -> Node:
        try:
            node = self._find(at, path, size)
        except WasiError as error:
            if error.errno is not Errno.NOENT or not flags & abi.OPEN_CREATE:
                raise
            return self._disk.create(*self._place(at, path, size), directory=False)
        if flags & abi.OPEN_CREATE and flags & abi.OPEN_EXCLUSIVE:
            raise WasiError(Errno.EXIST)
        return node

    def path_create_directory(self, at: int, path: int, size: int) -> None:
        self._disk.create(*self._place(at, path, size), directory=True)

    def path_remove_directory(self, at: int, path: int, size: int) -> None:
        self._disk.remove(*self._place(at, path, size), directory=True)

    def path_unlink_file(self, at: int, path: int, size: int) -> None:
        self._disk.remove(*self._place(at, path, size), directory=False)

    def path_rename(self, at: int, path: int, size: int, to: int, new: int, new_size: int) -> None:
        self._disk.rename(*self._place(at, path, size), *self._place(to, new, new_size))

    def path_filestat_get(self, at: int, _: int, path: int, size: int, result: int) -> None:
        node = self._find(at, path, size)
        self._memory.write(result, abi.filestat(node.inode, node.kind, len(node.data)))

    def path_readlink(self, at: int, path: int, size: int, _: int, __: int, ___: int) -> None:
        # There are no links, and INVAL is what POSIX answers for a file that is none.
        self._find(at, path, size)
        raise WasiError(Errno.INVAL)

    # within

    def _function(self, name: str, narrow: list[bool]) -> Callable[..., int | None]:
        fixed = _FIXED.get(name)
        handler: Callable[..., Any] | None = None if fixed is not None else getattr(self, name, None)
        if fixed is None and handler is None:
            raise LookupError(f"the interpreter wants {name!r}, which this sandbox has not")

        def call(*arguments: int) -> int | None:
            self._charge(CALL_FUEL)
            if handler is None:
                return fixed
            try:
                handler(
                    *(value & 0xFFFFFFFF if short else value for value, short in zip(arguments, narrow, strict=True))
                )
            except WasiError as error:
                return int(error.errno)
            return int(Errno.SUCCESS)

        return call

    def _sizes(self, texts: list[bytes], count: int, size: int) -> None:
        self._memory.write(count, abi.SIZE.pack(len(texts)))
        self._memory.write(size, abi.SIZE.pack(sum(map(len, texts))))

    def _texts(self, texts: list[bytes], pointers: int, address: int) -> None:
        for i, text in enumerate(texts):
            self._memory.write(pointers + 4 * i, abi.SIZE.pack(address))
            self._memory.write(address, text)
            address += len(text)

    def _now(self) -> int:
        # One nanosecond for each unit of fuel: time passes, and it passes alike on every machine.
        return BEGINNING + self._spent + self.used + self._slept

    def _random(self, size: int) -> bytes:
        self._drawn += 1
        # Known to everybody, and so the same for worker and validators. A package that wants secrets has none.
        return hashlib.shake_128(self._drawn.to_bytes(8, "little")).digest(size)

    def _print(self, places: list[tuple[int, int]], size: int, *, error: bool) -> None:
        spare = self._channel.spare
        if size <= spare:
            self._channel.print(self._memory.gather(places), error=error)
            return
        # What fits, and one byte by which the channel sees that it was more.
        fitting: list[tuple[int, int]] = []
        for address, length in places:
            fitting.append((address, min(length, spare + 1)))
            spare -= min(length, spare)
        self._channel.print(self._memory.gather(fitting), error=error)

    def _write_at(self, node: Node, places: list[tuple[int, int]], offset: int) -> int:
        """Where it ends. What has no room is refused before it is copied."""
        size = sum(size for _, size in places)
        if not node.writable or node.children is not None:
            raise WasiError(Errno.ROFS)
        # By what the file grows, holes included: a byte written at 2^40 must not make a file of that size.
        if max(offset + size - len(node.data), 0) > self._disk.left:
            raise WasiError(Errno.NOSPC)
        # The hole before the data is filled with zeros, and paid for like data.
        self._charge(BYTE_FUEL * max(offset - len(node.data), 0))
        self._disk.write(node, self._memory.gather(places), offset)
        return offset + size

    def _deliver(self, places: list[tuple[int, int]], data: bytes, result: int) -> None:
        self._charge(BYTE_FUEL * len(data))
        self._memory.scatter(places, data)
        self._memory.write(result, abi.SIZE.pack(len(data)))

    def _only_root(self, descriptor: int) -> None:
        if descriptor != ROOT:
            raise WasiError(Errno.BADF)

    def _node(self, descriptor: int) -> Node | None:
        """None of a standard stream and the channel."""
        if descriptor == ROOT:
            return self._root
        return None if 0 <= descriptor <= CHANNEL else self._file(descriptor).node

    def _kind(self, descriptor: int) -> FileType:
        node = self._node(descriptor)
        return node.kind if node else FileType.CHARACTER_DEVICE

    def _file(self, descriptor: int) -> OpenFile:
        if descriptor not in self._open:
            raise WasiError(Errno.ISDIR if descriptor == ROOT else Errno.BADF)
        return self._open[descriptor]

    def _opened(self, node: Node, *, append: bool) -> int:
        # The lowest free one, as POSIX promises: a guest may see the number, and it must be the same everywhere.
        descriptor = next(number for number in range(CHANNEL + 1, CHANNEL + 2 + MAX_OPEN) if number not in self._open)
        self._open[descriptor] = OpenFile(node, append=append)
        node.opened += 1
        return descriptor

    def _find(self, at: int, path: int, size: int) -> Node:
        return find(*self._path(at, path, size))

    def _place(self, at: int, path: int, size: int) -> tuple[Node, str]:
        return find_place(*self._path(at, path, size))

    def _path(self, at: int, path: int, size: int) -> tuple[Node, bytes]:
        start = self._node(at)
        if start is None:
            raise WasiError(Errno.NOTDIR)
        if size > 4096:
            raise WasiError(Errno.NOENT)
        return start, self._memory.read(path, size)
