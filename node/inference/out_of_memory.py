"""Memory that ran out: how torch says so, and what is said to people."""

import structlog
import torch

from node.inference.errors import EngineError

_log = structlog.get_logger(__name__)


def smaller(tried: int, unit: str, error: BaseException) -> int:
    """Half of what was tried at a time, said in the log. Raises EngineError if that was one already."""
    if tried <= 1:
        raise EngineError(
            "the engine has too little memory",
            f"not even one of its {unit} fits: {str(error)[:200]}",
            "use a machine with more memory, bfloat16, or a run with shorter sequences",
        ) from None
    let_go()
    _log.warning("engine.smaller_batch", unit=unit, tried=tried, next=tried // 2, reason=str(error)[:200])
    return tried // 2


def left_out(what: str, error: BaseException) -> None:
    """Say in the log that there is no memory for something that can be done without."""
    let_go()
    _log.warning("engine.no_room", what=what, reason=str(error)[:200])


def let_go() -> None:
    """What torch keeps of a GPU's memory for later is for others, too."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
