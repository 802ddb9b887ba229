"""What an engine's process answers. Knows requests, and nothing of frames, pipes and threads."""

import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from node.inference.answering import asked
from node.inference.engines import EngineFactory
from node.inference.errors import EngineError
from node.inference.inspect import inspect
from node.inference.produce import produce
from node.inference.scheduler import Cancelled, EngineHandle, EngineScheduler, RequestContext
from node.inference.session import EngineSession
from node.inference.teacher import teach
from node.inference.wire import (
    AnswerRequest,
    EngineReady,
    Inspect,
    Loaded,
    LoadPolicy,
    Prepare,
    Produce,
    Reply,
    Request,
    RequestFailed,
    Teach,
)
from protocol.errors import IntellectError
from protocol.run import RunSpec, decode_run

SessionType = Callable[..., EngineSession]


class EngineServer:
    """Answers requests, from any thread. factory_for: how a run's engine is made; it lives in the owner's thread."""

    def __init__(self, factory_for: Callable[[RunSpec], EngineFactory], session_type: SessionType) -> None:
        self._factory_for = factory_for
        self._session_type = session_type
        self._session: EngineSession | None = None

    def answer(self, request: Request, ticket: RequestContext, owner: EngineScheduler) -> Reply:
        """The reply to a request. Never raises."""
        try:
            return self._serve(request, ticket, owner)
        except IntellectError as error:
            return RequestFailed(id=request.id, what=error.what, why=error.why, remedy=error.remedy)
        except Exception as error:  # the daemon decides what becomes of us; it must hear of it
            log("engine.unexpected", error=repr(error), trace=traceback.format_exc())
            return RequestFailed(
                id=request.id,
                what="the engine failed",
                why=f"{type(error).__name__}: {error}"[:500],
                remedy="see the log of the engine; restart the node if it happens again",
            )

    def _serve(self, request: Request, ticket: RequestContext, owner: EngineScheduler) -> Reply:
        if isinstance(request, Prepare):
            return owner.alone(ticket, lambda: self._prepare(request))
        if (session := self._session) is None:
            raise EngineError("the engine is not ready", "no run was prepared", "send Prepare first")
        if isinstance(request, LoadPolicy):
            started = time.monotonic()

            def stop() -> None:
                if ticket.cancelled:
                    raise Cancelled

            what = request.path, request.patches, request.digests, request.image_root
            session.keep(request.policy_root, *what, stop)
            return Loaded(id=request.id, seconds=time.monotonic() - started)
        desk = EngineHandle(owner, ticket)
        if isinstance(request, Teach):
            return teach(session.at(request, desk), request)
        if isinstance(request, AnswerRequest):
            with session.working_with(request.policy_root, None):
                return asked(session.at(request, desk), request, ticket.said)
        assert isinstance(request, Produce | Inspect)  # the others never get here
        with session.working_with(request.policy_root, request.task):
            view = session.at(request, desk)
            return produce(view, request) if isinstance(request, Produce) else inspect(view, request)

    def _prepare(self, request: Prepare) -> EngineReady:
        run = decode_run(request.run, desk=True)  # the daemon has checked it
        if self._session is not None:
            raise EngineError("the engine is at work", "a run was prepared already", "start another process")
        session = self._session = self._session_type(run, Path(request.assets_dir), self._factory_for(run))
        engine = session.engine
        return EngineReady(
            id=request.id,
            device=engine.device,
            dtype=engine.dtype,
            engine=engine.description,
            parameters=engine.parameters,
            engine_class=engine.name,
        )


def log(event: str, **fields: str) -> None:
    """A JSON line for the daemon's owner, on stderr."""
    print(json.dumps({"event": event, **fields}), file=sys.stderr, flush=True)
