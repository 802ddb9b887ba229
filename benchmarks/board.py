"""The board: what a message costs with little and with much kept, and what one flooding member costs the others.

    python -m benchmarks.board [--quick] [--json] [--tree CHECKOUT] [--seconds 200 --attack commitments]

The first part is one process without a network. The second is four: three honest nodes post at a steady rate, one
publishes as fast as it can past its own board; real libp2p between real processes. --tree measures the code of another
checkout by the same program.
"""

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import structlog
import trio

from node.network.host import Libp2pNetwork
from node.swarm.board import Board
from node.swarm.membership import Membership
from protocol.identity import Address, NodeKey
from protocol.messages import RolloutCommitted, open_envelope, seal
from protocol.statements import Domain, WorkCommitment, sign, signer_of

HONEST = 3
RATE = 1.0
"""Commitments per second of each honest node, many times what a worker makes."""
SETTLE, DRAIN = 6.0, 8.0
ATTACKS = ("none", "commitments", "replays")
FULL = 4096
"""Messages that a board keeps at most, then and now."""
CROWD = 64
DOMAIN = Domain(31337, Address("0x" + "11" * 20))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter, for a look")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--tree", type=Path, default=Path(__file__).parent.parent, help="the checkout to measure")
    parser.add_argument("--seconds", type=float, help="how long the attack lasts; default: 40, or 12 with --quick")
    parser.add_argument("--attack", choices=ATTACKS, action="append", help="this one only")
    parser.add_argument("--child", choices=("cost", "node"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        trio.run(cost if given.child == "cost" else node, json.loads(sys.stdin.readline()))
        return
    found = measured_cost(given.tree, given.quick)
    for row in found["rows"]:
        print(
            "{kept:5} kept: {us:.0f} us per accepted message, {beyond_signatures_us:.0f} beyond signatures".format(
                **row
            )
        )
    print(f"{found['remembered']:.0%} of an author's messages are kept after another one said {FULL}")
    seconds = given.seconds or (12.0 if given.quick else 40.0)
    found["flood"] = [flooded(given.tree, attack, seconds) for attack in given.attack or ATTACKS]
    for row in found["flood"]:
        print(
            "{attack:12} honest messages heard {heard:.1%}, on the board at the end {kept:.1%}, after {p50_ms:.0f} ms"
            " (p99 {p99_ms:.0f}); CPU per honest node {cpu:.1%}; the last node published {published}, of which one took"
            " {taken}".format(**row)
        )
    if given.json:
        print(json.dumps(found))


def child(tree: Path, kind: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--child", kind]
    return subprocess.Popen(
        command, cwd=tree, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def tell(process: "subprocess.Popen[str]", what: object) -> None:
    assert process.stdin is not None  # noqa: S101 - it was opened with a pipe
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def hear(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None  # noqa: S101 - it was opened with a pipe
    for line in process.stdout:
        if line.startswith("{"):
            return json.loads(line)
    raise RuntimeError("a child ended early")


# -- what a message costs ---------------------------------------------------------------------------


def measured_cost(tree: Path, quick: bool) -> dict[str, Any]:
    process = child(tree, "cost")
    tell(process, {"kept": [400, FULL], "messages": 128 if quick else 384})
    return hear(process)


async def cost(told: dict[str, Any]) -> None:
    rows = [await cost_at(kept, told["messages"]) for kept in told["kept"]]
    print(json.dumps({"rows": rows, "remembered": remembered()}), flush=True)


def remembered() -> float:
    """Which share of an honest author's messages is kept after another one has said FULL within their age."""
    worker, flooder = (NodeKey(bytes([number]) * 32) for number in (1, 2))
    board, _ = seat(Deaf(), worker, [worker, flooder])
    for index in range(20):
        accept(board, worker.address, envelope(worker, index))
    for index in range(FULL):
        board._accept(flooder.address, envelope(flooder, index))
    return sum(signed.author == worker.address for signed in board.messages(RolloutCommitted)) / 20


async def cost_at(kept: int, messages: int) -> dict[str, float]:
    """A crowd of authors who each hold little, so that nobody is over any bound."""
    keys = [NodeKey(number.to_bytes(32, "big")) for number in range(1, CROWD + 1)]
    board, _ = seat(Deaf(), keys[0], keys)
    envelopes = [envelope(keys[n % CROWD], n) for n in range(kept + messages)]
    for raw, key in zip(envelopes[:kept], keys * kept, strict=False):
        accept(board, key.address, raw)
    timed, signatures = [], []
    for n in range(kept, kept + messages):
        started = time.process_time_ns()
        message: Any = open_envelope(DOMAIN, 1, envelopes[n]).message
        signer_of(DOMAIN, message.commitment, message.signature)
        between = time.process_time_ns()
        accept(board, keys[n % CROWD].address, envelopes[n])
        timed.append(time.process_time_ns() - between)
        signatures.append(between - started)
    extra = [whole - part for whole, part in zip(timed, signatures, strict=True)]
    return {
        "kept": kept,
        "us": statistics.median(timed) / 1000,
        "beyond_signatures_us": statistics.median(extra) / 1000,
    }


def accept(board: Board, publisher: Address, raw: bytes) -> None:
    if not board._accept(publisher, raw):
        raise RuntimeError("an honest message was refused")


class Deaf:
    """A network on which nothing happens."""

    def connected(self) -> frozenset[Address]:
        return frozenset()

    def mute(self, member: str, seconds: float) -> None: ...

    def subscribe(self, topic: str, accept: Any) -> Any:
        return trio.open_memory_channel[Any](1)[1]

    def serve(self, protocol: str, handler: Any, *, max_request: int) -> None: ...

    def set_contact(self, member: Any, told: Any) -> None: ...
    def stay_with(self, members: Any) -> None: ...


def seat(network: Any, key: NodeKey, members: Iterable[NodeKey]) -> tuple[Board, Membership]:
    membership = Membership(key.address, network, Address("0x" + "22" * 20), ())
    for member in members:
        membership.joined(member.address, "")
    return Board(network, key, DOMAIN, 1, membership), membership


def envelope(key: NodeKey, index: int) -> bytes:
    commitment = WorkCommitment(1, key.address, bytes(32), index, index.to_bytes(32, "big"), 5)
    return seal(
        key, DOMAIN, RolloutCommitted(pool=1, commitment=commitment, signature=sign(key, DOMAIN, commitment), size=9)
    )


# -- what a flood costs -----------------------------------------------------------------------------


def flooded(tree: Path, attack: str, seconds: float) -> dict[str, Any]:
    """Four processes; the last one attacks, or in the control posts like the others."""
    nodes = [child(tree, "node") for _ in range(HONEST + 1)]
    try:
        roles = ["honest"] * HONEST + ["honest" if attack == "none" else attack]
        for number, (process, role) in enumerate(zip(nodes, roles, strict=True)):
            tell(process, {"number": number, "role": role, "seconds": seconds})
        contacts = {key: to for process in nodes for key, to in hear(process).items()}
        for process in nodes:
            tell(process, contacts)
        for process in nodes:
            hear(process)  # everybody is connected
        for process in nodes:
            tell(process, {"start": time.time() + 1.0})
        told = [hear(process) for process in nodes]
    finally:
        for process in nodes:
            process.kill()
            process.communicate()
    return summary(attack, told[:HONEST], told[HONEST])


def summary(attack: str, honest: Sequence[dict[str, Any]], last: dict[str, Any]) -> dict[str, Any]:
    waits, expected, kept = [], 0, 0
    for poster in honest:
        for other in honest:
            if other is poster:
                continue
            for index, at in poster["posted"].items():
                heard = other["heard"].get(f"{poster['address']} {index}")
                expected += 1
                kept += f"{poster['address']} {index}" in other["kept"]
                if heard is not None:
                    waits.append(1000 * (heard - at))
    waits.sort()
    taken = [sum(name.startswith(last["address"]) for name in node["heard"]) for node in honest]
    return {
        "attack": attack,
        "expected": expected,
        "heard": len(waits) / expected,
        "kept": kept / expected,
        "p50_ms": statistics.median(waits),
        "p99_ms": waits[int(0.99 * (len(waits) - 1))],
        "cpu": statistics.mean(node["cpu"] for node in honest),
        "cpu_flooder": last["cpu"],
        "published": last["published"],
        "taken": max(taken),
        "counts": honest[0]["counts"],
    }


class Node:
    """One node of the second part, in its own process."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.keys = [NodeKey((number + 1).to_bytes(32, "big")) for number in range(HONEST + 1)]
        self.key = self.keys[told["number"]]
        self.role, self.seconds = told["role"], told["seconds"]
        self.network = Libp2pNetwork(self.key, "/ip4/127.0.0.1/tcp/0")
        self.board, self.membership = seat(self.network, self.key, self.keys)
        self.posted: dict[int, float] = {}
        self.heard: dict[str, float] = {}
        self.raws: list[bytes] = []
        self.published = 0

    async def listen(self) -> None:
        async for signed in self.board.subscribe(RolloutCommitted):
            self.heard.setdefault(name_of(signed), time.time())
            self.raws.append(signed.raw)

    async def act(self) -> None:
        if self.role == "honest":
            await self.post()
            return
        mine = [envelope(self.key, index) for index in range(2000)] if self.role == "commitments" else []
        with trio.move_on_after(self.seconds):
            while True:
                for raw in mine or list(self.raws) or [b"nothing yet"]:
                    await self.network.publish(self.board._topic, raw)
                    self.published += 1
                    await trio.lowlevel.checkpoint()

    async def post(self) -> None:
        started = trio.current_time()
        for index in range(int(self.seconds * RATE)):
            raw = envelope(self.key, index)
            self.posted[index] = time.time()
            await self.board.post_raw(raw)
            self.published += 1
            await trio.sleep_until(started + (index + 1) / RATE)

    def told(self, cpu: float) -> dict[str, Any]:
        return {
            "address": self.key.address,
            "posted": self.posted,
            "heard": self.heard,
            "kept": [name_of(signed) for signed in self.board.messages(RolloutCommitted)],
            "cpu": cpu,
            "published": self.published,
            "counts": dict(self.board.counts),
        }


def name_of(signed: Any) -> str:
    return f"{signed.author} {signed.message.commitment.index}"


async def node(told: dict[str, Any]) -> None:
    one = Node(told)
    async with trio.open_nursery() as nursery:
        await nursery.start(one.network.run)
        nursery.start_soon(one.board.run)
        nursery.start_soon(one.listen)
        print(json.dumps({one.key.address: one.network.contacts()[0]}), flush=True)
        for member, contact in json.loads(await trio.to_thread.run_sync(sys.stdin.readline)).items():
            one.membership.joined(member, contact)
        with trio.fail_after(60):
            while len(one.network.connected()) < HONEST:  # noqa: ASYNC110 - no event announces it
                await trio.sleep(0.1)
        await trio.sleep(SETTLE)
        print(json.dumps({"connected": HONEST}), flush=True)
        start = json.loads(await trio.to_thread.run_sync(sys.stdin.readline))["start"]
        await trio.sleep(max(0.0, start - time.time()))
        began, used = time.monotonic(), time.process_time()
        await one.act()
        cpu = (time.process_time() - used) / (time.monotonic() - began)
        await trio.sleep(DRAIN)
        print(json.dumps(one.told(cpu)), flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    main()
