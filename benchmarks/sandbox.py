"""What the sandboxes cost, what they hold, and whether two machines would agree on what came of a program.

    python -m benchmarks.sandbox [--quick] [--json FILE] [--answers 10000] [--compile]

Speed: calls of a small scorer and runs of a program on 20 inputs, per second of CPU time of one core, in WASI, natively
behind the walls, and in this process without any. Agreement: programs of a seeded generator (right, wrong, raising,
endless, allocating, printing, recursing, dependent on hash order, on time, on chance, on addresses), each run under two
hash seeds of the host and two settings of the compiler; status, value, output, error and fuel must all be equal.
--quick: 300 programs. --compile: also compile the interpreter anew (20 s of CPU time).
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from node.environments.programs import ProgramRunner, Trial
from node.sandbox import Limits, Outcome, Undecided, attacks, find_runtime, open_confined, open_wasi, trial
from node.sandbox.process import ProcessSandbox
from node.sandbox.runtime import compiled
from node.sandbox.wasi.settings import Settings

SEED = 13
LIMITS = Limits(fuel=30_000_000, memory_mib=64, output_bytes=1 << 14, seconds=60.0)
SCORER = """
import re

def score(row, turns):
    said = re.findall(r"-?[0-9]+", turns[-1]["content"])
    return float(bool(said) and int(said[-1]) == row["answer"])
"""
ROW, TURNS = (
    {"answer": 391},
    [{"role": "assistant", "content": "17 times 23 is 340 and 51 more, so <answer>391</answer>"}],
)
PROGRAM = """
n = int(input())
values = list(map(int, input().split()))
best = {0: 0}
for value in values:
    best = {**best, **{total + value: count + 1 for total, count in best.items()}}
print(n, max(best), len(best), sorted(values)[:3])
"""
INPUTS = [Trial(stdin=f"{n}\n{' '.join(str((n * k) % 9) for k in range(10))}\n") for n in range(20)]

KINDS: dict[str, str] = {
    "right": "a, b = map(int, input().split())\nprint(a * {x} + b)",
    "wrong": "a, b = map(int, input().split())\nprint(a + b + {x})",
    "raising": "a = input()\nraise {error}(a * {small})",
    "index": "print([1, 2, 3][{x}])",
    "endless": "i = {x}\nwhile True:\n    i = i * {small} % 1000003",
    "endless recursion": "import sys\nsys.setrecursionlimit(10**6)\ndef f(n):\n    return f(n + {small})\nprint(f(0))",
    "recursing": "def f(n):\n    return 1 if n < 2 else f(n - 1) + f(n - 2)\nprint(f({small}))",
    "allocating": "kept = []\nfor i in range({x}):\n    kept.append(bytearray({x} * 1000))\nprint(len(kept))",
    "taking all": "kept = []\nwhile True:\n    kept.append(bytearray({x} * 20000))",
    "printing": "for i in range({x}):\n    print('line', i, 'x' * {small})",
    "flooding": "while True:\n    print('{x}' * 100)",
    "set order": "print({{'k' + str(i * {x}) for i in range({small})}})",
    "hash": "print(hash('{x}'), hash((1, '{x}')), hash(b'{x}'), hash({x} / 7))",
    "hash order": "from collections import Counter\nprint(Counter('{x}abcabc' * 3).most_common(), set('{x}abcdef'))",
    "addresses": "print(id(object()) % {x}, object(), sorted([object() for _ in range(3)], key=id)[0])",
    "floats": "x = {x} / 7\nprint(x, f'{{x:.3e}}', x ** 0.5, repr(x * 1e300 * 1e10), sum([0.1] * {small}))",
    "transcendental": "import math\nprint(math.sin({x}), math.exp({x} / 99), math.log({x}), math.gamma({small} / 3))",
    "nan": "x = float('inf') - float('inf')\nprint(x, -x, x == x, {{x}}, min(x, {x}), max({x}, x), hash(1e{small}))",
    "nan bits": "import math, struct\nx = float('inf') * 0\nprint(struct.pack('d', x).hex(), math.copysign(1, x))",
    "chance": "import random, os\nprint(random.random(), random.sample(range({x}), 1), os.urandom({small}).hex())",
    "seeded": "import random\nrandom.seed({x})\nprint([random.gauss(0, 1) for _ in range({small})])",
    "time": "import time, datetime\nprint(time.time(), time.perf_counter(), datetime.datetime.now())",
    "time limit": "import time\nend = time.time() + 0.0{small}\nn = 0\nwhile time.time() < end:\n    n += 1\nprint(n)",
    "big integers": "print(len(str({x} ** {x})), {x} ** {small} % 1000007, 2 ** {x} % {x})",
    "regex": "import re\nprint(re.sub(r'(\\d+)', lambda m: str(int(m[1]) * {small}), 'a{x}b{small}' * {small}))",
    "regex blow-up": "import re\nprint(re.match(r'(a|aa)+$', 'a' * {small} + 'b'))",
    "json": "import json\nprint(json.dumps({{'k': [{x}, None, 1.5, {{'n': '{small}'}}]}}, sort_keys=True))",
    "deep json": "import json\nprint(json.loads('[' * {x} + ']' * {x}) == [])",
    "deep repr": "x = []\nfor _ in range({x} * 20):\n    x = [x]\nprint(len(repr(x)))",
    "deep tuples": "x = ()\nfor _ in range({x} * 50):\n    x = (x,)\nprint(hash(x) % {small})",
    "parser": "print(eval('(' * {small} + '{x}' + ')' * {small}))",
    "syntax": "def f(:\n    return {x}",
    "exit": "import sys\nprint({x})\nsys.exit({small})",
    "abrupt": "import os\nprint({x})\nos._exit({small})",
    "abort": "import os\nprint({x}, flush=True)\nos.abort()",
    "forbidden": "import socket\nsocket.socket()\nprint({x})",
    "files": "import os\nprint(os.listdir('/app'), os.stat('/app/intellect_program.py').st_size % {x})",
    "writing": "open('/tmp/{x}', 'w')",
    "sorting": "import random\nrandom.seed({x})\nprint(sorted(random.choices(range({x}), k={small}), reverse=True))",
    "decimal": "from decimal import Decimal, getcontext\ngetcontext().prec = {small}\nprint(Decimal({x}) / Decimal(7))",
    "fractions": "from fractions import Fraction as F\nprint(sum(F(1, i) for i in range(1, {small})), F({x}, 6))",
    "unicode": "import unicodedata\nprint('straße{x}'.upper(), unicodedata.normalize('NFD', 'é{small}'), 'İ'.lower())",
    "generators": "def g(n):\n    yield n\n    if n:\n        yield from g(n - 1)\nprint(sum(g({x})))",
    "classes": "class A:\n    def __getattr__(self, name):\n        return getattr(self, name + 'x')\nprint(A().y{x})",
    "garbage": "import gc\nclass A: pass\na = A()\na.me = a\ndel a\nprint(gc.collect(), len(gc.get_objects()), {x})",
}
ERRORS = ("ValueError", "KeyError", "MemoryError", "RecursionError", "SystemExit", "KeyboardInterrupt", "StopIteration")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    runtime = find_runtime()
    figures: dict[str, Any] = {"speed": speed(runtime, 30 if options.quick else 200)}
    _say("speed", figures["speed"])
    if options.compile:
        figures["compile"] = compile_anew(runtime)
        _say("compile", figures["compile"])
    figures["attacks"] = {kind: attacked(kind, runtime) for kind in ("wasi", "native")}
    _say("attacks", figures["attacks"])
    figures["agreement"] = agreement(runtime, 300 if options.quick else options.answers)
    _say("agreement", figures["agreement"])
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def speed(runtime: Path, calls: int) -> dict[str, dict[str, float]]:
    """Milliseconds of wall time to open; calls a second of CPU time; milliseconds of wall time of a call."""
    kinds: dict[str, Callable[[dict[str, bytes], str], ProcessSandbox]] = {
        "wasi": lambda files, entry: open_wasi(files, entry, Limits(), runtime),
        "native": lambda files, entry: open_confined(files, entry, Limits()),
    }
    return {kind: _speed_of(opener, calls) for kind, opener in kinds.items()} | {"no sandbox": _speed_of_none(calls)}


def _speed_of(opener: Callable[[dict[str, bytes], str], ProcessSandbox], calls: int) -> dict[str, float]:
    begun = time.monotonic()
    with opener({"scorer.py": SCORER.encode()}, "scorer") as sandbox:
        opened = time.monotonic() - begun
        scored = _timed(sandbox, lambda: sandbox.call_all("score", [[ROW, TURNS]] * calls), calls)
    opened_for_programs: list[ProcessSandbox] = []
    with closing(_runner(opener, opened_for_programs)) as runner:
        rounds = max(1, calls // 40)
        ran = _timed(opened_for_programs[0], lambda: [list(runner.run(PROGRAM, INPUTS)) for _ in range(rounds)], rounds)
    return {
        "open_ms": round(opened * 1000, 1),
        "scores_per_cpu_second": round(1 / scored[0], 1),
        "score_ms": round(scored[1] * 1000, 2),
        "programs_of_20_inputs_per_cpu_second": round(1 / ran[0], 2),
        "program_ms": round(ran[1] * 1000, 1),
    }


def _speed_of_none(calls: int) -> dict[str, float]:
    scope: dict[str, Any] = {}
    exec(SCORER, scope)  # noqa: S102 - our own
    begun = time.process_time()
    for _ in range(calls * 50):
        scope["score"](ROW, TURNS)
    return {"scores_per_cpu_second": round(calls * 50 / (time.process_time() - begun))}


def _timed(sandbox: ProcessSandbox, work: Callable[[], object], count: int) -> tuple[float, float]:
    """CPU and wall seconds of one of `count`; CPU of this process, the sandbox's and its forks together."""
    cpu, wall = _cpu(sandbox), time.monotonic()
    work()
    return (_cpu(sandbox) - cpu) / count, (time.monotonic() - wall) / count


def _cpu(sandbox: ProcessSandbox) -> float:
    process = sandbox._process
    fields = Path(f"/proc/{process.pid if process else 0}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + time.process_time()


def compile_anew(runtime: Path) -> dict[str, float]:
    """CPU and wall seconds, MB."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "x.cwasm"
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        argv = [sys.executable, "-m", "node.sandbox.wasi.compile", str(runtime), str(target), "optimised"]
        subprocess.run(argv, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        size = target.stat().st_size / 1e6
    return {"cpu_s": round(used, 1), "wall_s": round(time.monotonic() - begun, 1), "mb": round(size, 1)}


def attacked(kind: str, runtime: Path) -> dict[str, Any]:
    opened = (
        open_wasi(attacks.FILES, attacks.ENTRY, trial.LIMITS, runtime)
        if kind == "wasi"
        else open_confined(attacks.FILES, attacks.ENTRY, trial.LIMITS)
    )
    with opened as sandbox:
        results = trial.try_out(sandbox).attacks
    return {"played": len(results), "got through": [name for name, held in results.items() if not held]}


def _runner(opener: Callable[[dict[str, bytes], str], ProcessSandbox], opened: list[ProcessSandbox]) -> ProgramRunner:
    """A runner that has its sandbox, which is put into `opened`."""

    def open_one(files: Mapping[str, bytes], entry: str, _: Limits) -> ProcessSandbox:
        opened.append(opener(dict(files), entry))
        return opened[-1]

    runner = ProgramRunner(open_one, Limits())
    list(runner.run("", [Trial()]))
    return runner


def agreement(runtime: Path, answers: int) -> dict[str, Any]:
    """Every program in three ways; the second and third must give what the first gave."""
    compiled(runtime, Settings(optimised=False))
    ways = {
        "hash seed 1, optimised": ("1", Settings()),
        "hash seed 2, optimised": ("2", Settings()),
        "hash seed 2, not optimised": ("2", Settings(optimised=False)),
    }
    with _runners(runtime, ways) as runners:
        counts: Counter[str] = Counter()
        different: list[Any] = []
        undecided = 0
        for number, (kind, source, stdin) in enumerate(generated(answers)):
            found = [next(runner.run(source, [Trial(stdin=stdin)])) for runner in runners]
            undecided += sum(isinstance(one, Undecided) for one in found)
            outcomes = [one for one in found if isinstance(one, Outcome)]
            counts.update([outcomes[0].status.value] if outcomes else [])
            if any(one != outcomes[0] for one in outcomes):
                different.append({"kind": kind, "source": source, "found": [str(one) for one in outcomes]})
            if number % 500 == 499:
                print(f"  {number + 1} programs, {len(different)} different, {undecided} undecided", flush=True)
    return {
        "programs": answers,
        "ways": list(ways),
        "different": len(different),
        "undecided_share": undecided / (answers * len(ways)),
        "statuses": dict(counts),
        "examples": different[:5],
    }


@contextmanager
def _runners(runtime: Path, ways: dict[str, tuple[str, Settings]]) -> Iterator[list[ProgramRunner]]:
    with ExitStack() as stack:
        opened: list[ProgramRunner] = []
        for seed, settings in ways.values():
            os.environ["PYTHONHASHSEED"] = seed
            opener = partial(open_wasi, runtime=runtime, settings=settings)
            opened.append(stack.enter_context(closing(ProgramRunner(opener, LIMITS))))
            list(opened[-1].run("", [Trial()]))  # now, under this seed
        yield opened


def generated(count: int, seed: int = SEED) -> Iterator[tuple[str, str, str]]:
    """(kind, program, standard input): the kinds in turn, their numbers by chance."""
    source = random.Random(seed)  # noqa: S311 - not a secret
    kinds = list(KINDS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        x, small = source.randrange(1, 1000), source.randrange(1, 30)
        text = KINDS[kind].format(x=x, small=small, error=source.choice(ERRORS))
        yield kind, text, f"{x} {small}\n"


def _say(name: str, value: object) -> None:
    print(f"{name}: {json.dumps(value, indent=1)}", flush=True)


if __name__ == "__main__":
    main()
