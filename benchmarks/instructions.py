"""Does compiled code of another processor count fuel, trap and make NaNs as that of this one does?

`python -m benchmarks.instructions [--quick] [--json] [--emulated PYTHON]`. Small WebAssembly functions, each on edge
values, under the sandbox's settings of wasmtime: optimised, plain, and wasmtime's virtual machine. What each returned,
how it trapped and what fuel was left are compared. PYTHON is an interpreter of another processor under an emulator, as
`scripts/emulated_arm64.sh` makes one. Exit code 1 where two differ.
"""

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from wasmtime import Func, Linker, Module, Store, Trap, wat2wasm

from node.sandbox.wasi.engine import make_engine
from node.sandbox.wasi.settings import Settings

FUEL = 100_000
GUEST = """(module (memory (export "m") 1 64)
 (func $fib (export "fib") (param i32) (result i32)
  (if (result i32) (i32.lt_s (local.get 0) (i32.const 2)) (then (local.get 0))
   (else (i32.add
    (call $fib (i32.sub (local.get 0) (i32.const 1))) (call $fib (i32.sub (local.get 0) (i32.const 2)))))))
 (func $deep (export "deep") (param i32) (result i32)
  (if (result i32) (local.get 0)
   (then (i32.add (i32.const 1) (call $deep (i32.sub (local.get 0) (i32.const 1))))) (else (i32.const 0))))
 (func (export "loop") (loop (br 0)))
 (func (export "root") (param f64 f64) (result i64)
  (i64.reinterpret_f64 (f64.div (f64.sqrt (local.get 0)) (local.get 1))))
 (func (export "min") (param f64 f64) (result i64) (i64.reinterpret_f64 (f64.min (local.get 0) (local.get 1))))
 (func (export "demote") (param f64) (result i32) (i32.reinterpret_f32 (f32.demote_f64 (local.get 0))))
 (func (export "nearest") (param f64) (result i64) (i64.reinterpret_f64 (f64.nearest (local.get 0))))
 (func (export "trunc") (param f64) (result i32) (i32.trunc_f64_s (local.get 0)))
 (func (export "saturated") (param f64) (result i32) (i32.trunc_sat_f64_s (local.get 0)))
 (func (export "div") (param i32 i32) (result i32) (i32.div_s (local.get 0) (local.get 1)))
 (func (export "rem") (param i32 i32) (result i32) (i32.rem_s (local.get 0) (local.get 1)))
 (func (export "shift") (param i32 i32) (result i32)
  (i32.rotl (i32.shl (local.get 0) (local.get 1)) (local.get 1)))
 (func (export "zeros") (param i32) (result i32) (i32.add (i32.clz (local.get 0)) (i32.ctz (local.get 0))))
 (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
 (func (export "read") (param i32) (result i32) (i32.load (local.get 0)))
 (func (export "fill") (param i32) (memory.fill (i32.const 0) (i32.const 7) (local.get 0))))"""
NAN, LEAST = float("nan"), -(1 << 31)
CALLS: list[tuple[Any, ...]] = [
    *(("fib", n) for n in (15, 22)),  # the last runs out of fuel
    ("deep", 1000),
    ("loop",),
    *(("root", x, y) for x, y in ((-1.0, 3.0), (0.0, 0.0), (2.0, 7.0), (NAN, 1.0))),
    *(("min", x, y) for x, y in ((NAN, 1.0), (-0.0, 0.0))),
    *((name, x) for name in ("demote", "nearest", "trunc", "saturated") for x in (2.5, 1e300, NAN)),
    *((name, x, y) for name in ("div", "rem", "shift") for x, y in ((-7, 2), (7, 0), (LEAST, -1))),
    ("zeros", 0),
    *(("grow", x) for x in (3, 100)),
    *(("read", x) for x in (65533, -1)),
    *(("fill", x) for x in (60_000, 65_537)),
]
WAYS = {"optimised": Settings(), "plain": Settings(optimised=False), "virtual machine": Settings(portable=True)}


def play(settings: Settings) -> list[str]:
    """Of each call: what it returned or how it trapped, and the fuel that was left."""
    engine = make_engine(settings)
    module, told = Module(engine, wat2wasm(GUEST)), []
    for name, *values in CALLS:
        store = Store(engine)
        store.set_fuel(FUEL)
        function = Linker(engine).instantiate(store, module).exports(store)[name]
        assert isinstance(function, Func)  # noqa: S101 - the guest above has it
        try:
            found = function(store, *values)
        except Trap as trap:
            found = str(trap.trap_code)
        told.append(f"{name}{values}: {found}, {store.get_fuel()} left")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same: it takes seconds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--emulated", action="append", default=[], metavar="PYTHON")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    ways = list(WAYS.items())[: 2 if asked.play else None]  # the virtual machine once: emulators are slow
    played = {f"{platform.machine()}, {name}": play(settings) for name, settings in ways}
    if asked.play:
        print(json.dumps(played))
        return 0
    for python in asked.emulated:
        argv = [python, "-m", "benchmarks.instructions", "--play"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[1])
        played |= json.loads(done.stdout)
    rows = list(zip(*played.values(), strict=True))
    different = [row for row in rows if len(set(row)) > 1]
    told = {"calls": len(rows), "ways": list(played), "different": len(different)}
    print(json.dumps(told) if asked.json else json.dumps(told | {"first": different[:3]}, indent=1))
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
