"""The listeners of one node, one an address: page, metrics and gateway may share one or have their own."""

import ssl

import trio

from node.web.address import bind
from node.web.errors import AddressUnusable
from node.web.listener import Listener


class HttpHost:
    """Serves until cancelled whatever is opened on it."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._listeners: dict[str, Listener] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    @property
    def places(self) -> list[str]:
        """HOST:PORT of each, in the order of opening."""
        return [listener.place for listener in self._listeners.values()]

    def at(self, address: str, what: str, flag: str, tls: ssl.SSLContext | None = None) -> Listener:
        """The listener at HOST:PORT, serving from now on; the one that is there, if this node has opened it before.

        what, flag: for errors. Raises AddressUnusable, also where one of two that share an address wants TLS and the
        other does not.
        """
        if self._nursery is None:
            raise RuntimeError("the host does not run")
        known = self._listeners.get(address)
        if known is None or address.endswith(":0"):
            known = self._listeners[address] = Listener(bind(address, what, flag), tls)
            self._nursery.start_soon(known.run)
        elif known.is_tls != (tls is not None):
            why = "something else is served there, and only one of the two wants TLS"
            raise AddressUnusable(what, address, why, flag)
        return known
