"""The engine child: `python -m node.inference.process [--dtype bfloat16 ...]`, driven by the daemon over pipes.

Stdout carries frames (wire.py) and nothing else; logs go to stderr as JSON lines. When stdin ends the process
ends at once, so that no engine outlives its daemon, however that died.
"""

import functools
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from node.inference.engines import EngineFactory, make_engine  # noqa: E402 - the environment must be set first
from node.inference.errors import EngineError  # noqa: E402
from node.inference.inspect import inspect  # noqa: E402
from node.inference.produce import produce  # noqa: E402
from node.inference.session import Session  # noqa: E402
from node.inference.settings import devices  # noqa: E402
from node.inference.wire import (  # noqa: E402
    HEADER,
    Failed,
    Inspect,
    Loaded,
    LoadPolicy,
    Prepare,
    Produce,
    Ready,
    Reply,
    Request,
    WireError,
    body_length,
    decode_request,
    encode,
)
from node.inference.wish import Wish, wish_from  # noqa: E402
from protocol.errors import IntellectError  # noqa: E402
from protocol.run import RunSpec, decode_run  # noqa: E402

QUEUED_FRAMES = 8
SessionType = Callable[..., Session]


class Server:
    """Answers requests one after the other."""

    def __init__(self, factory_for: Callable[[RunSpec], EngineFactory], session_type: SessionType) -> None:
        self._factory_for = factory_for
        self._session_type = session_type
        self._session: Session | None = None

    def answer(self, body: bytes) -> Reply:
        """The reply to one frame's body. Never raises."""
        try:
            request = decode_request(body)
        except WireError as error:
            return Failed(what=error.what, why=error.why, remedy="report this: the daemon sent it")
        try:
            return self._serve(request)
        except IntellectError as error:
            return Failed(id=request.id, what=error.what, why=error.why, remedy=error.remedy)
        except Exception as error:  # the daemon decides what becomes of us; it must hear of it
            _log("engine.unexpected", error=repr(error), trace=traceback.format_exc())
            return Failed(
                id=request.id,
                what="the engine failed",
                why=f"{type(error).__name__}: {error}"[:500],
                remedy="see the log of the engine; restart the node if it happens again",
            )

    def _serve(self, request: Request) -> Reply:
        if isinstance(request, Prepare):
            return self._prepare(request)
        session = self._session
        if session is None:
            raise EngineError("the engine is not ready", "no run was prepared", "send Prepare first")
        if isinstance(request, LoadPolicy):
            started = time.monotonic()
            session.keep(request.policy_root, request.path)
            return Loaded(id=request.id, seconds=time.monotonic() - started)
        if isinstance(request, Produce):
            return produce(session.at(request.task, request.index), request)
        assert isinstance(request, Inspect)  # noqa: S101 - the union is exhausted
        return inspect(session.at(request.task, request.index), request)

    def _prepare(self, request: Prepare) -> Ready:
        run = decode_run(request.run, desk=True)  # the daemon has checked it
        if self._session is not None:
            self._session.close()
        session = self._session = self._session_type(run, Path(request.assets_dir), self._factory_for(run))
        engine = session.engine
        return Ready(
            id=request.id,
            device=engine.device,
            dtype=engine.dtype,
            engine=engine.description,
            parameters=engine.parameters,
            engine_class=engine.name,
        )


def _as_wished(wish: Wish) -> Callable[[RunSpec], EngineFactory]:
    return lambda run: functools.partial(make_engine, settings=wish.granted(run.verification.admitted, devices()))


def main(session_type: SessionType = Session, factory: EngineFactory | None = None) -> None:
    """Serve until stdin ends. factory: if none is given, the engine that command line, machine and run want."""
    factory_for = _as_wished(wish_from(sys.argv[1:])) if factory is None else lambda _: factory
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not break the frames
    server = Server(factory_for, session_type)
    frames: queue.Queue[bytes] = queue.Queue(QUEUED_FRAMES)
    threading.Thread(target=_read_frames, args=(source, frames), daemon=True).start()
    while True:
        reply = encode(server.answer(frames.get()))
        try:
            sink.write(reply)
            sink.flush()
        except OSError:  # the daemon is gone
            os._exit(0)


def _read_frames(source: BinaryIO, frames: "queue.Queue[bytes]") -> None:
    """Feed the main thread; end the process when the stream ends or cannot be followed any more."""
    try:
        while header := _exactly(source, HEADER.size):
            body = _exactly(source, body_length(header))
            if body is None:
                break
            frames.put_nowait(body)
    except (WireError, OSError, queue.Full) as error:
        _log("engine.input_broken", error=str(error))
        os._exit(3)
    os._exit(0)


def _exactly(source: BinaryIO, size: int) -> bytes | None:
    data = source.read(size)
    return data if len(data) == size else None


def _log(event: str, **fields: str) -> None:
    print(json.dumps({"event": event, **fields}), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
