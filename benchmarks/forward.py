"""Carries connections from one door to another: HOST:PORT, or the path of a unix socket, which namespaces share.

    python -m benchmarks.forward FROM TO

So that hosts in network namespaces of their own find the chain of this machine at their own 127.0.0.1.
"""

import sys
from functools import partial

import trio

CHUNK = 64 * 1024


async def forward(door: str, beyond: str) -> None:
    """Until cancelled."""
    await trio.serve_listeners(partial(_carry, beyond), await _listen(door))


async def _listen(door: str) -> list[trio.SocketListener]:
    host, mark, port = door.rpartition(":")
    if mark:
        return await trio.open_tcp_listeners(int(port), host=host)
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(door)
    listening.listen(64)
    return [trio.SocketListener(listening)]


async def _carry(beyond: str, near: trio.SocketStream) -> None:
    try:
        far = await _open(beyond)
        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(_pass_on, near, far, nursery.cancel_scope)
            nursery.start_soon(_pass_on, far, near, nursery.cancel_scope)
    except* OSError as errors:
        print(f"a connection was not carried: {errors.exceptions[0]}", file=sys.stderr)


async def _open(door: str) -> trio.SocketStream:
    host, mark, port = door.rpartition(":")
    return await trio.open_tcp_stream(host, int(port)) if mark else await trio.open_unix_socket(door)


async def _pass_on(source: trio.SocketStream, sink: trio.SocketStream, both: trio.CancelScope) -> None:
    try:
        while data := await source.receive_some(CHUNK):
            await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # either end went: so does the other
    both.cancel()


if __name__ == "__main__":
    trio.run(forward, sys.argv[1], sys.argv[2])
