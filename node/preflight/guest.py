"""Whether what an owner lets this program take is enough for a role and a run. Named by the settings of [guest]."""

import sys
from collections.abc import Iterator, Sequence

import msgspec

from node.config import DISK_FIXED, NodeConfig
from node.guest.machine import power_limits
from node.guest.settings import GuestSettings
from node.hardware import Hardware
from node.platforms import lacking
from node.preflight.finding import CheckFinding, PreflightFailed, failure, ok, worst
from node.units import GIB, size_of
from node.weights.policy_cache import IMAGES_KEPT
from protocol.run import RunSpec

Wrong = tuple[str, str]
"""What is wrong, and what to do."""


def check_guest(config: NodeConfig, role: str, hardware: Hardware, run: RunSpec | None) -> list[CheckFinding]:
    """run: None where it is not known. Blocking: the GPUs' power limits are asked for."""
    guest = config.limits
    if lacks := lacking(role, sys.platform):
        return [failure("platform", lacks, "use Linux, or join as a worker")]
    if not config.guest:
        return []
    watts = power_limits() if guest.gpu_watts else None
    wrong = [*_of_role(config, role), *_of_machine(guest, hardware, watts, sys.platform)]
    if run is not None:
        wrong += [*_of_learner(guest, role, run), *_of_run(config, role, hardware, run)]
    if not wrong:
        return [ok("guest", f"[guest] heeded: {', '.join(sorted(config.guest))}")]
    return [failure("guest", what, remedy) for what, remedy in wrong]


def refuse_guest(config: NodeConfig, role: str, hardware: Hardware, run: RunSpec | None = None) -> None:
    """Raises PreflightFailed with all that is wrong. Blocking."""
    found = check_guest(config, role, hardware, run)
    if worst(found) == "failure":
        raise PreflightFailed(found)


def capped(hardware: Hardware, guest: GuestSettings) -> Hardware:
    """The machine as a guest may use it. Of processors it sees no others by itself (`keep_to_cores`)."""
    if not guest.gpu_memory:
        return hardware
    most = guest.gpu_memory
    gpus = tuple(msgspec.structs.replace(gpu, memory=min(gpu.memory, most)) for gpu in hardware.gpus)
    return msgspec.structs.replace(hardware, gpus=gpus)


def _of_role(config: NodeConfig, role: str) -> Iterator[Wrong]:
    guest = config.limits
    if role != "worker" and guest.rests:
        names = " and ".join(name for name in ("hours", "only_idle") if name in config.guest)
        what = f"[guest] {names}: a {role} cannot rest, since others wait for what it promised"
        yield what, "leave it out for this node, or join with a key that the pool gives no post"
    if guest.upload and config.gateway:
        what = "[guest] upload: the gateway serves whoever asks, without a limit"
        yield what, "leave out --gateway, or the limit"


def _of_machine(
    guest: GuestSettings, hardware: Hardware, watts: Sequence[float] | None, platform: str
) -> Iterator[Wrong]:
    if guest.cores and not platform.startswith("linux"):
        what = f"[guest] cores: {platform} lets no program keep to some of the processors"
        yield what, "leave it out: an engine on a CPU computes with one thread in any case"
    for name, set_ in (("gpu_memory", guest.gpu_memory), ("gpu_watts", guest.gpu_watts)):
        if set_ and not hardware.gpus:
            yield f"[guest] {name}: this machine has no GPU", "leave it out"
    if 0 < guest.disk <= DISK_FIXED:
        what = f"[guest] disk = {size_of(guest.disk)}: logs and journals alone may take {size_of(DISK_FIXED)}"
        yield what, 'set disk = "1 GB" or more; `join --dry-run` says what the run needs'
    if guest.gpu_watts and hardware.gpus:
        yield from _of_power(guest.gpu_watts, watts)


def _of_power(most: float, watts: Sequence[float] | None) -> Iterator[Wrong]:
    if watts is None:
        what = "[guest] gpu_watts: nvidia-smi does not say which limit the GPU has"
        yield what, "leave it out, and look at the card with its maker's program"
    elif max(watts) > most:
        what = f"[guest] gpu_watts = {most:g}: the GPU may take {max(watts):g}, and only root can change that"
        yield what, f"as root: nvidia-smi -pl {most:g} (until the next boot; this program never sets it)"


def _of_learner(guest: GuestSettings, role: str, run: RunSpec) -> Iterator[Wrong]:
    learns = role == "trainer" or (run.pretraining is not None and role == "worker")
    for name, set_ in (("gpu_memory", guest.gpu_memory), ("disk", guest.disk)):
        if set_ and learns:
            what = f"[guest] {name}: this node trains in this run, and a learner takes what the model needs"
            yield what, "leave it out, or join a pool whose workers sample"


def _of_run(config: NodeConfig, role: str, hardware: Hardware, run: RunSpec) -> Iterator[Wrong]:
    guest, need = config.limits, getattr(run.requirements, role)
    if guest.cores and min(guest.cores, hardware.cores) < need.cores:
        what = f"[guest] cores = {guest.cores}: the run asks for {need.cores} (requirements.{role}.cores)"
        yield what, f"set cores = {need.cores} or more, or join another pool"
    weights = run.weight_bytes()
    # As in node.inference.room: of its memory an engine uses so much, and the libraries take so many bytes.
    gpu = max(need.gpu_memory_gib * GIB, weights / 0.9 + (2**29))
    if guest.gpu_memory and hardware.gpus and guest.gpu_memory < gpu:
        what = f"[guest] gpu_memory = {guest.gpu_memory / GIB:.1f} GiB: the run needs at least {gpu / GIB:.1f}"
        yield what, f'set gpu_memory = "{gpu / GIB + 0.05:.1f} GiB" or more, or join another pool'
    # Of a policy, for which a capped disk has room: those of the store, and one that is built.
    least = DISK_FIXED + int((IMAGES_KEPT + 1) * weights)
    if guest.disk and guest.disk < least:
        what = f"[guest] disk = {size_of(guest.disk)}: the run needs at least {size_of(least)}"
        yield what, f'set disk = "{-(-least // 10**8) / 10:.1f} GB" or more, or join another pool'
