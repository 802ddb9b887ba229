"""How guest and host talk: one descriptor. Reading it asks for a request, writing to it replies. Knows no WASI."""

from collections.abc import Callable

from node.sandbox import wire


class GuestEnd(Exception):
    """The guest is done. Leaves the guest's code through the host's function that it called."""


class GuestFinished(GuestEnd):
    """It replied, and asked for another request."""


class Exited(GuestEnd):
    """It called exit."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class TooLong(GuestEnd):
    """It replied or printed more than it may."""


class Channel:
    """begin: gives the request, after which this process is the call's own. limit: bytes of a reply, and of all prints.
    go_on: is called when a call has replied; gives the next one's request in a session, raises Finished elsewhere.

    printed, complained: what came on standard output and error since the call began.
    """

    def __init__(
        self, begin: Callable[[], wire.SandboxRequest], go_on: Callable[[], wire.SandboxRequest], limit: int
    ) -> None:
        self._begin, self._go_on, self._limit = begin, go_on, limit
        self._begun = False
        self._unread = memoryview(b"")
        self._reply = bytearray()
        self._input = b""
        self.printed = bytearray()
        self.complained = bytearray()

    @property
    def reply(self) -> bytes:
        return bytes(self._reply)

    def read(self, size: int) -> bytes:
        """What is left of the request; nothing at its end. Raises Finished."""
        if not self._begun:
            # A reply before the first request is about the loading, and answers no call.
            if self._reply:
                raise GuestFinished
            self._take(self._begin())
            self._begun = True
        elif self._reply and not self._unread:
            # A guest that has replied and reads again asks for its next call.
            self._take(self._go_on())
        part, self._unread = self._unread[:size], self._unread[size:]
        return bytes(part)

    def input(self, size: int) -> bytes:
        """What is left of the call's standard input."""
        part, self._input = self._input[:size], self._input[size:]
        return part

    def room(self, size: int) -> None:
        """Raises TooLong where `size` bytes more of a reply are too many; asked before they are copied."""
        if len(self._reply) + size > self._limit:
            raise TooLong

    def write(self, data: bytes) -> None:
        self._reply += data

    def print(self, data: bytes, *, error: bool) -> None:
        """data: not longer than `spare` + 1. Raises TooLong, with what still fits kept."""
        spare = self.spare
        (self.complained if error else self.printed).extend(data[:spare])
        if len(data) > spare:
            raise TooLong

    @property
    def spare(self) -> int:
        """How many bytes may still be printed."""
        return self._limit - len(self.printed) - len(self.complained)

    def _take(self, request: wire.SandboxRequest) -> None:
        self._unread, self._input = memoryview(request.body), request.stdin
        self._reply.clear()
        self.printed.clear()
        self.complained.clear()
