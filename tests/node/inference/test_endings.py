"""Which errors end an engine's process, and in which words."""

import io
import os

import pytest

from node.inference.engines import torch_engine
from node.inference.errors import EngineError, reason_to_end
from node.inference.process import Conversation
from node.inference.scheduler import EngineScheduler
from node.inference.server import EngineServer
from node.inference.session import EngineSession
from node.inference.wire import HEADER, ChildEnding, Prepare, RequestFailed, decode_reply


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), "memory"),
        (MemoryError(), "memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "memory"),
        (RuntimeError("CUDA error: unspecified launch failure"), "GPU"),
        (RuntimeError("CUDA driver error: device not ready"), "GPU"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (EngineError("the model gives no valid probabilities", "CUDA error: no, its logits", "stop"), None),
    ],
)
def test_only_what_nobody_can_go_on_after_ends_the_process(error: Exception, what: str | None) -> None:
    reason = reason_to_end(error)
    assert (reason is None) if what is None else (reason is not None and what in reason.what)


def test_a_process_that_ends_says_why_and_at_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    sink = io.BytesIO()
    talk = Conversation(
        io.BytesIO(), sink, EngineServer(lambda run: torch_engine, EngineSession), EngineScheduler(), ended.append
    )
    talk._jobs.submit(Prepare(id=3, run=b"", assets_dir=""), lambda done, of: None)  # the owner does nothing
    at_work = talk._jobs._tickets[3]
    talk.end_if_fatal(EngineError("no", "it is only this request", "ask otherwise"), [at_work])
    assert not ended and not sink.getvalue()
    talk.end_if_fatal(MemoryError("no more"), [at_work, at_work])
    blamed = decode_reply(sink.getvalue()[HEADER.size :])
    assert ended == [4] and isinstance(blamed, ChildEnding)
    assert blamed.during == (3,) and "memory" in blamed.what and "no more" in blamed.why


def test_a_reply_that_cannot_be_encoded_is_a_failure_and_no_silence() -> None:
    sink = io.BytesIO()
    talk = Conversation(
        io.BytesIO(),
        sink,
        EngineServer(lambda run: torch_engine, EngineSession),
        EngineScheduler(),
        lambda status: None,
    )
    talk._say(RequestFailed(id=3, what="the chat template fails", why="it says \ud800", remedy="correct it"))
    reply = decode_reply(sink.getvalue()[HEADER.size :])
    assert isinstance(reply, RequestFailed) and reply.id == 3 and "surrogates" in reply.why
