"""Which errors end an engine's process, and in which words."""

import io
import os

import pytest

from node.inference.engines import torch_engine
from node.inference.errors import EngineError, reason_to_end
from node.inference.process import Child
from node.inference.server import Server
from node.inference.session import Session
from node.inference.wire import HEADER, Ending, decode_reply


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
    child = Child(io.BytesIO(), sink, Server(lambda run: torch_engine, Session))
    child._check_fatal(EngineError("no", "it is only this request", "ask otherwise"), [1])
    assert not ended and not sink.getvalue()
    child._check_fatal(MemoryError("no more"), [3, 3])
    last = decode_reply(sink.getvalue()[HEADER.size :])
    assert ended == [4] and isinstance(last, Ending)
    assert last.during == (3,) and "memory" in last.what and "no more" in last.why
