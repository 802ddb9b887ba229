"""The same numbers at every replay, or a word about why not."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from node.training.errors import TrainingError
from node.training.settings import TrainerSettings


@contextmanager
def as_deterministic_as_set(settings: TrainerSettings, device: torch.device) -> Iterator[None]:
    """On a GPU, compute inside with kernels that always add in the same order, if the settings say so.

    Raises TrainingError naming an operation of which there is no such kernel. CPUs always add in the same order.
    """
    if device.type != "cuda" or not settings.deterministic:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    # Not `warn_only`: it lets operations without such a kernel through, and under it torch's memory-efficient attention
    # keeps its backward pass that adds in any order.
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise TrainingError(
            "this model cannot be trained deterministically on this GPU",
            str(error).strip().splitlines()[0][:300],
            "set trainer.deterministic to false: after a kill, a replay may then differ from what was published, which "
            "is logged and does not stop the training",
        ) from error
    finally:
        torch.use_deterministic_algorithms(before)
