"""`python -m node.sandbox.wasi.compile WASM TARGET KIND`: compiles the interpreter in a process of its own.

Code generation keeps threads and memory that a node has no use for. Prints nothing; exit code 0 if TARGET is there.
"""

import sys
from pathlib import Path

from wasmtime import Module

from node.sandbox.runtime import OPTIMISED_KIND, checked_bytes
from node.sandbox.wasi.engine import make_engine
from node.sandbox.wasi.settings import Settings
from node.state.files import write_whole


def main() -> None:
    wasm, target, kind = sys.argv[1:]
    settings = Settings(kind == OPTIMISED_KIND, Settings.of(Path(target)).portable)
    compiled = Module(make_engine(settings), checked_bytes(Path(wasm))).serialize()
    write_whole(Path(target), bytes(compiled), mode=0o600)


if __name__ == "__main__":
    main()
