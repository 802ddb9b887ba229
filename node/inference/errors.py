"""What can be wrong with an engine, its model or its process."""

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import IntellectError


class EngineError(IntellectError):
    """The engine cannot do what it was asked: no such model, unknown policy, out of bounds."""


class ModelError(EngineError):
    """A model directory or weight image that is missing, broken or of the wrong shape."""


class EngineTimeout(EngineError):
    """A request took longer than its caller waits; it was given up, and the engine goes on with others."""


class EngineCrashed(EngineError):
    """The engine's process died or hung while it had a request; the request may be repeated.

    blameless: the engine said that it was at work on others when it ended.
    """

    def __init__(self, what: str, why: str, remedy: str, *, blameless: bool = False) -> None:
        super().__init__(what, why, remedy)
        self.blameless = blameless


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Of panics in Rust the tokenizers' library makes what is no Exception, and would end the process."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise RuntimeError(str(error)) from None
        raise


# Errors after which an engine's process is of no use any more, in words for its owner.
_NO_MEMORY = ("OutOfMemoryError", "MemoryError")
_LOST = ("CUDA error", "CUDA driver", "HIP error", "NCCL error", "AcceleratorError")
_NO_MEMORY_TEXTS = ("can't allocate memory", "not enough memory", "out of memory", "STATUS_ALLOC_FAILED")
"""Of errors that torch has no type for: the CPU's allocators, CUDA's for page-locked memory, its libraries' for their
workspaces."""


def ran_out(error: BaseException) -> bool:
    """Whether an exception means that a device, or the machine, has no more memory. Torch's errors are known by name
    and text: it is not loaded for this."""
    if any(kind.__name__ in _NO_MEMORY for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY_TEXTS)


def lost_its_device(error: BaseException) -> bool:
    """Whether an exception means that a device is gone, or of no use to this process any more."""
    text = f"{type(error).__name__}: {error}"
    return isinstance(error, RuntimeError) and not ran_out(error) and any(words in text for words in _LOST)


def reason_to_end(error: Exception) -> EngineError | None:
    """None if the process can go on with other requests."""
    text = f"{type(error).__name__}: {error}"[:300]
    if ran_out(error):
        remedy = "give the engine a smaller --batch-tokens, or the machine more memory or less else to do"
        return EngineError("the engine ran out of memory", text, remedy)
    if lost_its_device(error):
        remedy = "see dmesg and nvidia-smi; a driver that hangs needs a restart"
        return EngineError("the engine lost its GPU", text, remedy)
    return None
