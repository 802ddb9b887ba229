"""Seconds until a swarm is whole again after a fault, and whether everything that was said meanwhile arrives.

    python -m benchmarks.healing [--nodes 12] [--rate 4.5] [--only FAULT ...] [--rounds 1] [--busy 0] [--quick] [--json]

Each node is a process of the product's parts: network, board, members, peer book, probe and heartbeat, over libp2p on
loopback; the chain's part (who is a member, and where) is told here. Nodes are forked from one process that has the
imports, as the guardian does it. While commitments are posted at `rate` per second in all:

    killed     kill -9 of a quarter of them, started again after 20 s
    frozen     SIGSTOP of one, the trainer's host, for 60 s
    half       SIGSTOP of half of them for 40 s
    restarted  kill -9 of all of them, started again at once

`whole` is the time from the fault's end until every node holds every other one alive by a heartbeat that was signed
after that end; `linked` until all connections are back; `told` until every node has every commitment that was posted
during the fault by those who could speak, through gossip or the board's catch-up. --busy: loops that take a core each
beside the swarm, as on a starved machine.
"""

import json
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from benchmarks.command import parser_of, silence_logs
from benchmarks.recovery import busy_loops
from node.clock import Clock
from node.member import Member, open_member
from node.network.host import Libp2pNetwork
from node.processes.guardian import die_with_parent
from node.progress import ProgressRecord
from node.services.base import Crew
from node.services.heartbeat import Beating
from node.services.membership.peers import Peers
from node.services.membership.reach import Reach
from protocol.identity import Address, NodeKey
from protocol.messages import RolloutCommitted
from protocol.statements import Domain, WorkCommitment, sign

DOMAIN = Domain(31337, Address("0x" + "11" * 20))
POLL = 0.25
SETTLED = 5.0
"""Seconds of a whole swarm before the next fault."""
PATIENCE = 150.0
UNHEARD = 30.0
"""Seconds for which the rest of what was missed is waited for, once everybody is alive."""
FORK = multiprocessing.get_context("fork")


# one node


class Seat:
    """A node: what it hears, and what it is asked."""

    def __init__(self, member: Member, rate: float) -> None:
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
        now, table = trio.current_time(), self.member.membership.table
        beats = [one for one in table.all() if one.address in set(table.live(now)) and one.beat]
        return {
            "alive": len(beats),
            "fresh": [one.address for one in beats if one.beat and one.beat.at >= until],
            "linked": sorted(self.member.network.connected()),
            "heard": [f"{who}:{index}" for who, index in self.heard if since <= index < until],
            "counts": dict(self.member.board.counts),
            "cpu": time.process_time(),
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
        await Peers(member, directory).start(nursery)
        nursery.start_soon(Reach(member, ProgressRecord()).run)
        nursery.start_soon(member.listen)
        nursery.start_soon(beating(member, 1.0).run)
        seat = Seat(member, settings["rate"])
        nursery.start_soon(seat.hear)
        nursery.start_soon(seat.post)
        pipe.send_bytes(b"{}")
        while True:
            order = json.loads(await trio.to_thread.run_sync(pipe.recv_bytes, abandon_on_cancel=True))
            pipe.send_bytes(json.dumps(seat.state(*order)).encode())


def beating(member: Member, seconds: float, pool: int = 1) -> Beating:
    """The product's heartbeat, at a place with what it reads."""
    place: Any = SimpleNamespace(
        **{"key": member.key, "board": member.board, "membership": member.membership, "pool": pool},
        progress=ProgressRecord(),
        clock=Clock(),
        shelf=SimpleNamespace(newest=None),
    )
    return Beating(place, Crew(), "worker", member.network.contacts, seconds)


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

    def ready(self) -> None:
        self._answer()

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def ask(self, since: int, until: int) -> None:
        if self._pipe is not None:
            self._pipe.send_bytes(json.dumps([since, until]).encode())

    def _answer(self) -> Any:
        if self._pipe is None or not self._pipe.poll(PATIENCE):
            raise TimeoutError(f"{self.address} does not answer")
        return json.loads(self._pipe.recv_bytes())

    answer = _answer


class Swarm:
    """Its nodes, the first of them the trainer."""

    def __init__(self, nodes: int, rate: float, folder: Path) -> None:
        keys = [NodeKey.generate() for _ in range(nodes)]
        ports = _free_ports(nodes)
        places = [f"/ip4/127.0.0.1/tcp/{port}" for port in ports]
        members = {key.address: f"{at}/p2p/{key.peer_id}" for key, at in zip(keys, places, strict=True)}
        self.nodes = []
        for key, place in zip(keys, places, strict=True):
            directory = folder / key.address
            directory.mkdir()
            settings = {"listen": place, "members": members, "rate": rate / nodes, "directory": str(directory)}
            self.nodes.append(Node(key, settings))
        self.start(self.nodes)

    @staticmethod
    def start(nodes: Iterable[Node]) -> None:
        for node in nodes:
            node.start()
        for node in nodes:
            node.ready()

    def states(self, since: int, until: int) -> dict[str, Any]:
        for node in self.nodes:
            node.ask(since, until)
        return {node.address: node.answer() for node in self.nodes}

    def end(self) -> None:
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.kill()


def _free_ports(many: int) -> list[int]:
    sockets = [socket.socket() for _ in range(many)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


# what befalls them: each returns who it befell, and when (Unix seconds) it was over


def killed(swarm: Swarm, scale: float) -> list[Node]:
    victims = swarm.nodes[-max(1, len(swarm.nodes) // 4) :]
    for node in victims:
        node.kill()
    time.sleep(20 * scale)
    return _over(victims, again=True)


def frozen(swarm: Swarm, scale: float) -> list[Node]:
    return _stop(swarm.nodes[:1], 60 * scale)


def half(swarm: Swarm, scale: float) -> list[Node]:
    return _stop(swarm.nodes[::2], 40 * scale)


def restarted(swarm: Swarm, scale: float) -> list[Node]:
    for node in swarm.nodes:
        node.kill()
    return _over(swarm.nodes, again=True)


def _stop(victims: list[Node], seconds: float) -> list[Node]:
    for node in victims:
        node.signal(signal.SIGSTOP)
    time.sleep(seconds)
    return _over(victims, again=False)


def _over(victims: list[Node], *, again: bool) -> list[Node]:
    for node in victims:
        node.start() if again else node.signal(signal.SIGCONT)
    return victims


FAULTS: dict[str, Callable[[Swarm, float], list[Node]]] = {
    "killed": killed,
    "frozen": frozen,
    "half": half,
    "restarted": restarted,
}


def measure(swarm: Swarm, name: str, scale: float) -> dict[str, Any]:
    """One fault, and what comes after it."""
    began = _now()
    victims = FAULTS[name](swarm, scale)
    ended = _now()
    if name in ("killed", "restarted"):
        for node in victims:
            node.ready()
    healed = watch(swarm, began, ended, {node.address for node in victims})
    return {"fault": name, "nodes": len(swarm.nodes), "victims": len(victims), **healed}


def watch(swarm: Swarm, began: int, ended: int, victims: set[Address]) -> dict[str, Any]:
    """Ask everybody until all is as it should be; None for what was not within PATIENCE."""
    found: dict[str, Any] = {"whole": None, "linked": None, "told": None}
    missed: int | None = None
    while True:
        states = swarm.states(began, ended)
        after = round((_now() - ended) / 1000, 1)
        all_of_it = set[str]().union(*(state["heard"] for state in states.values()))
        lacking = {who: len(all_of_it - set(state["heard"])) for who, state in states.items()}
        if missed is None:
            missed = sum(lacking.values())
        for sign_, done in (
            ("whole", all(len(state["fresh"]) == len(states) for state in states.values())),
            ("linked", all(len(state["linked"]) == len(states) - 1 for state in states.values())),
            ("told", not any(lacking.values())),
        ):
            if done and found[sign_] is None:
                found[sign_] = after
        enough = found["whole"] is not None and after > found["whole"] + UNHEARD
        if None not in found.values() or enough or after > PATIENCE:
            break
        time.sleep(POLL)
    said = len(all_of_it)
    caught_up = sum(states[who]["counts"].get("caught_up", 0) for who in states)
    return found | {
        "said": said,
        "missed": missed,
        "still_missed": sum(lacking.values()),
        "still_missed_by_victims": sum(lacking[who] for who in victims),
        "caught_up": caught_up,
        "late": _late(states),
    }


def _late(states: dict[str, Any]) -> dict[str, list[str]]:
    """Who still lacks whom."""
    return {who[:8]: [one[:8] for one in states if one not in state["fresh"]] for who, state in states.items()}


def settle(swarm: Swarm) -> float:
    """Seconds until everybody holds everybody alive."""
    began = _now()
    while True:
        if all(len(state["fresh"]) == len(swarm.nodes) for state in swarm.states(began, began).values()):
            return (_now() - began) / 1000
        if _now() - began > 1000 * PATIENCE:
            raise TimeoutError("the swarm does not come together")
        time.sleep(POLL)


def _now() -> int:
    """Unix milliseconds, as heartbeats and commitments are numbered here."""
    return time.time_ns() // 1_000_000


def _row(found: dict[str, Any]) -> str:
    def shown(name: str) -> str:
        return f"{found[name]:5.1f} s" if found[name] is not None else "  never"

    return (
        f"{found['fault']:10} {found['victims']:2} of {found['nodes']}  whole {shown('whole')}  linked "
        f"{shown('linked')}  told {shown('told')}  said {found['said']}, missed {found['missed']}, still missed "
        f"{found['still_missed']}"
    )


def run(nodes: int, rate: float, faults: Sequence[str], rounds: int, scale: float) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        swarm = Swarm(nodes, rate, Path(folder))
        try:
            first = settle(swarm)
            sys.stderr.write(f"{nodes} nodes, all alive to all {first:.1f} s after the last one's start\n")
            for _ in range(rounds):
                for name in faults:
                    time.sleep(SETTLED)
                    settle(swarm)
                    rows.append(measure(swarm, name, scale))
                    sys.stderr.write(_row(rows[-1]) + "\n")
        finally:
            swarm.end()
    return {"nodes": nodes, "rate": rate, "load": os.getloadavg()[1], "start": round(first, 1), "faults": rows}


def main() -> None:
    parser = parser_of(__doc__, "six nodes, a quarter of the seconds", "line")
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--rate", type=float, default=4.5, help="commitments per second of all nodes together")
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside the swarm")
    given = parser.parse_args()
    silence_logs()
    nodes, scale = (6, 0.25) if given.quick else (given.nodes, 1.0)
    with busy_loops(given.busy):
        found = run(nodes, given.rate, given.only, given.rounds, scale) | {"busy": given.busy}
    if given.json:
        print(json.dumps(found))
        return
    for name in given.only:
        times = [row["whole"] or PATIENCE for row in found["faults"] if row["fault"] == name]
        print(f"{name:10} whole after {statistics.median(times):.1f} s ({min(times):.1f} to {max(times):.1f})")


if __name__ == "__main__":
    main()
