"""Decoder layers compiled by torch's inductor: fewer kernels and less memory traffic, and other last bits.

So who compiles is of another class of arithmetic (`Arithmetic.compiled`), and the same class must come to the same bits
however its process came to a step. What inductor makes of a graph depends on the sizes that it meets first, which are
others after a restart. Therefore all graphs are made at the start, from one pass of one size, with a number of tokens
that may vary. What they do not cover is computed eagerly, here as at everybody of the class: a pass of one token, one
without a gradient, and attention over a pack, which loops over its samples. Nothing is compiled later.

inductor loads code from the folder that it writes to. Its own place is one in /tmp that anybody may make beforehand;
here it is a new one that nobody else can enter, and it is gone when the code is loaded.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor, nn
from transformers import AttentionInterface

from node.inference.architectures import attending, expert_layers
from node.inference.errors import ran_out
from node.training.attention import NAME, packed_attention
from node.training.program import tell
from node.training.settings import TrainerSettings, eager_because
from node.training.world import World
from protocol.errors import OwnFailure

BACKEND = "inductor"
FOLDERS = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TMPDIR")
"""Variables that say where code is written to, and loaded from."""


class CannotCompile(OwnFailure):
    """Layers that were to be compiled cannot be, on this machine."""


def compiled_by(model: Any, settings: TrainerSettings, world: World) -> str:
    """What compiles this model's layers in this world; empty where they run eagerly. Raises CannotCompile where the
    settings insist. model: of transformers."""
    if not settings.compiles(gpu=world.device.type == "cuda"):
        return ""
    delta = any(how.delta is not None for how in attending(model.config))
    why = eager_because(experts=bool(expert_layers(model.config)), delta=delta)
    found = "" if why else compiler(world.device)
    if not found and not why:
        why = f"{'Triton and a C compiler' if world.device.type == 'cuda' else 'a C++ compiler'} is not here"
    # The ranks compute one step together: what one of them has not, none of them uses.
    if len(set(world.gather(blake3(found.encode()).digest()))) > 1:
        found, why = "", "not all ranks have the same compiler"
    if why and settings.compile is True:
        raise CannotCompile("the layers cannot be compiled", why, "set trainer.compile to false in config.toml")
    if why:
        tell({"event": "training.not_compiled", "why": why})
    return found


def compiler(device: torch.device) -> str:
    """Which one there is for layers on this device, with its version; empty for none."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton  # torch has no public name for it

        # Triton builds its launcher with the machine's own compiler, which computes nothing of a layer.
        program = shutil.which(os.environ.get("CC", "gcc")) or shutil.which("clang")
        return f"{BACKEND} triton {metadata.version('triton')}" if program and has_triton() else ""
    program = shutil.which(os.environ.get("CXX", "g++"))
    if program is None:
        return ""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{BACKEND} {said.stdout.partition(chr(10))[0][:100]}"


@contextmanager
def _private_folder() -> Iterator[None]:
    """Inside, all that torch writes to load it goes to a new folder with mode 0700."""
    before = tempfile.tempdir, {name: os.environ.pop(name) for name in FOLDERS if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="intellect-node-compiled-") as folder:
        os.environ |= dict.fromkeys(FOLDERS, folder)
        tempfile.tempdir = folder  # of inductor's places some are below this one, whatever the variables say
        try:
            yield
        finally:
            tempfile.tempdir = before[0]
            for name in FOLDERS:
                os.environ.pop(name, None)
            os.environ |= before[1]


@_private_folder()
def compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same, compiled at its first call: see `make_graphs`."""
    # What loops over the samples of a pack would be another graph for each pack.
    disable: Any = torch.compiler.disable
    AttentionInterface.register(NAME, disable(packed_attention))
    return torch.compile(forward, backend=BACKEND, dynamic=True)


@_private_folder()
def make_graphs(module: nn.Module, forward: Callable[[int], Tensor], seconds: float) -> None:
    """Make the graphs of a module whose layers are `compiled`, and none ever after in this process.

    forward: the sum of a pass over so many tokens; seconds: of the time that this may take. Raises CannotCompile.
    """
    from torch._dynamo import config as dynamo
    from torch._inductor import config as inductor

    tokens = 1024  # a size for which kernels are laid out well, and with room on any card
    # Nothing is timed to choose a kernel. No pickle of another process is read, and none compiles beside this one.
    sure = {"deterministic": True, "fx_graph_cache": False, "compile_threads": 1, "cpp_cache_precompile_headers": False}
    # Each learner of this process adds its own; one that exceeds this would silently run eagerly.
    bounds = {"recompile_limit": 64, "fail_on_recompile_limit_hit": True}
    torch.compiler.set_stance("default")
    late = threading.Event()
    try:
        with inductor.patch(sure), dynamo.patch(bounds), _within(seconds, late):
            forward(tokens).backward()
    except Exception as error:
        # torch wraps whatever a compiler raises in types of its own.
        if ran_out(error):
            raise
        said = " ".join(f"{type(error).__name__} {error}".split())[:300]
        why = f"compiling took more than {seconds:g} seconds" if late.is_set() else said
        remedy = "set trainer.compile to false, or give it more trainer.compile_seconds if it was late"
        raise CannotCompile("the layers cannot be compiled", why, remedy) from error
    finally:
        module.zero_grad(set_to_none=True)
        torch.compiler.set_stance("eager_on_recompile")


@contextmanager
def _within(seconds: float, late: threading.Event) -> Iterator[None]:
    """Sets `late` and raises TimeoutError inside after so many seconds: a compiler is another process, and waiting for
    one ends so."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only there can a signal be heard
        return

    def stop(*_: Any) -> None:
        late.set()
        raise TimeoutError(f"{seconds:g} seconds are over")

    before = signal.signal(signal.SIGALRM, stop)
    # Again after some seconds: what traces a layer catches what it does not know, and would go on to the compiler.
    signal.setitimer(signal.ITIMER_REAL, seconds, 10.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
