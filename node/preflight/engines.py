"""Which engine will compute, and whether it is here. Blocking: call from a thread."""

from node.inference.errors import EngineError
from node.inference.vllm.installed import check_version
from node.preflight.finding import Finding, failure, ok


def check_engines(wanted: str, *, gpu: bool, own: str | None) -> Finding:
    """wanted: of the settings, auto included; own: another program that computes, which is not looked at."""
    if own:
        return ok("engines", f"another program computes: {own}", engine="own")
    try:
        here, why = check_version(), ""
    except EngineError as error:
        if wanted == "vllm":
            return failure("engines", f"{error.what}: {error.why}", error.remedy, engine="vllm")
        here, why = "", error.what
    engine = "vllm" if wanted == "vllm" or (wanted == "auto" and gpu and here) else "torch"
    asides = f"; {why}" if gpu and why and wanted == "auto" else ""
    return ok("engines", f"the engine is {engine}{asides}", engine=engine)
