"""What this machine is, read from doubles of the kernel's files and of NVIDIA's library."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from node.hardware import amd, cpu, nvidia
from node.hardware.gpu import Gpu

GIB = 2**30


class Nvml:
    """Two GPUs, by NVML's calls. refused: the call that fails."""

    def __init__(self, refused: str = "") -> None:
        self._refused = refused
        self.shut = 0

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 999 if name == self._refused else self.answer(name, *arguments)

    def answer(self, name: str, *arguments: Any) -> int:
        match name, arguments:
            case "nvmlDeviceGetCount_v2", (count,):
                count._obj.value = 2
            case "nvmlDeviceGetHandleByIndex_v2", (index, device):
                device._obj.value = 1 + index.value
            case "nvmlDeviceGetMemoryInfo", (device, memory):
                memory._obj.total, memory._obj.free = device.value * 80 * GIB, 70 * GIB
            case "nvmlDeviceGetCudaComputeCapability", (_, major, minor):
                major._obj.value, minor._obj.value = 9, 0
            case "nvmlDeviceGetName", (device, buffer, length):
                assert length.value == ctypes.sizeof(buffer)
                buffer.value = f"H{device.value}00".encode()
            case "nvmlSystemGetDriverVersion", (buffer, _):
                buffer.value = b"580.65"
            case "nvmlShutdown", ():
                self.shut += 1
        return 0


def test_the_library_says_what_gpus_there_are() -> None:
    library = Nvml()
    gpus, driver = nvidia.ask(library)
    assert gpus == (
        Gpu("H100", 80 * GIB, 70 * GIB, "nvidia", "9.0"),
        Gpu("H200", 160 * GIB, 70 * GIB, "nvidia", "9.0"),
    )
    assert driver == "580.65" and library.shut == 1


def test_a_gpu_that_fell_off_the_bus_is_an_error_of_the_library() -> None:
    library = Nvml(refused="nvmlDeviceGetMemoryInfo")
    with pytest.raises(nvidia.NvmlError):
        nvidia.ask(library)
    assert library.shut == 1


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_kernel_lists_amds_gpus(tmp_path: Path) -> None:
    nodes, cards = tmp_path / "nodes", tmp_path / "cards"
    write(nodes / "0" / "properties", "cpu_cores_count 64\nsimd_count 0\nvendor_id 4098\n")
    facts = "simd_count 304\nvendor_id 4098\ngfx_target_version 90402\ndrm_render_minor 128\n"
    write(nodes / "1" / "properties", facts)
    write(cards / "renderD128" / "device" / "mem_info_vram_total", f"{192 * GIB}\n")
    write(cards / "renderD128" / "device" / "mem_info_vram_used", f"{2 * GIB}\n")
    assert amd.look(nodes, cards) == (Gpu("AMD gfx942", 192 * GIB, 190 * GIB, "amd", "gfx942"),)
    assert amd.look(tmp_path / "none", cards) == ()


@pytest.mark.parametrize(
    ("text", "name", "features"),
    [
        (
            "model name\t: Xeon  X\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_tile\nmodel name: other",
            "Xeon X",
            ("avx2", "avx512", "bf16", "amx"),
        ),
        ("Features\t: fp asimd sve bf16\n", None, ("neon", "sve", "arm-bf16")),
        ("flags : avx2ish", None, ()),
    ],
)
def test_abilities_are_those_that_engines_are_faster_by(
    tmp_path: Path, text: str, name: str | None, features: tuple[str, ...]
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    found = cpu.look(tmp_path / "cpuinfo")
    assert found.features == features and name in (None, found.name)
