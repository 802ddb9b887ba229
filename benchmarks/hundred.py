"""A hundred nodes on one machine: joined, heard by all, and whole again after a third of them is killed for good.

    python -m benchmarks.hundred [--nodes 100] [--rate 2] [--beat SECONDS] [--quick] [--json]

Each is a process of the product's parts: network, board, members, peer records, probe and heartbeat, over libp2p on
loopback. The chain's part (who is a member, and where) is told here. All are forked from one process that has the
imports, as the guardian does it, and post commitments at `rate` per second in all. `joined`: until the last one is on
the network; `heard`: from then until everybody holds everybody alive by a signed heartbeat; `forgotten`: from the kill
until no survivor holds a dead one alive; `told`: until every survivor has every commitment that survivors posted in the
ten seconds after the kill. MiB are proportional shares of resident memory, by node.

In a swarm each node has a machine; here all share one. A hundred that beat as they would on machines of their own hear
2,000 heartbeats a second together, more than two cores carry. So the gap between two heartbeats is `beat`, by default
the one at which all together hear 100 a second for each core.
"""

import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import trio

from benchmarks.command import parser_of, silence_logs
from node.clock import Clock
from node.member import Participant, open_member
from node.network.host import Libp2pNetwork
from node.processes.guardian import die_with_parent
from node.progress import ProgressRecord
from node.services.base import ServiceManager
from node.services.heartbeat import HeartbeatSender
from node.services.membership.peers import PeerDialler
from node.services.membership.reach import Reach
from protocol.identity import Address, NodeKey
from protocol.liveness import MISSED_DEAD
from protocol.messages import RolloutCommitted
from protocol.statements import Domain, WorkCommitment, sign

DOMAIN = Domain(31337, Address("0x" + "11" * 20))
ASK_SECONDS = 0.25
PATIENCE = 150.0
"""Seconds for a change, beside what missing heartbeats take (`MISSED_DEAD` of them)."""
HEARD_PER_CORE = 100.0
"""Heartbeats a second that all nodes together hear, for each core."""
AFTER = 10.0
"""Seconds after the kill whose commitments must reach everybody."""
FORK = multiprocessing.get_context("fork")


# one node


class Seat:
    """A node: what it hears, and what it is asked."""

    def __init__(self, member: Participant, rate: float) -> None:
        self.member = member
        self.rate = rate
        self.heard: set[tuple[Address, int]] = set()
        """Author and number of each commitment; numbers are Unix milliseconds, and two authors may have the same."""

    async def hear(self) -> None:
        async for signed in self.member.board.subscribe(RolloutCommitted):
            self.heard.add((signed.author, signed.message.commitment.index))

    async def post(self) -> None:
        while True:
            await trio.sleep(1 / self.rate)
            key, index = self.member.key, time.time_ns() // 1_000_000
            work = WorkCommitment(1, key.address, bytes(32), index, index.to_bytes(32, "big"), 5)
            signature = sign(key, DOMAIN, work)
            await self.member.board.post(RolloutCommitted(pool=1, commitment=work, signature=signature, size=9))

    def state(self, since: int, until: int) -> dict[str, Any]:
        """fresh: members that are alive by a heartbeat of `until` or later (Unix ms); heard: of that stretch."""
        table = self.member.membership.table
        alive = set(table.live(trio.current_time()))
        beats = [one for one in table.all() if one.address in alive and one.beat]
        return {
            "alive": len(beats),
            "fresh": [one.address for one in beats if one.beat and one.beat.at >= until],
            "heard": [f"{who}:{index}" for who, index in self.heard if since <= index < until],
        }


async def be_node(pipe: Connection, settings: dict[str, Any]) -> None:
    """Live until killed; answer what the pipe asks."""
    key = NodeKey(bytes.fromhex(settings["secret"]))
    addresses = [Address(each) for each in settings["members"]]
    pool: Any = SimpleNamespace(id=1, manager=addresses[0], validators=addresses[1:2], threshold=1, bootnodes=())
    network = Libp2pNetwork(key, settings["listen"])
    directory = Path(settings["directory"])
    opened = open_member(key, DOMAIN, pool, network, directory / "blobs", quota=1 << 30)
    async with opened as member, trio.open_nursery() as nursery:
        for address, contact in settings["members"].items():
            member.membership.joined(Address(address), contact)
        await PeerDialler(member, directory).start(nursery)
        nursery.start_soon(Reach(member, ProgressRecord()).run)
        nursery.start_soon(member.listen)
        nursery.start_soon(beating(member, settings["beat"]).run)
        seat = Seat(member, settings["rate"])
        nursery.start_soon(seat.hear)
        nursery.start_soon(seat.post)
        pipe.send_bytes(b"{}")
        while True:
            order = json.loads(await trio.to_thread.run_sync(pipe.recv_bytes, abandon_on_cancel=True))
            pipe.send_bytes(json.dumps(seat.state(*order)).encode())


def beating(member: Participant, seconds: float, pool: int = 1) -> HeartbeatSender:
    """The product's heartbeat, at a place with what it reads."""
    place: Any = SimpleNamespace(
        **{"key": member.key, "board": member.board, "membership": member.membership, "pool": pool},
        progress=ProgressRecord(),
        clock=Clock(),
        policy_cache=SimpleNamespace(newest=None),
    )
    return HeartbeatSender(place, ServiceManager(), "worker", member.network.contacts, seconds)


def _begin(pipe: Connection, settings: dict[str, Any], parent: int) -> None:
    die_with_parent(parent)
    trio.run(be_node, pipe, settings)


# all of them


class Node:
    """A node in another process."""

    def __init__(self, key: NodeKey, settings: dict[str, Any]) -> None:
        self.address = key.address
        self._settings = settings | {"secret": key.secret.hex()}
        self._process: Any = None
        self._pipe: Connection | None = None

    def start(self) -> None:
        self._pipe, theirs = FORK.Pipe()
        self._process = FORK.Process(target=_begin, args=(theirs, self._settings, os.getpid()), daemon=True)
        self._process.start()
        theirs.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def ask(self, since: int, until: int) -> None:
        if self._pipe is not None:
            self._pipe.send_bytes(json.dumps([since, until]).encode())

    def answer(self) -> Any:
        if self._pipe is None or not self._pipe.poll(PATIENCE):
            raise TimeoutError(f"{self.address} does not answer")
        return json.loads(self._pipe.recv_bytes())


class Swarm:
    """Its nodes, the first of them the trainer."""

    def __init__(self, nodes: int, rate: float, beat: float, folder: Path) -> None:
        self.patience = PATIENCE + MISSED_DEAD * beat
        keys = [NodeKey.generate() for _ in range(nodes)]
        ports = _free_ports(nodes)
        places = [f"/ip4/127.0.0.1/tcp/{port}" for port in ports]
        members = {key.address: f"{at}/p2p/{key.peer_id}" for key, at in zip(keys, places, strict=True)}
        self.nodes = []
        for key, place in zip(keys, places, strict=True):
            directory = folder / key.address
            directory.mkdir()
            settings = {
                "listen": place,
                "members": members,
                "rate": rate / nodes,
                "beat": beat,
                "directory": str(directory),
            }
            self.nodes.append(Node(key, settings))
        self.start(self.nodes)

    @staticmethod
    def start(nodes: Iterable[Node]) -> None:
        for node in nodes:
            node.start()
        for node in nodes:
            node.answer()

    def states(self, since: int, until: int) -> dict[str, Any]:
        for node in self.nodes:
            node.ask(since, until)
        return {node.address: node.answer() for node in self.nodes}

    def end(self) -> None:
        for node in self.nodes:
            node.kill()


def _free_ports(many: int) -> list[int]:
    sockets = [socket.socket() for _ in range(many)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def settle(swarm: Swarm) -> float:
    """Seconds until everybody holds everybody alive."""
    began = _now()
    while True:
        if all(len(state["fresh"]) == len(swarm.nodes) for state in swarm.states(began, began).values()):
            return (_now() - began) / 1000
        if _now() - began > 1000 * swarm.patience:
            raise TimeoutError("the swarm does not come together")
        time.sleep(ASK_SECONDS)


def _now() -> int:
    """Unix milliseconds, as heartbeats and commitments are numbered here."""
    return time.time_ns() // 1_000_000


def measure(nodes: int, rate: float, beat: float, folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    swarm = Swarm(nodes, rate, beat, folder)
    try:
        joined = time.monotonic() - began
        print(f"{nodes} joined after {joined:.1f} s", file=sys.stderr)
        heard = settle(swarm)
        print(f"everybody hears everybody after {heard:.1f} s more", file=sys.stderr)
        memory = sorted(round(one.memory_full_info().pss / 2**20, 1) for one in psutil.Process().children())
        found = {
            "nodes": nodes,
            "beat": beat,
            "joined": round(joined, 1),
            "heard": round(heard, 1),
            "mib": memory[len(memory) // 2],
        }
        return found | kill_a_third(swarm) | {"load": round(os.getloadavg()[0], 1)}
    finally:
        swarm.end()


def kill_a_third(swarm: Swarm) -> dict[str, Any]:
    """None where something was not so within the swarm's patience."""
    victims = swarm.nodes[-(len(swarm.nodes) // 3) :]
    swarm.nodes = swarm.nodes[: -len(victims)]
    for node in victims:
        node.kill()
    since = int(time.time() * 1000)
    until, found = since + int(AFTER * 1000), {"forgotten": None, "told": None}
    while None in found.values():
        after = round(time.time() - since / 1000, 1)
        states = list(swarm.states(since, until).values())
        said = set[str]().union(*(state["heard"] for state in states))
        if found["forgotten"] is None and all(state["alive"] == len(states) for state in states):
            found["forgotten"] = after
        if found["told"] is None and after > AFTER and all(len(state["heard"]) == len(said) for state in states):
            found["told"] = round(after - AFTER, 1)
        if after > swarm.patience:
            break
        time.sleep(ASK_SECONDS)
    return {"killed": len(victims), "said": len(said), **found}


def main() -> None:
    parser = parser_of(__doc__, "nine nodes", "line")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rate", type=float, default=2.0, help="commitments per second of all nodes together")
    parser.add_argument("--beat", type=float, help="seconds between two heartbeats of a node")
    given = parser.parse_args()
    silence_logs()
    nodes = 9 if given.quick else given.nodes
    beat = given.beat or max(1.0, round(nodes * nodes / (HEARD_PER_CORE * (os.cpu_count() or 1)), 1))
    with tempfile.TemporaryDirectory() as folder:
        found = measure(nodes, given.rate, beat, Path(folder))
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:10} {'never' if value is None else value}")


if __name__ == "__main__":
    main()
