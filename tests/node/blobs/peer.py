"""A node in its own process, for the tests beside this file.

    python -m tests.node.blobs.peer '{"secret": hex, "listen": multiaddr, "contacts": {address: multiaddr},
        "folder": path, "errors": path, "blob": MiB}'

Serves /reverse/1, answers gossip "say" on topic "chat" with "<say> heard", offers one blob of
random bytes, fetches the blob named by a request on /fetch/1, and ends when stdin does. Its first
line on stdout is {"address", "contact", "root"}; its stderr is a file.
"""

import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import structlog
import trio

from node.blobs.exchange import BlobExchange
from node.blobs.store import BlobStore
from node.network.errors import NotRunning
from node.network.host import Libp2pNetwork
from protocol.identity import Address, NodeKey
from tests.node.networks import know


async def main(settings: dict) -> None:
    network = Libp2pNetwork(NodeKey(bytes.fromhex(settings["secret"])), settings["listen"])
    store = BlobStore(Path(settings["folder"]), quota=10**9)
    exchange = BlobExchange(network, store)

    async def reverse(asker: Address, request: bytes) -> bytes:
        return request[::-1]

    async def fetch(asker: Address, request: bytes) -> bytes:
        path = await exchange.fetch(request, [asker, *network.connected()], timeout=60)
        return hashlib.sha256(path.read_bytes()).digest()

    network.serve("/reverse/1", reverse, max_request=1000)
    network.serve("/fetch/1", fetch, max_request=32)
    heard = network.subscribe("chat", lambda publisher, data: True)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: network.run(task_status=task_status))
        know(network, settings["contacts"])
        info = await store.add(os.urandom(settings["blob"] * 2**20))
        print(json.dumps({"address": network.address, "contact": network.contacts()[0], "root": info.root.hex()}))
        sys.stdout.flush()
        nursery.start_soon(_end_with_stdin, nursery.cancel_scope)
        async for _, data in heard:
            if data.startswith(b"say"):
                with suppress(NotRunning):  # it was heard as the network ended
                    await network.publish("chat", data + b" heard")


async def _end_with_stdin(scope: trio.CancelScope) -> None:
    await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    scope.cancel()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    os.dup2(os.open(given["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), sys.stderr.fileno())
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    trio.run(main, given)
