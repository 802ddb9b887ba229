"""The trainer's processes as one: who am I, on which device, and sums over all of us.

Everything goes over gloo on CPUs and NCCL on GPUs, with a second gloo group for what is not arithmetic (waiting for a
batch may take hours). A world of one needs neither and has no process group, unless it is sharded.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from node.training.errors import TrainingError
from node.training.settings import TrainerSettings

PATIENCE = timedelta(days=30)
"""How long ranks wait for the first of them, which waits for the swarm. torchrun ends all when one dies."""


@dataclass(frozen=True, slots=True)
class World:
    """mesh: None where parameters are not sharded; control: a gloo group, None if alone; local_rank: the rank among
    this machine's processes; nodes: how many machines."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")
    mesh: DeviceMesh | None = None
    control: Any = None
    local_rank: int = 0
    nodes: int = 1

    @property
    def first(self) -> bool:
        """The rank that reads batches and publishes policies."""
        return self.rank == 0

    @property
    def leader(self) -> bool:
        """The rank that keeps this machine's files in order."""
        return self.local_rank == 0

    def sums(self, values: Sequence[float]) -> list[float]:
        """Each value added up over all ranks."""
        return self._reduce(values, distributed.ReduceOp.SUM)

    def maxima(self, values: Sequence[float]) -> list[float]:
        return self._reduce(values, distributed.ReduceOp.MAX)

    def _reduce(self, values: Sequence[float], operation: Any) -> list[float]:
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(total, operation, group=self.control)
        return total.tolist()

    def share(self, data: bytes) -> bytes:
        """The first rank's bytes, on every rank; the others pass anything of the same length."""
        if self.size == 1:
            return data
        # A copy: torch warns of bytes that it could not write to.
        cells = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        distributed.broadcast(cells, src=0, group=self.control)
        return cells.numpy().tobytes()

    def hand_out(self, data: bytes) -> bytes:
        """The first rank's bytes, on every rank, whatever the others pass."""
        if self.size == 1:
            return data
        length = int.from_bytes(self.share(len(data).to_bytes(8, "little")), "little")
        # torch makes no tensor of an empty buffer.
        return self.share(data if self.first else bytes(length)) if length else b""

    def gather(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, all of one length, on every rank."""
        if self.size == 1:
            return [data]
        own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(found, own, group=self.control)
        return [cells.numpy().tobytes() for cells in found]


def device_of(settings: TrainerSettings, local_rank: int = 0) -> torch.device:
    """Raises TrainingError if GPUs are asked for and there are too few."""
    cuda = torch.cuda.device_count() if settings.device != "cpu" else 0
    if settings.device == "cpu" or (settings.device == "auto" and cuda == 0):
        return torch.device("cpu")
    if cuda <= local_rank:
        raise TrainingError(
            "there are too few GPUs",
            f"process {local_rank} of {settings.world_size} has none: torch sees {cuda}",
            "lower trainer.world_size, or set trainer.device to cpu",
        )
    return torch.device("cuda", local_rank)


def compute_dtype(settings: TrainerSettings, device: torch.device) -> torch.dtype:
    if settings.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32


def place_in_world() -> tuple[int, int]:
    """(rank, size), as torchrun's environment says."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def join_world(settings: TrainerSettings, store: Store | None = None) -> World:
    """As torchrun's environment says. One float32 process on a CPU stays plain: sharding would only slow it down.

    store: where the machines have met, if there are several.
    """
    rank, size = place_in_world()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = device_of(settings, local_rank)
    sharded = size > 1 or compute_dtype(settings, device) != torch.float32 or settings.offload_parameters
    if not sharded:
        return World(rank, size, device)
    if device.type == "cuda":
        # NCCL takes the current device, and so does whatever is made without naming one.
        torch.cuda.set_device(device)
    # Two replayers may be in one process (Replayer.computing_in), and share its group.
    if not distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        if store is not None:
            # Names of the meeting and of pulses are in the same store.
            apart = PrefixStore("world", store)
            distributed.init_process_group(backend, store=apart, rank=rank, world_size=size)
        elif "MASTER_ADDR" in os.environ:
            distributed.init_process_group(backend)
        else:
            # A process by itself has nobody to meet: names are kept in its own memory.
            distributed.init_process_group(backend, rank=0, world_size=1, store=HashStore())
    mesh = init_device_mesh(device.type, (size,), mesh_dim_names=("shard",))
    control = distributed.new_group(backend="gloo", timeout=PATIENCE) if size > 1 else None
    return World(rank, size, device, mesh, control, local_rank, settings.nodes)


def leave_world(world: World) -> None:
    if world.mesh is not None and distributed.is_initialized():
        distributed.destroy_process_group()
