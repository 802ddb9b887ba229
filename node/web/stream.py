"""A client's connection on which no write waits for ever."""

import trio

STALL = 60.0
"""seconds that a client may take for what is written at once"""


class PatientStream(trio.abc.HalfCloseableStream):
    """hypercorn shields its writes from cancellation, so the deadline must lie below it: a client that has stopped
    reading would else hold its connection, and the end of this process, for as long as it likes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket = stream.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with trio.move_on_after(STALL) as scope:
            await self._stream.send_all(data)
        if scope.cancelled_caught:
            raise trio.BrokenResourceError("the client does not read")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def cut(self) -> None:
        """Close at once, whoever waits for it."""
        self.socket.close()
