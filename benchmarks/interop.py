"""Whether js-libp2p and our network understand each other: dial, Noise, yamux, identify, requests of up to 6 MiB.

    python -m benchmarks.interop [--json]

Needs Node.js and npm, which install js-libp2p into a temporary folder. Our node serves an echo; interop.mjs dials it
and asks on single streams and on several at once, closing its side before or after the answer. Exit code 1 if any answer is
not what was sent.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import structlog
import trio

from node.network.host import Libp2pNetwork
from protocol.identity import Address, NodeKey

PACKAGES = (
    "libp2p@3",
    "@chainsafe/libp2p-noise",
    "@chainsafe/libp2p-yamux",
    "@libp2p/tcp",
    "@libp2p/identify",
    "@libp2p/crypto",
    "@multiformats/multiaddr",
)
DIALLER = Path(__file__).with_name("interop.mjs")
LIMIT = 8 << 20
SECONDS = 120.0


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "package.json").write_text('{"private": true, "type": "module"}')
        shutil.copy(DIALLER, folder)
        subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *PACKAGES], cwd=folder, check=True)
        found = trio.run(answers, folder)
    if as_json:
        print(json.dumps({"answers": found}))
    else:
        for answer in found:
            print(answer)
    return int(not found or not all(answer["same"] for answer in found))


if __name__ == "__main__":
    sys.exit(main())
