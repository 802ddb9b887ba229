"""WASI's functions that are about no file: arguments and environment, the end, time, and chance."""

from node.sandbox.wasi import abi
from node.sandbox.wasi.abi import Errno, GuestMemory, WasiError
from node.sandbox.wasi.channel import Exited
from node.sandbox.wasi.meter import BYTE_FUEL, FuelMeter


class Surroundings:
    """As of `System`: the public methods are WASI's functions."""

    def __init__(self, memory: GuestMemory, meter: FuelMeter, arguments: list[str]) -> None:
        self._memory, self._meter = memory, meter
        self._arguments = [argument.encode() + b"\0" for argument in arguments]
        self._environ = [b"PYTHONHASHSEED=0\0", b"PYTHONUTF8=1\0"]

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

    def clock_res_get(self, clock: int, result: int) -> None:
        self._memory.write(result, abi.TIME.pack(1))

    def clock_time_get(self, clock: int, precision: int, result: int) -> None:
        self._memory.write(result, abi.TIME.pack(self._meter.now))

    def poll_oneoff(self, wanted: int, events: int, count: int, written: int) -> None:
        """Sleeping: the clock goes on, nobody waits. Other waits are not supported."""
        if not 1 <= count <= 64:
            raise WasiError(Errno.INVAL)
        size = abi.SUBSCRIPTION_BYTES
        raw = self._memory.read(wanted, count * size)
        waits = [wait for i in range(count) if (wait := abi.clock_wait(raw[i * size : (i + 1) * size]))]
        if not waits:
            raise WasiError(Errno.NOTSUP)
        now = self._meter.now
        ends = ((data, ns if absolute else now + ns) for data, ns, absolute in waits)
        userdata, until = min(ends, key=lambda end: end[1])
        self._meter.sleep(until - now)
        self._memory.write(events, abi.event(userdata))
        self._memory.write(written, abi.SIZE.pack(1))

    def random_get(self, address: int, size: int) -> None:
        self._meter.charge(BYTE_FUEL * size)
        # In blocks: a guest may ask for 4 GiB, and the first block beyond its memory ends it with FAULT.
        block = 1 << 16
        for start in range(0, size, block):
            self._memory.write(address + start, self._meter.random(min(block, size - start)))

    def _sizes(self, texts: list[bytes], count: int, size: int) -> None:
        self._memory.write(count, abi.SIZE.pack(len(texts)))
        self._memory.write(size, abi.SIZE.pack(sum(map(len, texts))))

    def _texts(self, texts: list[bytes], pointers: int, address: int) -> None:
        for i, text in enumerate(texts):
            self._memory.write(pointers + 4 * i, abi.SIZE.pack(address))
            self._memory.write(address, text)
            address += len(text)
