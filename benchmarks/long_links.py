"""What slow uplinks, loss and distance cost: gossip beside a fetch, a fetch over a lossy path, plain TCP beside it.

    python -m benchmarks.long_links [--only news lossy fair] [--rates 1,4,20] [--losses 0,1,2,5] [--rtts 20,100,300]
                                    [--congestion reno] [--beside TREE] [--quick] [--json FILE]

Two nodes live in two network namespaces; between them a link in user space (two TUN devices and a forwarder, since
many kernels shape nothing) that has a rate, a delay, a queue and a seeded loss each way. Needs root and /dev/net/tun.

    news   the median and worst time of a gossip message from a source that serves a blob over a slow uplink, without
           and with the fetch; `broken`: connections that ended, `unanswered`: pings without an answer in 20 s
    lossy  seconds for 10 MB at each loss and round trip over a line of 20 Mbit/s, beside one plain TCP connection
    fair   what a plain TCP connection carries alone and beside a fetch, on lines that lose nothing and 2 %

TREE: another checkout, measured before this one.
"""

import argparse
import fcntl
import heapq
import json
import os
import random
import select
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import trio

from benchmarks.command import Child, parser_of, save, silence_logs
from node.blobs.exchange import BlobExchange
from node.blobs.store import BlobStore
from node.network.host import PING, Libp2pNetwork
from protocol.identity import Address, NodeKey

ROOT = Path(__file__).resolve().parent.parent
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
PACKET = 1500
LINE_MBIT = 20.0
QUEUE_SECONDS = 0.1
"""What the slow side's router keeps before it drops."""
NEWS_RTT = 0.05
NEWS_EVERY = 0.2
NEWS_SIZE = 300
TOPIC = "news"
PING_EVERY = 2.0
MBIT = 1e6 / 8
MB = 10**6


# -- the link --------------------------------------------------------------------------------------


class Way:
    """One direction: rate in bytes per second, delay in seconds, loss 0..1, and a queue that drops at its end."""

    def __init__(self, rate: float, delay: float, loss: float, seed: int) -> None:
        self.rate, self.delay, self.loss = rate, delay, loss
        self._draw = random.Random(seed)
        self._free_at = 0.0

    def passes(self, size: int, now: float) -> float | None:
        """When a packet arrives at the other end; None if it is lost."""
        waits = max(self._free_at - now, 0.0)
        if waits > QUEUE_SECONDS:
            return None
        self._free_at = now + waits + size / self.rate
        return None if self._draw.random() < self.loss else self._free_at + self.delay


def forward(ends: tuple[int, int], ways: tuple[Way, Way], stop: int) -> None:
    """Carry packets between two TUN devices until `stop` can be read."""
    due: list[tuple[float, int, int, bytes]] = []
    count = 0
    poll = select.epoll()
    for fd in (*ends, stop):
        poll.register(fd, select.EPOLLIN)
    while True:
        timeout = max(due[0][0] - time.monotonic(), 0.0) if due else -1
        for fd, _ in poll.poll(timeout):
            if fd == stop:
                return
            side = ends.index(fd)
            for packet in _packets(fd):
                arrives = ways[side].passes(len(packet), time.monotonic())
                if arrives is not None:
                    count += 1
                    heapq.heappush(due, (arrives, count, ends[1 - side], packet))
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, _, to, packet = heapq.heappop(due)
            os.write(to, packet)


def _packets(fd: int) -> Iterator[bytes]:
    for _ in range(64):
        try:
            yield os.read(fd, 2 * PACKET)
        except BlockingIOError:
            return


class Host:
    """One end. prefix: what commands in its namespace start with."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.prefix = ("ip", "netns", "exec", name)


@contextmanager
def link(there: Way, back: Way, congestion: str) -> Iterator[tuple[Host, Host]]:
    """Two hosts; `there`: from the first to the second. Everything that was made is removed at the end."""
    with ExitStack() as stack:
        serial = f"ll{os.getpid() % 100_000}"
        hosts = Host(f"{serial}a", "10.214.7.1"), Host(f"{serial}b", "10.214.7.2")
        ends = []
        for number, host in enumerate(hosts):
            _do("ip", "netns", "add", host.name)
            stack.callback(_do, "ip", "netns", "del", host.name)
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            stack.callback(os.close, fd)
            device = f"{serial}t{number}"
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
            ends.append(fd)
            _do("ip", "link", "set", device, "netns", host.name)
            _do(*host.prefix, "ip", "link", "set", "lo", "up")
            _do(*host.prefix, "ip", "addr", "add", host.address, "peer", hosts[1 - number].address, "dev", device)
            _do(*host.prefix, "ip", "link", "set", device, "mtu", str(PACKET), "txqueuelen", "5000", "up")
            _do(*host.prefix, "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={congestion}")
            _do(*host.prefix, "sysctl", "-qw", "net.ipv4.tcp_no_metrics_save=1")
        wake, stop = os.pipe()
        carrier = os.fork()
        if not carrier:
            os.close(stop)
            try:
                forward((ends[0], ends[1]), (there, back), wake)
            finally:
                os._exit(0)
        os.close(wake)
        stack.callback(os.waitpid, carrier, 0)
        stack.callback(os.close, stop)
        yield hosts


def why_not() -> str | None:
    """What keeps this machine from making such a link, None if nothing does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not Path("/dev/net/tun").exists():
        return "`ip` or /dev/net/tun is missing"
    try:
        with link(Way(MBIT, 0, 0, 1), Way(MBIT, 0, 0, 2), "reno"):
            return None
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no link can be made here: {error}"


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


# -- a node, in a process and a namespace of its own -----------------------------------------------


class Node:
    """Follows the orders on stdin, one JSON list per line; answers each with one line."""

    def __init__(self, address: str, folder: str) -> None:
        self.network = Libp2pNetwork(NodeKey.generate(), f"/ip4/{address}/tcp/0")
        self.store = BlobStore(Path(folder), quota=10**10)
        self.exchange = BlobExchange(self.network, self.store)
        self.place = address
        self.delays: list[float] = []
        self.broken = self.unanswered = 0
        self.peer = self.network.address

    async def run(self) -> None:
        heard = self.network.subscribe(TOPIC, lambda publisher, data: True)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.network.run)
            listeners = await trio.open_tcp_listeners(0, host=self.place)
            nursery.start_soon(trio.serve_listeners, self._pour, listeners)
            nursery.start_soon(self._hear, heard)
            port = listeners[0].socket.getsockname()[1]
            say([self.network.address, self.network.contacts()[0], port])
            orders = trio.lowlevel.FdStream(os.dup(0))
            buffer = b""
            async for part in orders:
                *lines, buffer = (buffer + part).split(b"\n")
                for line in lines:
                    say(await self._obey(json.loads(line), nursery))
            nursery.cancel_scope.cancel()

    async def _obey(self, order: list[Any], nursery: trio.Nursery) -> Any:
        verb, *rest = order
        if verb == "meet":
            self.peer = Address(rest[0])
            self.network.set_contact(self.peer, rest[1])
            with trio.fail_after(60):
                while not self.network.connected():
                    await trio.sleep(0.05)
            nursery.start_soon(self._watch)
            nursery.start_soon(self._ping)
        elif verb == "talk":
            nursery.start_soon(self._talk)
        elif verb == "make":
            return (await self.store.add(np.random.default_rng(rest[1]).bytes(rest[0]))).root.hex()
        elif verb == "fetch":
            return await self._fetch(bytes.fromhex(rest[0]), rest[1])
        elif verb == "raw":
            return await self._raw(*rest)
        elif verb == "both":
            return await self._both(*rest)
        elif verb == "heard":
            delays, self.delays = self.delays, []
            return {"delays": delays, "broken": self.broken, "unanswered": self.unanswered}
        elif verb == "path":
            tell = getattr(self.network, "paths", None)
            return {who: msgspec.structs.asdict(path) for who, path in tell().items()} if tell else {}
        return verb

    async def _fetch(self, root: bytes, patience: float) -> list[float]:
        """Seconds and bytes, of which fewer came if it took longer than that."""
        began, done = trio.current_time(), [0]

        def progress(found: Any) -> None:
            done[0] = found.done

        with trio.move_on_after(patience):
            await self.exchange.fetch(root, [self.peer], timeout=10 * patience, progress=progress)
        return [trio.current_time() - began, done[0]]

    async def _raw(self, place: str, port: int, size: int, patience: float) -> list[float]:
        """The same over one plain connection."""
        began, came = trio.current_time(), 0
        with trio.move_on_after(patience):
            async with await trio.open_tcp_stream(place, port) as stream:
                await stream.send_all(struct.pack("!Q", size))
                while came < size:
                    came += len(await stream.receive_some(1 << 18))
        return [trio.current_time() - began, came]

    async def _both(self, place: str, port: int, root: str, seconds: float) -> list[float]:
        """Bytes of a plain connection and of a fetch that began two seconds before it, in so many seconds."""
        found = [0.0, 0.0]

        async def fetch() -> None:
            found[1] = (await self._fetch(bytes.fromhex(root), seconds + 2))[1]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await trio.sleep(2)
            found[0] = (await self._raw(place, port, 10**10, seconds))[1]
        return found

    async def _pour(self, stream: trio.SocketStream) -> None:
        left = struct.unpack("!Q", await stream.receive_some(8))[0]
        try:
            while left > 0:
                await stream.send_all(bytes(min(left, 1 << 16)))
                left -= 1 << 16
        except trio.BrokenResourceError:
            return

    async def _talk(self) -> None:
        while True:
            await self.network.publish(TOPIC, f"{time.time()} ".encode().ljust(NEWS_SIZE, b"x"))
            await trio.sleep(NEWS_EVERY)

    async def _hear(self, heard: trio.MemoryReceiveChannel[tuple[Address, bytes]]) -> None:
        async for _, data in heard:
            self.delays.append(time.time() - float(data.split()[0]))

    async def _watch(self) -> None:
        known: set[Any] = set()
        while True:
            now = set(self.network._swarm.get_connections())
            self.broken += len(known - now)
            known = now
            await trio.sleep(0.2)

    async def _ping(self) -> None:
        while True:
            try:
                await self.network.request(self.peer, PING, b"", max_response=1, timeout=20)
            except Exception as error:
                self.unanswered += 1
                sys.stderr.write(f"{error!r}\n")
            await trio.sleep(PING_EVERY)


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


# -- both nodes ------------------------------------------------------------------------------------


class Pair:
    """A source and who fetches from it, with the code of `tree`."""

    def __init__(self, hosts: tuple[Host, Host], tree: Path, folder: str) -> None:
        self.hosts = hosts
        self.children: list[Child] = []
        self.told: list[Any] = []
        for number, host in enumerate(hosts):
            environment = ("env", f"PYTHONPATH={tree}{os.pathsep}{ROOT}", f"HOME={folder}")
            node = ("--node", host.address, f"{folder}/{number}")
            self.children.append(Child([*host.prefix, *environment, sys.executable, __file__, *node]))
        self.source, self.taker = self.children
        self.told = [child.hear() for child in self.children]
        for child, (who, where, _) in zip(self.children, reversed(self.told), strict=True):
            child.tell(["meet", who, where])
        for child in self.children:
            child.hear()
        time.sleep(2)

    def plain(self, size: int, patience: float) -> list[float]:
        return self.taker.ask(["raw", self.hosts[0].address, self.told[0][2], size, patience])

    def fetch(self, size: int, patience: float, seed: int = 1) -> list[float]:
        return self.taker.ask(["fetch", self.source.ask(["make", size, seed]), patience])

    def end(self) -> None:
        for child in self.children:
            child.end()


@contextmanager
def pair(tree: Path, there: Way, back: Way, congestion: str) -> Iterator[Pair]:
    with link(there, back, congestion) as hosts, tempfile.TemporaryDirectory() as folder:
        made = Pair(hosts, tree, folder)
        try:
            yield made
        finally:
            made.end()


def news(tree: Path, mbit: float, seconds: float, congestion: str) -> dict[str, Any]:
    """Gossip of a source with a slow uplink: alone, and beside a fetch that lasts about so many seconds."""
    there, back = Way(mbit * MBIT, NEWS_RTT / 2, 0, 1), Way(LINE_MBIT * MBIT, NEWS_RTT / 2, 0, 2)
    with pair(tree, there, back, congestion) as both:
        both.source.ask(["talk"])
        time.sleep(min(seconds, 10))
        alone = both.taker.ask(["heard"])["delays"]
        took, size = both.fetch(int(mbit * MBIT * seconds), 4 * seconds)
        beside, other = both.taker.ask(["heard"]), both.source.ask(["heard"])
    delays = sorted(1000 * delay for delay in beside["delays"]) or [-1.0]
    return {
        "mbit": mbit,
        "alone_ms": round(1000 * statistics.median(alone), 1),
        "median_ms": round(statistics.median(delays), 1),
        "p90_ms": round(delays[int(0.9 * len(delays))], 1),
        "worst_ms": round(delays[-1], 1),
        "heard_per_second": round(len(delays) / took, 2),
        "of_the_line": round(size / took / (mbit * MBIT), 3),
        "broken": beside["broken"] + other["broken"],
        "unanswered": beside["unanswered"] + other["unanswered"],
    }


def lossy(tree: Path, loss: float, rtt: float, size: int, patience: float, congestion: str) -> dict[str, Any]:
    """loss: percent; rtt: milliseconds. Seconds of what did not end in time are drawn out from what came."""

    def way(seed: int) -> Way:
        return Way(LINE_MBIT * MBIT, rtt / 2000, loss / 100, seed)

    with pair(tree, way(1), way(2), congestion) as both:
        took, came = both.fetch(size, patience)
        path = both.source.ask(["path"])
        raw_took, raw_came = both.plain(size, patience)
    return {
        "loss": loss,
        "rtt": rtt,
        "seconds": round(took * size / max(came, 1), 1),
        "ended": came == size,
        "tcp_seconds": round(raw_took * size / max(raw_came, 1), 1),
        "path": next(iter(path.values()), {}),
    }


def fair(tree: Path, loss: float, rtt: float, seconds: float, congestion: str) -> dict[str, Any]:
    """loss: percent; rtt: milliseconds."""

    def way(seed: int) -> Way:
        return Way(LINE_MBIT * MBIT, rtt / 2000, loss / 100, seed)

    with pair(tree, way(1), way(2), congestion) as both:
        alone = both.plain(10**10, seconds)
        root = both.source.ask(["make", int(LINE_MBIT * MBIT * (seconds + 5)), 1])
        plain, fetched = both.taker.ask(["both", both.hosts[0].address, both.told[0][2], root, seconds])
        path = both.source.ask(["path"])
    return {
        "loss": loss,
        "rtt": rtt,
        "alone_mbit": round(alone[1] / alone[0] / MBIT, 2),
        "beside_mbit": round(plain / seconds / MBIT, 2),
        "tcp_share": round(plain / max(plain + fetched, 1), 3),
        "of_the_line": round((plain + fetched) / (LINE_MBIT * MBIT * (seconds + 1)), 3),
        "path": next(iter(path.values()), {}),
    }


def measure(given: argparse.Namespace, tree: Path) -> Iterator[dict[str, Any]]:
    if "news" in given.only:
        for mbit in given.rates:
            yield {"what": "news", **news(tree, mbit, 10 if given.quick else 30, given.congestion)}
    if "lossy" in given.only:
        size, patience = (4 if given.quick else 10) * MB, 30 if given.quick else 60
        for loss in given.losses:
            for rtt in given.rtts:
                yield {"what": "lossy", **lossy(tree, loss, rtt, size, patience, given.congestion)}
    if "fair" in given.only:
        for loss in (0.0, 2.0):
            for rtt in given.rtts:
                yield {"what": "fair", **fair(tree, loss, rtt, 10 if given.quick else 20, given.congestion)}


def numbers(text: str) -> list[float]:
    return [float(each) for each in text.split(",")]


def main() -> int:
    silence_logs()
    if sys.argv[1:2] == ["--node"]:
        trio.run(Node(sys.argv[2], sys.argv[3]).run)
        return 0
    parser = parser_of(__doc__, "one rate, one loss, one round trip; shorter")
    parser.add_argument("--only", nargs="+", choices=["news", "lossy", "fair"], default=["news", "lossy", "fair"])
    parser.add_argument("--rates", type=numbers, help="Mbit/s of the slow uplink")
    parser.add_argument("--losses", type=numbers, help="percent")
    parser.add_argument("--rtts", type=numbers, help="milliseconds")
    parser.add_argument("--congestion", default="reno", help="the system's own congestion control at both ends")
    parser.add_argument("--beside", type=Path, metavar="TREE")
    given = parser.parse_args()
    given.rates = given.rates or ([4.0] if given.quick else [1.0, 4.0, 20.0])
    given.losses = given.losses or ([2.0] if given.quick else [0.0, 1.0, 2.0, 5.0])
    given.rtts = given.rtts or ([100.0] if given.quick else [20.0, 100.0, 300.0])
    if reason := why_not():
        print(f"skipped: {reason}")
        return 77  # benchmarks.command.SKIPPED, which another TREE may not have
    rows = []
    for tree in [*([given.beside.resolve()] if given.beside else []), ROOT]:
        for row in measure(given, tree):
            rows.append({"tree": "here" if tree == ROOT else "beside", **row})
            print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    facts = {"schema_version": 1, "congestion": given.congestion, "load": os.getloadavg(), "rows": rows}
    save(given.json, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
