"""Which files a sandbox takes: a bounded tree with plain names, and an entry module in it."""

import re
from collections.abc import Mapping

from node.sandbox.errors import SandboxError

MAX_FILES = 4096
MAX_BYTES = 64 << 20
_PATH = re.compile(r"[A-Za-z0-9_][\w.-]{0,99}(/[A-Za-z0-9_][\w.-]{0,99}){0,7}", re.ASCII)
_MODULE = re.compile(r"[A-Za-z_]\w{0,99}(\.[A-Za-z_]\w{0,99}){0,7}", re.ASCII)


def check_files(files: Mapping[str, bytes], entry: str) -> None:
    """files: relative path -> content; entry: a module among them. Raises SandboxError."""
    for path in files:
        if not _PATH.fullmatch(path):
            raise _refused(f"{path[:100]!r} is no plain relative path", "rename the file: letters, digits, _ . -")
    if len(files) > MAX_FILES or sum(map(len, files.values())) > MAX_BYTES:
        raise _refused(f"more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB", "leave out what is not needed")
    place = entry.replace(".", "/")
    if not _MODULE.fullmatch(entry) or not {f"{place}.py", f"{place}/__init__.py"} & files.keys():
        raise _refused(f"there is no module {entry[:100]!r} among them", f"add {place[:100]}.py")


def _refused(why: str, remedy: str) -> SandboxError:
    return SandboxError("these files cannot be put into a sandbox", why, remedy)
