"""How a daemon starts its children: anew, as everywhere, or from a fork server (client.py)."""

import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

import trio


class Child(Protocol):
    """The part of `trio.Process` that the daemon uses; it leads a session and a process group of its own."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> trio.abc.SendStream | None: ...
    @property
    def stdout(self) -> trio.abc.ReceiveStream | None: ...

    def poll(self) -> int | None:
        """Its exit status, or minus the signal that ended it; None while it runs."""
        ...

    async def wait(self) -> int:
        """The same, once it has ended."""
        ...


class Starter(Protocol):
    """Starts programs. heard: whether their output comes to us; otherwise it goes where ours does."""

    async def start(self, command: Sequence[str], environment: Mapping[str, str], *, heard: bool) -> Child:
        """Raises OSError if it cannot be started."""
        ...


class Anew:
    """As the system does it."""

    async def start(self, command: Sequence[str], environment: Mapping[str, str], *, heard: bool) -> Child:
        return await trio.lowlevel.open_process(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if heard else None,
            stderr=None,
            env=dict(environment),
            start_new_session=True,
        )
