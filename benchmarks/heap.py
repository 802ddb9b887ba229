"""What a daemon's memory is: a node that tells of its heap when asked.

    python -m benchmarks.heap DIR join ...

is `intellect-node join ...` which at every SIGUSR2 writes one line of JSON to DIR/PID.jsonl: the objects that the
collector knows (not those of the imports, which a daemon freezes), by type; the largest containers, with whose they
are; what Python's and the system's allocators hold and what of it is in use.
"""

import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.weigh import resident

LARGE = 150
"""Entries from which on a container is told of."""
MOST_TYPES, MOST_CONTAINERS = 60, 80
PLAIN = (str, bytes, bytearray, int, float)


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def allocators() -> dict[str, int]:
    """Bytes that the system's allocator has from the system and those in use, mapped blocks apart; and what Python's
    own, which takes its arenas from mapped memory, has in blocks."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo2
    info = libc.mallinfo2()
    return {
        "malloc_held": info.arena,
        "malloc_used": info.uordblks,
        "malloc_free": info.fordblks,
        "malloc_mapped": info.hblkhd,
        "python_blocks": sys.getallocatedblocks(),
    }


def heap() -> dict[str, Any]:
    """Objects by type as [count, bytes], plain ones that only containers hold among them, and large containers."""
    objects = gc.get_objects()
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    large: dict[int, Any] = {}
    for one in objects:
        _count(one, counts, sizes)
        if isinstance(one, dict | list | set | frozenset) or type(one).__name__ == "deque":
            if len(one) >= LARGE:
                large[id(one)] = one
        for held in gc.get_referents(one):
            if isinstance(held, PLAIN) and id(held) not in seen:
                seen.add(id(held))
                _count(held, counts, sizes)
    most = {name: [counts[name], size] for name, size in sizes.most_common(MOST_TYPES)}
    return {"objects": len(objects), "bytes": sizes.total(), "types": most, "large": _told(objects, large)}


def _count(one: Any, counts: Counter[str], sizes: Counter[str]) -> None:
    kind = type(one)
    name = f"{kind.__module__}.{kind.__qualname__}"
    counts[name] += 1
    sizes[name] += sys.getsizeof(one, 64)


def _told(objects: list[Any], large: dict[int, Any]) -> list[list[Any]]:
    """[entries, type, whose attribute] of the large containers, the largest first."""
    owners: dict[int, str] = {}
    for one in objects:
        if isinstance(one, dict | list | set | tuple) or id(one) in large:
            continue
        for held in gc.get_referents(one):
            if id(held) in large:
                owners[id(held)] = f"{type(one).__module__}.{type(one).__qualname__}.{_attribute(one, held)}"
    rows = [[len(one), type(one).__name__, owners.get(key, _sample(one))] for key, one in large.items()]
    return sorted(rows, key=lambda row: -row[0])[:MOST_CONTAINERS]


def _attribute(owner: Any, held: Any) -> str:
    names = [*getattr(owner, "__dict__", {})]
    names += [slot for kind in type(owner).__mro__ for slot in getattr(kind, "__slots__", ())]
    return next((name for name in names if getattr(owner, name, None) is held), "?")


def _sample(one: Any) -> str:
    first = next(iter(one), None)
    return f"? of {type(first).__name__} {str(first)[:60] if isinstance(first, str) else ''}"


def tell_when_asked(folder: Path) -> None:
    """At every SIGUSR2 from now on, also in processes that are forked of this one."""
    began = time.monotonic()

    def tell(number: int, frame: FrameType | None) -> None:
        asked = time.monotonic()
        row = {"at": round(asked - began, 1), "pid": os.getpid(), "threads": threading.active_count()}
        row |= {"resident": resident(os.getpid()), "allocators": allocators(), "heap": heap()}
        row["took"] = round(time.monotonic() - asked, 3)
        with (folder / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    signal.signal(signal.SIGUSR2, tell)


def main() -> int:
    """Be `intellect-node` with the rest of the command line."""
    folder = Path(sys.argv.pop(1))
    folder.mkdir(parents=True, exist_ok=True)
    tell_when_asked(folder)
    from cli.main import main as node

    return node()


if __name__ == "__main__":
    raise SystemExit(main())
