"""What this machine is (cores, memory, GPUs; blocking: call from a thread), and which role fits it."""

import msgspec

from node import limits
from node.config import Role
from node.errors import ConfigError
from node.hardware import amd, cpu, nvidia
from node.hardware.gpu import Gpu
from protocol.identity import Address


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
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{cores}, {self.memory / 2**30:.{0 if self.memory >= 4 * 2**30 else 1}f} GiB, {gpus}"

    @property
    def fingerprint(self) -> str:
        """Changes when what decides this machine's speed does."""
        gpus = " + ".join(gpu.name for gpu in self.gpus)
        return f"{self.processor} x{self.cores} ({' '.join(self.features)}) | {gpus} {self.driver}".strip()


def inspect_hardware() -> Hardware:
    """Look at this machine."""
    memory, processor = limits.memory(), cpu.look()
    cards, driver = nvidia.look()
    return Hardware(
        cores=limits.cores(),
        memory=memory.total,
        gpus=(*cards, *amd.look()),
        free=memory.free,
        processor=processor.name,
        features=processor.features,
        driver=driver,
    )


def reason_for(asked: Role, role: Role, hardware: Hardware) -> str:
    """Why `choose_role` came to this."""
    if asked == role:
        return "as its owner asks"
    if role == "worker":
        return f"the pool gives this node no post, and the machine can hold an engine ({hardware.summary})"
    return f"the pool names this node as its {role}"


def choose_role(
    role: Role, own: Address, trainers: tuple[Address, ...], validators: tuple[Address, ...], hardware: Hardware
) -> Role:
    """The role that this node will play.

    The pool names its trainer and validators, because others rely on them; `auto` takes such a post where the
    pool gives it to this node, and otherwise works if the machine can hold an engine.
    """
    posts: list[Role] = []
    if own in trainers:
        posts.append("trainer")
    if own in validators:
        posts.append("validator")
    if role in ("trainer", "validator"):
        if role not in posts:
            raise ConfigError(
                f"this node cannot be {role}",
                f"the pool does not name {own} as its {role}",
                "join as a worker, or ask the pool's owner to name this node when the pool is opened",
            )
        return role
    if role == "auto" and posts:
        # Trainer before validator: a pool without its trainer stands still.
        return posts[0]
    # torch alone takes a third of a GiB; below two there is no room for the smallest model beside it.
    min_memory = 2 * 1024**3
    if hardware.memory < min_memory:
        raise ConfigError(
            "this machine is too small for a worker",
            f"it has {hardware.memory / 2**30:.1f} GiB of memory, an engine needs {min_memory // 2**30}",
            "use a machine with more memory",
        )
    return "worker"
