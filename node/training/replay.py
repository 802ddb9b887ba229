"""A step that somebody published, computed again: the trainer's own code, which here writes nothing.

Knows checkpoints and batches; whether what comes out is what was claimed is node.audit's to say.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

import msgspec
import torch
from torch import Tensor

from node.training.arithmetic import SLOTS, processor, versions
from node.training.batch import Batch
from node.training.compiling import CannotCompile, compiler
from node.training.determinism import as_deterministic_as_set
from node.training.errors import TrainingError
from node.training.image import stream_image
from node.training.learner import NO_TIMING
from node.training.settings import TrainerSettings
from node.training.sharding import whole
from node.training.spool import Spool
from node.training.state import F32, State
from node.training.trainer import SpoolTrainer
from node.training.world import World, device_of, join_world, leave_world
from protocol.manifest import Arithmetic
from protocol.policy import policy_root

R = TypeVar("R", bound="StepReplayer")


class Replayed(msgspec.Struct, frozen=True):
    """The roots of a step, 32 bytes each."""

    policy_root: bytes
    state_root: bytes


class MissingState(TrainingError):
    """A checkpoint that is not here, or not usable."""


class StepReplayer(SpoolTrainer):
    """On a spool of which it reads run, model and checkpoints. One process, one rank."""

    def __init__(self, spool: Spool, settings: TrainerSettings, world: World | None = None) -> None:
        try:
            super().__init__(spool, settings, world)
        except CannotCompile:
            # Of another class then, and it says so: whoever claims what was made here is not at fault for it.
            super().__init__(spool, msgspec.structs.replace(settings, compile=False), world)

    def place(self, step: int) -> bytes:
        """Take the state of `step` from its checkpoint; that of step 0 follows from the start model. Its root. Raises
        MissingState, and TrainingError for a checkpoint of another run."""
        self._place_model()
        # No moments, as a new learner has none: an earlier step may have been placed here before.
        self._learner.optimizer.state.clear()
        self._consumed = {}
        if step:
            self._restore(step)
        return self._state_root(step)

    def _restore(self, step: int) -> None:
        state = self._checkpoints.load(step)
        if state is None:
            raise MissingState("not to be replayed", f"the checkpoint of step {step} is not here, or not whole", "")
        self._consumed = dict(state.consumed)

    def step(self, batch: Batch) -> Replayed:
        """From the state here and a batch of its step to the next. Raises TrainingError for one that is not of it."""
        step = batch.header.step
        self._admit(batch, step)
        self._teach(batch)
        self._learner.step(batch.rows, step, NO_TIMING)
        return self.roots(step + 1)

    def roots(self, step: int) -> Replayed:
        """Of what the learner holds, which is of `step`."""
        image = stream_image(self._learner.shapes, self._learner.tensors())
        return Replayed(policy_root(step, image.tensors), self._state_root(step))

    def arithmetic(self) -> Arithmetic:
        return self._arithmetic(1)

    @contextmanager
    def computing_in(self, dtype: Literal["float32", "bfloat16"]) -> Iterator["StepReplayer"]:
        """Another one beside this, whose layers compute in this; it has no state yet."""
        # It is of another class in any case, so that no bit of it depends on a compiler.
        settings = msgspec.structs.replace(self._settings, dtype=dtype, compile=False)
        world = join_world(settings)
        try:
            yield StepReplayer(self._spool, settings, world)
        finally:
            if self._world.mesh is None:  # they would share the group of processes
                leave_world(world)

    def state(self, step: int) -> State:
        """A copy."""
        learner, tensors = self._learner, dict[str, dict[str, F32]]()
        for name, parameter in learner.parameters.items():
            slots = learner.optimizer.state.get(parameter) or {}
            empty = torch.zeros_like(parameter)
            for part, tensor in (("weight", parameter), *((slot, slots.get(slot, empty)) for slot in SLOTS)):
                tensors.setdefault(part, {})[name] = whole(tensor.detach(), torch.float32).cpu().numpy().copy()
        return State(step, learner.updates, dict(self._consumed), tensors)

    def gradients(self, batch: Batch) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """`Learner.group_gradients` of a batch at the state here, whole tensors."""
        for group, parts in self._learner.group_gradients(batch.rows, batch.header.step):
            yield group, {name: whole(tensor, torch.float32) for name, tensor in parts.items()}

    def learning_rate(self, step: int) -> float:
        return self._learner.learning_rate(step)


@contextmanager
def replaying(spool: Spool, settings: TrainerSettings, kind: type[R]) -> Iterator[R]:
    """A replayer of this kind, alone in its world, as long as the block lasts."""
    with alone_in_its_world(settings) as world:
        yield kind(spool, settings, world)


@contextmanager
def alone_in_its_world(settings: TrainerSettings) -> Iterator[World]:
    """One process, one rank, as deterministic as the settings say."""
    torch.set_num_threads(settings.threads)
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
    world = join_world(settings)
    try:
        with as_deterministic_as_set(settings, world.device):
            yield world
    finally:
        leave_world(world)


def settings_for(arithmetic: Arithmetic) -> TrainerSettings:
    """The settings of a trainer of this class, as far as one process can be of it. arithmetic: as somebody claims it;
    layers are compiled only where this process then is of that class, and in a part of an audit's time."""
    device = device_of(TrainerSettings())
    claimed = arithmetic.ranks, arithmetic.processor, arithmetic.versions, arithmetic.compiled
    return TrainerSettings(
        # The program is asked for its version only where somebody claims to have compiled.
        compile=bool(arithmetic.compiled) and claimed == (1, processor(device), versions(), compiler(device)),
        compile_seconds=200.0,
        dtype="bfloat16" if arithmetic.dtype == "bfloat16" else "float32",
        micro_batch_tokens=arithmetic.micro_batch_tokens,
        # As trainers on GPUs do it: the numbers are the same, and a whole step's activations would not fit.
        activation_checkpointing=arithmetic.dtype == "bfloat16",
        packing=arithmetic.packing,
        logit_cells=arithmetic.logit_cells,
        fp32_logits=arithmetic.fp32_logits,
        offload_parameters=arithmetic.offload,
    )
