"""Members of one local network whose contacts are of no use: how long until they find each other by multicast?

    python -m benchmarks.lan [--nodes 2] [--json]

Each is a node of the product's parts (benchmarks/nat.py) in a network namespace of its own, all at one bridge. They are
told who is a member, each at an address where nobody is; there is no bootnode, and no way out of the network.
Needs root, `ip` and `iptables`; exit code 77 with the reason without.
"""

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.namespaces import conclude, lan
from benchmarks.nat import MIB, Node, until

NOWHERE = "/ip4/192.168.77.250/tcp/9"


def measure(count: int) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes = [Node(host, folder / host.name, 32.0 * MIB) for host in stack.enter_context(lan(count))]
        for node in nodes:
            stack.callback(node.end)
        for node in nodes:
            node.ready()
        started = time.monotonic()
        useless = {node.address: NOWHERE + node.contact[node.contact.index("/p2p/") :] for node in nodes}
        for node in nodes:
            node.do("meet", members={other: at for other, at in useless.items() if other != node.address})
        connected = until(lambda: all(len(node.do("state")["connected"]) == count - 1 for node in nodes))
        heard = until(lambda: all(len(node.do("state")["heard"]) == count - 1 for node in nodes))
    return {
        "nodes": count,
        "seconds_to_connect": round(connected - started, 1),
        "seconds_to_hear": round(max(heard, connected) - started, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    return conclude(parser, lambda options: measure(options.nodes))


if __name__ == "__main__":
    sys.exit(main())
