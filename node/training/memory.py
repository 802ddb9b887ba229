"""When memory runs out or a device is lost: in which phase of the learner's work, and what helps.

Only passes can be made smaller, so only forward and backward are worth another try. What a model, its optimiser or a
policy takes is the same at the next one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from node.inference.errors import lost_its_device, ran_out
from node.training.settings import TrainerSettings
from protocol.errors import OwnFailure

Phase = Literal["load", "forward", "backward", "optimizer", "publish", "evaluation"]
PASSES: tuple[Phase, ...] = ("forward", "backward")
WHERE: dict[str, str] = {
    "load": "while the model was loaded",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "for the optimiser",
    "publish": "while the policy was gathered and written",
    "evaluation": "for the evaluator",
}
_WIDER = "raise trainer.world_size (now {}): the model is shared out among the processes"
_ADAPTER = "train an adapter (recipe.lora)"
_OTHERS = "end what else is on the device (nvidia-smi)"
_SAVING: dict[str, tuple[str, ...]] = {
    "load": ("offload_parameters",),
    "forward": ("activation_checkpointing", "offload_activations", "offload_parameters"),
    "backward": ("activation_checkpointing", "offload_activations", "offload_parameters"),
    "optimizer": ("offload_parameters",),
    "publish": ("offload_parameters",),
    "evaluation": (),
}


class OutOfMemory(OwnFailure):
    """Memory ran out in a phase."""

    def __init__(self, phase: Phase, what: str, why: str, remedy: str) -> None:
        super().__init__(what, why, remedy)
        self.phase: Phase = phase

    @property
    def of_a_pass(self) -> bool:
        """Whether smaller micro-batches could help."""
        return self.phase in PASSES


class DeviceLost(OwnFailure):
    """A device broke off: what is on it is gone, and no call of this process reaches it again."""


@contextmanager
def during(phase: Phase, settings: TrainerSettings, step: int | None = None) -> Iterator[None]:
    """Turn every kind of out-of-memory error into OutOfMemory, and a lost device's into DeviceLost. The innermost of
    several names the phase. step: None for what is not done for one step."""
    try:
        yield
    # torch raises a plain RuntimeError where the memory of a processor runs out.
    except (RuntimeError, MemoryError) as error:
        why = str(error).strip()
        short = why.splitlines()[0][:200] if why else "no memory is left"
        at = f" of step {step}" if step is not None else ""
        if ran_out(error):
            raise OutOfMemory(phase, f"memory ran out {WHERE[phase]}{at}", short, _advice(phase, settings)) from error
        if lost_its_device(error):
            remedy = "see dmesg and nvidia-smi; a driver that hangs needs a restart"
            raise DeviceLost(f"the learner lost its device {WHERE[phase]}{at}", short, remedy) from error
        raise


def _advice(phase: Phase, settings: TrainerSettings) -> str:
    on = [f"turn on trainer.{name}" for name in _SAVING[phase] if not getattr(settings, name)]
    if phase in PASSES:
        lower = f"lower trainer.micro_batch_tokens (now {settings.micro_batch_tokens})"
        return "; or ".join(
            [lower, *on, "let sequences be shorter (rollout.max_output_tokens, or pretraining.sequence)"]
        )
    if phase == "evaluation":
        return f"set trainer.evaluation_device to cpu; or {_OTHERS}"
    wider = [] if phase == "publish" else [_WIDER.format(settings.world_size)]
    return "; or ".join([*wider, *on, _ADAPTER, _OTHERS])
