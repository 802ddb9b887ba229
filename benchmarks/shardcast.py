"""Beside SHARDCAST 0.3.2: how soon, and how fast, clients have one policy image. Loopback, every role its own process.

    python -m benchmarks.shardcast [--mib 1024] [--clients 1 4] [--quick] [--json FILE]

Rows, each from the moment when the origin starts to publish an image that nobody has seen:

    shardcast      its origin, its clients (direct; and through one relay that follows the origin)
    gateway        our HTTP gateway and our fetcher (direct; and through one relay)
    swarm          our exchange over libp2p, as the daemon uses it
    view           our gateway, the unmodified shardcast client

"first" is the time until the first client may use the weights (for us: every piece and the whole verified; for
shardcast: reassembled and its whole-file hash compared), "last" until the last one may. The relay rows give the
followers the shortest interval that both sides accept (1 s), because polling would hide the transfer. shardcast is
installed into an environment of its own; it needs wget. Its clients share files in /tmp and in the package's folder and
kill each other when they start together, so here they start one after another, each with a copy of the package.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

VERSION = "0.3.2"
ROUNDS = 3
PATIENCE = 600.0

ORIGIN = """
import sys, time
from shardcast import initialize, broadcast
initialize(sys.argv[1], port=int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
broadcast(sys.argv[3])
print("published", flush=True)
time.sleep(3600)
"""
CLIENT = """
import sys, time
import shardcast.utils
shardcast.utils.logger.setLevel("ERROR")
from shardcast.client_node import ClientNode
node = None
while node is None:
    try:
        node = ClientNode([sys.argv[1]], sys.argv[2])
    except Exception:
        time.sleep(0.05)
print("ready", flush=True)
versions = {}
while sys.argv[3] not in versions:
    time.sleep(0.05)
    versions = node.list_available_versions()
path = node.download_version(sys.argv[3])
if path is None:
    sys.exit("no file")
print("done", flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="128 MiB, one round")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    mib, rounds = (128, 1) if options.quick else (options.mib, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), mib)
        plans = [
            (kind, count, False) for count in options.clients for kind in ("shardcast", "gateway", "swarm", "view")
        ]
        plans += [("shardcast", 1, True), ("gateway", 1, True)]
        found: dict[tuple[str, int, bool], list[list[float]]] = {}
        for _ in range(rounds):  # one after another, so that each round meets the same machine
            for plan in plans:
                found.setdefault(plan, []).append(bench.measure(*plan))
    rows = [summary(plan, times, mib) for plan, times in found.items()]
    show(rows, mib, rounds)
    if options.json:
        options.json.write_text(json.dumps({"mib": mib, "rounds": rounds, "rows": rows}, indent=1))


def summary(plan: tuple[str, int, bool], times: list[list[float]], mib: int) -> dict[str, object]:
    kind, clients, relay = plan
    firsts, lasts = [min(each) for each in times], [max(each) for each in times]
    return {
        "kind": kind,
        "clients": clients,
        "relay": relay,
        "first_s": statistics.median(firsts),
        "last_s": statistics.median(lasts),
        "first_range": [min(firsts), max(firsts)],
        "mb_per_s": clients * mib * 2**20 / 1e6 / statistics.median(lasts),
    }


def show(rows: list[dict[str, object]], mib: int, rounds: int) -> None:
    print(f"{mib} MiB, {rounds} rounds, medians\n")
    print(f"{'who':12}{'clients':>8}{'relay':>7}{'first s':>9}{'(range)':>16}{'last s':>9}{'aggregate MB/s':>16}")
    for row in rows:
        low, high = row["first_range"]  # type: ignore[misc]
        print(
            f"{row['kind']:12}{row['clients']:>8}{'yes' if row['relay'] else '-':>7}{row['first_s']:>9.2f}"
            f"{f'{low:.2f}-{high:.2f}':>16}{row['last_s']:>9.2f}{row['mb_per_s']:>16.0f}"
        )


class Bench:
    """A folder, an image, an environment with shardcast in it."""

    def __init__(self, folder: Path, mib: int) -> None:
        self.folder = folder
        self.python = _shardcast(folder / "venv")
        self.image = folder / "policy-000001.safetensors"
        _write_image(self.image, mib)

    def measure(self, kind: str, clients: int, relay: bool) -> list[float]:
        """Seconds from the start of publishing until each client may use the image."""
        work = Path(tempfile.mkdtemp(dir=self.folder))
        with ExitStack() as stack:
            start = getattr(self, f"_{kind}")
            times = start(stack, work, clients, relay)
        shutil.rmtree(work)
        return times

    def _shardcast(self, stack: ExitStack, work: Path, clients: int, relay: bool) -> list[float]:
        port = _free_port()
        (work / "data").mkdir()
        (work / "data" / "data1.bin").write_bytes(bytes(1_000_000))
        origin = [str(self.python), "-c", ORIGIN, str(work / "data"), str(port), str(self.image)]
        publisher = stack.enter_context(running(origin))
        expect(publisher, "ready")
        source = f"http://127.0.0.1:{port}"
        if relay:
            middle = _free_port()
            (work / "middle").mkdir()
            (work / "middle" / "data1.bin").write_bytes(bytes(1_000_000))
            command = [str(self.python), "-m", "shardcast.middle_node", "--upstream", source, "--check-interval", "1"]
            command += ["--data-dir", str(work / "middle"), "--port", str(middle)]
            stack.enter_context(running(command))
            source = f"http://127.0.0.1:{middle}"
        return self._race(stack, work, source, clients, publisher, "v1")

    def _view(self, stack: ExitStack, work: Path, clients: int, relay: bool) -> list[float]:
        del relay
        publisher, source = self._gateway_origin(stack, work)
        return self._race(stack, work, source, clients, publisher, "v1")

    def _race(
        self, stack: ExitStack, work: Path, source: str, clients: int, publisher: "subprocess.Popen[str]", version: str
    ) -> list[float]:
        """The unmodified client, `clients` times."""
        racers = []
        for index in range(clients):
            home = work / f"client{index}"
            home.mkdir()
            shutil.copytree(_package(self.python), home / "package" / "shardcast")
            command = [str(self.python), "-c", CLIENT, source, str(home / "out"), version]
            environment = {**os.environ, "PYTHONPATH": str(home / "package")}
            racers.append(stack.enter_context(running(command, environment)))
            expect(racers[-1], "ready")
        return _start_and_wait(publisher, racers)

    def _gateway(self, stack: ExitStack, work: Path, clients: int, relay: bool) -> list[float]:
        publisher, source = self._gateway_origin(stack, work)
        if relay:
            middle = stack.enter_context(running(_ours("relay", str(work / "middle"), source)))
            source = expect(middle, "ready")
        racers = [
            stack.enter_context(running(_ours("client", str(work / f"client{i}"), source))) for i in range(clients)
        ]
        for racer in racers:
            expect(racer, "ready")
        return _start_and_wait(publisher, racers)

    def _gateway_origin(self, stack: ExitStack, work: Path) -> tuple["subprocess.Popen[str]", str]:
        publisher = stack.enter_context(running(_ours("origin", str(work / "origin"), str(self.image))))
        return publisher, expect(publisher, "ready")

    def _swarm(self, stack: ExitStack, work: Path, clients: int, relay: bool) -> list[float]:
        del relay
        publisher = stack.enter_context(running(_ours("seed", str(work / "seed"), str(self.image), str(clients))))
        contact = expect(publisher, "ready")
        racers = [stack.enter_context(running(_ours("peer", str(work / f"peer{i}"), contact))) for i in range(clients)]
        peers = [expect(racer, "ready") for racer in racers]
        for racer in [publisher, *racers]:
            tell(racer, json.dumps(peers))
        for racer in racers:
            expect(racer, "met")
        return _start_and_wait(publisher, racers, relay_line=True)


def _start_and_wait(
    publisher: "subprocess.Popen[str]", racers: "list[subprocess.Popen[str]]", relay_line: bool = False
) -> list[float]:
    start = time.perf_counter()
    tell(publisher, "go")
    if relay_line:  # gossip is not what is measured: the roots are handed over at once
        line = expect(publisher, "published")
        for racer in racers:
            tell(racer, line)
    times = [0.0] * len(racers)

    def wait(index: int) -> None:
        expect(racers[index], "done")
        times[index] = time.perf_counter() - start

    threads = [threading.Thread(target=wait, args=(index,)) for index in range(len(racers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if not all(times):
        raise RuntimeError("a client did not finish")
    return times


# -- our roles, each a process ---------------------------------------------------------------------


def role(name: str, arguments: list[str]) -> None:
    import trio

    roles = {"origin": _origin, "relay": _relay, "client": _client, "seed": _seed, "peer": _peer}
    trio.run(roles[name], *arguments)


async def _origin(directory: str, image: str) -> None:
    import trio

    from node.blobs.http.mirror import root_of_image
    from node.blobs.http.server import Gateway, ServedPolicy
    from node.blobs.store import BlobStore
    from node.web.address import bind
    from node.web.listener import Listener

    store = BlobStore(Path(directory), quota=1 << 40)
    served: list[ServedPolicy] = []
    listener = Listener(bind("127.0.0.1:0", "the gateway", ""))
    gateway = Gateway(listener, store, lambda: served)
    async with trio.open_nursery() as nursery:
        await nursery.start(listener.run)
        print("ready", gateway.source(), flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        info = await store.add(Path(image))
        path = store.path(info.root)
        root = await trio.to_thread.run_sync(root_of_image, path, 1)
        served.append(ServedPolicy(1, root, info.root, info.size, path))
        print("published", flush=True)


async def _relay(directory: str, source: str) -> None:
    import trio

    from node.blobs.http.mirror import Mirror
    from node.blobs.http.server import Gateway
    from node.blobs.http.sources import parse_source
    from node.blobs.store import BlobStore
    from node.web.address import bind
    from node.web.listener import Listener

    store = BlobStore(Path(directory), quota=1 << 40)
    mirror = Mirror(store, [parse_source(source)], every=1.0)
    listener = Listener(bind("127.0.0.1:0", "the gateway", ""))
    gateway = Gateway(listener, store, mirror.policies)
    async with trio.open_nursery() as nursery:
        await nursery.start(listener.run)
        nursery.start_soon(mirror.run)
        print("ready", gateway.source(), flush=True)


async def _client(directory: str, source: str) -> None:
    import trio

    from node.blobs.http.mirror import Mirror
    from node.blobs.http.sources import parse_source
    from node.blobs.store import BlobStore

    mirror = Mirror(BlobStore(Path(directory), quota=1 << 40), [parse_source(source)], every=0.05)
    print("ready", flush=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mirror.run)
        while not mirror.policies():  # noqa: ASYNC110 - a benchmark's clock
            await trio.sleep(0.005)
        print("done", flush=True)
        nursery.cancel_scope.cancel()


async def _seed(directory: str, image: str, clients: str) -> None:
    import trio

    from node.blobs.exchange import BlobExchange
    from node.blobs.store import BlobStore
    from node.network.host import Libp2pNetwork
    from protocol.identity import NodeKey

    del clients
    network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
    store = BlobStore(Path(directory), quota=1 << 40)
    BlobExchange(network, store)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        print("ready", json.dumps([network.address, network.contacts()[0]]), flush=True)
        peers = json.loads(await trio.to_thread.run_sync(sys.stdin.readline))
        network.set_contacts(dict(json.loads(peer) for peer in peers))
        await trio.to_thread.run_sync(sys.stdin.readline)
        info = await store.add(Path(image))
        print("published", info.root.hex(), flush=True)


async def _peer(directory: str, contact: str) -> None:
    import trio

    from node.blobs.exchange import BlobExchange
    from node.blobs.http.mirror import root_of_image
    from node.blobs.store import BlobStore
    from node.network.host import Libp2pNetwork
    from protocol.identity import NodeKey

    seed, place = json.loads(contact)
    network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
    exchange = BlobExchange(network, BlobStore(Path(directory), quota=1 << 40))
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        print("ready", json.dumps([network.address, network.contacts()[0]]), flush=True)
        line = await trio.to_thread.run_sync(sys.stdin.readline)
        others = {address: where for address, where in map(json.loads, json.loads(line)) if address != network.address}
        network.set_contacts({seed: place, **others})
        while len(network.connected()) <= len(others):  # noqa: ASYNC110 - a benchmark's clock
            await trio.sleep(0.05)
        print("met", flush=True)
        root = bytes.fromhex(await trio.to_thread.run_sync(lambda: sys.stdin.readline().strip()))
        path = await exchange.fetch(root, [seed, *others], max_size=1 << 40, timeout=PATIENCE)
        await trio.to_thread.run_sync(root_of_image, path, 1)
        print("done", flush=True)
        await trio.sleep(PATIENCE)  # a peer goes on serving


# -- processes -------------------------------------------------------------------------------------


@contextmanager
def running(command: list[str], environment: dict[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
    """A child in a process group of its own, killed at the end with all that it started."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=environment,
    )
    try:
        yield child
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def expect(child: "subprocess.Popen[str]", word: str) -> str:
    """Read lines until one begins with `word`; returns the rest of it."""
    for line in child.stdout or ():
        first, _, rest = line.strip().partition(" ")
        if first == word:
            return rest
    raise RuntimeError(f"{' '.join(child.args)[:200]} ended before it said {word}")  # type: ignore[arg-type]


def tell(child: "subprocess.Popen[str]", line: str) -> None:
    print(line, file=child.stdin, flush=True)


def _ours(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.shardcast", "--role", name, *arguments]


def _shardcast(directory: Path) -> Path:
    if not shutil.which("wget"):
        sys.exit("shardcast needs wget: install it first")
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-qq", f"shardcast=={VERSION}"], check=True)
    return python


def _package(python: Path) -> Path:
    found = subprocess.run(
        [str(python), "-c", "import shardcast; print(shardcast.__path__[0])"],
        check=True,
        capture_output=True,
        text=True,
    )
    return Path(found.stdout.strip())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _write_image(path: Path, mib: int) -> None:
    """A canonical policy image of random bf16 patterns in tensors of 16 MiB."""
    from protocol.policy import encode_image

    generator = np.random.default_rng(0)
    tensors = {f"t{i:05d}": generator.integers(0, 1 << 15, 8 << 20, dtype=np.uint16) for i in range(mib // 16)}
    path.write_bytes(encode_image(tensors))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--role"]:
        role(sys.argv[2], sys.argv[3:])
    else:
        main()
