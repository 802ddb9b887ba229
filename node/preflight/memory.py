"""Whether a run's model fits into this machine in a role. Pure.

An estimate from the size of the weights, on the side of admitting: what a run asks for in so many words
(`[requirements]`) is checked by node.recipe.requirements.
"""

from node.hardware import Hardware
from node.preflight.finding import Finding, failure, ok, warning
from node.recipe.requirements import shortfalls
from protocol.run import RunSpec

GIB = 2**30
LARGER = "use a larger machine, or join another pool"
PROGRAM = 0.6 * GIB
"""Bytes of a child with torch, before any model."""
COPIES = {"worker": 2.5, "validator": 2.5, "trainer": 9.0}
"""Bytes of memory for one of bf16 weights: float32 weights and activations; the trainer's gradients and moments."""


def weights_of(run: RunSpec) -> int:
    """Bytes of the run's first weights."""
    return sum(asset.size for asset in run.assets if asset.path.endswith(".safetensors"))


def check_memory(run: RunSpec | None, role: str, hardware: Hardware) -> Finding:
    """run: None where it is not known before joining."""
    data: dict[str, float] = {"memory_bytes": hardware.memory}
    if run is None:
        return ok("memory", f"{hardware.summary}; what the run needs is not known yet", **data)
    lacking = shortfalls(run, role, hardware)
    if lacking:
        return failure("memory", "; ".join(lacking), LARGER, **data)
    needed = PROGRAM + COPIES[role] * weights_of(run)
    largest = max([hardware.memory, *(gpu.memory for gpu in hardware.gpus)])
    data["needed_bytes"] = round(needed)
    what = (
        f"about {needed / GIB:.1f} GiB as {role} for a model of {weights_of(run) / 1e6:.0f} MB, of {hardware.summary}"
    )
    if needed > largest:
        return failure("memory", f"the model does not fit: {what}", LARGER, **data)
    if needed > 0.8 * largest:
        return warning("memory", f"the model hardly fits: {what}", "close other programs on this machine", **data)
    return ok("memory", f"the model fits: {what}", **data)
