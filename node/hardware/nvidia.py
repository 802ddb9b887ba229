"""NVIDIA's GPUs, asked of NVML, the library that comes with the driver; of nvidia-smi where it is not found."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from node.hardware.gpu import Gpu

LIBRARY = "libnvidia-ml.so.1"
Found = tuple[tuple[Gpu, ...], str]
"""GPUs, and the driver's version."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class NvmlError(Exception):
    """A call that NVML refused: its number says why."""


def look() -> Found:
    """No GPUs and no version where there is neither library nor program, or neither answers."""
    try:
        # The library first: nvidia-smi takes a second or more, and containers often have the one without the other.
        return ask(ctypes.CDLL(LIBRARY))
    except (OSError, AttributeError, NvmlError):
        return _ask_program()


def ask(library: Any) -> Found:
    """library: NVML, or what answers like it. Raises NvmlError, AttributeError (a library that is older than these
    calls)."""
    _call(library.nvmlInit_v2)
    try:
        count = ctypes.c_uint()
        _call(library.nvmlDeviceGetCount_v2, ctypes.byref(count))
        return tuple(_gpus(library, min(count.value, 64))), _text(library.nvmlSystemGetDriverVersion)  # GPUs
    finally:
        library.nvmlShutdown()


def _gpus(library: Any, count: int) -> Iterator[Gpu]:
    for index in range(count):
        device, memory = ctypes.c_void_p(), _Memory()
        _call(library.nvmlDeviceGetHandleByIndex_v2, ctypes.c_uint(index), ctypes.byref(device))
        _call(library.nvmlDeviceGetMemoryInfo, device, ctypes.byref(memory))
        major, minor = ctypes.c_int(), ctypes.c_int()
        _call(library.nvmlDeviceGetCudaComputeCapability, device, ctypes.byref(major), ctypes.byref(minor))
        capability = f"{major.value}.{minor.value}"
        yield Gpu(_text(library.nvmlDeviceGetName, device), memory.total, memory.free, "nvidia", capability)


def _text(function: Any, *arguments: Any) -> str:
    text = 96  # bytes for a name; NVML's own bound is 96
    buffer = ctypes.create_string_buffer(text)
    _call(function, *arguments, buffer, ctypes.c_uint(text))
    return buffer.value.decode("utf-8", "replace")


def _call(function: Any, *arguments: Any) -> None:
    code = function(*arguments)
    if code:
        raise NvmlError(code)


def _ask_program() -> Found:
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), ""
    query = [program, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        return (), ""
    # From the right: a card's name may hold a comma.
    rows = [[part.strip() for part in line.rsplit(",", 2)] for line in answer.splitlines()]
    good = [row for row in rows if len(row) == 3 and row[1].isdigit()]
    return tuple(Gpu(name, int(memory) * 2**20) for name, memory, _ in good), good[0][2] if good else ""
