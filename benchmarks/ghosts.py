"""Whether the living of a pool find each other among those who died without leaving. No bootnodes, no peer books.

    python -m benchmarks.ghosts [--registered 300 1000 3000 10000] [--alive 2 12 50 150] [--validators 0 4]
        [--draws 3] [--minutes 10] [--seed 7] [--quick] [--json]
    python -m benchmarks.ghosts --real [--registered 1000] [--alive 12] [--draws 3] [--json]

The first lets the product's own rules (members, neighbours, redialer, heartbeats) live for so many minutes under a
virtual clock, from the chain's list of members alone. The trainer is among the living, who start within five seconds.
Of the ghosts half refuse a dial and half never answer, for ten seconds. A link takes 0.1 s; whoever is connected hears
each heartbeat, and asks one peer every two seconds what it missed. `cut off` are living nodes outside the trainer's
component, when the time is over; `in` is when the last one came in; `dials` are those of one node in a minute of the
second half.

With --real they are members with the product's network on loopback, in one process; ghosts are addresses where
nobody listens, or somebody who never says a word. `in` is when all are connected and hold each other alive.
"""

import argparse
import gc
import json
import logging
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from benchmarks.command import parser_of, silence_logs
from benchmarks.healing import beating
from node.clock import Clock
from node.member import Member, open_member
from node.network.contacts import AddressSet, Contact, Told
from node.network.errors import PeerUnavailable
from node.network.host import Libp2pNetwork
from node.network.redial import Link, Redialer
from node.services.base import Crew
from node.services.heartbeat import Beating
from node.swarm.board import CATCH_UP_EVERY
from node.swarm.membership import Membership
from node.swarm.shelf import MAX_AGE
from protocol.identity import Address, NodeKey, PeerId
from protocol.messages import Heartbeat
from protocol.statements import Domain

STARTS = 5.0
LINK_SECONDS, REFUSED_SECONDS, SILENT_SECONDS = 0.1, 0.05, 10.0
MOST_LINKS = 512
PATIENCE = 60.0


# simulated


class Town:
    """Who is registered, who lives, and who is linked with whom."""

    def __init__(self, registered: int, alive: int, validators: int, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311 - a model
        self.registered = [Address(f"0x{self.draw.getrandbits(160):040x}") for _ in range(registered)]
        self.trainer, *rest = self.draw.sample(self.registered, alive)
        self.validators = tuple(rest[:validators])
        self.silent = set(self.draw.sample(self.registered, registered // 2))
        self.nodes = {address: Life(self, address) for address in (self.trainer, *rest)}
        self.silent -= self.nodes.keys()
        self._parts: dict[Address, set[Address]] = {}

    def part_of(self, address: Address) -> set[Address]:
        """All that a node is connected with, over any number of links."""
        if address not in self._parts:
            part, edge = {address}, [address]
            while edge:
                new = self.nodes[edge.pop()].links - part
                part |= new
                edge += new
            self._parts.update(dict.fromkeys(part, part))
        return self._parts[address]

    def link(self, one: "Life", other: "Life") -> None:
        one.links.add(other.own)
        other.links.add(one.own)
        self._parts.clear()
        one.ask(other)
        other.ask(one)

    def cut_off(self) -> int:
        return len(self.nodes) - len(self.part_of(self.trainer))


class Dialler(Redialer):
    def where(self, member: Address) -> AddressSet | None:
        """A model has no addresses to read."""
        contact = Contact(member, PeerId(member), "")
        return AddressSet(member, PeerId(member), (contact,)) if self.knows(member) else None


class Life:
    """A node: its table of members, whom it dials, and how often it speaks are the product's."""

    def __init__(self, town: Town, own: Address) -> None:
        self.town, self.own = town, own
        self.links: set[Address] = set()
        self.up, self.dials = False, 0
        self.heard: dict[Address, tuple[Heartbeat, float]] = {}
        self.redialer = Dialler(own, self._dial, self._link, self._ping)

    async def run(self) -> None:
        await trio.sleep(self.town.draw.uniform(0, STARTS))
        self.up = True
        self.membership = Membership(self.own, self, self.town.trainer, self.town.validators)
        for address in self.town.registered:  # as `joined` does, without a draw after each
            self.membership.table.admit(address)
            self.membership._contacts[address] = ("somewhere",)
            self.membership._place(address)
        station: Any = SimpleNamespace(
            **{"board": self, "membership": self.membership, "key": SimpleNamespace(address=self.own), "pool": 1},
            clock=Clock(),
            shelf=SimpleNamespace(newest=None),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.redialer.run)
            nursery.start_soon(self.membership.tend)
            nursery.start_soon(Beating(station, Crew(), "worker", lambda: (), 2.0).run)
            nursery.start_soon(self._catch_up)

    # the network, as the product's members see it

    def set_contact(self, member: Address, told: Told | None) -> None:
        self.redialer.place(member, told)

    def stay_with(self, members: Set[Address]) -> None:
        self.redialer.stay_with(members)

    def connected(self) -> frozenset[Address]:
        return frozenset(self.links)

    def failures(self) -> Mapping[Address, int]:
        return self.redialer.failures

    def _link(self, where: AddressSet) -> Link:
        return Link.BEST if where.member in self.links else Link.APART

    async def _ping(self, where: AddressSet) -> None:
        await trio.lowlevel.checkpoint()

    async def _dial(self, where: AddressSet) -> None:
        self.dials += 1
        other = self.town.nodes.get(where.member)
        if other is not None and other.up and len(other.links) < MOST_LINKS:
            await trio.sleep(LINK_SECONDS)
            self.town.link(self, other)
            return
        await trio.sleep(SILENT_SECONDS if where.member in self.town.silent else REFUSED_SECONDS)
        raise PeerUnavailable(where.member, "nobody is there")

    # what is said

    async def post(self, beat: Heartbeat) -> None:
        await trio.lowlevel.checkpoint()
        for node in self.town.part_of(self.own):
            self.town.nodes[node].hear(self.own, beat)

    def hear(self, author: Address, beat: Heartbeat) -> None:
        if self.membership.table.beat(author, beat, trio.current_time()):
            self.membership.moved(author, beat)
            self.heard[author] = (beat, trio.current_time())

    def ask(self, other: "Life") -> None:
        """What the board's catch-up brings."""
        for author, (beat, at) in list(other.heard.items()):
            if at > trio.current_time() - MAX_AGE:
                self.hear(author, beat)

    async def _catch_up(self) -> None:
        while True:
            await trio.sleep(CATCH_UP_EVERY)
            if self.links:
                self.ask(self.town.nodes[self.town.draw.choice(sorted(self.links))])


async def _live(town: Town, minutes: float) -> dict[str, Any]:
    came_in, cut = 0.0, len(town.nodes)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            for node in town.nodes.values():
                nursery.start_soon(node.run)
            dials = 0
            for second in range(round(60 * minutes)):
                await trio.sleep(1.0)
                cut = town.cut_off()
                came_in = float(second + 1) if cut else came_in
                if second == round(30 * minutes):
                    dials = sum(node.dials for node in town.nodes.values())
            links = [len(node.links) for node in town.nodes.values()]
            dials = sum(node.dials for node in town.nodes.values()) - dials
            scope.cancel()
    return {
        "cut_off": cut,
        "in": came_in + 1.0,
        "links": median(links),
        "trainer_links": len(town.nodes[town.trainer].links),
        "dials": round(dials / len(links) / (minutes / 2), 1),
    }


def simulated(registered: int, alive: int, validators: int, seed: int, minutes: float) -> dict[str, Any]:
    random.seed(seed)
    town = Town(registered, alive, validators, seed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    began = time.monotonic()
    found = trio.run(_live, town, minutes, clock=clock)
    return {**{"registered": registered, "alive": alive, "validators": validators, "seed": seed}, **found} | {
        "took": round(time.monotonic() - began, 1)
    }


# real


async def real(registered: int, alive: int, seed: int) -> dict[str, Any]:
    keys = [NodeKey.generate() for _ in range(alive)]
    ghosts = [NodeKey.generate() for _ in range(registered - alive)]
    pool: Any = SimpleNamespace(id=1, manager=keys[0].address, validators=(), bootnodes=())
    domain = Domain(31337, keys[0].address)
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (mute,) = await trio.open_tcp_listeners(0, host="0.0.0.0", backlog=1024)  # noqa: S104 - all of loopback
        nursery.start_soon(_listen_and_say_nothing, mute)
        port = mute.socket.getsockname()[1]
        members: list[Member] = []
        for number, key in enumerate(keys):
            network = Libp2pNetwork(key, "/ip4/127.0.0.1/tcp/0")
            opened = open_member(key, domain, pool, network, folder / str(number), quota=1 << 20)
            members.append(await stack.enter_async_context(opened))
        told = {one.key.address: one.network.contacts()[0] for one in members}
        told |= {ghost.address: _nowhere(ghost, number, port) for number, ghost in enumerate(ghosts)}
        shuffled = list(told.items())
        random.Random(seed).shuffle(shuffled)  # noqa: S311 - a draw
        began = trio.current_time()
        for member in members:
            for address, contact in shuffled:
                member.membership.joined(address, contact)
            await trio.lowlevel.checkpoint()
            nursery.start_soon(member.listen)
            nursery.start_soon(beating(member, 2.0).run)
        known = trio.current_time()
        linked = in_ = None
        with trio.move_on_after(PATIENCE):
            while in_ is None:
                await trio.sleep(0.05)
                if linked is None and all(member.network.connected() for member in members):
                    linked = trio.current_time() - known
                if all(len(member.membership.table.live(trio.current_time())) == alive for member in members):
                    in_ = trio.current_time() - known
        links = [len(member.network.connected()) for member in members]
        nursery.cancel_scope.cancel()
    return {
        **{"registered": registered, "alive": alive, "seed": seed, "read": round(known - began, 1)},
        "linked": linked and round(linked, 1),
        "in": in_ and round(in_, 1),
        "links": [min(links), max(links)],
        "alone": sum(not each for each in links),
    }


async def _listen_and_say_nothing(listener: trio.SocketListener) -> None:
    await trio.serve_listeners(_say_nothing, [listener])


async def _say_nothing(stream: trio.SocketStream) -> None:
    async for _ in stream:
        pass


def _nowhere(ghost: NodeKey, number: int, mute: int) -> str:
    """On loopback, each on a host of its own: one where nobody listens, or one who does and never says a word."""
    host = f"127.{1 + number // 60_000}.{number // 250 % 250}.{1 + number % 250}"
    return f"/ip4/{host}/tcp/{mute if number % 2 else 9}/p2p/{ghost.peer_id}"


# both


def _runs(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for registered in given.registered:
        for alive in given.alive:
            for draw in range(given.draws):
                seed = given.seed + draw
                if given.real:
                    yield trio.run(real, registered, alive, seed)
                    continue
                for validators in given.validators:
                    if validators < alive:
                        yield simulated(registered, alive, validators, seed, given.minutes)


def main(args: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, "300 registered, 12 alive, one draw of two minutes", "line")
    parser.add_argument("--registered", type=int, nargs="+")
    parser.add_argument("--alive", type=int, nargs="+")
    parser.add_argument("--validators", type=int, nargs="+", default=[0, 4], help="of the living")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10.0, help="of virtual time")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--real", action="store_true", help="members on loopback")
    given = parser.parse_args(args)
    silence_logs(logging.CRITICAL)
    if given.quick:
        given.registered, given.alive, given.draws, given.minutes = [300], [12], 1, 2.0
    given.registered = given.registered or ([1000] if given.real else [300, 1000, 3000, 10_000])
    given.alive = given.alive or ([12] if given.real else [2, 12, 50, 150])
    gc.freeze()
    rows: list[dict[str, Any]] = []
    for run in _runs(given):
        rows.append(run)
        print("  ".join(f"{name} {value}" for name, value in run.items()), flush=True)
    if given.json:
        print(json.dumps({"load": os.getloadavg()[1], "rows": rows}))


if __name__ == "__main__":
    main()
