"""Inside the sandbox: imports the entry module, then answers requests. Standard library only, Python 3.11 and newer.

argv: entry module, directory of its files, path of the channel. A request is the JSON of [function, arguments]
and ends the file; a reply is one letter and a text: v value, x exit code, m out of memory, r raised.
"""

import builtins
import contextlib
import gc
import json
import os
import sys


def main() -> None:
    entry, directory, channel = sys.argv[1], sys.argv[2], os.open(sys.argv[3], os.O_RDWR)
    sys.argv[:] = [entry]
    os.environ.clear()
    sys.path.insert(0, directory)
    add_packages(f"{directory}/shelf")
    builtins.exit = builtins.quit = sys.exit
    try:
        module = __import__(entry, fromlist=["*"])
    except BaseException as error:
        tell(channel, failure(error))
        sys.exit(1)
    gc.collect()
    gc.freeze()  # what stands now is shared by all calls: collecting it would copy every page
    while True:
        serve(module, channel)


def add_packages(shelf: str) -> None:
    """What may be imported besides the entry's own modules and Python's: archives of pinned packages.

    Each is imported now, so that an import in a call costs nothing: sympy takes half of what a call may use.
    """
    names = [name for name in sorted(os.listdir(shelf)) if name.endswith(".zip")] if os.path.isdir(shelf) else []
    sys.path[1:1] = [f"{shelf}/{name}" for name in names]
    for name in names:
        __import__(name.partition("-")[0])


def serve(module: object, channel: int) -> None:
    """One request: read, call, reply."""
    tell(channel, answer(module, b"".join(iter(lambda: os.read(channel, 1 << 20), b""))))


def answer(module: object, request: bytes) -> bytes:
    """The reply to a request; without a function the module is only loaded."""
    try:
        function, arguments = json.loads(request)
        value = getattr(module, function)(*arguments) if function else None
        return b"v" + json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except BaseException as error:
        return failure(error)


def failure(error: BaseException) -> bytes:
    """What went wrong, as a reply. A message that cannot be made is left out."""
    if isinstance(error, MemoryError):
        return b"m"
    if isinstance(error, SystemExit):
        return b"x" + str(exit_code(error)).encode()
    try:
        text = f"{type(error).__name__}: {error}"[:400]
    except BaseException:
        text = type(error).__name__
    return b"r" + text.encode("utf-8", "replace")


def exit_code(error: SystemExit) -> int:
    if isinstance(error.code, str):
        sys.stderr.write(error.code)
    return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)


def tell(channel: int, reply: bytes) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    view = memoryview(reply)
    while view:
        view = view[os.write(channel, view) :]


if __name__ == "__main__":
    main()
