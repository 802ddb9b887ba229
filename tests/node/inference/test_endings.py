"""Which errors end an engine's process, and in which words."""

import pytest

from node.inference.endings import reason_to_end
from node.inference.errors import EngineError


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), "memory"),
        (MemoryError(), "memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "memory"),
        (RuntimeError("CUDA error: unspecified launch failure"), "GPU"),
        (RuntimeError("CUDA driver error: device not ready"), "GPU"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (EngineError("the model gives no valid probabilities", "CUDA error: no, its logits", "stop"), None),
    ],
)
def test_only_what_nobody_can_go_on_after_ends_the_process(error: Exception, what: str | None) -> None:
    reason = reason_to_end(error)
    assert (reason is None) if what is None else (reason is not None and what in reason.what)
