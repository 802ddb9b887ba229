"""The daemon's end of the engine child: start it, ask it, restart it, leave nothing of it behind.

A child that dies, hangs or babbles is killed with everything it started, and a new one takes its place after a pause
that grows with each one that did nothing. What was in flight is asked again of the next child, which is given the
policy first; callers hear of it only when that has failed twice.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import structlog
import trio

from node.changes import Changes
from node.inference.errors import EngineCrashed, EngineError, EngineTimeout
from node.inference.link import ChildLink, OnProgress
from node.inference.wire import MOST_REQUESTS, AnsweredMessage, EngineReady, LoadPolicy, Prepare, R
from node.processes.forkserver import Anew, ChildProcess, Starter, kill_group
from protocol.run import VerificationSpec

log = structlog.get_logger()
CALIBRATE = (
    "compute as the run admits (--engine, --engine-command), or have this machine measured: intellect-node calibrate "
    "export --run FILE here, calibrate look here and on the others' machines, calibrate merge by the run's owner, who "
    "opens the next pool with it"
)
"""What helps where a class was not calibrated."""


class EngineChild(Protocol):
    """The part of an `EngineProcess` that those drive who have work for it."""

    async def ask(
        self,
        request: AnsweredMessage[R],
        *,
        timeout: float,
        policy: LoadPolicy | None = None,
        on_progress: OnProgress | None = None,
    ) -> R: ...


class EngineProcess:
    """A supervised engine child that has prepared one run.

    command: argument list of the child; run: canonical RunSpec bytes; assets: directory of its files; starter: how
    children are started, anew by default.
    """

    name = "engine"

    def __init__(
        self,
        command: Sequence[str],
        run: bytes,
        assets: Path,
        *,
        starter: Starter | None = None,
        env: Mapping[str, str] | None = None,
        link: Callable[[ChildProcess], ChildLink] = ChildLink,
        first_pause: float = 0.1,
        repeats: int = 2,
    ) -> None:
        self._make_link = link
        self._first_pause = first_pause
        self._repeats = repeats  # of a request whose child ended while it may have been at work on it
        self._command = list(command)
        self._prepare = Prepare(run=run, assets_dir=str(assets))
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        self._starter = starter or Anew()
        self._process: ChildProcess | None = None
        self._link: ChildLink | None = None
        self._ready = trio.Event()
        self._asleep = False
        self._slept = Changes()
        self._was_put_away = False
        """Of the child that runs, or ran last."""
        self._asking = 0
        self._rules: VerificationSpec | None = None
        self._role = "worker"
        self._starts = 0
        self._worked = False
        self.ready: EngineReady | None = None

    @property
    def pid(self) -> int | None:
        """Of the running child."""
        return self._process.pid if self._process else None

    @property
    def asking(self) -> int:
        """Requests that are with it."""
        return self._asking

    @property
    def restarts(self) -> int:
        """How often a child was started again."""
        return max(self._starts - 1, 0)

    @property
    def engine_name(self) -> str:
        """What the engine calls itself; empty until it is ready."""
        return f"{self.ready.engine} ({self.ready.device}, {self.ready.dtype})" if self.ready else ""

    @property
    def used(self) -> dict[str, float]:
        """Seconds of the running child's engine that each kind of work has had (node.inference.scheduler)."""
        return self._link.used if self._link else {}

    def check_permitted(self, rules: VerificationSpec, role: str = "worker") -> None:
        """Raise EngineError unless a run's workers may compute, or its validators look, as this engine does. Call when
        it is ready.

        From then on a child that starts anew and computes in another way serves nobody: its files would be malformed.
        """
        self._rules, self._role = rules, role
        if self._asleep and self.ready is None:
            return  # the first child is asked once it is there
        name = self.ready.engine_class if self.ready else ""
        objection = rules.blind(name) if role == "validator" else rules.objection(name)
        if objection:
            raise EngineError(
                "this run does not admit this engine",
                f"it computes as {name or 'it does not say'}: {objection}; admitted: {', '.join(rules.admitted)}"[:500],
                CALIBRATE,
            )

    async def run(
        self,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
        *,
        longest_pause: float = 30.0,
        healthy_seconds: float = 60.0,
    ) -> None:
        """Keep a child running. Raises EngineError if none ever becomes ready."""
        failures = 0
        if self._asleep:
            task_status.started()
            task_status = trio.TASK_STATUS_IGNORED
        while True:
            await self._slept.until(lambda: not self._asleep)
            started = time.monotonic()
            try:
                await self._run_child(task_status)
            except EngineError as error:
                # Not asked whether it still sleeps: it may have been woken while its child was ending.
                if self._was_put_away:
                    self._starts -= 1  # the next one is no restart
                    continue
                if self._asleep:
                    continue  # there was no child to put away yet
                # Only a child that was never ready ends the service: one that was may have met what passes.
                hopeless = not isinstance(error, EngineCrashed) or failures + 1 >= 3  # it never started
                if self.ready is None and hopeless:
                    raise
                if self._worked or time.monotonic() - started > healthy_seconds:
                    failures = 0
                failures += 1
                log.warning("engine.crashed", what=error.what, why=error.why, failures=failures)
            await trio.sleep(min(self._first_pause * 2 ** min(failures - 1, 10), longest_pause))

    def sleep(self) -> None:
        """End the child, so that its memory is free, and start none until `wake`."""
        self._asleep = True
        self._slept.tell()

    def wake(self) -> None:
        self._asleep = False
        self._slept.tell()

    async def ask(
        self,
        request: AnsweredMessage[R],
        *,
        timeout: float,
        policy: LoadPolicy | None = None,
        on_progress: OnProgress | None = None,
    ) -> R:
        """The reply to `request` from a child that holds `policy`; any number of
        requests may be asked at a time. on_progress: hears how far it is.

        Raises EngineError if the engine refuses, EngineCrashed if it ended under the request and its repetitions,
        EngineTimeout after `timeout` seconds: then the request is cancelled, and the child goes on.
        """
        if self._asleep:
            raise EngineError("the engine is put away", "this node is paused", "intellect-node resume")
        if self._asking >= MOST_REQUESTS:
            raise EngineError("the engine is busy", f"{self._asking} requests wait already", "try again later")
        self._asking += 1
        try:
            with trio.move_on_after(timeout):
                return await self._repeated(request, policy, on_progress)
            raise EngineTimeout("the engine gave no answer", f"{timeout:g} seconds passed", "give it smaller work")
        finally:
            self._asking -= 1

    async def _repeated(
        self, request: AnsweredMessage[R], policy: LoadPolicy | None, on_progress: OnProgress | None
    ) -> R:
        blamed, ends = 0, 0
        while True:
            try:
                return await self._asked(request, policy, on_progress)
            except EngineCrashed as crash:
                blamed, ends = blamed + (not crash.blameless), ends + 1
                # Children that may end while a request is with them, whoever's fault it is.
                if blamed > self._repeats or ends >= 10:
                    raise
                log.info("engine.repeats", request=type(request).__name__, why=crash.why)

    async def _asked(self, request: AnsweredMessage[R], policy: LoadPolicy | None, on_progress: OnProgress | None) -> R:
        while (link := self._link) is None or link.ended.is_set():
            await self._ready.wait()
        # The policy goes with the request, whoever answers it: a caller that counted the child's starts could miss one,
        # skip the load and fail for good.
        if policy is not None:
            await link.hold(policy)
        return await link.exchange(request, on_progress)

    async def _run_child(self, task_status: trio.TaskStatus[None]) -> None:
        """One child's life: start, prepare, serve until it breaks. Always raises."""
        self._worked = self._was_put_away = False
        process = self._process = await self._spawn()
        self._starts += 1
        link, objection = self._make_link(process), None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.run)
                nursery.start_soon(self._put_away, link)
                objection = await self._introduce(link, task_status)
                if objection is None:
                    await link.ended.wait()
                link.close()
                nursery.cancel_scope.cancel()
            raise objection or link.why
        finally:
            self._worked, self._link, self._process = link.worked, None, None
            link.close()
            await _kill(process)

    async def _put_away(self, link: ChildLink) -> None:
        await self._slept.until(lambda: self._asleep)
        self._was_put_away = True
        link.close()

    async def _introduce(self, link: ChildLink, task_status: trio.TaskStatus[None]) -> EngineError | None:
        """Prepare the run and let requests come; what stands against that."""
        before = self.ready
        try:
            with trio.fail_after(600.0):
                self.ready = ready = await link.exchange(self._prepare)
            if self._rules is not None:
                # Each child says its class anew: its program or the machine may have changed since the last one.
                self.check_permitted(self._rules, self._role)
        except trio.TooSlowError:
            return EngineCrashed("the engine did not start", "no answer to Prepare", "see the engine's log")
        except EngineError as error:
            self.ready = before  # of a first one that is not admitted nothing was ready
            return error
        log.info("engine.ready", engine=ready.engine, device=ready.device, parameters=ready.parameters)
        # Not before: no request may reach a child that computes as the run does not admit.
        self._link = link
        self._ready.set()
        self._ready = trio.Event()  # for the next child
        if before is None:
            task_status.started()
        return None

    async def _spawn(self) -> ChildProcess:
        try:
            return await self._starter.start(self._command, self._env, heard=True)
        except OSError as error:
            raise EngineError(
                "the engine cannot be started", f"{self._command[0]}: {error}", "correct the engine command"
            ) from None


async def _kill(process: ChildProcess) -> None:
    """Kill the child and all it started: it leads a process group of its own."""
    kill_group(process.pid)
    # A node that is being cancelled still waits for the killed child: else its process and pipes would stay.
    with trio.CancelScope(shield=True):
        await process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()
