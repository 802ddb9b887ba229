"""What strangers wrote runs here, and nowhere else: environments, and answers that are programs.

Two sandboxes with one interface (`base`): CPython for WASI with counted instructions (`wasi`), whose outcomes are
the same on every machine, and a confined native Python (`confined`), faster and for work on which no verdict depends.
"""

from node.sandbox.base import CallOutcome, CallStatus, Sandbox, SandboxCall, SandboxLimits, SandboxSession
from node.sandbox.errors import RuntimeMissing, SandboxError, Undecided
from node.sandbox.opening import Sessions, open_confined, open_wasi
from node.sandbox.runtime import find_runtime

__all__ = [
    "SandboxCall",
    "SandboxLimits",
    "CallOutcome",
    "RuntimeMissing",
    "Sandbox",
    "SandboxError",
    "SandboxSession",
    "Sessions",
    "CallStatus",
    "Undecided",
    "find_runtime",
    "open_confined",
    "open_wasi",
]
