"""What this machine is: cores and their abilities, memory, GPUs. Blocking: call from a thread."""

import os

import msgspec
import psutil

from node.hardware import amd, cpu, nvidia
from node.hardware.gpu import Gpu


class Hardware(msgspec.Struct, frozen=True):
    """memory, free: bytes, the latter what programs can still have; processor: its name; features: those of
    `cpu.FEATURES` that it has; driver: of NVIDIA's GPUs, empty without."""

    cores: int
    memory: int
    gpus: tuple[Gpu, ...]
    free: int = 0
    processor: str = ""
    features: tuple[str, ...] = ()
    driver: str = ""

    @property
    def summary(self) -> str:
        gpus = ", ".join(gpu.name for gpu in self.gpus) or "no GPU"
        return f"{self.cores} cores, {self.memory / 2**30:.0f} GiB, {gpus}"

    @property
    def fingerprint(self) -> str:
        """Changes when what decides this machine's speed does."""
        gpus = " + ".join(gpu.name for gpu in self.gpus)
        return f"{self.processor} x{self.cores} ({' '.join(self.features)}) | {gpus} {self.driver}".strip()


def inspect_hardware() -> Hardware:
    """Look at this machine."""
    memory, processor = psutil.virtual_memory(), cpu.look()
    cards, driver = nvidia.look()
    return Hardware(
        # What this process may use: in a container or under taskset that is less than the machine has.
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=memory.total,
        gpus=(*cards, *amd.look()),
        free=memory.available,
        processor=processor.name,
        features=processor.features,
        driver=driver,
    )
