"""When memory runs out: an error that says which setting to lower."""

from collections.abc import Iterator
from contextlib import contextmanager

from node.inference.errors import ran_out
from node.training.errors import TrainingError
from node.training.settings import TrainerSettings


class OutOfMemory(TrainingError):
    """Memory ran out."""


_SAVING = ("activation_checkpointing", "offload_activations", "offload_parameters")


@contextmanager
def out_of_memory_says_what_to_lower(settings: TrainerSettings, step: int | None = None) -> Iterator[None]:
    """Turn every kind of out-of-memory error into OutOfMemory. step: None for what is not done for one step."""
    try:
        yield
    # torch raises a plain RuntimeError where the memory of a processor runs out.
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        raise _advice(settings, step, str(error)) from error


def _advice(settings: TrainerSettings, step: int | None, why: str) -> OutOfMemory:
    short = why.strip().splitlines()[0][:200] if why.strip() else "no memory is left"
    names = ("offload_parameters",) if step is None else _SAVING
    more = [f"turn on trainer.{name}" for name in names if not getattr(settings, name)]
    if step is None:
        wider = f"raise trainer.world_size (now {settings.world_size}): the model is shared out among the processes"
        return OutOfMemory("memory ran out for the model and its optimiser", short, "; or ".join([wider, *more]))
    lower = f"lower trainer.micro_batch_tokens (now {settings.micro_batch_tokens})"
    return OutOfMemory(f"memory ran out in step {step}", short, "; or ".join([lower, *more]))
