"""AMD's GPUs, as the kernel's driver for compute (ROCm's) shows them in files."""

from collections.abc import Iterator
from pathlib import Path

from node.hardware.gpu import Gpu

NODES = Path("/sys/class/kfd/kfd/topology/nodes")
CARDS = Path("/sys/class/drm")


def look(nodes: Path = NODES, cards: Path = CARDS) -> tuple[Gpu, ...]:
    """Empty where the driver is not loaded. nodes, cards: where the kernel lists what computes, and what draws."""
    try:
        # Of nodes: a machine has fewer, and a broken sysfs must not hold the start.
        found = sorted(nodes.iterdir())[:64]
    except OSError:
        return ()
    return tuple(gpu for node in found if (gpu := _gpu(node, cards)))


def _gpu(node: Path, cards: Path) -> Gpu | None:
    """None of what is no GPU of AMD's: processors are nodes, too."""
    facts = dict(_facts(node / "properties"))
    # simd_count is 0 for processors.
    vendor = 0x1002
    if facts.get("vendor_id") != vendor or not facts.get("simd_count"):
        return None
    device = cards / f"renderD{facts.get('drm_render_minor', 0)}" / "device"
    total, used = _number(device / "mem_info_vram_total"), _number(device / "mem_info_vram_used")
    version = facts.get("gfx_target_version", 0)
    # The driver packs 9.4.2 as 90402; the compiler writes minor and stepping in hex, so 9.0.10 is gfx90a.
    capability = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    name = _text(device / "product_name") or f"AMD {capability}"
    return Gpu(name, total or 0, total - used if total and used is not None else -1, "amd", capability)


def _facts(path: Path) -> Iterator[tuple[str, int]]:
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            yield name, int(value)


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:65536].strip()
    except OSError:
        return ""
