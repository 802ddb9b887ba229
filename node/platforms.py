"""On which systems this program runs, and as what. Imports nothing: it is asked before anything that others lack.

Linux, and Windows' WSL2, which is one: everything. macOS: all commands, a desk, and a worker on its processor; nobody
tried a validator or a trainer there, and a wrong word of theirs costs a stake. Elsewhere fork, Unix sockets and POSIX
locks are missing.
"""

WHOLE, PARTLY = "linux", "darwin"


def refusal(platform: str) -> tuple[str, str, str] | None:
    """What happened, why, and what to do; None where it runs. platform: sys.platform."""
    if platform.startswith((WHOLE, PARTLY)):
        return None
    what = f"intellect-node does not run on {platform}"
    why = "it needs fork, Unix sockets and POSIX file locks: Linux, WSL2 and macOS have them"
    windows = platform in ("win32", "cygwin", "msys")
    return what, why, "install it inside WSL2 (wsl --install, then as on Linux)" if windows else "use one of these"


def lacking(role: str, platform: str) -> str:
    """Why a node of this role does not run there, empty where it does."""
    if role == "worker" or not platform.startswith(PARTLY):
        return ""
    return f"on macOS a node is a worker: a {role} was never tried there, and its wrong word would cost a stake"
