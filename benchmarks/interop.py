"""Whether js-libp2p and our network understand each other: dial, Noise, yamux, identify, requests, gossip.

    python -m benchmarks.interop [--messages 300] [--ways PROGRAM-WAY ...] [--json]

Needs Node.js and npm, which install js-libp2p into a temporary folder. Our node serves an echo; interop.mjs dials it
and asks for up to 6 MiB, on single streams and on several at once, closing its side before or after the answer. Then a
js node takes part in our gossip in four ways (interop_mesh.py), each with so many messages, and one of py-libp2p's own
in three. Exit code 1 if any answer is not what was sent, or a message is lost or delivered twice.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
import trio

from benchmarks.interop_mesh import PROGRAM, WAYS, js_node, stand
from benchmarks.interop_py import py_node
from node.network.host import Libp2pNetwork
from protocol.identity import Address, NodeKey

PACKAGES = (
    "libp2p@3",
    "@chainsafe/libp2p-noise",
    "@chainsafe/libp2p-yamux",
    "@libp2p/tcp",
    "@libp2p/identify",
    "@libp2p/gossipsub@17",
    "@libp2p/crypto",
    "@multiformats/multiaddr",
)
DIALLER, NODE = (Path(__file__).with_name(name) for name in ("interop.mjs", "interop_node.mjs"))
LIMIT = 8 << 20
SECONDS = 120.0
MESHES = tuple(f"js-{way}" for way in WAYS) + tuple(f"py-{way}" for way in WAYS if way != "digests")


async def _echo(asker: Address, request: bytes) -> bytes:
    return request


async def answers(folder: Path) -> list[dict[str, Any]]:
    """What the other side found."""
    network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
    network.serve("/echo/1", _echo, max_request=LIMIT)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        command = ["node", str(folder / DIALLER.name), network.contacts()[0]]
        with trio.fail_after(SECONDS):
            ended = await trio.run_process(command, capture_stdout=True, cwd=folder)
        nursery.cancel_scope.cancel()
    return [json.loads(line) for line in ended.stdout.splitlines()]


def measure(folder: Path, ways: Sequence[str], messages: int) -> dict[str, Any]:
    """folder: where the packages are installed."""
    for program in (DIALLER, PROGRAM, NODE):
        shutil.copy(program, folder)
    found = trio.run(answers, folder)
    return {"answers": found, "mesh": [in_mesh(each, messages, folder) for each in ways]}


def in_mesh(which: str, messages: int, folder: Path) -> dict[str, Any]:
    program, _, way = which.partition("-")
    node = js_node(folder, mesh=way != "digests") if program == "js" else py_node()
    return {"program": program} | trio.run(stand, way, messages, node)


def is_whole(found: dict[str, Any]) -> bool:
    losses = ("we_lost_of_theirs", "we_lost_of_ours", "they_lost", "twice")
    same = [answer["same"] for answer in found["answers"]]
    return bool(same) and all(same) and not any(row[loss] for row in found["mesh"] for loss in losses)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300, help="of all who take part, in each way")
    parser.add_argument("--ways", nargs="*", choices=MESHES, default=MESHES)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "package.json").write_text('{"private": true, "type": "module"}')
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *PACKAGES], cwd=folder, check=True)
        found = measure(folder, given.ways, given.messages)
    if given.json:
        print(json.dumps(found))
    else:
        for row in (*found["answers"], *found["mesh"]):
            print(row)
    return int(not is_whole(found))


if __name__ == "__main__":
    sys.exit(main())
