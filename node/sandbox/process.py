"""The node's end of a sandbox: its process, started, asked, killed, started again."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from node.sandbox import wire
from node.sandbox.base import CallOutcome, CallStatus, SandboxCall, SandboxLimits, SandboxSession
from node.sandbox.errors import SandboxError, Undecided
from node.sandbox.runtime import child_environment
from node.sandbox.wire import outcome, printable

MAX_REQUEST = 16 << 20
AGAIN = "try again; if it stays so, look at the machine's memory and load (intellect-node doctor)"


class ProcessSandbox:
    """A `Sandbox` whose calls another program of ours makes. module: that program; load: what it shall load.

    Raises SandboxError where the entry does not load, Undecided where this machine cannot tell.
    """

    def __init__(
        self, module: str, load: wire.LoadOrder, limits: SandboxLimits, *, grace_seconds: float = 10.0
    ) -> None:
        # -P: what lies in the working directory is not imported.
        # What the process around a call has, beyond the call's own wall clock, to say that it killed it.
        self._grace_seconds = grace_seconds
        self._argv = [sys.executable, "-P", "-m", module]
        self._load, self._limits = wire.encode(load), limits
        self._entry = load.entry
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions = 0
        self._started()

    def __enter__(self) -> "ProcessSandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: str, *arguments: Any) -> CallOutcome:
        """Raises Undecided."""
        return self._call(SandboxCall(function, arguments))

    def call_all(self, function: str, calls: Sequence[Sequence[Any]]) -> list[CallOutcome | Undecided]:
        return list(self.run(SandboxCall(function, arguments) for arguments in calls))

    def run(self, calls: Iterable[SandboxCall]) -> Iterator[CallOutcome | Undecided]:
        for call in calls:
            try:
                yield self._call(call)
            except Undecided as undecided:
                yield undecided

    def session(self) -> SandboxSession:
        self._sessions += 1
        return _ProcessSession(self, self._sessions)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()  # it tidies up, and ends
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _call(self, call: SandboxCall, session: int = 0, *, goes_on: bool = False) -> CallOutcome:
        body = json.dumps([call.function, list(call.arguments)]).encode()
        if len(body) + len(call.stdin) > MAX_REQUEST:
            # An outcome, not Undecided: the length is the same on every machine.
            return CallOutcome(CallStatus.TOO_LONG, error=f"its arguments have more than {MAX_REQUEST} bytes")
        fuel = min(call.fuel or self._limits.fuel, self._limits.fuel)
        try:
            process = self._started()
        except Undecided:
            # An Undecided is a SandboxError as well, and stays what it is.
            raise
        except SandboxError as error:  # it loaded before
            raise _undecided(error.why) from None
        request = wire.SandboxRequest(body, call.stdin, fuel, session, goes_on)
        ending = self._exchange(process, request, self._limits.seconds + self._grace_seconds)
        if not ending.status:
            raise _undecided(ending.error)
        return outcome(ending)

    def _end(self, session: int) -> None:
        """Where the process is gone, so is the session."""
        if self._process is None or self._process.poll() is not None:
            return
        # Nobody waits for its answer. A process that does not give one is replaced at the next call.
        with suppress(Undecided):
            self._exchange(self._process, wire.SandboxRequest(b"", b"", 1, session), self._grace_seconds)

    def _started(self, *, start_seconds: float = 60.0) -> subprocess.Popen[bytes]:
        """The process, loaded. One that has died is started again."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        try:
            self._process = process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_environment(),
                cwd="/",
                # Ctrl-C at the node's terminal reaches the node only, which then closes this process.
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise _undecided(f"its process cannot be started: {error}") from None
        # A process that neither reads nor writes would hold a blocking pipe beyond any deadline.
        for stream in (process.stdin, process.stdout):
            os.set_blocking(stream.fileno(), False)  # type: ignore[union-attr]
        ready = self._exchange(process, self._load, self._limits.seconds + start_seconds)
        if ready != wire.READY:
            self.close()
            raise _undecided(ready.error) if not ready.status else self._does_not_load(ready)
        return process

    def _exchange(
        self, process: subprocess.Popen[bytes], message: wire.SandboxRequest | bytes, seconds: float
    ) -> wire.GuestEnding:
        """Say one thing, hear one. A process that does not answer is killed. Raises Undecided."""
        data = message if isinstance(message, bytes) else wire.encode(message)
        try:
            wire.write(process.stdin.fileno(), data, seconds)  # type: ignore[union-attr]
            return wire.decode(wire.read(process.stdout.fileno(), seconds), wire.GuestEnding)  # type: ignore[union-attr]
        except (TimeoutError, wire.Closed) as error:
            # An answer that came too late would be taken for that of the next call.
            process.kill()
            self.close()
            why = f"no answer in {seconds:g} s" if isinstance(error, TimeoutError) else "its process ended"
            raise _undecided(why) from None

    def _does_not_load(self, ending: wire.GuestEnding) -> SandboxError:
        said = ending.complained.decode("utf-8", "replace").strip().splitlines()
        why = printable(ending.error or (said[-1] if said else f"exit code {ending.code}"))
        return SandboxError(
            f"{self._entry} cannot be loaded in the sandbox",
            f"{ending.status}: {why}",
            "mend it: only the standard library is there, no network, no files but its own",
        )


class _ProcessSession:
    """A fork of the sandbox's process that waits for its next call."""

    def __init__(self, sandbox: ProcessSandbox, number: int) -> None:
        self._sandbox, self._number = sandbox, number
        self._begun = False

    def call(self, call: SandboxCall) -> CallOutcome:
        begun, self._begun = self._begun, True
        return self._sandbox._call(call, self._number, goes_on=begun)

    def close(self) -> None:
        if self._begun:
            self._begun = False
            self._sandbox._end(self._number)


def _undecided(why: str) -> Undecided:
    return Undecided("the sandbox found no outcome", printable(why), AGAIN)
