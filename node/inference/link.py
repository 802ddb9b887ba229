"""One child's pipes: any number of requests out, their replies in any order, and an eye on whether it lives.

Knows nothing of restarts. Once it is broken, all that is in flight and all that comes later fails with the same reason.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any

import msgspec
import psutil
import trio

from node.inference.errors import EngineCrashed, EngineError
from node.inference.watchdog import Watchdog
from node.inference.wire import (
    HEADER,
    MOST_REQUESTS,
    REPLY_TO,
    AnsweredMessage,
    Cancel,
    ChildEnding,
    EngineWireError,
    Inspect,
    LoadPolicy,
    Ping,
    Pong,
    Produce,
    R,
    Reply,
    RequestFailed,
    RequestProgress,
    SaidToken,
    answer_to,
    body_length,
    decode_reply,
    encode,
)
from node.processes.forkserver import ChildProcess

_REMEDY = "the node restarts it"
OnProgress = Callable[[RequestProgress | SaidToken], None]


class _Awaited:
    """A request without an answer. on_progress: hears of its progress."""

    def __init__(self, request: AnsweredMessage[Any], on_progress: OnProgress | None) -> None:
        self.request = request
        self.told = on_progress
        self.answered = trio.Event()
        self.reply: Reply | None = None

    def settle(self, reply: Reply | None) -> None:
        self.reply = reply
        self.answered.set()


class ChildLink:
    """The way to a running child."""

    def __init__(
        self,
        process: ChildProcess,
        *,
        last_word: float = 0.5,
        ping_every: float = 1.0,
        silent: float = 5.0,
        cancel_grace: float = 120.0,
    ) -> None:
        self._ping_every = ping_every
        # Seconds in which a request that was cancelled must be answered: what it is at may have to end first.
        self._cancel_grace = cancel_grace
        # Seconds in which what a child said before it ended may still be read, and its end be known.
        self._last_word = last_word
        self._process = process
        self._numbers = itertools.count(1)
        self._awaited: dict[int, _Awaited] = {}
        self._cancelled: dict[int, float] = {}
        self._loading = trio.Lock()
        self._out, self._frames = trio.open_memory_channel[bytes](4 * MOST_REQUESTS)
        self._buffer = bytearray()
        self._dog = Watchdog(time.monotonic(), silent=silent)
        self.ended = trio.Event()
        self._why: EngineCrashed | None = None
        self._during: tuple[int, ...] | None = None
        self.worked = False
        """Whether it has answered something that takes an engine."""
        self.used: dict[str, float] = {}
        """Seconds of the engine that each kind of work has had, as it said last."""

    async def run(self) -> None:
        """Serve until the child is of no use any more; `why` says then what happened."""
        async with trio.open_nursery() as nursery:
            for duty in (self._speak, self._listen, self._watch, self._notice_exit):
                nursery.start_soon(duty)
            await self.ended.wait()
            nursery.cancel_scope.cancel()

    @property
    def why(self) -> EngineCrashed:
        """What ended it."""
        return self._why or EngineCrashed("the engine stopped", "it was told to", _REMEDY)

    def close(self) -> None:
        """Nobody uses the child any more; whatever is in flight fails."""
        self._break("the engine stopped", "it was told to")

    # requests

    async def exchange(self, request: AnsweredMessage[R], on_progress: OnProgress | None = None) -> R:
        """The reply to one request. Raises EngineError if the engine refuses, EngineCrashed if the child ends.

        Cancelling it cancels the request.
        """
        if self._why is not None:
            # It had ended before this request came, which cannot be why.
            raise self._crash(blameless=True)
        number = next(self._numbers)
        awaited = self._awaited[number] = _Awaited(request, on_progress)
        try:
            self._say(msgspec.structs.replace(request, id=number))
            await awaited.answered.wait()
        finally:
            del self._awaited[number]
            if not awaited.answered.is_set():
                # Kept until it is answered, so that the late reply is known and one that never comes is missed.
                self._cancelled[number] = time.monotonic()
                self._say(Cancel(which=number))
        reply = awaited.reply
        if reply is None:
            raise self._crash(blameless=self._during is not None and number not in self._during)
        if isinstance(reply, RequestFailed):
            raise EngineError(reply.what, reply.why, reply.remedy)
        self.worked |= isinstance(request, Produce | Inspect)
        return answer_to(request, reply)

    async def hold(self, policy: LoadPolicy) -> None:
        """See that the child has a policy. It is asked each time: which ones it keeps follows from its jobs, and one
        that it has is not loaded again."""
        # One at a time: two that want a policy at once would have the child read its image twice.
        async with self._loading:
            await self.exchange(policy)

    def _crash(self, *, blameless: bool) -> EngineCrashed:
        return EngineCrashed(self.why.what, self.why.why, self.why.remedy, blameless=blameless)

    # frames

    def _say(self, request: AnsweredMessage[Any] | Cancel | Ping) -> None:
        try:
            self._out.send_nowait(encode(request))
        except trio.WouldBlock:
            self._break("the engine hangs", "it does not read what it is told")

    async def _speak(self) -> None:
        sink = self._process.stdin
        assert sink is not None  # the starter makes a pipe
        try:
            async for frame in self._frames:
                await sink.send_all(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self._gone("its input broke")

    async def _listen(self) -> None:
        try:
            while True:
                length = body_length(await self._take(HEADER.size))
                reply = decode_reply(await self._take(length))
                self._dog.heard(time.monotonic())
                self._hear(reply)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self._gone("its output ended")
        except EngineWireError as error:
            self._break("the engine babbles", error.why)

    def _hear(self, reply: Reply) -> None:
        if isinstance(reply, Pong):
            self._dog.pong(time.monotonic(), reply.beats, reply.busy)
            self.used = reply.used
        elif isinstance(reply, ChildEnding):
            self._during = reply.during
            self._break(reply.what, reply.why, reply.remedy)
        elif isinstance(reply, RequestProgress | SaidToken):
            awaited = self._awaited.get(reply.id)
            # Of a request that was cancelled some may still be on the way.
            if awaited is not None and awaited.told is not None:
                awaited.told(reply)
        else:
            self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        # The reply to what was given up, or one that crossed our Cancel: nobody waits for it.
        if self._cancelled.pop(reply.id, None) is not None:
            return
        awaited = self._awaited.get(reply.id)
        if awaited is None or not isinstance(reply, (REPLY_TO[type(awaited.request)], RequestFailed)):
            self._break("the engine babbles", f"{type(reply).__name__} {reply.id} was not asked for")
        else:
            awaited.settle(reply)

    async def _take(self, size: int) -> bytes:
        source = self._process.stdout
        assert source is not None  # the starter makes a pipe
        read_size = 1 << 16
        while len(self._buffer) < size:
            data = await source.receive_some(read_size)
            if not data:
                raise trio.BrokenResourceError("its output ended")
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    # its end

    async def _watch(self) -> None:
        """Ping, and judge what comes back."""
        while self._why is None:
            # Through the same queue as requests: a child that reads nothing is noticed by its pings as well.
            self._say(Ping())
            await trio.sleep(self._ping_every)
            used, now = None, time.monotonic()
            if self._dog.doubts(now):
                # In a thread: psutil reads /proc of every process of the machine for this.
                used = await trio.to_thread.run_sync(cpu_seconds, self._process.pid)
            hangs = self._dog.look(now, used) or self._overdue()
            if hangs:
                self._break("the engine hangs", hangs)

    def _overdue(self) -> str:
        oldest = min(self._cancelled.values(), default=None)
        late = oldest is not None and time.monotonic() - oldest > self._cancel_grace
        return f"a request that was cancelled does not end in {self._cancel_grace:g} s" if late else ""

    async def _notice_exit(self) -> None:
        await self._process.wait()
        # Its last words may still lie in the pipe, and a ChildEnding says more than an exit status.
        await trio.sleep(self._last_word)
        await self._gone("it ended")

    async def _gone(self, why: str) -> None:
        """Its pipes are closed, or it ended: mostly both."""
        with trio.move_on_after(self._last_word):
            await self._process.wait()
        status = self._process.poll()
        self._break("the engine stopped", why if status is None else f"exit status {status}")

    def _break(self, what: str, why: str, remedy: str = _REMEDY) -> None:
        """The first reason counts."""
        if self._why is None:
            self._why = EngineCrashed(what, why, remedy)
            self.ended.set()
            for awaited in self._awaited.values():
                awaited.settle(None)


def cpu_seconds(pid: int) -> float:
    """Used so far by a process and those that it started; 0 if it is gone."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return sum(sum(one.cpu_times()[:2]) for one in family)
    except (psutil.Error, IndexError):  # the second where one ends while psutil lists them all
        return 0.0
