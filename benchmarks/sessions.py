"""What a session costs per turn, with snapshots and without, and whether strangers agree on it.

`python -m benchmarks.sessions [--quick] [--json] [--no-cost] [--sessions N] [--ways N]`, or
`--shelf`: what the packages of the shelf add to the seconds in which a sandbox opens, and nothing else. Sessions
of a seeded generator (shell, Python, edits, endless loops, full disks) are played under two hash seeds of the host, two
settings of the compiler, and in wasmtime's virtual machine in place of this processor: words, fuel and state hashes are
compared. Cost: wall milliseconds per turn of a session of 8 turns.
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.command import parser_of
from node.environments.guests import guest
from node.sandbox import SandboxCall, SandboxLimits, Sessions, find_runtime, open_wasi, wire
from node.sandbox.opening import _load
from node.sandbox.runtime import cache_directory, compiled
from node.sandbox.shelf import PACKAGES
from node.sandbox.wasi.channel import GuestFinished
from node.sandbox.wasi.engine import load_module
from node.sandbox.wasi.host import GuestModule, _stack_is_enough
from node.sandbox.wasi.settings import OPTIMISED, STACK_BYTES, Settings

LIMITS = SandboxLimits(fuel=30_000_000, memory_mib=128, output_bytes=1 << 16, disk_bytes=1 << 18)
TURNS, SLICE, PAGE = 8, 100, 4096
KINDS = (
    ("python", "x{0} = [i * {1} for i in range({2})]; print(sum(x{0}))"),
    ("python", "print(sorted(n for n in dir() if n[0] == 'x'))"),
    ("python", "open('f{0}', 'w').write(str({1}) * {2}); import os; print(os.stat('f{0}').st_size)"),
    ("python", "import random, time; print(random.random(), time.time(), hash('a'), id(object()))"),
    ("python", "import m; print(m.f({1}))"),
    ("python", "while True: pass"),
    ("python", "open('big', 'wb').write(b'x' * 10**6)"),
    ("python", "print({{str(i) for i in range({0})}}, float('nan'), {1} / 7)"),
    ("sh", "ls; cat m.py | grep -n return; wc -c f*"),
    ("sh", "sed -i 's/+ {0}/+ {1}/' m.py; python -c 'import m; print(m.f({2}))'"),
    ("sh", "mkdir -p d/{0}; mv f{0} d/{0}; find . -name 'f*' | sort"),
)
WAYS = {
    "seed 1, optimised": ("1", Settings()),
    "seed 2, optimised": ("2", Settings()),
    "seed 2, plain": ("2", Settings(optimised=False)),
    "seed 2, another architecture": ("2", Settings(portable=True)),
}


def session(number: int, turns: int = TURNS) -> list[SandboxCall]:
    choose = random.Random(number)
    calls = [SandboxCall("begin", ({"m.py": "def f(x):\n    return x + 1\n"},))]
    for _ in range(turns):
        tool, text = choose.choice(KINDS)
        numbers = [choose.randrange(4), choose.randrange(1, 99), choose.randrange(1, 400)]
        calls.append(SandboxCall("run", (tool, text.format(*numbers), 500)))
    return calls


def opened(settings: Settings = OPTIMISED, kept: int = 4) -> Sessions:
    files, runtime = {"intellect_session.py": guest("intellect_session")}, find_runtime()
    opener = partial(open_wasi, files, "intellect_session", LIMITS, runtime, settings=settings)
    return Sessions(opener, 10**12, kept)


def play(numbers: range, settings: Settings) -> list[str]:
    """A hash for each session of all its turns: word, status, fuel, state."""
    sessions, found = opened(settings), []
    for number in numbers:
        calls, hasher = session(number, 4), hashlib.sha256()
        for end in range(1, len(calls) + 1):
            one = sessions.outcome(calls[:end])
            hasher.update(repr((one.status.value, one.value, one.error, one.fuel, one.state)).encode())
        found.append(hasher.hexdigest())
    sessions.close()
    return found


def cost(count: int, kept: int) -> dict[str, float]:
    sessions, times = opened(kept=kept), []
    work = [("python", "x = [i * i for i in range(1000)]; print(sum(x))"), ("sh", "cat m.py; ls")] * (TURNS // 2)
    for number in range(count):
        calls = [SandboxCall("begin", ({"m.py": f"n = {number}\n"},))]
        for turn in work:
            calls.append(SandboxCall("run", (*turn, 500)))
            started = time.perf_counter()
            sessions.outcome(calls)
            times.append((time.perf_counter() - started) * 1000)
    replayed = sessions.replayed
    sessions.close()
    by_turn = [statistics.median(times[turn::TURNS]) for turn in range(TURNS)]
    return {"turn_2_ms": by_turn[1], f"turn_{TURNS}_ms": by_turn[-1], "session_ms": sum(by_turn), "replayed": replayed}


def images(count: int) -> dict[str, float]:
    """KiB of a machine that waits after its last turn, as they would have to travel: the pages of its memory that are
    other than those of a machine that heard nothing. Medians of `count` sessions."""
    _stack_is_enough(STACK_BYTES + (8 << 20))
    sizes = []
    for number in range(count):
        seen = _images(session(number))
        starts = range(0, len(seen[-1]), PAGE)
        pages = ((seen[0][at : at + PAGE], seen[-1][at : at + PAGE]) for at in starts)
        changed = b"".join(now for before, now in pages if now != before)
        sizes.append((len(seen[-1]), len(changed), len(zlib.compress(changed, 6))))
    names = ("memory_kib", "changed_kib", "compressed_kib")
    return {name: statistics.median(row[place] for row in sizes) / 1024 for place, name in enumerate(names)}


def _images(calls: Sequence[SandboxCall]) -> list[bytes]:
    """The machine's memory before the first of these calls and after the last that ended well. It plays here and not
    in a fork, so the first call that ends badly ends it."""
    place = compiled(find_runtime())
    load = _load({"intellect_session.py": guest("intellect_session")}, "intellect_session", LIMITS, str(place))
    waiting = [
        wire.SandboxRequest(json.dumps([one.function, list(one.arguments)]).encode(), b"", LIMITS.fuel, session=1)
        for one in calls
    ]
    seen: list[bytes] = []

    def look() -> None:
        now = bytes(machine._system._memory.view())
        seen[:] = [seen[0], now] if seen else [now]

    def first() -> wire.SandboxRequest:
        look()
        return waiting.pop(0)

    def following(_: wire.GuestEnding) -> wire.SandboxRequest:
        look()
        if not waiting:
            raise GuestFinished
        return waiting.pop(0)

    machine = GuestModule(*load_module(place), load, first, following)
    machine.run()
    return seen


def agreement(count: int, ways: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Slice by slice, all ways (interpreter, name) at once, so that what agreed so far can be seen; told on standard
    error."""
    different = 0
    for first in range(0, count, SLICE):
        numbers = f"{first}:{min(first + SLICE, count)}"
        played = [
            subprocess.Popen(
                [python, "-m", "benchmarks.sessions", "--play", numbers, "--way", name],
                env={**os.environ, "PYTHONHASHSEED": WAYS[name][0]},
                stdout=subprocess.PIPE,
            )
            for python, name in ways
        ]
        hashes = [json.loads(child.communicate()[0]) for child in played]
        different += sum(len(set(row)) > 1 for row in zip(*hashes, strict=True))
        print(f"{first + len(hashes[0])} sessions, {different} different", file=sys.stderr, flush=True)
    return {"sessions": count, "ways": len(ways), "different": different}


def shelf_opens(count: int) -> dict[str, dict[str, float]]:
    """Seconds until a sandbox is open that imports a package when it loads: median, least, most of `count` that take
    turns with the others; "none" imports nothing. Then milliseconds of a call that imports it again. Packages that
    `intellect-node sandbox install --package` did not bring are left out."""
    runtime, seconds, calls = find_runtime(), {}, {}
    here = [name for name, one in PACKAGES.items() if (cache_directory() / one.file).exists()]
    for name in ["none", *here] * count:
        line = "json" if name == "none" else name
        limits = SandboxLimits(packages=() if name == "none" else (name,), memory_mib=512)
        source = f"import {line}\n\n\ndef used():\n    import {line}\n\n    return 1\n"
        started = time.perf_counter()
        with open_wasi({"user.py": source.encode()}, "user", limits, runtime) as sandbox:
            seconds.setdefault(name, []).append(time.perf_counter() - started)
            started = time.perf_counter()
            if sandbox.call("used").value != 1:
                raise SystemExit(f"{name} cannot be used")
            calls.setdefault(name, []).append((time.perf_counter() - started) * 1000)
    return {
        name: {
            "open_s": statistics.median(found),
            "least_s": min(found),
            "most_s": max(found),
            "call_ms": statistics.median(calls[name]),
        }
        for name, found in seconds.items()
    }


def main() -> None:
    parser = parser_of(__doc__, "fewer sessions", "line")
    parser.add_argument("--sessions", type=int, default=0, help="of the agreement; 2000, quick 6")
    parser.add_argument("--no-cost", action="store_true", help="agreement alone")
    parser.add_argument("--ways", type=int, default=len(WAYS), help="the first so many; the last one is the slowest")
    parser.add_argument("--shelf", action="store_true", help="seconds to open a sandbox with each package, alone")
    parser.add_argument("--play", default="", help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.play:
        print(json.dumps(play(range(*map(int, asked.play.split(":"))), WAYS[asked.way][1])))
        return
    count = 2 if asked.quick else 10
    if asked.shelf:
        print(json.dumps(shelf_opens(count), indent=None if asked.json else 1))
        return
    found: dict[str, Any] = {}
    if not asked.no_cost:
        found |= {"with snapshots": cost(count, 4), "without": cost(count, 0), "image": images(count)}
    ways = [(sys.executable, name) for name in list(WAYS)[: max(2, asked.ways)]]
    found["agreement"] = agreement(asked.sessions or (6 if asked.quick else 2000), ways)
    print(json.dumps(found) if asked.json else json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
