"""From an exception to what a person reads: what happened, why, what to do, and a documented exit code.

Errors are told apart by the names of their classes, because importing every package's tree would load
the chain and network stacks just to print a usage error.
"""

import errno
import os
import sqlite3
import tempfile
import traceback
from typing import Any

from protocol.errors import IntellectError

UNEXPECTED, USAGE, CONFIGURATION, CHAIN, NETWORK, RUN, EXPELLED, INTERRUPTED = 1, 2, 3, 4, 5, 6, 7, 130

# The first name found along the class's ancestry decides.
_CODES = {
    "ExpelledError": EXPELLED,
    "EvictedError": EXPELLED,
    "TwinError": EXPELLED,
    "SlashedError": EXPELLED,
    "RunFileError": RUN,
    "ConfigError": CONFIGURATION,
    "StateError": CONFIGURATION,
    "NodeError": CONFIGURATION,
    "ChainError": CHAIN,
    "ContractError": CHAIN,
    "DevnetError": CHAIN,
    "PortInUse": CONFIGURATION,
    "ListenFailed": CONFIGURATION,
    "StoreFull": CONFIGURATION,
    "StoreFailed": CONFIGURATION,
    "NetworkError": NETWORK,
    "BadSource": USAGE,
    "GatewayError": NETWORK,
    "RunError": RUN,
    "EngineError": RUN,
    "ModelError": RUN,
    "TrainingError": RUN,
    "DatasetError": RUN,
    "EnvironmentFault": RUN,
    "SandboxError": RUN,
    "PolicyUnknown": NETWORK,
    "WeightsDiskError": CONFIGURATION,
    "WeightsError": RUN,
    "MalformedPolicy": RUN,
    "PatchError": RUN,
    "ProtocolError": NETWORK,
    "IntellectError": CONFIGURATION,
}


RETIRED = {
    "No such command 'top'.": "intellect-node status --watch",
    "No such command 'update'.": "`git pull && make install` in a clone, `pip install --upgrade` elsewhere",
    "No such option: --share-engine": "leave it out: each node has an engine of its own",
    "No such option: --invitation": "an invitation is a file: intellect-node join theirs.toml",
}
"""What the parser says of words that this program once took -> what stands in their place."""


class CommandError(IntellectError):
    """A failure that the command line itself found. code: the exit code."""

    def __init__(self, what: str, why: str, remedy: str, code: int = CONFIGURATION) -> None:
        super().__init__(what, why, remedy)
        self.code = code


def exit_code(error: BaseException) -> int:
    """The documented exit code of `error`; groups of errors have that of their most telling member."""
    error = unwrap(error)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, IntellectError):
        # There always is one: the root of all these classes is in the table.
        return next(_CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _CODES)
    if is_named(error, "UsageError"):
        return USAGE
    expected = isinstance(error, (OSError, sqlite3.DatabaseError, UnicodeEncodeError))
    return CONFIGURATION if expected else UNEXPECTED


def describe(error: BaseException) -> IntellectError:
    """What a person reads. Unexpected errors leave their traceback in a file that the text names."""
    error = unwrap(error)
    if isinstance(error, IntellectError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return IntellectError("interrupted", "Ctrl-C or SIGINT", "run the command again")
    if is_named(error, "ClickException"):
        return _describe_parser_error(error)
    if is_named(error, "Abort"):
        return IntellectError("nothing was done", "the question was answered by no, or not at all", "run it again")
    if isinstance(error, OSError):
        return _describe_os_error(error)
    if isinstance(error, sqlite3.DatabaseError):
        return _describe_database_error(error)
    if isinstance(error, UnicodeEncodeError) and error.reason.startswith("surrogates"):
        # Of the working directory, say: what is typed or set is looked at before anything is done.
        name = ascii(error.object[:200])[1:-1]
        return IntellectError("a name is no UTF-8", f"{name} holds bytes that are no text", "rename it, or use another")
    return IntellectError(
        "an unexpected error",
        f"{type(error).__name__}: {error}"[:400],
        f"this is a bug; its traceback is in {_keep_traceback(error)}: please report it with that file",
    )


def unwrap(error: BaseException) -> BaseException:
    """The member of an exception group that says most: an expected error first, then an interrupt."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    members = [unwrap(member) for member in error.exceptions]
    # Ours first: the others are mostly what an orderly end did to them.
    for kind in (IntellectError, KeyboardInterrupt, OSError):
        for member in members:
            if isinstance(member, kind):
                return member
    return members[0]


def is_named(error: BaseException, name: str) -> bool:
    """Whether a class of that name is among the error's: those of click are typer's own copies, or click's."""
    return any(kind.__name__ == name for kind in type(error).__mro__)


def _describe_parser_error(error: Any) -> IntellectError:
    """What click and typer find in the words of a command."""
    why = " ".join(error.format_message().split())
    command = error.ctx.command_path if getattr(error, "ctx", None) else "intellect-node"
    for said, instead in RETIRED.items():
        if why.startswith(said):
            return IntellectError("the command is retired", why, instead)
    return IntellectError("the command is not understood", why, f"see what it takes: {command} --help")


def _describe_os_error(error: OSError) -> IntellectError:
    place = f" ({error.filename})" if error.filename else ""
    why = f"{os.strerror(error.errno) if error.errno else error}{place}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            remedy = "free some space and run again: with --resume, if it is a demo or a training that had begun"
            return IntellectError("the disk is full", why, remedy)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return IntellectError("a file cannot be used", why, "give this user access, or name another directory")
        case errno.ENOENT if "temporary directory" in str(error):
            why = "none of the usual places can be written: TMPDIR, /tmp, /var/tmp, the working directory"
            return IntellectError("there is no temporary directory", why, "set TMPDIR to a directory that can be")
        case errno.ENOENT | errno.ENOTDIR:
            return IntellectError("there is no such file or directory", why, "correct the path")
        case errno.EISDIR:
            return IntellectError("this is a directory and not a file", why, "name the file in it")
        case errno.EADDRINUSE:
            return IntellectError("a port is in use", why, "stop the other program, or choose another port")
        case errno.EMFILE | errno.ENFILE:
            return IntellectError("too many open files", why, "raise the limit (`ulimit -n 4096`) and run again")
        case _:
            return IntellectError("the operating system refused", why, "mend the cause and run again")


def _describe_database_error(error: sqlite3.DatabaseError) -> IntellectError:
    """Of the databases in a state directory: full disks, read-only ones, and disks that fail."""
    from node.state.tables import explained

    why, remedy = explained(error)
    return IntellectError("a database of the state directory cannot be used", why, remedy)


def _keep_traceback(error: BaseException) -> str:
    try:
        # mkstemp: mode 0600 and a name that nobody can have put a link at.
        handle, path = tempfile.mkstemp(prefix="intellect-node-crash-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
    # While a crash is told nothing may fail again: the first error is the one that a reader needs.
    except OSError:
        return "no file, for want of a temporary directory (TMPDIR)"
    return path
