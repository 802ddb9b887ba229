"""Beside SHARDCAST 0.3.2: how soon, and how fast, clients have one policy image. Loopback, every role its own process.

    python -m benchmarks.shardcast [--mib 1024] [--clients 1 4] [--kinds swarm ...] [--quick] [--dir DIR] [--json FILE]

Rows, each from the moment when the origin starts to publish an image that nobody has seen:

    shardcast      its origin, its clients (direct; and through one relay that follows the origin)
    gateway        our HTTP gateway and our fetcher (direct; and through one relay)
    swarm          our exchange over libp2p, as the daemon uses it; the image is moved into the store, as a trainer does
    view           our gateway, the unmodified shardcast client

"first" is the time until the first client may use the weights (for us: every piece and the whole verified; for
shardcast: reassembled and its whole-file hash compared), "last" until the last one may. CPU: seconds from publishing
until the last client is done, user and system, of the origin, of the relay, and of a client on average, each with the
processes that it starts; the flushing of pages to the disk is the kernel's and nobody's. What was dirty is on the disk
before each row begins. The relay rows give the followers the shortest interval that both sides accept (1 s), because
polling would hide the transfer. shardcast is installed into an environment of its own (--dir keeps it for the next
time); it needs wget. Its clients share files in /tmp and in the package's folder and kill each other when they start
together, so here they start one after another, each with a copy of the package.
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
from typing import Any, NamedTuple

import numpy as np

VERSION = "0.3.2"
ROUNDS = 3
PATIENCE = 600.0
KINDS = ("shardcast", "gateway", "swarm", "view")
WITH_RELAY = ("shardcast", "gateway")
ROLES = ("origin", "relay", "client")
Plan = tuple[str, int, bool]
"""Kind, clients, whether through a relay."""

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


class Outcome(NamedTuple):
    """Of one plan: seconds until each client may use the image, and CPU seconds of each role (a client on average)."""

    times: list[float]
    cpu: dict[str, float]


def main() -> None:
    options = _options()
    mib, rounds = (128, 1) if options.quick else (options.mib, options.rounds)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        bench = Bench(Path(folder), mib, options.dir or Path(folder))
        plans = plans_of(options.kinds, options.clients)
        found: dict[Plan, list[Outcome]] = {}
        for number in range(rounds):  # one after another, so that each round meets the same machine
            for plan in plans:
                print(f"round {number + 1}: {plan}", file=sys.stderr, flush=True)
                found.setdefault(plan, []).append(bench.measure(*plan))
    rows = [summary(plan, outcomes, mib) for plan, outcomes in found.items()]
    show(rows, mib, rounds)
    if options.json:
        options.json.write_text(json.dumps({"mib": mib, "rounds": rounds, "rows": rows}, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="128 MiB, one round")
    parser.add_argument("--dir", type=Path, help="where files go, and where shardcast stays installed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.dir:
        options.dir.mkdir(parents=True, exist_ok=True)
    return options


def plans_of(kinds: list[str], clients: list[int]) -> list[Plan]:
    direct = [(kind, count, False) for count in clients for kind in kinds]
    return direct + [(kind, count, True) for count in clients for kind in kinds if kind in WITH_RELAY]


def summary(plan: Plan, outcomes: list[Outcome], mib: int) -> dict[str, object]:
    kind, clients, relay = plan
    firsts = [min(each.times) for each in outcomes]
    lasts = [max(each.times) for each in outcomes]
    roles = {role: [each.cpu[role] for each in outcomes if role in each.cpu] for role in ROLES}
    return {
        "kind": kind,
        "clients": clients,
        "relay": relay,
        "first_s": statistics.median(firsts),
        "last_s": statistics.median(lasts),
        "last_range": [min(lasts), max(lasts)],
        "mb_per_s": clients * mib * 2**20 / 1e6 / statistics.median(lasts),
        "cpu_s": {role: statistics.median(seconds) for role, seconds in roles.items() if seconds},
    }


def show(rows: list[dict[str, Any]], mib: int, rounds: int) -> None:
    print(f"{mib} MiB, {rounds} rounds, medians\n")
    print(f"{'who':10}{'clients':>8}{'relay':>6}{'first s':>9}{'last s':>8}{'(range)':>14}{'MB/s':>7}   CPU s by role")
    for row in rows:
        low, high = row["last_range"]
        cpu = "  ".join(f"{role} {seconds:.1f}" for role, seconds in row["cpu_s"].items())
        print(
            f"{row['kind']:10}{row['clients']:>8}{'yes' if row['relay'] else '-':>6}{row['first_s']:>9.2f}"
            f"{row['last_s']:>8.2f}{f'{low:.2f}-{high:.2f}':>14}{row['mb_per_s']:>7.0f}   {cpu}"
        )


class Bench:
    """A folder, an image, an environment with shardcast in it."""

    def __init__(self, folder: Path, mib: int, kept: Path) -> None:
        self.folder = folder
        self.python = _shardcast(kept / f"shardcast-{VERSION}")
        self.image = folder / "policy-000001.safetensors"
        _write_image(self.image, mib)

    def measure(self, kind: str, clients: int, relay: bool) -> Outcome:
        """From the start of publishing until every client may use the image."""
        work = Path(tempfile.mkdtemp(dir=self.folder))
        os.sync()
        with ExitStack() as stack:
            outcome = _race(*getattr(self, f"_{kind}")(stack, work, clients, relay))
        shutil.rmtree(work)
        return outcome

    def _shardcast(self, stack: ExitStack, work: Path, clients: int, relay: bool) -> "Cast":
        port, middles = _free_port(), []
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
            middles = [stack.enter_context(running(command))]
            source = f"http://127.0.0.1:{middle}"
        return publisher, self._its_clients(stack, work, source, clients), middles

    def _view(self, stack: ExitStack, work: Path, clients: int, relay: bool) -> "Cast":
        del relay
        publisher, source = self._gateway_origin(stack, work)
        return publisher, self._its_clients(stack, work, source, clients), []

    def _its_clients(self, stack: ExitStack, work: Path, source: str, clients: int) -> "list[Child]":
        """The unmodified client, `clients` times."""
        racers = []
        for index in range(clients):
            home = work / f"client{index}"
            home.mkdir()
            shutil.copytree(_package(self.python), home / "package" / "shardcast")
            command = [str(self.python), "-c", CLIENT, source, str(home / "out"), "v1"]
            environment = {**os.environ, "PYTHONPATH": str(home / "package")}
            racers.append(stack.enter_context(running(command, environment)))
            expect(racers[-1], "ready")
        return racers

    def _gateway(self, stack: ExitStack, work: Path, clients: int, relay: bool) -> "Cast":
        publisher, source = self._gateway_origin(stack, work)
        middles = []
        if relay:
            middles = [stack.enter_context(running(_ours("relay", str(work / "middle"), source)))]
            source = expect(middles[0], "ready")
        racers = [
            stack.enter_context(running(_ours("client", str(work / f"client{i}"), source))) for i in range(clients)
        ]
        for racer in racers:
            expect(racer, "ready")
        return publisher, racers, middles

    def _gateway_origin(self, stack: ExitStack, work: Path) -> "tuple[Child, str]":
        publisher = stack.enter_context(running(_ours("origin", str(work / "origin"), str(self.image))))
        return publisher, expect(publisher, "ready")

    def _swarm(self, stack: ExitStack, work: Path, clients: int, relay: bool) -> "Cast":
        del relay
        publisher = stack.enter_context(running(_ours("seed", str(work / "seed"), str(self.image))))
        contact = expect(publisher, "ready")
        racers = [stack.enter_context(running(_ours("peer", str(work / f"peer{i}"), contact))) for i in range(clients)]
        peers = [expect(racer, "ready") for racer in racers]
        for racer in [publisher, *racers]:
            tell(racer, json.dumps(peers))
        for racer in racers:
            expect(racer, "met")
        return publisher, racers, []


def _race(publisher: "Child", racers: "list[Child]", middles: "list[Child]") -> Outcome:
    roles = {"origin": [publisher], "relay": middles, "client": racers}
    before = {role: sum(map(cpu_seconds, children)) for role, children in roles.items()}
    times = _start_and_wait(publisher, racers)
    used = {role: sum(map(cpu_seconds, children)) - before[role] for role, children in roles.items()}
    return Outcome(times, {role: used[role] / len(children) for role, children in roles.items() if children})


def _start_and_wait(publisher: "Child", racers: "list[Child]") -> list[float]:
    """What the publisher says is handed over to all at once: gossip is not what is measured."""
    start = time.perf_counter()
    tell(publisher, "go")
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
    from node.web.host import bind
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
    from node.web.host import bind
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


async def _seed(directory: str, image: str) -> None:
    import trio

    from node.blobs.exchange import BlobExchange
    from node.blobs.store import BlobStore
    from node.network.host import Libp2pNetwork
    from protocol.identity import NodeKey

    network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
    store = BlobStore(Path(directory), quota=1 << 40)
    BlobExchange(network, store)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        print("ready", json.dumps([network.address, network.contacts()[0]]), flush=True)
        peers = json.loads(await trio.to_thread.run_sync(sys.stdin.readline))
        network.set_contacts(dict(json.loads(peer) for peer in peers))
        new = Path(directory) / "new"
        new.hardlink_to(image)
        await trio.to_thread.run_sync(sys.stdin.readline)
        info = await store.add(new, move=True)
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


Child = subprocess.Popen[str]
Cast = tuple[Child, list[Child], list[Child]]
"""Publisher, clients, and what is between them."""


@contextmanager
def running(command: list[str], environment: dict[str, str] | None = None) -> "Iterator[Child]":
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


def cpu_seconds(child: Child) -> float:
    """User and system, of a child and of all that it started, also of what has ended."""
    ticks = 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile; its parent counts it then
        if int(fields[2]) == child.pid:  # its process group
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def expect(child: "Child", word: str) -> str:
    """Read lines until one begins with `word`; returns the rest of it."""
    for line in child.stdout or ():
        first, _, rest = line.strip().partition(" ")
        if first == word:
            return rest
    raise RuntimeError(f"{' '.join(child.args)[:200]} ended before it said {word}")  # type: ignore[arg-type]


def tell(child: "Child", line: str) -> None:
    print(line, file=child.stdin, flush=True)


def _ours(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.shardcast", "--role", name, *arguments]


def _shardcast(directory: Path) -> Path:
    if not shutil.which("wget"):
        sys.exit("shardcast needs wget: install it first")
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
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
