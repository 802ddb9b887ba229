"""The wasmtime settings on which an outcome depends, and the interpreter compiled with them.

Fuel is counted where WebAssembly is translated, before any optimisation, so the code generator's settings do not change
it; NaNs are made canonical, so that floats do not depend on the processor. Compiled code is native code: it is only
read from a directory that nobody else can write to.
"""

import ctypes
from pathlib import Path

from wasmtime import Config, Engine, Module
from wasmtime._ffi import dll

from node.sandbox.wasi.settings import OPTIMISED, STACK_BYTES, Settings


def make_engine(settings: Settings = OPTIMISED) -> Engine:
    config = Config()
    config.consume_fuel = True
    config.cranelift_opt_level = "speed" if settings.optimised else "none"
    config.cranelift_nan_canonicalization = True
    config.wasm_relaxed_simd = False
    config.wasm_threads = False
    config.memory_init_cow = False
    _allow_stack(config, STACK_BYTES)
    config.max_wasm_stack = STACK_BYTES
    return Engine(config)


def compile_module(wasm: bytes, settings: Settings = OPTIMISED) -> bytes:
    """About ten seconds of CPU time. For a process that does nothing else: wasmtime keeps threads."""
    return bytes(Module(make_engine(settings), wasm).serialize())


def load_module(path: Path, settings: Settings = OPTIMISED) -> tuple[Engine, Module]:
    """path: native code that is trusted, see `runtime`. Raises WasmtimeError where it was made by another wasmtime."""
    engine = make_engine(settings)
    return engine, Module.deserialize_file(engine, str(path))


def _allow_stack(config: Config, size: int) -> None:
    """wasmtime checks the stack against that of its fibers, unused here; its Python face cannot set that."""
    allow = dll.wasmtime_config_async_stack_size_set
    allow.argtypes, allow.restype = [ctypes.c_void_p, ctypes.c_uint64], None
    allow(ctypes.cast(config.ptr(), ctypes.c_void_p), size)
