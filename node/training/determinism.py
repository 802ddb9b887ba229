"""The same numbers at every replay, or a word about why not."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from node.training.errors import TrainingError
from node.training.settings import TrainerSettings


@contextmanager
def as_deterministic_as_set(settings: TrainerSettings, device: torch.device) -> Iterator[None]:
    """On a GPU, compute inside in the precision that all trainers of a class have, and, if the settings say so, with
    kernels that always add in the same order.

    Raises TrainingError naming an operation of which there is no such kernel. CPUs always add in the same order.
    """
    if device.type != "cuda":
        yield
        return
    with _precision(), _deterministic() if settings.deterministic else nullcontext():
        yield


@contextmanager
def _precision() -> Iterator[None]:
    """Whoever replays a step needs the same: it is no setting, so it is set where training and replay both begin."""
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision("high")  # TF32 keeps more bits than the published bf16 weights have
    matmul.allow_bf16_reduced_precision_reduction = False  # as the engines (keep_precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.allow_bf16_reduced_precision_reduction = before[1]


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    # Not `warn_only`: it lets operations without such a kernel through, and under it torch's memory-efficient attention
    # keeps its backward pass that adds in any order.
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        # torch has no type of its own for this error.
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
