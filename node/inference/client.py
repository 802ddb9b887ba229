"""The daemon's end of the engine child: start it, ask it, restart it, leave nothing of it behind.

A child that dies, hangs or babbles is killed with everything it started, and a new one takes its place after
a pause that grows with each failure. The request at hand then fails with EngineCrashed: the caller repeats it, and
whichever child answers is given the policy first if it has not got it.
"""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import structlog
import trio

from node.forkserver.child import Anew, Child, Starter
from node.inference.errors import EngineCrashed, EngineError
from node.inference.wire import (
    HEADER,
    REPLY_TO,
    Failed,
    LoadPolicy,
    Prepare,
    Ready,
    Reply,
    Request,
    WireError,
    body_length,
    decode_reply,
    encode,
)
from node.recent import Recent
from protocol.run import VerificationSpec

log = structlog.get_logger()
PREPARE_DEADLINE = 600.0
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 30.0
HEALTHY_SECONDS = 60.0
START_TRIES = 3
WAITING_REQUESTS = 16
READ_SIZE = 1 << 16


class EngineProcess:
    """A supervised engine child that has prepared one run.

    command: argument list of the child; run: canonical RunSpec bytes; assets: directory of its files; kept: how many
    policies' weights a child keeps (`wire.kept_policies`); starter: how children are started, anew by default.
    """

    name = "engine"

    def __init__(
        self,
        command: Sequence[str],
        run: bytes,
        assets: Path,
        *,
        kept: int = 1,
        starter: Starter | None = None,
        env: Mapping[str, str] | None = None,
        prepare_deadline: float = PREPARE_DEADLINE,
    ) -> None:
        self._command = list(command)
        self._prepare = Prepare(run=run, assets_dir=str(assets))
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        self._prepare_deadline = prepare_deadline
        self._starter = starter or Anew()
        self._process: Child | None = None
        self._buffer = bytearray()
        self._next_id = 1
        self._turn = trio.Lock()
        self._ready = trio.Event()
        self._broken = trio.Event()
        self._waiting = 0
        self._rules: VerificationSpec | None = None
        self._kept = kept
        self._held: Recent[bytes, None] = Recent(kept)
        self._starts = 0
        self.ready: Ready | None = None

    @property
    def pid(self) -> int | None:
        """Of the running child."""
        return self._process.pid if self._process else None

    @property
    def restarts(self) -> int:
        """How often a child was started again."""
        return max(self._starts - 1, 0)

    @property
    def engine_name(self) -> str:
        """What the engine calls itself; empty until it is ready."""
        return f"{self.ready.engine} ({self.ready.device}, {self.ready.dtype})" if self.ready else ""

    def check_permitted(self, rules: VerificationSpec) -> None:
        """Raise EngineError unless a run's workers may compute as this engine does. Call when it is ready.

        From then on a child that starts anew and computes in another way serves nobody: its files would be malformed.
        """
        self._rules = rules
        name = self.ready.engine_class if self.ready else ""
        objection = rules.objection(name)
        if objection:
            raise EngineError(
                "this run does not admit this engine",
                f"it computes as {name or 'it does not say'}: {objection}; admitted: {', '.join(rules.admitted)}"[:500],
                "choose --engine-command with --dtype float32 or another --attention, or ask the run's owner to permit "
                "yours and to calibrate on this hardware",
            )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a child running. Raises EngineError if none ever becomes ready."""
        failures = 0
        while True:
            started = time.monotonic()
            try:
                await self._run_child(task_status)
            except EngineError as error:
                hopeless = not isinstance(error, EngineCrashed) or failures + 1 >= START_TRIES
                if self.ready is None and hopeless:
                    raise
                if time.monotonic() - started > HEALTHY_SECONDS:
                    failures = 0
                failures += 1
                log.warning("engine.crashed", why=error.why, failures=failures)
            await trio.sleep(min(FIRST_PAUSE * 2 ** min(failures - 1, 10), LONGEST_PAUSE))

    async def ask(self, request: Request, *, timeout: float, policy: LoadPolicy | None = None) -> Reply:
        """The reply to `request`, of the type that belongs to it, from a child that holds `policy`.

        Raises EngineError if the engine refuses, EngineCrashed if it died or took more than `timeout` seconds.
        """
        if self._waiting >= WAITING_REQUESTS:
            raise EngineError("the engine is busy", f"{self._waiting} requests wait already", "try again later")
        self._waiting += 1
        try:
            async with self._turn:
                with trio.move_on_after(timeout):
                    await self._ready.wait()
                    if policy is not None:
                        await self._hold(policy)
                    return await self._exchange(request)
                raise EngineCrashed("the engine gave no answer", f"{timeout:g} seconds passed", "the node restarts it")
        finally:
            self._waiting -= 1

    async def _hold(self, policy: LoadPolicy) -> None:
        """Ask the child at hand to load a policy that it has not got."""
        if policy.policy_root not in self._held:
            await self._exchange(policy)
            self._held[policy.policy_root] = None

    async def _run_child(self, task_status: trio.TaskStatus[None]) -> None:
        """One child's life: start, prepare, serve until it breaks. Always raises."""
        process = await self._spawn()
        self._process, self._broken = process, trio.Event()
        self._buffer.clear()
        self._held = Recent(self._kept)
        self._starts += 1
        try:
            with trio.fail_after(self._prepare_deadline):
                ready = await self._exchange(self._prepare)
            assert isinstance(ready, Ready)  # noqa: S101 - _exchange checks the type
            first, self.ready = self.ready is None, ready
            log.info("engine.ready", engine=ready.engine, device=ready.device, parameters=ready.parameters)
            if self._rules is not None:
                self.check_permitted(self._rules)
            self._ready.set()
            if first:
                task_status.started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._notice_exit, process)
                await self._broken.wait()
                nursery.cancel_scope.cancel()
            raise EngineCrashed("the engine stopped", f"exit status {process.poll()}", "the node restarts it")
        except trio.TooSlowError:
            raise EngineCrashed("the engine did not start", "no answer to Prepare", "see the engine's log") from None
        finally:
            self._renew()
            self._process = None
            await _kill(process)

    async def _spawn(self) -> Child:
        try:
            return await self._starter.start(self._command, self._env, heard=True)
        except OSError as error:
            raise EngineError(
                "the engine cannot be started", f"{self._command[0]}: {error}", "correct the engine command"
            ) from None

    async def _notice_exit(self, process: Child) -> None:
        await process.wait()
        self._break()

    def _break(self) -> None:
        """The child is of no use any more: `run` replaces it."""
        self._renew()
        self._broken.set()

    def _renew(self) -> None:
        """Requests wait for the next child; those that wait already go on waiting on the same event."""
        if self._ready.is_set():
            self._ready = trio.Event()

    async def _exchange(self, request: Request) -> Reply:
        """Send one request and read its reply. Cancelling it in between makes the child useless."""
        number, self._next_id = self._next_id, self._next_id + 1
        complete = False
        try:
            await self._send(encode(msgspec.structs.replace(request, id=number)))
            reply = decode_reply(await self._receive())
            complete = True
        except (trio.BrokenResourceError, trio.ClosedResourceError, WireError) as error:
            raise EngineCrashed("the engine stopped", str(error) or "its pipe broke", "the node restarts it") from None
        finally:
            if not complete:
                self._break()
        if isinstance(reply, Failed):
            raise EngineError(reply.what, reply.why, reply.remedy)
        if reply.id != number or not isinstance(reply, REPLY_TO[type(request)]):
            self._break()
            raise EngineCrashed("the engine babbles", f"{type(reply).__name__} {reply.id}", "the node restarts it")
        return reply

    async def _send(self, frame: bytes) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise trio.ClosedResourceError("it is not running")
        await process.stdin.send_all(frame)

    async def _receive(self) -> bytes:
        length = body_length(bytes(await self._take(HEADER.size)))
        return bytes(await self._take(length))

    async def _take(self, size: int) -> bytearray:
        while len(self._buffer) < size:
            process = self._process
            if process is None or process.stdout is None:
                raise trio.ClosedResourceError("it is not running")
            data = await process.stdout.receive_some(READ_SIZE)
            if not data:
                raise trio.BrokenResourceError("its output ended")
            self._buffer += data
        taken = self._buffer[:size]
        del self._buffer[:size]
        return taken


async def _kill(process: Child) -> None:
    """Kill the child and all it started: it leads a process group of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        log.debug("engine.already_gone", pid=process.pid)
    with trio.CancelScope(shield=True):
        await process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()
