"""What gossip costs each of N nodes: CPU per message, copies, losses, times; beside another checkout of this program.

    python -m benchmarks.gossip [--nodes 12] [--rate 12] [--seconds 20] [--beside DIRECTORY] [--quick] [--json]

Every node is a process with the program's own network on loopback; each publishes 300 bytes at rate / N a second. Idle
CPU is measured first, then that under load; CPU seconds are dependable on a busy machine, times are not.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import trio

from benchmarks.command import parser_of, silence_logs
from node.network.host import Libp2pNetwork
from protocol.identity import Address, NodeKey

TOPIC, SIZE = "benchmark", 300
SETTLE_SECONDS, IDLE_SECONDS, DRAIN_SECONDS = 12.0, 10.0, 5.0


class Node:
    """One process. Speaks lines of JSON: its address; then, once told the others' contacts, what it measured."""

    def __init__(self, rate: float, seconds: float) -> None:
        self.network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
        self.rate, self.seconds = rate, seconds
        self.copies = self.sent = 0
        self.delays: list[float] = []

    async def run(self) -> None:
        heard = self.network.subscribe(TOPIC, lambda publisher, data: True)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.network.run)
            print(json.dumps([self.network.address, self.network.contacts()[0]]), flush=True)
            contacts = json.loads(await trio.to_thread.run_sync(sys.stdin.readline))
            self.network.set_contacts({Address(who): where for who, where in contacts.items()})
            self._count_copies()
            nursery.start_soon(self._hear, heard)
            await trio.sleep(SETTLE_SECONDS)
            idle = await self._spent(trio.sleep, IDLE_SECONDS)
            busy = await self._spent(self._publish)
            mesh = len(self.network._gossip.trees.links[TOPIC])
            print(json.dumps([idle, busy, mesh, self.sent, self.copies, self.delays]), flush=True)
            await trio.to_thread.run_sync(sys.stdin.readline)
            nursery.cancel_scope.cancel()

    async def _spent(self, work: Any, *args: Any) -> float:
        """CPU seconds."""
        before = time.process_time()
        await work(*args)
        return time.process_time() - before

    async def _publish(self) -> None:
        until = trio.current_time() + self.seconds
        while trio.current_time() < until:
            await self.network.publish(TOPIC, f"{time.time()} ".encode().ljust(SIZE, b"x"))
            self.sent += 1
            await trio.sleep(1 / self.rate)
        await trio.sleep(DRAIN_SECONDS)

    async def _hear(self, heard: trio.MemoryReceiveChannel[tuple[Address, bytes]]) -> None:
        async for _, data in heard:
            self.delays.append(time.time() - float(data.split()[0]))

    def _count_copies(self) -> None:
        gossip: Any = self.network._gossip
        hear = gossip._hear

        def counted(*args: Any) -> None:
            self.copies += 1
            hear(*args)

        gossip._hear = counted


def measure(nodes: int, rate: float, seconds: float, checkout: Path) -> dict[str, float]:
    """One swarm, of a checkout's own code and its own copy of this program."""
    command = [sys.executable, "-m", "benchmarks.gossip", "--node", "--rate", str(rate / nodes)]
    command += ["--seconds", str(seconds)]
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    swarm = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=checkout, env=env) for _ in range(nodes)]
    pipes = [(child.stdin, child.stdout) for child in swarm]
    try:
        contacts = dict(json.loads(out.readline()) for _, out in pipes if out)
        for into, _ in pipes:
            if into:
                into.write(json.dumps(contacts) + "\n")
                into.flush()
        told = [json.loads(out.readline()) for _, out in pipes if out]
    finally:
        for child in swarm:
            child.kill()
            child.wait()
    idle, busy, mesh, published, copies, delays = zip(*told, strict=True)
    heard = [delay for one in delays for delay in one]
    extra = sum(busy) / nodes - sum(idle) / nodes * (seconds + DRAIN_SECONDS) / IDLE_SECONDS
    return {
        "idle_percent": round(100 * sum(idle) / nodes / IDLE_SECONDS, 2),
        "busy_percent": round(100 * sum(busy) / nodes / (seconds + DRAIN_SECONDS), 2),
        "cpu_ms_per_message": round(1000 * extra / sum(published), 2),
        "copies": round(sum(copies) / max(len(heard), 1), 2),
        "mesh": round(statistics.mean(mesh), 1),
        "lost_percent": round(100 * (1 - len(heard) / (sum(published) * (nodes - 1))), 2),
        "median_ms": round(1000 * statistics.median(heard), 1) if heard else -1.0,
        "p99_ms": round(1000 * sorted(heard)[int(0.99 * len(heard))], 1) if heard else -1.0,
    }


def main() -> None:
    parser = parser_of(__doc__, "four nodes, five seconds", "line")
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--rate", type=float, default=12.0, help="messages per second of all nodes together")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--node", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--beside", type=Path, metavar="DIRECTORY", help="another checkout, measured before this one")
    given = parser.parse_args()
    silence_logs()
    if given.node:
        trio.run(Node(given.rate, given.seconds).run)
        return
    nodes, seconds = (4, 5.0) if given.quick else (given.nodes, given.seconds)
    checkouts = {"beside": given.beside, "here": Path(__file__).parents[1]}
    rows = {name: measure(nodes, given.rate, seconds, where) for name, where in checkouts.items() if where}
    if given.json:
        print(json.dumps({"nodes": nodes, "rate": given.rate, **rows}))
        return
    print(f"{nodes} nodes, {given.rate:g} messages a second in all")
    for name, row in rows.items():
        print(f"  {name:8}", "  ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in row.items()))


if __name__ == "__main__":
    main()
