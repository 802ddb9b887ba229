"""The registry of engines: which there are, which ways to compute each knows, and how one is made.

A class of engines (protocol.engines) ends in a kernel, and a kernel belongs to one engine: so the name of a class says
which engine makes it. Nothing heavy is imported before an engine is asked for.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.environments.base import Tokenizer
from node.inference.engine import Engine
from node.inference.errors import EngineError
from node.inference.settings import ATTENTIONS, DEFAULT, EngineSettings
from node.inference.vllm import installed


def keep_freed_memory() -> bool:
    """Whether the C library can be told so: glibc's can, others only stay slower."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    # Memory that is free stays with an engine's process. The C library would hand it back after every layer and fetch
    # it again, and the operating system zeroes its pages each time: on small models that is a third of a prefill.
    trim_threshold, mmap_threshold = -1, -3  # names of malloc.h
    # At most so much that is free stays. What malloc may take from there; larger blocks come from the operating system
    # and go back, as ever.
    return bool(mallopt(mmap_threshold, 32 * 1024**2) and mallopt(trim_threshold, 256 * 1024**2))


EngineFactory = Callable[[Path], tuple[Engine, Tokenizer]]
"""Model directory -> the engine for it and the model's tokenizer."""
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class EngineKind:
    """kernels: what its classes' third parts begin with, best first; make: raises EngineError, ModelError; check: of a
    device, raises EngineError where it cannot compute there; suits: the devices on which it is taken unasked, where it
    can; splits: over how many of a device's kind it may split one model, best first."""

    name: str
    kernels: Sequence[str]
    make: Callable[[Path, EngineSettings], tuple[Engine, Tokenizer]]
    check: Callable[[str], None]
    suits: Callable[[str], bool]
    splits: Callable[[str], Sequence[int]] = lambda _: (1,)


def torch_engine(model_dir: Path, settings: EngineSettings = DEFAULT) -> tuple[Engine, Tokenizer]:
    """The engine that runs everywhere: one thread, so that several nodes share a machine in peace."""
    import torch

    from node.inference.torch_engine import TorchEngine

    torch.set_num_threads(1)
    keep_freed_memory()
    engine = TorchEngine(model_dir, settings)
    return engine, engine.tokenizer


def teacher_beside(engine: Engine, directory: Path, model_dir: Path) -> Engine:
    """A teacher on the device of an engine and in its type, without weights. model_dir: of the model whose tokenizer it
    has. Raises EngineError, ModelError."""
    from node.inference.tokenizer import LocalTokenizer
    from node.inference.torch_engine import TorchEngine

    settings = EngineSettings(device=engine.device, dtype=engine.dtype)
    return TorchEngine(directory, settings, LocalTokenizer(model_dir))


def load_start(engine: Engine, directory: Path) -> None:
    """Put the weights of a model directory into an engine for it. Raises ModelError."""
    from node.inference.start_weights import StartWeights
    from node.inference.torch_engine import build_model, image_names

    weights = StartWeights(directory)
    weights.check(image_names(build_model(directory, "meta")))
    # Not before all shapes fit: a load that fails half-way leaves an engine without weights.
    engine.load(weights)


def vllm_engine(model_dir: Path, settings: EngineSettings) -> tuple[Engine, Tokenizer]:
    """The engine for GPUs. Raises EngineError where vLLM is missing or of another version."""
    installed.check(settings.device)
    from node.inference.vllm.engine import VllmEngine

    engine = VllmEngine(model_dir, settings)
    return engine, engine.tokenizer


def _splits(device: str) -> Sequence[int]:
    """One GPU first, so that each serves whole models: another node takes the next one. A model that is too large for
    what is chosen is split over more, where its class is admitted."""
    import torch

    gpus = torch.cuda.device_count() if device == "cuda" else 0
    return [1 << power for power in range(max(gpus, 1).bit_length())]


TORCH = EngineKind("torch", ATTENTIONS, torch_engine, lambda _: None, lambda _: True)
VLLM = EngineKind("vllm", ("vllm",), vllm_engine, installed.check, lambda device: device.startswith("cuda"), _splits)
ENGINES: dict[str, EngineKind] = {VLLM.name: VLLM, TORCH.name: TORCH}
"""By name, best first."""


def kernels() -> list[str]:
    """All kernels, those of the torch engine first."""
    return [kernel for kind in reversed(list(ENGINES.values())) for kernel in kind.kernels]


def kind_of(kernel: str, engines: Mapping[str, EngineKind] = ENGINES) -> EngineKind:
    """The engine whose kernel this is. Raises EngineError."""
    for kind in engines.values():
        if kernel in kind.kernels:
            return kind
    raise EngineError("no such kernel", f"{kernel!r} belongs to no engine", f"known ones: {', '.join(kernels())}")


def usable(kind: EngineKind, device: str) -> bool:
    """Whether this machine can run an engine there."""
    try:
        kind.check(device)
    except EngineError:
        return False
    return True


def make_engine(model_dir: Path, settings: EngineSettings) -> tuple[Engine, Tokenizer]:
    """The engine that `settings` describe. Raises EngineError, ModelError."""
    return kind_of(settings.attention).make(model_dir, settings)
