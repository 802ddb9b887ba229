"""The wasmtime settings on which an outcome depends, and the interpreter compiled with them.

Fuel is counted where WebAssembly is translated, before any optimisation, so the code generator's settings do not change
it; NaNs are made canonical, so that floats do not depend on the processor. Compiled code is native code: it is only
read from a directory that nobody else can write to.
"""

import ctypes
from pathlib import Path
from typing import Any

from wasmtime import Config, Engine, Module, WasmtimeError
from wasmtime._ffi import dll

from node.sandbox.wasi.settings import OPTIMISED, STACK_BYTES, Settings


def make_engine(settings: Settings = OPTIMISED) -> Engine:
    config = Config()
    if settings.portable:
        _set(config, "target", ctypes.c_char_p, b"pulley64")
    config.consume_fuel = True
    config.cranelift_opt_level = "speed" if settings.optimised else "none"
    config.cranelift_nan_canonicalization = True
    # Its results may differ from processor to processor.
    config.wasm_relaxed_simd = False
    config.wasm_threads = False
    config.memory_init_cow = False
    _set(config, "async_stack_size", ctypes.c_uint64, STACK_BYTES)  # it checks the stack against that of its fibers
    config.max_wasm_stack = STACK_BYTES
    return Engine(config)


def load_module(path: Path) -> tuple[Engine, Module]:
    """path: native code that is trusted, see `runtime`. Raises WasmtimeError where it was made by another wasmtime."""
    engine = make_engine(Settings.of(path))
    return engine, Module.deserialize_file(engine, str(path))


def _set(config: Config, name: str, kind: Any, value: Any) -> None:
    """What wasmtime's Python face cannot set."""
    setter = getattr(dll, f"wasmtime_config_{name}_set")
    # Only `target` answers, with null or an error. ctypes would read a result where there is none.
    setter.argtypes, setter.restype = [ctypes.c_void_p, kind], (ctypes.c_void_p if name == "target" else None)
    if setter(ctypes.cast(config.ptr(), ctypes.c_void_p), value):
        raise WasmtimeError(f"wasmtime does not take {name} = {value}")
