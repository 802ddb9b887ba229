"""A hundred nodes on one machine: joined, heard by all, and whole again after a third of them is killed for good.

    python -m benchmarks.hundred [--nodes 100] [--rate 2] [--quick] [--json]

Each is a process of the product's parts (see benchmarks.healing), forked from one that has the imports. `joined`: until
the last one is on the network; `heard`: from then until everybody holds everybody alive by a signed heartbeat;
`forgotten`: from the kill until no survivor holds a dead one alive; `told`: until every survivor has every commitment
that survivors posted in the ten seconds after the kill. MiB are proportional shares of resident memory, by node.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.command import parser_of, silence_logs
from benchmarks.healing import PATIENCE, POLL, Swarm, settle

AFTER = 10.0
"""Seconds after the kill whose commitments must reach everybody."""


def measure(nodes: int, rate: float, folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    swarm = Swarm(nodes, rate, folder)
    try:
        joined = time.monotonic() - began
        print(f"{nodes} joined after {joined:.1f} s", file=sys.stderr)
        heard = settle(swarm)
        print(f"everybody hears everybody after {heard:.1f} s more", file=sys.stderr)
        memory = sorted(round(one.memory_full_info().pss / 2**20, 1) for one in psutil.Process().children())
        found = {"nodes": nodes, "joined": round(joined, 1), "heard": round(heard, 1), "mib": memory[len(memory) // 2]}
        return found | kill_a_third(swarm) | {"load": round(os.getloadavg()[0], 1)}
    finally:
        swarm.end()


def kill_a_third(swarm: Swarm) -> dict[str, Any]:
    """None where something was not so within PATIENCE seconds."""
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
        if after > PATIENCE:
            break
        time.sleep(POLL)
    return {"killed": len(victims), "said": len(said), **found}


def main() -> None:
    parser = parser_of(__doc__, "nine nodes", "line")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rate", type=float, default=2.0, help="commitments per second of all nodes together")
    given = parser.parse_args()
    silence_logs()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(9 if given.quick else given.nodes, given.rate, Path(folder))
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:10} {'never' if value is None else value}")


if __name__ == "__main__":
    main()
