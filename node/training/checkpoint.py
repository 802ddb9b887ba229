"""Checkpoints: torch.distributed.checkpoint into safetensors and JSON, written while training goes on.

Every rank writes its own shards (weights and AdamW's two moments, float32); what is no tensor stands in state.json: the
step, the schedule's and the data's position, which rollout files were learnt from, random states, and the BLAKE3
of every file. The directory appears by one rename after all of that is on the disk, so a checkpoint is whole or absent.
A world of another size loads the same files: each rank reads the slices of its own shards. Several machines have each
their own ranks' files, and go on with the newest step that all of them have.

DCP's usual storage keeps its index as a pickle (`.metadata`), which would run code of whoever wrote the checkpoint.
The safetensors storage that is used here keeps names, offsets and shapes in the files' own JSON headers; no file is
unpickled.
"""

import errno
import math
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import torch
from blake3 import blake3
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.tensor import DTensor

from node.state.files import sync_directory, write_whole
from node.training.errors import TrainingError
from node.training.learner import Learner
from node.training.program import tell
from node.training.world import World

VERSION = 3
_SLOTS = ("exp_avg", "exp_avg_sq")


class CheckpointState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """step: the next rollout step; updates: how many AdamW has made; model: what the tensors must be, see `identity`;

    consumed: rollout file (hex root) -> step that learnt from it, as far back as a file could come again;
    random: torch's random state of each rank (hex); files: name -> BLAKE3.
    """

    step: int
    updates: int
    model: str
    consumed: dict[str, int]
    random: list[str]
    files: dict[str, str] = {}
    version: int = VERSION


def identity(learner: Learner, run: bytes) -> str:
    """Of the run (see node.training.length) and of its model's parameters: name, shape."""
    shapes = ";".join(f"{name}:{tuple(tensor.shape)}" for name, tensor in learner.parameters.items())
    return blake3(run + shapes.encode()).hexdigest()


class Checkpoints:
    """Of one learner, below `directory`. All ranks make the same calls in the same order.

    written(step): called on the first rank, in a background thread, when the checkpoint of `step` is in place.
    """

    def __init__(
        self,
        directory: Path,
        learner: Learner,
        model: str,
        world: World,
        *,
        keep: int,
        written: Callable[[int], None] = lambda step: None,
    ) -> None:
        self._directory = directory
        self._learner = learner
        self._model = model
        self._world = world
        self._keep = keep
        self._written = written
        self._pending: Future[Any] | None = None
        # A group of its own on CPUs: the background save must not mix its collectives with the step's.
        self._group: Any = distributed.new_group(backend="gloo") if world.size > 1 else None

    def save(self, step: int, consumed: Mapping[str, int]) -> None:
        """Copy the state and write it in the background as directory/step-NNNNNN; waits for the one before."""
        self.wait()
        random = [state.hex() for state in self._world.gather(_random_state(self._world.device))]
        state = CheckpointState(step, self._learner.updates, self._model, dict(consumed), random)
        partial = self._directory / "partial"
        if self._world.leader:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        # All ranks wait here. Otherwise one could write its shard before the leader has made the directory.
        self._world.share(b"\0")
        writer = _Writer(partial, lambda: self._put_in_place(partial, state))
        tensors = {f"weight/{name}": tensor.detach() for name, tensor in self._learner.parameters.items()}
        tensors |= self._moments()
        found = async_save(tensors, storage_writer=writer, process_group=self._group, no_dist=self._world.size == 1)
        assert isinstance(found, Future)  # the thread checkpointer's kind of answer
        self._pending = found
        # DCP calls `finish` on rank 0 alone, when every rank has written. Other machines have files, too: their leaders
        # learn of it when their own save is over, since DCP ends it after `finish`.
        if self._world.leader and not self._world.first:
            self._pending = _then(found, lambda: self._put_in_place(partial, state))

    def wait(self) -> None:
        """Until the pending checkpoint is on the disk. Raises TrainingError if it could not be written."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except (OSError, CheckpointException) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise TrainingError(
                "a checkpoint could not be written",
                f"{self._directory}: {why[:300]}",
                "free space there; training then resumes",
            ) from error

    def available(self) -> list[int]:
        """Their steps, ascending."""
        paths = (path for path in self._directory.glob("step-*") if path.is_dir())
        numbers = (path.name.removeprefix("step-") for path in paths)
        return sorted(int(number) for number in numbers if number.isdecimal())  # of others somebody else knows more

    def load_newest(self) -> CheckpointState | None:
        """Put the newest sound checkpoint into the learner; None if there is none.

        Broken ones are deleted, or they would count as the newest when the next is written. Raises TrainingError for
        one of another model, run or version.
        """
        below = math.inf
        while True:
            newest = max((step for step in self.available() if step < below), default=-1)
            step = -int(self._world.maxima([-newest])[0])  # what every machine may have
            if step < 0:
                return None
            path = self._directory / f"step-{step:06d}"
            state = self._check(path)
            # All ranks or none: one that restored another step would train beside the others without an error.
            if self._world.maxima([float(state is None)])[0] == 0:
                assert state is not None  # nobody's is
                self._restore(path, state)
                return state
            if state is None and self._world.leader:
                tell(
                    {"event": "checkpoint.damaged", "level": "warning", "path": str(path), "then": "the one before it"}
                )
                shutil.rmtree(path, ignore_errors=True)
            self._world.share(b"\0")
            below = step

    def load(self, step: int) -> CheckpointState | None:
        """Put the checkpoint of `step` into the learner; None if it is not there or not whole. Raises as above."""
        path = self._directory / f"step-{step:06d}"
        state = self._check(path)
        if state is None or state.step != step:
            return None
        self._restore(path, state)
        return state

    # Writing

    def _put_in_place(self, partial: Path, state: CheckpointState) -> None:
        """On the first rank of each machine, when every rank's shards are written."""
        names = sorted(os.listdir(partial))
        whole = msgspec.structs.replace(state, files={name: _digest(partial / name) for name in names})
        # Last, with the hashes of all shards: a directory without it is no checkpoint, whatever else it holds.
        write_whole(partial / "state.json", msgspec.json.encode(whole))
        target = self._directory / f"step-{state.step:06d}"
        # A step that a replay comes to again: a rename does not take the place of a directory with files in it.
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
        sync_directory(self._directory)
        keep = self._keep if self._world.nodes == 1 else max(2, self._keep)  # until every machine has the new one
        for old in self.available()[:-keep]:
            shutil.rmtree(self._directory / f"step-{old:06d}", ignore_errors=True)
        if self._world.first:
            self._written(state.step)

    def _moments(self) -> dict[str, Tensor]:
        optimizer = self._learner.optimizer.state
        return {
            f"{slot}/{name}": optimizer[parameter][slot]
            for name, parameter in self._learner.parameters.items()
            if optimizer.get(parameter)
            for slot in _SLOTS
        }

    # Reading

    def _check(self, path: Path) -> CheckpointState | None:
        """None if it is not whole. Raises TrainingError where it cannot be read now: who takes that for damage deletes
        a checkpoint for want of a free descriptor."""
        try:
            raw = (path / "state.json").read_bytes()
            # The version before the rest: a file of another one may not decode, and what does not is deleted as broken.
            version = msgspec.json.decode(raw).get("version")
            if version != VERSION:
                raise _foreign(path, f"it has version {version!r}, this program writes version {VERSION}")
            state = msgspec.json.decode(raw, type=CheckpointState)
            # `_plain`: a name from state.json must not lead out of the directory.
            sound = all(_digest(path / _plain(name)) == digest for name, digest in state.files.items())
        except OSError as error:
            # A part that is not there, or that the disk has lost.
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO):
                return None
            raise TrainingError(
                f"the checkpoint {path.name} cannot be read",
                f"{error.filename or path}: {error.strerror}",
                "see who may read it, and how many files may be open; it is whole as far as anybody knows",
            ) from error
        # JSON that is no object has no `get`; DecodeError of msgspec is a ValueError.
        except (ValueError, AttributeError):
            return None
        # A file too many is unsound as well: torch's reader would take its tensors.
        if not sound or set(state.files) != set(os.listdir(path)) - {"state.json"}:
            return None
        if state.model != self._model:
            raise _foreign(path, "its run or its tensors' names and shapes are not those of this run's model")
        return state

    def _held_anywhere(self, reader: "_Reader") -> set[str]:
        """The parameters whose moments are in the checkpoint, be it on another machine: a rank whose shard has no rows
        may have written none."""
        stored, names = reader.read_metadata().state_dict_metadata, list(self._learner.parameters)
        found = self._world.maxima([float(f"{_SLOTS[0]}/{name}" in stored) for name in names])
        return {name for name, held in zip(names, found, strict=True) if held}

    def _restore(self, path: Path, state: CheckpointState) -> None:
        learner = self._learner
        reader = _Reader(str(path), {name: tensor.shape for name, tensor in learner.parameters.items()})
        held = self._held_anywhere(reader)
        target = {f"weight/{name}": parameter.detach() for name, parameter in learner.parameters.items()}
        moments: dict[str, dict[str, Tensor]] = {}
        for name, parameter in learner.parameters.items():
            if name in held:
                moments[name] = {slot: torch.zeros_like(parameter.detach()) for slot in _SLOTS}
                target |= {f"{slot}/{name}": tensor for slot, tensor in moments[name].items()}
        reader.wanted, planner = tuple(target), _WholePlan(path, target)
        alone = self._world.size == 1
        try:
            load(target, storage_reader=reader, planner=planner, process_group=self._group, no_dist=alone)
        except CheckpointException as error:
            reasons = (reason for reason, _ in error.failures.values())
            # DCP puts what a rank raises into an exception of its own, the reason of `_WholePlan` among them.
            raise next((reason for reason in reasons if isinstance(reason, TrainingError)), error) from error
        learner.restore_optimizer(state.updates, moments)
        # A world that has grown has ranks of which no random state was written.
        if self._world.rank < len(state.random):
            _set_random_state(bytes.fromhex(state.random[self._world.rank]), self._world.device)


class _Writer(HuggingFaceStorageWriter):
    """One safetensors file per rank; `complete` runs on the first rank when all have been written."""

    def __init__(self, path: Path, complete: Callable[[], None]) -> None:
        super().__init__(str(path), save_distributed=True)
        self._complete = complete

    def finish(self, metadata: Any, results: Any) -> None:
        super().finish(metadata, results)
        self._complete()


class _Reader(HuggingFaceStorageReader):
    """Of a directory that may lack what the shards on other machines hold, from which their tensors' sizes follow.

    shapes: parameter -> its whole shape, which its moments have too; wanted: what is to be read, here or elsewhere.
    """

    def __init__(self, path: str, shapes: Mapping[str, torch.Size]) -> None:
        super().__init__(path)
        self._shapes = shapes
        self.wanted: tuple[str, ...] = ()

    def read_metadata(self) -> Metadata:
        found = super().read_metadata()
        for name in {*found.state_dict_metadata, *self.wanted}:
            shape = self._shapes.get(name.partition("/")[2])
            if shape is None:
                continue
            none = TensorStorageMetadata(TensorProperties(dtype=torch.float32), shape, [])
            stored = found.state_dict_metadata.setdefault(name, none)
            if isinstance(stored, TensorStorageMetadata):
                stored.size = shape
        return found


class _WholePlan(DefaultLoadPlanner):
    """Every number of this rank's shards is read, or nothing is."""

    def __init__(self, path: Path, target: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._path, self._target = path, target

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        read = dict.fromkeys(self._target, 0)
        for item in central_plan.items:
            read[item.dest_index.fqn] += math.prod(item.lengths)
        for name, tensor in self._target.items():
            own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if read[name] != own.numel():  # the rest would stay as it was, without a word
                raise TrainingError(
                    f"the checkpoint {self._path.name} is not whole on this machine",
                    f"{name} or a part of it was written by a machine of another number",
                    "go on with the machines, the node_rank of each and the world_size with which it was written",
                )
        return super().finish_plan(central_plan)


def _then(found: Future[Any], complete: Callable[[], None]) -> Future[Any]:
    """Done when `found` is and `complete` has been called, in the same thread."""
    done: Future[Any] = Future()

    def call(found: Future[Any]) -> None:
        try:
            found.result()
            complete()
        except BaseException as error:  # whoever waits for it is to have it
            done.set_exception(error)
        else:
            done.set_result(None)

    found.add_done_callback(call)
    return done


def _digest(path: Path) -> str:
    hasher = blake3()
    hasher.update_mmap(str(path))
    return hasher.hexdigest()


def _plain(name: str) -> str:
    if name != os.path.basename(name) or not name.endswith(".safetensors"):
        raise ValueError(f"{name!r} is no file of a checkpoint")
    return name


def _random_state(device: torch.device) -> bytes:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states).numpy().tobytes()


def _set_random_state(data: bytes, device: torch.device) -> None:
    # A copy: torch warns of bytes that it could not write to, and warnings are errors in tests.
    state = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    size = torch.get_rng_state().numel()
    torch.set_rng_state(state[:size])
    if device.type == "cuda" and state.numel() > size:
        torch.cuda.set_rng_state(state[size:], device)


def _foreign(path: Path, why: str) -> TrainingError:
    return TrainingError(
        f"the checkpoint {path.name} does not belong to this run",
        why,
        f"use the state directory of its own run, or move {path} away",
    )
