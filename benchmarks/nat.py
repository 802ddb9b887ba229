"""Two nodes behind routers that translate addresses, and public ones: do the two meet, and how fast are bytes?

    python -m benchmarks.nat [--mib 32] [--random-ports] [--json]

Each node is a process in a network namespace of its own, made of the product's parts: network, board, members, blobs,
the probe and its relays. A blob travels on a direct path, then through the hole that the two hidden nodes made;
--random-ports: with routers of the kind through which none can be made, so that it travels through the relay. The
chain's part is played here: every node is told the contact that the others registered, the private one of the hidden
nodes included. Needs root, `ip` and `iptables`; exit code 77 with the reason without.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from benchmarks.command import SKIPPED, Child, parser_of, silence_logs
from node.member import Participant, open_member
from node.network.host import Libp2pNetwork
from node.progress import ProgressRecord
from node.services.membership.lan import Lan
from node.services.membership.reach import Reach
from protocol.identity import Address, NodeKey
from protocol.messages import Heartbeat
from protocol.statements import Domain

NOBODY = Address("0x" + "0" * 40)
POOL: Any = SimpleNamespace(id=1, manager=NOBODY, validators=(), threshold=1, bootnodes=())
BEAT = 1.0
PATIENCE = 90.0
MIB = 1024**2
PUBLIC = "11.77.0"
"""Addresses of the internet by their number, so that nobody takes them for private ones; they never leave."""


# hosts behind routers that translate addresses: network namespaces, one public net, private nets behind it


class Host:
    """A namespace. prefix: what commands in it start with; address: its own."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.prefix = ("ip", "netns", "exec", name)

    def do(self, *command: str) -> None:
        _do(*self.prefix, *command)


def why_not() -> str | None:
    """What keeps this machine from making namespaces with translating routers, None if nothing does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in ("ip", "iptables") if not shutil.which(tool)]:
        return f"{' and '.join(missing)} is not installed"
    name = f"nat{os.getpid()}t"
    try:
        _do("ip", "netns", "add", name)
        _do("ip", "netns", "exec", name, "iptables", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
    except subprocess.CalledProcessError as error:
        return f"no namespace with a translating router can be made here: {error.stderr.decode().strip()[:200]}"
    finally:
        _try("ip", "netns", "del", name)
    return None


@contextmanager
def world(hidden: int, *, random_ports: bool) -> Iterator[tuple[list[Host], list[Host]]]:
    """(hosts that everybody can dial, hosts each behind a router of its own that lets only answers in).

    random_ports: the routers give each connection another port, whichever it was made from.
    """
    serial = f"n{os.getpid() % 100_000}"
    with ExitStack() as stack:
        net = _host(stack, f"{serial}net", "")
        net.do("ip", "link", "add", "br0", "type", "bridge")
        net.do("ip", "link", "set", "br0", "up")
        relay = _attach(stack, net, f"{serial}p0", f"{PUBLIC}.10")
        routers = [_attach(stack, net, f"{serial}r{n}", f"{PUBLIC}.{100 + n}") for n in range(hidden)]
        yield [relay], [_behind(stack, router, f"{serial}h{n}", n, random_ports) for n, router in enumerate(routers)]


def _host(stack: ExitStack, name: str, address: str) -> Host:
    _do("ip", "netns", "add", name)
    stack.callback(_try, "ip", "netns", "del", name)
    host = Host(name, address)
    host.do("ip", "link", "set", "lo", "up")
    return host


def _attach(stack: ExitStack, net: Host, name: str, address: str) -> Host:
    """A host on the public net."""
    host = _host(stack, name, address)
    _link(net, f"{name}b", host, "wan")
    net.do("ip", "link", "set", f"{name}b", "master", "br0", "up")
    host.do("ip", "addr", "add", f"{address}/24", "dev", "wan")
    host.do("ip", "link", "set", "wan", "up")
    return host


def _behind(stack: ExitStack, router: Host, name: str, number: int, random_ports: bool) -> Host:
    """A host on a private net of its own, whose router gives its own address to what goes out."""
    inside = f"10.{200 + number}.0"
    host = _host(stack, name, f"{inside}.2")
    _link(router, "lan", host, "eth")
    router.do("ip", "addr", "add", f"{inside}.1/24", "dev", "lan")
    router.do("ip", "link", "set", "lan", "up")
    router.do("sysctl", "-qw", "net.ipv4.ip_forward=1")
    ports = ("--random-fully",) if random_ports else ()
    router.do("iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "wan", "-j", "MASQUERADE", *ports)
    answers = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED")
    router.do("iptables", "-A", "FORWARD", "-i", "wan", *answers, "-j", "ACCEPT")
    router.do("iptables", "-A", "FORWARD", "-i", "wan", "-j", "DROP")
    router.do("iptables", "-A", "INPUT", "-i", "wan", *answers, "-j", "ACCEPT")
    router.do("iptables", "-A", "INPUT", "-i", "wan", "-j", "DROP")
    host.do("ip", "addr", "add", f"{host.address}/24", "dev", "eth")
    host.do("ip", "link", "set", "eth", "up")
    host.do("ip", "route", "add", "default", "via", f"{inside}.1")
    return host


def _link(one: Host, at_one: str, other: Host, at_other: str) -> None:
    _do("ip", "link", "add", at_one, "netns", one.name, "type", "veth", "peer", "name", at_other, "netns", other.name)


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _try(*command: str) -> None:
    subprocess.run(command, check=False, capture_output=True)


# one node


async def be_node(host: str, directory: str) -> None:
    """A node that does what its stdin says, a line of JSON each, and answers on stdout."""
    async with opened(f"/ip4/{host}/tcp/4001", Path(directory)) as member, trio.open_nursery() as nursery:
        network = member.network
        reach = Reach(member, ProgressRecord())
        member.membership.joined(member.key.address, network.contacts()[0])
        nursery.start_soon(member.listen)
        nursery.start_soon(reach.run)
        nursery.start_soon(Lan(member).run)
        nursery.start_soon(beat, member)
        print(json.dumps([member.key.address, network.contacts()[0]]), flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            print(json.dumps(await obey(json.loads(line), member, reach)), flush=True)
        nursery.cancel_scope.cancel()


def opened(place: str, directory: Path) -> AbstractAsyncContextManager[Participant]:
    """The product's parts of a node that listens at `place`, a multiaddr."""
    key = NodeKey.generate()
    return open_member(key, Domain(1, NOBODY), POOL, Libp2pNetwork(key, place), directory, quota=1 << 32)


async def beat(member: Participant) -> None:
    while True:
        await member.board.post(
            Heartbeat(
                pool=1,
                boot=0,
                count=time.time_ns(),
                at=time.time_ns() // 1_000_000,
                role="worker",
                state="working",
                contact=member.network.contacts()[0],
                also=member.network.contacts()[1:],
                policy_step=-1,
                interval=BEAT,
            )
        )
        await trio.sleep(BEAT)


async def obey(order: dict[str, Any], member: Participant, reach: Reach) -> Any:
    match order["do"]:
        case "meet":
            for address, contact in order["members"].items():
                member.membership.joined(address, contact)
            return {}
        case "add":
            return (await member.blob_service.store.add(os.urandom(order["size"]))).root.hex()
        case "fetch":
            started, before = time.monotonic(), time.process_time()
            await member.blob_service.exchange.fetch(bytes.fromhex(order["root"]), [order["source"]], timeout=PATIENCE)
            return {"seconds": time.monotonic() - started, "cpu_seconds": time.process_time() - before}
    network = member.network
    heard = [one.address for one in member.membership.table.all() if one.beat and one.address != member.key.address]
    return {
        "connected": sorted(network.connected()),
        "relayed": sorted(network.relayed()),
        "heard": sorted(heard),
        "punched": sorted(network.punched()),
        "unpunched": sorted(network.unpunched()),
        "way": reach.way,
        "seen": reach.seen,
        "cpu_seconds": time.process_time(),
    }


# all of them


class Node(Child):
    """A node in another process."""

    def __init__(self, host: Host, directory: Path) -> None:
        arguments = ["--node", host.address, str(directory)]
        super().__init__([*host.prefix, sys.executable, "-m", "benchmarks.nat", *arguments])
        self.address, self.contact = "", ""

    def ready(self) -> None:
        self.address, self.contact = self.hear()

    def do(self, what: str, **order: Any) -> Any:
        return self.ask({"do": what, **order})


@contextmanager
def nodes(random_ports: bool) -> Iterator[tuple[list[Node], list[Node]]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = stack.enter_context(world(2, random_ports=random_ports))
        made: list[list[Node]] = []
        for group in hosts:
            made.append([Node(host, folder / host.name) for host in group])
        for node in [*made[0], *made[1]]:
            stack.callback(node.end)
        for node in [*made[0], *made[1]]:
            node.ready()
        yield made[0], made[1]


def measure(mib: int, random_ports: bool) -> dict[str, Any]:
    """Let them meet, then move a blob on a direct path and on a relayed one."""
    with nodes(random_ports) as (open_nodes, (one, two)):
        everybody = [*open_nodes, one, two]
        started = time.monotonic()
        for node in everybody:
            node.do("meet", members={other.address: other.contact for other in everybody if other is not node})
        relayed = until(lambda: two.address in one.do("state")["relayed"])
        gossip = until(lambda: two.address in one.do("state")["heard"] and one.address in two.do("state")["heard"])
        ways = [node.do("state")["way"] for node in everybody]
        states = (one.do("state"), two.do("state"))
        direct = _moved(open_nodes[0], one, mib)
        outcome = "unpunched" if random_ports else "punched"
        known = until(lambda: two.address in one.do("state")[outcome] or one.address in two.do("state")[outcome])
        path = "relayed" if random_ports else "punched"
        between = _moved(two, one, mib, carried_by=open_nodes)
        return {
            "mib": mib,
            "seconds_to_connect": round(relayed - started, 1),
            "seconds_to_hear": round(max(gossip, relayed) - started, 1),
            f"seconds_to_{outcome}": round(known - started, 1),
            "ways": ways,
            "seen": [state["seen"] for state in states],
            **{f"direct_{name}": value for name, value in direct.items()},
            **{f"{path}_{name}": value for name, value in between.items()},
        }


def until(done: Any) -> float:
    """When it was. Raises TimeoutError."""
    end = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"not after {PATIENCE:g} s")
        time.sleep(0.1)
    return time.monotonic()


def _moved(source: Node, sink: Node, mib: int, carried_by: list[Node] | None = None) -> dict[str, float]:
    root = source.do("add", size=mib * MIB)
    before = [relay.do("state")["cpu_seconds"] for relay in carried_by or ()]
    took = sink.do("fetch", root=root, source=source.address)
    spent = sum(relay.do("state")["cpu_seconds"] for relay in carried_by or ()) - sum(before)
    size = mib * MIB / 1e6
    return {
        "mb_per_s": round(size / took["seconds"], 1),
        "mb_per_cpu_s": round(size / took["cpu_seconds"], 1),
        "relay_cpu_s": round(spent, 2),
    }


def main() -> int:
    parser = parser_of(__doc__, "4 MiB", "line")
    parser.add_argument("--mib", type=int, default=32, help="size of the blob")
    parser.add_argument("--random-ports", action="store_true", help="routers that translate to another port each time")
    given = parser.parse_args()
    if reason := why_not():
        print(json.dumps({"skipped": reason}) if given.json else f"skipped: {reason}")
        return SKIPPED
    found = measure(4 if given.quick else given.mib, given.random_ports)
    print(json.dumps(found) if given.json else "\n".join(f"{name:32} {value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    silence_logs()
    if sys.argv[1:2] == ["--node"]:
        trio.run(be_node, sys.argv[2], sys.argv[3])
    else:
        sys.exit(main())
