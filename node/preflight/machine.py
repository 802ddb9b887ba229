"""What this machine is, and how fast its engine was. Pure."""

import msgspec

from node.hardware import Hardware
from node.preflight.finding import Finding, ok, warning
from node.recipe.speed import LEAST_DECODE, Speed


def check_machine(hardware: Hardware) -> Finding:
    """All that is known of it, as data; in words what engines are faster by."""
    features = ", ".join(hardware.features) or "none of the vector units that engines are faster by"
    what = f"{hardware.processor or 'unknown processor'}: {hardware.cores} cores ({features})"
    memory = f"{hardware.memory / 2**30:.1f} GiB of memory, {hardware.free / 2**30:.1f} free"
    return ok("machine", f"{what}, {memory}", **msgspec.to_builtins(hardware))


def speed_finding(speed: Speed | None) -> Finding:
    """None: not measured yet, or it cannot be."""
    if speed is None:
        return ok("speed", "not measured yet: doctor --engine does it, and join where the run deals lengths by it")
    size = f"a model of {speed.parameters / 1e6:.1f} M parameters, {speed.engine}"
    what = f"{speed.decode:,.0f} tokens/s drawn, {speed.prefill:,.0f} read ({size})"
    data = msgspec.to_builtins(speed)
    if speed.decode < LEAST_DECODE:
        return warning("speed", what, "too slow for a worker: use a faster machine, or stop what keeps it busy", **data)
    return ok("speed", what, **data)
