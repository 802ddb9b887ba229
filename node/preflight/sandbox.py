"""Whether strangers' code can be run here: interpreter, compiled form, the kernel's walls. Compiles nothing."""

from node.preflight.finding import Finding, ok, warning
from node.sandbox import RuntimeMissing, find_runtime, runtime
from node.sandbox.confined import walls


def check_sandbox() -> Finding:
    """A run without packages does without it, so nothing of it is a failure."""
    lacking = walls.missing()
    data = {"native": lacking or "ok"}
    try:
        path = find_runtime()
        ready = runtime.is_compiled()
    except RuntimeMissing as missing:
        return warning("sandbox", f"{missing.what}: {missing.why}", missing.remedy, **data)
    if not ready:
        return warning("sandbox", "its interpreter is not compiled yet", runtime.INSTALL, **data)
    if lacking:
        what = f"WASI is ready; no native confinement: {lacking}"
        return warning("sandbox", what, "nothing, unless you want the faster one for tasks of your own", **data)
    return ok("sandbox", "WASI with counted instructions, and the kernel's walls", runtime=str(path), **data)
