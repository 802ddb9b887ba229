"""Opens a sandbox: the one way in for everybody else."""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
from blake3 import blake3

from node.bounded_dict import BoundedDict
from node.limits import cores
from node.sandbox import shelf, wire
from node.sandbox.base import CallOutcome, CallStatus, Sandbox, SandboxCall, SandboxLimits, SandboxSession
from node.sandbox.confined import walls
from node.sandbox.errors import SandboxError, Undecided
from node.sandbox.process import ProcessSandbox
from node.sandbox.runtime import compiled
from node.sandbox.wasi.settings import OPTIMISED, Settings

WASI_HOST = "node.sandbox.wasi.host"
CONFINED_HOST = "node.sandbox.confined.host"
MAX_FILES = 4096
MAX_BYTES = 64 << 20
# No part begins with a dot: neither .. nor the channel's name is a path.
_PATH = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}(/[A-Za-z0-9_][\w.-]{0,99}){0,7}", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w{0,99}(\.[A-Za-z_]\w{0,99}){0,7}", re.ASCII)


def open_wasi(
    files: Mapping[str, bytes], entry: str, limits: SandboxLimits, runtime: Path, *, settings: Settings = OPTIMISED
) -> ProcessSandbox:
    """CPython for WASI with counted instructions: the same outcomes on every machine.

    files: relative path -> content; entry: the module among them whose functions are called; runtime: what
    `find_runtime` found, packages beside it or in this user's cache. Raises SandboxError (the entry does not load),
    RuntimeMissing, Undecided.
    """
    check_files(files, entry)
    # The shelf comes last: a stranger's file never stands in for a pinned archive.
    files = {**files, **shelf.files(limits.packages, runtime.parent)}
    return ProcessSandbox(WASI_HOST, _load(files, entry, limits, str(compiled(runtime, settings))), limits)


def open_confined(files: Mapping[str, bytes], entry: str, limits: SandboxLimits) -> ProcessSandbox:
    """A native Python behind the kernel's walls: about ten times faster, and not the same on every machine.

    For what no verdict depends on. Fuel is CPU time here (`confined.walls.FUEL_PER_SECOND`). Raises SandboxError,
    Undecided where the kernel lacks a wall.
    """
    check_files(files, entry)
    lacking = "the packages of the shelf are made for WASI" if limits.packages else walls.missing()
    if lacking is not None:
        raise Undecided(
            "this machine cannot confine a native program", lacking, "use the WASI sandbox, or a newer kernel"
        )
    return ProcessSandbox(CONFINED_HOST, _load(files, entry, limits, ""), limits)


def _load(files: Mapping[str, bytes], entry: str, limits: SandboxLimits, runtime: str) -> wire.LoadOrder:
    return wire.LoadOrder(
        files=dict(files),
        entry=entry,
        fuel=limits.fuel,
        load_fuel=limits.load_fuel,
        memory_mib=limits.memory_mib,
        output_bytes=limits.output_bytes,
        seconds=limits.seconds,
        runtime=runtime,
        disk_bytes=limits.disk_bytes,
    )


def check_files(files: Mapping[str, bytes], entry: str) -> None:
    """files: relative path -> content; entry: a module among them. Raises SandboxError."""
    for path in files:
        if not _PATH.fullmatch(path):
            raise _refused(f"{path[:100]!r} is no plain relative path", "rename the file: letters, digits, _ . -")
    if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_BYTES:
        raise _refused(f"more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB", "leave out what is not needed")
    place = entry.replace(".", "/")
    if not _MODULE.fullmatch(entry) or not {f"{place}.py", f"{place}/__init__.py"} & files.keys():
        raise _refused(f"there is no module {entry[:100]!r} among them", f"add {place[:100]}.py")


def _refused(why: str, remedy: str) -> SandboxError:
    return SandboxError("these files cannot be put into a sandbox", why, remedy)


# Several sandboxes that have loaded the same, so that many calls are made at one time.
# Every call begins in the same state, so which of them makes it changes nothing.
Opened = Callable[[], Sandbox]


class SandboxPool:
    """A `Sandbox`: for one thread, as each of those in it. open_one: loads another; most: of them, by default as many
    as this process has cores, and no more than four."""

    def __init__(self, open_one: Opened, most: int | None = None) -> None:
        """Raises what the first one raises."""
        self._open = open_one
        self._most = most or min(4, cores())  # processes: each holds what it has loaded
        self._sandboxes = [open_one()]

    def call(self, function: str, *arguments: Any) -> CallOutcome:
        """Raises Undecided."""
        return self._sandboxes[0].call(function, *arguments)

    def run(self, calls: Iterable[SandboxCall]) -> Iterator[CallOutcome | Undecided]:
        """One after the other."""
        return self._sandboxes[0].run(calls)

    def call_all(self, function: str, calls: Sequence[Sequence[Any]]) -> list[CallOutcome | Undecided]:
        wanted = min(self._most, len(calls) // 8)  # starting a sandbox costs about as much as so many short calls
        if wanted < 2 or not self._grow(wanted):
            return self._sandboxes[0].call_all(function, calls)
        # Calls differ in length, so each sandbox takes the next one when it is free.
        waiting: SimpleQueue[int] = SimpleQueue()
        for place in range(len(calls)):
            waiting.put(place)
        found: dict[int, CallOutcome | Undecided] = {}

        def work(sandbox: Sandbox) -> None:
            while True:
                try:
                    place = waiting.get_nowait()
                except Empty:
                    return
                (found[place],) = sandbox.call_all(function, [calls[place]])

        # Threads are enough: what computes is a process, and they wait for its pipe.
        with ThreadPoolExecutor(len(self._sandboxes)) as threads:
            list(threads.map(work, self._sandboxes))
        return [found[place] for place in range(len(calls))]

    def session(self) -> SandboxSession:
        return self._sandboxes[0].session()

    def close(self) -> None:
        for sandbox in self._sandboxes:
            sandbox.close()

    def _grow(self, wanted: int) -> bool:
        """Whether there are two or more. One that cannot be had now is gone without."""
        try:
            while len(self._sandboxes) < wanted:
                self._sandboxes.append(self._open())
        except SandboxError:
            self._most = len(self._sandboxes)
        return len(self._sandboxes) > 1


# Machines that remember, by what was called in them: the same calls in the same order lead to the same machine.
# A machine that waits at the end of its calls is the snapshot from which the next call goes on, so a rollout of n
# turns costs n calls and not n * n / 2. What is not kept any more is built again from its first call. The state's
# hash, which covers memory and files, says whether that led to the same place.
# A call that does not end OK leaves no trace: the machine is as it was before. So a loop without end costs its fuel,
# and not the session.
# A snapshot does not travel between machines. The interpreter waits in the middle of its code, and what stands on its
# native stack cannot be written down; wasmtime offers no way, and the interpreter exports nothing but its start.
KEPT = 64
"""Machines that wait. Each is a process with some megabytes of its own (docs/sandbox.md)."""
_START = bytes(32)


class Sessions:
    """For one thread; blocks. fuel: of all calls of a session together; kept: machines that wait at most.

    replayed: calls that were made again because their machine was gone.
    """

    def __init__(self, opened: Opened, fuel: int, kept: int = KEPT) -> None:
        self._opened, self._fuel, self._kept = opened, fuel, kept
        self._sandbox: Sandbox | None = None
        self._waiting: OrderedDict[bytes, SandboxSession] = OrderedDict()
        self._known = BoundedDict[bytes, CallOutcome](1 << 12)
        self.replayed = 0

    def outcome(self, calls: Sequence[SandboxCall]) -> CallOutcome:
        """Of the last of these calls, made one after the other in one machine. Raises Undecided."""
        return [CallOutcome(CallStatus.OK), *self._outcomes(calls)][-1]

    def state(self, calls: Sequence[SandboxCall]) -> bytes:
        """Of the machine after these calls: the hash that its last one that ended OK left. Raises Undecided."""
        return next((one.state for one in reversed(list(self._outcomes(calls))) if one.status is CallStatus.OK), b"")

    def _outcomes(self, calls: Sequence[SandboxCall]) -> Iterator[CallOutcome]:
        made: list[SandboxCall] = []
        place, left = _START, self._fuel
        for call in calls:
            if left <= 0:
                yield CallOutcome(CallStatus.OUT_OF_FUEL, error="the calls before used up what a session may use")
                return
            # The fuel is part of a call's name (`_place`): with less left, the same call may end otherwise.
            call = replace(call, fuel=min(left, call.fuel or left))
            after = _place(place, call)
            if after not in self._known:
                self._known[after] = self._make(made, place, call, after)
            outcome = self._known[after]
            left -= outcome.fuel
            if outcome.status is CallStatus.OK:
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

    def _make(self, made: Sequence[SandboxCall], place: bytes, call: SandboxCall, after: bytes) -> CallOutcome:
        """The call in the machine in which `made` were made: the one that waits there, or another."""
        # Taken, not looked at: this call moves the machine on, and it is at that place no more.
        session = self._waiting.pop(place, None)
        try:
            if session is None:
                session = self._built(made, place)
            outcome = session.call(call)
        except Undecided:
            if session is not None:
                session.close()
            raise
        if outcome.status is not CallStatus.OK:
            session.close()
            return outcome
        self._waiting[after] = session
        if len(self._waiting) > self._kept:
            self._waiting.popitem(last=False)[1].close()
        return outcome

    def _built(self, made: Sequence[SandboxCall], place: bytes) -> SandboxSession:
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


def _place(before: bytes, call: SandboxCall) -> bytes:
    """32 bytes that name a machine by its calls."""
    asked = (call.function, list(call.arguments), call.stdin, call.fuel)
    return blake3(before + msgspec.msgpack.encode(asked)).digest()
