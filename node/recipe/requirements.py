"""Whether a machine is enough for a role of a run. Pure."""

from node.errors import ConfigError
from node.hardware import Hardware
from protocol.run import RunSpec

GIB = 2**30


def shortfalls(run: RunSpec, role: str, hardware: Hardware) -> list[str]:
    """What the machine lacks for `role`, one sentence each; empty if it is enough."""
    need = getattr(run.requirements, role)
    gpu = max((gpu.memory for gpu in hardware.gpus), default=0) / GIB
    found = (
        ("cores", need.cores, hardware.cores, "cores"),
        ("memory_gib", need.memory_gib, hardware.memory / GIB, "GiB of memory"),
        ("gpu_memory_gib", need.gpu_memory_gib, gpu, "GiB on its largest GPU"),
    )
    return [
        f"it has {has:.4g} {what}, the run asks for {wanted:g} (requirements.{role}.{name})"
        for name, wanted, has, what in found
        if has < wanted
    ]


def check_requirements(run: RunSpec, role: str, hardware: Hardware) -> None:
    """Raise ConfigError if this machine is less than the run asks of `role`."""
    lacking = shortfalls(run, role, hardware)
    if lacking:
        raise ConfigError(
            f"this machine is too small to be {role} in the run {run.name!r}",
            "; ".join(lacking),
            "use a larger machine, or join another pool: the limit is the run's owner's",
        )
