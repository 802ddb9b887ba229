"""How long a swarm of real nodes takes over links of a given rate, beside a star and a tree on the same links.

    python -m benchmarks.swarm_exchange [--quick] [--json FILE] [--peers 4,8,16] [--mib 256] [--rate 0.25]

Every node is a process with its own network namespace, whose link the kernel shapes (veth, tc tbf; needs root), or,
without that, with the exchange's own upload and download limits. Peers 50 Mbit/s up and 250 down, the origin 250
up, all times --rate: low enough that two cores, which do the work of all nodes, are not the bottleneck. All peers
learn the blob's name at the same moment; the time is until the last one has it verified on disk. Bound:
max(b / u_s, b / d_min, N b / (u_s + sum u_i)), with b the blob's bytes. Star: everybody fetches from the origin
alone. Tree: two children per node, pieces passed on as they come. Star and tree move a smaller blob and are scaled
up, as their time is proportional.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import trio

from benchmarks.children import Talk
from benchmarks.links import Link, can_shape, links
from node.blobs.exchange import BlobExchange, Limits
from node.blobs.store import BlobStore
from node.network.host import Libp2pNetwork
from protocol.identity import Address, NodeKey

ORIGIN_UP, PEER_UP, DOWN = 250.0, 50.0, 250.0  # Mbit/s
MIB = 1024**2
MBIT = 1e6 / 8


# -- one node, in its own process ------------------------------------------------------------------


async def node(settings: dict[str, Any]) -> None:
    """Follow the orders on stdin, one JSON list per line; answer each with one line."""
    limits = Limits(upload=settings["upload"], download=settings["download"])
    network = Libp2pNetwork(NodeKey.generate(), f"/ip4/{settings['address']}/tcp/0")
    store = BlobStore(Path(settings["folder"]), quota=10**11)
    exchange = BlobExchange(network, store, limits)
    orders = trio.lowlevel.FdStream(os.dup(0))
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        _say([network.address, network.contacts()[0]])
        buffer = b""
        async for part in orders:
            *lines, buffer = (buffer + part).split(b"\n")
            for line in lines:
                _say(await _obey(json.loads(line), network, store, exchange))
        nursery.cancel_scope.cancel()


async def _obey(order: list[Any], network: Libp2pNetwork, store: BlobStore, exchange: BlobExchange) -> Any:
    verb, *rest = order
    if verb == "meet":
        network.set_contacts({Address(each): contact for each, contact in rest[0].items()})
        with trio.fail_after(60):
            while len(network.connected()) < len(rest[0]) - (network.address in rest[0]):  # noqa: ASYNC110
                await trio.sleep(0.05)
        return "met"
    if verb == "make":
        return (await store.add(np.random.default_rng(rest[1]).bytes(rest[0]))).root.hex()
    if verb == "fetch":
        started = trio.current_time()
        sources = [Address(each) for each in rest[1]]
        await exchange.fetch(bytes.fromhex(rest[0]), sources, timeout=1800)
        return trio.current_time() - started
    if verb == "forget":
        for root in store.roots():
            store.evict(root)
        return "forgotten"
    if verb == "scores":
        return {peer: [score.received, score.sent] for peer, score in exchange.scores().items()}
    if verb == "cpu":
        return [time.process_time(), network.stats().requests_out]
    raise ValueError(verb)


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


# -- all of them -----------------------------------------------------------------------------------


class Node(Talk):
    """One node's process."""

    address = ""
    contact = ""

    async def order(self, *order: Any) -> Any:
        return await self.ask(order)


async def start(link: Link, folder: Path) -> Node:
    limits = (0.0, 0.0) if link.shaped else (link.up * MBIT, link.down * MBIT)
    settings = {"address": link.address, "folder": str(folder), "upload": limits[0], "download": limits[1]}
    command = [*link.prefix, sys.executable, "-m", "benchmarks.swarm_exchange", "--node", json.dumps(settings)]
    child = Node(await trio.lowlevel.open_process(command, stdin=-1, stdout=-1))
    child.address, child.contact = await child.hear()
    return child


async def all_do(children: list[Node], orders: list[tuple[Any, ...]]) -> list[Any]:
    answers: list[Any] = [None] * len(children)

    async def one(index: int) -> None:
        answers[index] = await children[index].order(*orders[index])

    async with trio.open_nursery() as nursery:
        for index in range(len(children)):
            nursery.start_soon(one, index)
    return answers


def sources_of(shape: str, number: int, addresses: list[str]) -> list[str]:
    """Whom peer `number` (from 1; 0 is the origin) fetches from."""
    if shape == "star":
        return [addresses[0]]
    if shape == "tree":
        return [addresses[(number - 1) // 2]]
    return [addresses[0], *(each for index, each in enumerate(addresses) if index not in (0, number))]


async def distribute(children: list[Node], shape: str, size: int, seed: int) -> dict[str, float]:
    """One blob from the first of the children to all the others."""
    addresses = [child.address for child in children]
    root = await children[0].order("make", size, seed)
    orders = [("fetch", root, sources_of(shape, number, addresses)) for number in range(1, len(children))]
    times = sorted(await all_do(children[1:], orders))
    await all_do(children, [("forget",)] * len(children))
    return {"first": times[0], "median": statistics.median(times), "last": times[-1]}


def bound(peers: int, size: int, rate: float) -> float:
    """Seconds, of the fluid limit."""
    total = ORIGIN_UP + peers * PEER_UP
    return size / MBIT / rate * max(1 / ORIGIN_UP, 1 / DOWN, peers / total)


async def measure(peers: int, size: int, small: int, *, shape: bool, rate: float) -> list[dict[str, Any]]:
    rates = [(rate * ORIGIN_UP, rate * DOWN), *[(rate * PEER_UP, rate * DOWN)] * peers]
    folder = Path(tempfile.mkdtemp(prefix="swarm-"))
    children: list[Node] = []
    rows = []
    try:
        with links(rates, shape=shape) as made:
            for number, link in enumerate(made):
                children.append(await start(link, folder / str(number)))
            contacts = {child.address: child.contact for child in children}
            await all_do(children, [("meet", contacts)] * len(children))
            for name, amount in (("swarm", size), ("star", small), ("tree", small)):
                times = await distribute(children, name, amount, seed=peers)
                least = bound(peers, amount, rate)
                scaled = {key: value * size / amount for key, value in times.items()}
                row = {"peers": peers, "shape": name, "mib": amount / MIB, "rate": rate, **scaled}
                row["bound"] = bound(peers, size, rate)
                rows.append({**row, "over_bound": times["last"] / least, "links": "tc" if shape else "own limits"})
                print(
                    f"{peers:5d}  {name:6s} {amount / MIB:5.0f} {row['bound']:8.1f} {scaled['first']:8.1f}"
                    f" {scaled['median']:8.1f} {scaled['last']:8.1f} {times['last'] / least:11.2f}",
                    flush=True,
                )
            for child in children:
                assert child.process.stdin  # noqa: S101
                await child.process.stdin.aclose()
            for child in children:
                await child.process.wait()
    finally:
        for child in children:
            if child.process.returncode is None:
                child.process.kill()
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 peers, 32 MiB")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peers", default="4,8,16")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rate", type=float, default=0.25, help="of all links; 1: 250 and 50 Mbit/s up")
    parser.add_argument("--own-limits", action="store_true", help="no namespaces: the exchange's own rate limits")
    parser.add_argument("--node", help=argparse.SUPPRESS)
    options = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(40), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    if options.node:
        trio.run(node, json.loads(options.node))
        return
    counts = [4] if options.quick else [int(each) for each in options.peers.split(",")]
    size = (32 if options.quick else options.mib) * MIB
    small = (8 if options.quick else min(options.mib, 32)) * MIB
    shape = not options.own_limits and can_shape()
    how = "shaped by the kernel (tc tbf, a namespace per node)" if shape else "the exchange's own limits on loopback"
    origin, up, down = (options.rate * each for each in (ORIGIN_UP, PEER_UP, DOWN))
    print(f"{size / MIB:.0f} MiB; origin {origin:g} Mbit/s up, peers {up:g} up and {down:g} down; links: {how}")
    print("peers  shape    MiB  bound s  first s median s   last s  last/bound")
    rows: list[dict[str, Any]] = []
    for count in counts:
        rows += trio.run(partial(measure, count, size, small, shape=shape, rate=options.rate))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
