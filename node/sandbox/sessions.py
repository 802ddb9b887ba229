"""Machines that remember, by what was called in them: the same calls in the same order lead to the same machine.

A machine that waits at the end of its calls is the snapshot from which the next call goes on, so a rollout of n turns
costs n calls and not n * n / 2. What is not kept any more is built again from its first call. The state's hash, which
covers memory and files, says whether that led to the same place.

A call that does not end OK leaves no trace: the machine is as it was before. So a loop without end costs its fuel, and
not the session.

A snapshot does not travel between machines. The interpreter waits in the middle of its code, and what stands on its
native stack cannot be written down; wasmtime offers no way, and the interpreter exports nothing but its start.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec
from blake3 import blake3

from node.recent import Recent
from node.sandbox.base import Call, Outcome, Sandbox, Session, Status
from node.sandbox.errors import Undecided

KEPT = 64
"""Machines that wait. Each is a process with some megabytes of its own (docs/sandbox.md)."""
_REMEMBERED = 1 << 12
_START = bytes(32)


class Sessions:
    """For one thread; blocks. fuel: of all calls of a session together; kept: machines that wait at most.

    replayed: calls that were made again because their machine was gone.
    """

    def __init__(self, opened: Callable[[], Sandbox], fuel: int, kept: int = KEPT) -> None:
        self._opened, self._fuel, self._kept = opened, fuel, kept
        self._sandbox: Sandbox | None = None
        self._waiting: OrderedDict[bytes, Session] = OrderedDict()
        self._known = Recent[bytes, Outcome](_REMEMBERED)
        self.replayed = 0

    def outcome(self, calls: Sequence[Call]) -> Outcome:
        """Of the last of these calls, made one after the other in one machine. Raises Undecided."""
        outcome = Outcome(Status.OK)
        for outcome in self._outcomes(calls):  # noqa: B007 - the last one
            pass
        return outcome

    def state(self, calls: Sequence[Call]) -> bytes:
        """Of the machine after these calls: the hash that its last one that ended OK left. Raises Undecided."""
        return next((one.state for one in reversed(list(self._outcomes(calls))) if one.status is Status.OK), b"")

    def _outcomes(self, calls: Sequence[Call]) -> Iterator[Outcome]:
        made: list[Call] = []
        place, left = _START, self._fuel
        for call in calls:
            if left <= 0:
                yield Outcome(Status.OUT_OF_FUEL, error="the calls before used up what a session may use")
                return
            call = replace(call, fuel=min(left, call.fuel or left))
            after = _place(place, call)
            if after not in self._known:
                self._known[after] = self._make(made, place, call, after)
            outcome = self._known[after]
            left -= outcome.fuel
            if outcome.status is Status.OK:
                made.append(call)
                place = after
            yield outcome

    @property
    def sandbox(self) -> Sandbox:
        """That in which the machines are; opened when first needed, and good for calls by themselves. Raises
        SandboxError, Undecided."""
        if self._sandbox is None:
            self._sandbox = self._opened()
        return self._sandbox

    def forget(self) -> None:
        """End the machines that wait, and nothing else."""
        while self._waiting:
            self._waiting.popitem()[1].close()

    def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        self._waiting.clear()  # they end with their sandbox
        if sandbox is not None:
            sandbox.close()

    def _make(self, made: Sequence[Call], place: bytes, call: Call, after: bytes) -> Outcome:
        """The call in the machine in which `made` were made: the one that waits there, or another."""
        session = self._waiting.pop(place, None)
        try:
            if session is None:
                session = self._built(made, place)
            outcome = session.call(call)
        except Undecided:
            if session is not None:
                session.close()
            raise
        if outcome.status is not Status.OK:
            session.close()
            return outcome
        self._waiting[after] = session
        if len(self._waiting) > self._kept:
            self._waiting.popitem(last=False)[1].close()
        return outcome

    def _built(self, made: Sequence[Call], place: bytes) -> Session:
        session = self.sandbox.session()
        state = b""
        try:
            for call in made:
                self.replayed += 1
                state = session.call(call).state
        except Undecided:
            session.close()
            raise
        known = self._known.get(place)
        if known is not None and known.state != state:
            session.close()
            raise Undecided("a session came out differently", "the same calls led to another state", "test the memory")
        return session


def _place(before: bytes, call: Call) -> bytes:
    """32 bytes that name a machine by its calls."""
    asked = (call.function, list(call.arguments), call.stdin, call.fuel)
    return blake3(before + msgspec.msgpack.encode(asked)).digest()
