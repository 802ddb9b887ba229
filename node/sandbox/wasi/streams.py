"""WASI's functions that are given a descriptor: of a standard stream, the channel, a file or a directory."""

from node.sandbox.wasi import abi
from node.sandbox.wasi.abi import Errno, GuestMemory, WasiError
from node.sandbox.wasi.channel import Channel
from node.sandbox.wasi.descriptors import CHANNEL, STDERR, STDIN, STDOUT, Descriptors
from node.sandbox.wasi.files import Disk, GuestFile
from node.sandbox.wasi.meter import BYTE_FUEL, FuelMeter

DIRECTORY = "/app"


class Streams:
    """As of `System`: the public methods are WASI's functions."""

    def __init__(
        self, memory: GuestMemory, meter: FuelMeter, opened: Descriptors, channel: Channel, disk: Disk
    ) -> None:
        self._memory, self._meter, self._opened = memory, meter, opened
        self._channel, self._disk = channel, disk

    def fd_prestat_get(self, descriptor: int, result: int) -> None:
        self._opened.only_root(descriptor)
        self._memory.write(result, abi.PRESTAT.pack(0, len(DIRECTORY)))

    def fd_prestat_dir_name(self, descriptor: int, address: int, size: int) -> None:
        self._opened.only_root(descriptor)
        self._memory.write(address, DIRECTORY.encode()[:size])

    def fd_fdstat_get(self, descriptor: int, result: int) -> None:
        self._memory.write(result, abi.fdstat(self._opened.kind(descriptor)))

    def fd_filestat_get(self, descriptor: int, result: int) -> None:
        node = self._opened.node(descriptor)
        size = len(node.data) if node else 0
        self._memory.write(result, abi.filestat(node.inode if node else 0, self._opened.kind(descriptor), size))

    def fd_read(self, descriptor: int, vectors: int, count: int, result: int) -> None:
        places = self._memory.vectors(vectors, count)
        # A guest names any lengths. It cannot mean more than its memory.
        wanted = min(sum(size for _, size in places), self._memory.size)
        if descriptor == CHANNEL:
            data = self._channel.read(wanted)
        elif descriptor == STDIN:
            data = self._channel.input(wanted)
        else:
            data = self._opened.file(descriptor).read(wanted)
        self._deliver(places, data, result)

    def fd_pread(self, descriptor: int, vectors: int, count: int, offset: int, result: int) -> None:
        places = self._memory.vectors(vectors, count)
        if offset < 0:
            raise WasiError(Errno.INVAL)
        wanted = min(sum(size for _, size in places), self._memory.size)
        self._deliver(places, self._opened.file(descriptor).read_at(wanted, offset), result)

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
            file = self._opened.file(descriptor)
            file.offset = self._write_at(file.node, places, len(file.node.data) if file.append else file.offset)
        self._meter.charge(BYTE_FUEL * size)
        self._memory.write(result, abi.SIZE.pack(size))

    def fd_pwrite(self, descriptor: int, vectors: int, count: int, offset: int, result: int) -> None:
        places = self._memory.vectors(vectors, count)
        size = sum(size for _, size in places)
        if offset < 0:
            raise WasiError(Errno.INVAL)
        self._write_at(self._opened.file(descriptor).node, places, offset)
        self._meter.charge(BYTE_FUEL * size)
        self._memory.write(result, abi.SIZE.pack(size))

    def fd_filestat_set_size(self, descriptor: int, size: int) -> None:
        if size < 0:
            raise WasiError(Errno.INVAL)
        node = self._opened.file(descriptor).node
        self._meter.charge(BYTE_FUEL * max(size - len(node.data), 0))
        self._disk.resize(node, size)

    def fd_seek(self, descriptor: int, offset: int, whence: int, result: int) -> None:
        if descriptor in (STDIN, STDOUT, STDERR, CHANNEL):
            raise WasiError(Errno.SPIPE)
        self._memory.write(result, abi.TIME.pack(self._opened.file(descriptor).seek(offset, whence)))

    def fd_tell(self, descriptor: int, result: int) -> None:
        self.fd_seek(descriptor, 0, 1, result)

    def fd_close(self, descriptor: int) -> None:
        """Standard streams and the channel stay: the loop inside needs them, and one call has nothing to gain."""
        if descriptor > CHANNEL:
            self._disk.closed(self._opened.end(descriptor))

    def fd_readdir(self, descriptor: int, address: int, size: int, cookie: int, result: int) -> None:
        """Entries from number `cookie` on, by name; the last may be cut, which says that there are more."""
        node = self._opened.node(descriptor)
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
        self._meter.charge(BYTE_FUEL * (len(data) + 64 * len(entries)))
        self._memory.write(address, data)
        self._memory.write(result, abi.SIZE.pack(len(data)))

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

    def _write_at(self, node: GuestFile, places: list[tuple[int, int]], offset: int) -> int:
        """Where it ends. What has no room is refused before it is copied."""
        size = sum(size for _, size in places)
        if not node.writable or node.children is not None:
            raise WasiError(Errno.ROFS)
        # By what the file grows, holes included: a byte written at 2^40 must not make a file of that size.
        if max(offset + size - len(node.data), 0) > self._disk.left:
            raise WasiError(Errno.NOSPC)
        # The hole before the data is filled with zeros, and paid for like data.
        self._meter.charge(BYTE_FUEL * max(offset - len(node.data), 0))
        self._disk.write(node, self._memory.gather(places), offset)
        return offset + size

    def _deliver(self, places: list[tuple[int, int]], data: bytes, result: int) -> None:
        self._meter.charge(BYTE_FUEL * len(data))
        self._memory.scatter(places, data)
        self._memory.write(result, abi.SIZE.pack(len(data)))
