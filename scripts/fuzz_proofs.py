"""Coverage-guided fuzzing of every parser that reads what a stranger wrote, with atheris.

    python scripts/fuzz_proofs.py [--target proof|envelope|rollout|...|all] [--runs 1000000]

What is called: scripts/fuzz_targets.py. atheris is not among the project's dependencies: the script installs it into
an environment of its own (build/fuzz-venv, which sees this one's packages) unless it is there. Where no atheris can be
had, or with --plain, the same targets get mutated honest inputs from a fixed seed, without guidance by coverage.
A crash, a hang of 10 s, an error other than the parser's own, or more memory than the input's size class ends it:
an input may take FACTOR bytes for each of its own above SLACK (looked at in one of TRACED, and in every one that the
fuzzer kept because it did something new), and the process may grow by MEMORY.
"""

import argparse
import itertools
import os
import random
import resource
import subprocess
import sys
import sysconfig
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
VERSION = "3.0.0"
MAX_INPUT = 8192
TRACED = 16
TRIES = 3
SLACK = 256 * 1024
FACTOR = 64
"""Python's smallest objects take about 60 bytes, and a parser may make one of each byte."""
MEMORY = 256 * 1024**2
"""The whole process, beside its start: what C libraries take is not traced."""


def target(name: str) -> Any:
    """The scripts.fuzz_targets.Target of this name. Imported late: what is imported here is not instrumented."""
    from scripts.fuzz_targets import TARGETS

    return TARGETS[name]


def measured(call: Callable[[bytes], None], every: int = 1) -> Callable[[bytes], None]:
    """The same call; the memory that it takes is traced for one input in `every`.

    Tracing counts the whole process: a module that the first call imports, and what another thread takes meanwhile.
    Neither happens each time, so an input is a finding if it takes too much in each of TRIES calls.
    """
    calls = itertools.count()

    def watched(data: bytes) -> None:
        if next(calls) % every:
            return call(data)
        allowed, taken = SLACK + FACTOR * len(data), 0
        for _ in range(TRIES):
            taken = _traced(call, data)
            if taken <= allowed:
                return
        raise MemoryError(f"{taken} bytes for an input of {len(data)}")

    return watched


def _traced(call: Callable[[bytes], None], data: bytes) -> int:
    """The most bytes of Python's allocators that were held at once during the call."""
    tracemalloc.start()
    try:
        call(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="all", help="one of scripts/fuzz_targets.py, or all")
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs per target")
    parser.add_argument("--plain", action="store_true", help="without atheris")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.inside:
        guided(a.target, a.runs)  # before anything imports what it instruments
    names = _names() if a.target == "all" else [a.target]
    if not set(names) <= set(_names()):
        parser.error(f"--target: one of {', '.join(_names())} or all")
    python = None if a.plain else _python_with_atheris()
    for name in names:
        started = time.monotonic()
        if python is None:
            plain(name, a.runs)
        else:
            command = [str(python), __file__, "--inside", "--target", name, "--runs", str(a.runs)]
            subprocess.run(command, check=True, cwd=REPOSITORY)
            replay(name)
        kind = "mutated" if python is None else "coverage-guided"
        print(f"{name}: {a.runs} {kind} inputs in {time.monotonic() - started:.0f} s, no crash", flush=True)


def _names() -> list[str]:
    from scripts.fuzz_targets import TARGETS

    return list(TARGETS)


def _python_with_atheris() -> Path | None:
    home = REPOSITORY / "build" / "fuzz-venv"
    python = home / "bin" / "python"
    if (home / "ready").exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
    installed = subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"atheris=={VERSION}"])
    if installed.returncode:
        print("atheris cannot be installed here: going on without guidance by coverage", file=sys.stderr)
        return None
    paths = sysconfig.get_paths()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = home / "lib" / version / "site-packages" / "ours.pth"
    site.write_text("\n".join(dict.fromkeys([paths["purelib"], paths["platlib"]])) + "\n")
    (home / "ready").touch()
    return python


def guided(name: str, runs: int) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris  # type: ignore[import-not-found]

    with atheris.instrument_imports(include=["protocol"]):
        subject = target(name)
    call = measured(subject.call, TRACED)
    corpus = _corpus(name)
    corpus.mkdir(parents=True, exist_ok=True)
    words = corpus.with_suffix(".dict")
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in subject.words))
    for number, seed in enumerate(subject.honest):
        call(seed)
        (corpus / f"honest-{number}").write_bytes(seed)
    most = (1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + MEMORY) >> 20
    limits = [f"-runs={runs}", f"-max_len={MAX_INPUT}", "-timeout=10", f"-rss_limit_mb={most}"]
    atheris.Setup([sys.argv[0], *limits, f"-dict={words}", "-verbosity=0", "-print_final_stats=1", str(corpus)], call)
    atheris.Fuzz()


def replay(name: str) -> None:
    """What the fuzzer kept, once more, with the memory of each input traced."""
    call = measured(target(name).call)
    for path in sorted(_corpus(name).iterdir()):
        call(path.read_bytes())


def _corpus(name: str) -> Path:
    return REPOSITORY / "build" / "fuzz-corpus" / name


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def plain(name: str, runs: int, seed: int = 0) -> None:
    """Honest inputs with bytes changed, cut, inserted and repeated."""
    subject = target(name)
    call = measured(subject.call, TRACED)
    source = random.Random(seed)  # noqa: S311 - a fuzzer, no secret
    for one in subject.honest:
        call(one)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(runs):
        call(mutated(source.choice(subject.honest), source, subject.words))
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if grown > MEMORY:
        raise SystemExit(f"{name}: memory grew by {grown >> 20} MiB")


def mutated(data: bytes, source: random.Random, words: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(source.randrange(1, 9)):
        at = source.randrange(len(changed) + 1)
        kind = source.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] = source.randrange(256)
        elif kind == 1:
            del changed[at : at + source.randrange(1, 9)]
        elif kind == 2:
            changed[at:at] = source.randbytes(source.randrange(1, 9))
        else:
            word = source.choice(words)
            changed[at : at + source.choice((0, 1, len(word)))] = word
    return bytes(changed)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
