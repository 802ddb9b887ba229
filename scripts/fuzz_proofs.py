"""Coverage-guided fuzzing of every parser that reads a stranger's rollouts, with atheris.

    python scripts/fuzz_proofs.py [--target proof|envelope|rollout|all] [--runs 1000000]

atheris is not among the project's dependencies: the script installs it into an environment of its own
(build/fuzz-venv, which sees this one's packages) unless it is there. Where no atheris can be had, or with
--plain, the same targets get mutated honest inputs from a fixed seed, without guidance by coverage.
A crash, a hang of 10 s, an error other than the parser's own, or more memory than the input's size class ends it.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
VERSION = "3.0.0"
MEMORY = 256 * 1024**2
"""More than this above the start is out of any input's size class: inputs have at most 8 KiB."""


def targets() -> dict[str, tuple[Callable[[bytes], None], bytes]]:
    """Name -> (what to call, an honest input)."""
    import numpy as np

    from protocol.envelope import ProofSubject, open_envelope, seal
    from protocol.identity import NodeKey
    from protocol.rollout import MalformedRollout, RolloutBatch, RolloutHeader, SampleRow, decode, encode
    from protocol.toploc import MalformedProof, compare, parse_proof, proofs_for

    k, rows = 8, 4
    node = NodeKey(b"\x07" * 32).address
    subject = ProofSubject(1, node, bytes(32), 0, 0, 0, [1, 2], [3, 4, 5, 6, 7, 8])
    activations = np.random.default_rng(0).integers(0, 0x7F80, (5, 16)).astype(np.uint16)
    proofs = proofs_for(activations, k, rows)
    sealed = seal(proofs, subject, k, rows)
    samples = tuple(SampleRow(0, i, "p", [1, 2], [3, 4, 5, 6, 7, 8], False, sealed) for i in range(2))
    file = encode(RolloutBatch(RolloutHeader(1, node, "00" * 32, 0), samples))

    def proof(data: bytes) -> None:
        try:
            parsed = parse_proof(data, k)
        except MalformedProof:
            return
        if parsed.encode() != data:
            raise AssertionError("a second encoding of one proof")
        compare(parsed, activations)

    def envelope(data: bytes) -> None:
        try:
            open_envelope(data, subject, k, rows)
        except MalformedProof:
            return

    def rollout(data: bytes) -> None:
        try:
            decode(data, 4)
        except MalformedRollout:
            return

    return {"proof": (proof, proofs[: 2 + 2 * k]), "envelope": (envelope, sealed), "rollout": (rollout, file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="all", choices=["proof", "envelope", "rollout", "all"])
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs per target")
    parser.add_argument("--plain", action="store_true", help="without atheris")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    names = ["proof", "envelope", "rollout"] if a.target == "all" else [a.target]
    if a.inside:
        guided(names[0], a.runs)
    python = None if a.plain else _python_with_atheris()
    for name in names:
        started = time.monotonic()
        if python is None:
            plain(name, a.runs)
        else:
            command = [str(python), __file__, "--inside", "--target", name, "--runs", str(a.runs)]
            subprocess.run(command, check=True, cwd=REPOSITORY)
        kind = "mutated" if python is None else "coverage-guided"
        print(f"{name}: {a.runs} {kind} inputs in {time.monotonic() - started:.0f} s, no crash", flush=True)


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
        call, honest = targets()[name]
    corpus = REPOSITORY / "build" / "fuzz-corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    (corpus / "honest").write_bytes(honest)
    limits = [f"-runs={runs}", "-max_len=8192", "-timeout=10", "-rss_limit_mb=2048", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], call)
    atheris.Fuzz()


def plain(name: str, runs: int, seed: int = 0) -> None:
    """Honest inputs with bytes changed, cut, inserted and repeated."""
    call, honest = targets()[name]
    source = random.Random(seed)  # noqa: S311 - a fuzzer, no secret
    call(honest)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(runs):
        data = bytearray(honest)
        for _ in range(source.randrange(1, 9)):
            at = source.randrange(len(data) + 1)
            kind = source.randrange(4)
            if kind == 0 and at < len(data):
                data[at] = source.randrange(256)
            elif kind == 1:
                del data[at : at + source.randrange(1, 9)]
            elif kind == 2:
                data[at:at] = source.randbytes(source.randrange(1, 9))
            else:
                data[at : at + 8] = source.choice((b"\xff" * 8, bytes(8), b"\x00\xca\x9a\x3b\0\0\0\0"))
        call(bytes(data))
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if grown > MEMORY:
        raise SystemExit(f"{name}: memory grew by {grown >> 20} MiB")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
