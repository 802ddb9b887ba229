"""What this machine is and has: program, state directory, key, hardware, disk. Blocking: call from a thread."""

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import InvalidRequirement, Requirement

from node.errors import KeyError_
from node.hardware import Hardware
from node.hardware.builds import Builds, torch_builds
from node.inference.room import has_room_for_copy
from node.logs import LOG_BYTES, LOG_FILES
from node.preflight.finding import CheckFinding, failure, ok, warning
from node.recipe.requirements import shortfalls
from node.recipe.speed import LEAST_DECODE, Speed
from node.sandbox import RuntimeMissing, find_runtime, runtime
from node.sandbox.confined import walls
from node.state.directory import MIN_FREE_BYTES, existing
from node.state.files import files_in
from node.state.keystore import claimed_address, load_key, read_keystore, read_password
from node.state.locks import holder_of
from node.training.errors import TrainingError
from node.training.planner import PlannedMachine, TrainingWork, check_engine, plan
from node.training.sizing import DecoderShape, shape_like
from node.units import size_of
from node.weights.policy_cache import IMAGES_KEPT
from protocol.run import RunSpec
from protocol.sections import TEACHER

# The program and what it is made of, against what it was tried with

PROGRAM = "intellect-node"
TOLD = ("torch", "transformers", "libp2p", "trio", "web3")


def check_versions(installed: dict[str, str | None] | None = None) -> CheckFinding:
    """installed: name -> version, None for what is not there; by default what is installed."""
    have = installed_versions() if installed is None else installed
    wrong = [
        f"{need.name} is {have.get(need.name) or 'missing'}, wanted {need.specifier}"
        for need in _needs()
        # Else a pre-release that somebody has installed would count as another version than wanted.
        if not need.specifier.contains(have.get(need.name) or "0", prereleases=True)
    ]
    data = {"python": platform.python_version(), "system": platform.platform(), "packages": have}
    if wrong:
        return warning("versions", "; ".join(wrong), "install anew: make install", **data)
    told = ", ".join(f"{name} {have[name]}" for name in TOLD if have.get(name))
    return ok(
        "versions", f"{PROGRAM} {have.get(PROGRAM) or '(source)'}, Python {platform.python_version()}, {told}", **data
    )


def installed_versions() -> dict[str, str | None]:
    """Of this program and of everything that it asks for."""
    return {name: _version(name) for name in [PROGRAM, *(need.name for need in _needs())]}


def _needs() -> list[Requirement]:
    """What the program asks for, with what an engine needs."""
    try:
        lines = requires(PROGRAM) or []
        needs = [Requirement(line) for line in lines]
    # Run from a checkout, the program states no needs: what is missing then fails where it is imported.
    except (PackageNotFoundError, InvalidRequirement):
        return []
    return [need for need in needs if need.marker is None or need.marker.evaluate({"extra": "train"})]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# Whether another daemon holds the state directory


def check_lock(directory: Path, *, joining: bool) -> CheckFinding:
    """joining: this program is about to take the directory, so whoever holds it is in the way. Changes nothing."""
    holder = holder_of(directory / "lock")
    if holder is None:
        return ok("lock", f"no daemon runs in {directory}", pid=None)
    if not joining:
        return ok("lock", f"a daemon runs in {directory}, pid {holder}", pid=holder)
    remedy = "stop that daemon, or give this one its own --state-dir (and so its own key)"
    return failure("lock", f"another daemon (pid {holder}) works in {directory}", remedy, pid=holder)


# The node's key and its directory: there, private, and opened by the password. Blocking: scrypt takes a second

NODE_KEY = "node-key.json"


def check_keys(directory: Path, password: str | None, password_file: Path | None) -> list[CheckFinding]:
    """The key is opened where its password can be had; one that is missing is made by `join`."""
    if not directory.is_dir():
        return [ok("keys", f"join makes the node's key in {directory}", path=str(directory))]
    found = [_check_directory(directory)]
    path = directory / NODE_KEY
    if not path.exists():
        return [*found, ok("keys", f"join makes the node's key {path}", path=str(path))]
    return [*found, _check_key(path, password, password_file)]


def _check_directory(directory: Path) -> CheckFinding:
    status = directory.stat()
    mode, data = status.st_mode & 0o777, {"mode": f"{status.st_mode & 0o777:04o}", "path": str(directory)}
    if status.st_uid not in (os.getuid(), 0):
        return failure("directory", f"{directory} belongs to user {status.st_uid}", f"chown $USER {directory}", **data)
    if mode & 0o022:
        return warning("directory", f"others may write in {directory}", f"chmod 700 {directory}", **data)
    return ok("directory", f"{directory} is this user's", **data)


def _check_key(path: Path, password: str | None, password_file: Path | None) -> CheckFinding:
    try:
        claimed = claimed_address(read_keystore(path)) or ""
        if password or password_file or (path.parent / "password").exists():
            claimed = load_key(path, read_password(password, password_file, path.parent)).address
        else:
            remedy = "give --password-file, or set INTELLECT_NODE_PASSWORD"
            return failure("keys", f"no password for {path}", remedy, address=claimed)
    except (KeyError_, ValueError) as error:
        remedy = error.remedy if isinstance(error, KeyError_) else "restore the file from your backup"
        return failure("keys", f"{path}: {error.why if isinstance(error, KeyError_) else error}", remedy)
    return ok("keys", f"{path} opens as {claimed}", address=claimed)


# What this machine is, and how fast its engine was. Pure


def check_machine(hardware: Hardware) -> CheckFinding:
    """All that is known of it, as data; in words what engines are faster by."""
    features = ", ".join(hardware.features) or "none of the vector units that engines are faster by"
    what = f"{hardware.processor or 'unknown processor'}: {hardware.cores} cores ({features})"
    memory = f"{hardware.memory / 2**30:.1f} GiB of memory, {hardware.free / 2**30:.1f} free"
    return ok("machine", f"{what}, {memory}", **msgspec.to_builtins(hardware))


def speed_finding(speed: Speed | None) -> CheckFinding:
    """None: not measured yet, or it cannot be."""
    if speed is None:
        return ok("speed", "not measured yet: doctor --engine does it, and join where the run deals lengths by it")
    size = f"a model of {speed.parameters / 1e6:.1f} M parameters, {speed.engine}"
    what = f"{speed.decode:,.0f} tokens/s drawn, {speed.prefill:,.0f} read ({size})"
    data = msgspec.to_builtins(speed)
    if speed.decode < LEAST_DECODE:
        return warning("speed", what, "too slow for a worker: use a faster machine, or stop what keeps it busy", **data)
    return ok("speed", what, **data)


# GPUs, their driver, and the build of torch that would use them. Blocking: call from a thread

LEAST_DRIVER = {11: 450.80, 12: 525.60, 13: 580.65}
"""CUDA's major version -> the oldest driver for it on Linux (NVIDIA, CUDA Compatibility; minor versions agree)."""
DRIVERS = "https://www.nvidia.com/drivers"


def check_gpu(hardware: Hardware) -> CheckFinding:
    return judge_gpu(hardware, torch_builds(), tool=shutil.which("nvidia-smi") is not None)


def judge_gpu(hardware: Hardware, builds: Builds, *, tool: bool) -> CheckFinding:
    """tool: whether NVIDIA's driver has been installed here, so that a GPU was to be expected."""
    data = {"gpus": [msgspec.to_builtins(gpu) for gpu in hardware.gpus], "driver": hardware.driver, **builds._asdict()}
    makers = {gpu.vendor for gpu in hardware.gpus}
    if not makers:
        if tool:
            return warning("gpu", "nvidia-smi is here and shows no GPU", f"reinstall the driver ({DRIVERS})", **data)
        return ok("gpu", "no GPU: the engine computes on the CPU", **data)
    names = ", ".join(f"{gpu.name} ({gpu.memory / 2**30:.0f} GiB)" for gpu in hardware.gpus)
    if "nvidia" in makers:
        return _nvidia(names, hardware.driver, builds.torch_cuda, data)
    if builds.torch_rocm is None:
        what = f"{names}, and a build of torch that does not use it"
        return warning("gpu", what, "install torch's ROCm build: https://pytorch.org/get-started/locally", **data)
    return ok("gpu", f"{names}, torch with ROCm {builds.torch_rocm}", **data)


def _nvidia(names: str, driver: str, cuda: str | None, data: dict[str, Any]) -> CheckFinding:
    if cuda is None:
        what = f"{names}, and a build of torch that does not use it"
        return warning("gpu", what, "install the CUDA build: make install TORCH=cuda", **data)
    least = LEAST_DRIVER.get(int(cuda.partition(".")[0]), 0.0)
    if _number(driver) < least:
        what = f"driver {driver} is too old for torch's CUDA {cuda}, which needs {least:g}"
        return warning("gpu", what, f"update the driver ({DRIVERS}); until then the engine uses the CPU", **data)
    return ok("gpu", f"{names}, driver {driver}, torch with CUDA {cuda}", **data)


def _number(version: str) -> float:
    found = re.match(r"\d+(\.\d+)?", version)
    return float(found.group()) if found else 0.0


# Whether a run's model fits into this machine in a role, as the planner has it. Pure

LARGER = "use a larger machine, or join another pool"


def check_memory(
    run: RunSpec | None,
    role: str,
    hardware: Hardware,
    machine: PlannedMachine,
    shape: DecoderShape | None = None,
    said: Mapping[str, Any] | None = None,
) -> CheckFinding:
    """run: None where it is not known before joining; machine: the same hardware as a learner sees it; shape: of the
    run's model, by the size of its files where it is not known; said: settings of the learner."""
    data: dict[str, Any] = {"memory_bytes": hardware.memory}
    if run is None:
        return ok("memory", f"{hardware.summary}; what the run needs is not known yet", **data)
    lacking = shortfalls(run, role, hardware)
    if lacking:
        return failure("memory", "; ".join(lacking), LARGER, **data)
    shape = shape or shape_like(run.weight_bytes() // 2)
    as_tasks = run.distill is not None and run.distill.tasks
    teacher = shape_like(run.weight_bytes(TEACHER) // 2) if run.distill and not as_tasks else None
    try:
        if role == "trainer" or run.pretraining is not None:
            found = plan(machine, TrainingWork.of(run, shape, samples=False, teacher=teacher), said)
            if found.told:
                return warning("memory", f"{found.line}; {'; '.join(found.told)}", "see [trainer]", **found.facts)
            return ok("memory", found.line, **data, **found.facts)
        beside = 2 * run.weight_bytes(TEACHER) if as_tasks else 0  # in float32: who does tasks asks the teacher
        told = check_engine(shape, machine, TrainingWork.of(run, shape, samples=True).longest, beside)
        return ok("memory", told + told_of_copy(policy_bytes(run, shape), hardware), **data)
    except TrainingError as error:
        return failure("memory", f"{error.what}: {error.why}", error.remedy, **data)


def told_of_copy(image: int, hardware: Hardware) -> str:
    """Whether an engine here keeps a policy of so many bytes in memory, in words. Pure."""
    gpu = bool(hardware.gpus)
    # Of all memory, not of what is free: who looks may have the copy already.
    if has_room_for_copy(image, hardware.memory, "bfloat16" if gpu else "float32", gpu=gpu):
        return f"; {size_of(image)} of memory more for a copy of the policy" if image else ""
    return f"; no memory for a copy of the policy ({size_of(image)}), so each is put together anew from all its patches"


# Room for blobs, images and logs in the state directory, and whether it can be written


def check_disk(directory: Path, quota: int, image: int = 0) -> CheckFinding:
    """quota: bytes that the blob store may take; image: bytes of a policy at most, 0 if unknown. Blocking, for a
    moment."""
    place = existing(directory)
    try:
        # By writing: permissions say nothing of a file system that is mounted read-only.
        with tempfile.NamedTemporaryFile(dir=place):
            pass
        disk = os.statvfs(place)
    except OSError as error:
        return failure("disk", f"{place} cannot be written: {error.strerror}", "choose another --state-dir, or mend it")
    stored = sum(status.st_size for _, status in files_in(directory, "blobs/complete/*"))
    return judge_disk(disk.f_bavail * disk.f_frsize, stored, quota, image, place)


def check_quota(quota: int, image: int) -> CheckFinding:
    """Whether a store of so many bytes has room for policies whose image has so many. Pure."""
    kept = int(IMAGES_KEPT * image)
    if quota >= kept:
        return ok("disk", f"the store has room for {IMAGES_KEPT} images of {size_of(image)}", quota_bytes=quota)
    what = (
        f"store_quota is {size_of(quota)}, and policies of {size_of(image)} need {size_of(kept)}: {IMAGES_KEPT} images"
    )
    remedy = f"set INTELLECT_NODE_STORE_QUOTA={kept} (bytes) or more, or join another pool"
    return failure("disk", what, remedy, quota_bytes=quota, needed_bytes=kept)


def policy_bytes(run: RunSpec, shape: DecoderShape | None = None) -> int:
    """Of a policy's image at most; 0 where policies are adapters. shape: of the run's model, by the size of its files
    where it is not known."""
    if run.recipe.lora is not None:
        return 0
    return 2 * shape.parameters if shape else run.weight_bytes()


def judge_disk(free: int, stored: int, quota: int, image: int, place: Path) -> CheckFinding:
    """free: bytes that this user may still write; stored: bytes of blobs that are there. Pure."""
    logs, kept = LOG_BYTES * (LOG_FILES + 1), int(IMAGES_KEPT * image)
    # An image is built beside the store, and may be while that is full of what could go.
    most, least = max(quota - stored, 0) + image + logs, MIN_FREE_BYTES + max(0, kept - stored)
    data = {"free_bytes": free, "wanted_bytes": most, "needed_bytes": least, "path": str(place)}
    if (small := check_quota(quota, image)).level == "failure":
        return small
    if free < least:
        what = f"{size_of(free)} are free in {place}, at least {size_of(least)} are needed"
        return failure("disk", what, "free some space, or use --state-dir on another disk", **data)
    if free < most:
        what = f"{size_of(free)} are free in {place}; with a full store of {size_of(quota)} it would be {size_of(most)}"
        room = max(free - logs - image - MIN_FREE_BYTES, MIN_FREE_BYTES, kept) // 2**20 * 2**20
        return warning("disk", what, f"set INTELLECT_NODE_STORE_QUOTA={room} (bytes), or make room", **data)
    return ok("disk", f"{size_of(free)} free in {place}", **data)


# Whether strangers' code can be run here: interpreter, compiled form, the kernel's walls. Compiles nothing


def check_sandbox() -> CheckFinding:
    """A run without packages does without it, so nothing of it is a failure."""
    lacking = walls.missing()
    data = {"native": lacking or "ok"}
    try:
        path = find_runtime()
        ready = runtime.is_compiled()
    except RuntimeMissing as missing:
        return warning("sandbox", f"{missing.what}: {missing.why}", missing.remedy, **data)
    if not ready:
        return warning("sandbox", "its interpreter is not compiled yet", runtime.INSTALL, **data)
    if lacking:
        what = f"WASI is ready; no native confinement: {lacking}"
        return warning("sandbox", what, "nothing, unless you want the faster one for tasks of your own", **data)
    return ok("sandbox", "WASI with counted instructions, and the kernel's walls", runtime=str(path), **data)
