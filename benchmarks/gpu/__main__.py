"""Everything that wants a GPU, in one command: engines, proofs, learner, swaps, vLLM, a model that learns.

    python -m benchmarks.gpu [--only PARTS] [--quick] [--device cuda|cpu] [--minutes 25] [--out DIR] [--json]
        [--vllm-python PATH] [--scratch DIR] [--revision TEXT]
    python -m benchmarks.gpu --merge FILE... [--out DIR]

Writes benchmarks/results/DEVICE.json and DEVICE.md, anew after each part; parts of an earlier command stay in it. Each
part is a process of its own with a deadline. What the parts are, and which packages they need, is told in
`benchmarks/gpu/__init__.py`. --minutes: of all parts together; what does not fit is listed as left out.
--device cpu rehearses all of it with tiny models, as --quick does on a GPU; the result then goes to a temporary folder
unless --out says where. --merge: puts results of several commands, brought home one by one, into one.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu import machine, result
from benchmarks.gpu.job import Job
from benchmarks.gpu.parts import NAMES, PARTS, Part
from benchmarks.gpu.running import run_part

RESULTS = machine.REPOSITORY / "benchmarks" / "results"
REHEARSED = Path(tempfile.gettempdir()) / "intellect-node-gpu-rehearsal"


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    if given.merge:
        return merge(given.merge, given.out or RESULTS)
    quick = given.quick or given.device == "cpu"
    out: Path = given.out or (REHEARSED if quick else RESULTS)
    found = result.new(machine.look(given.device), rehearsal=quick)
    name = machine.slug(found["device"]["name"]) + ("-rehearsal" if quick else "")
    earlier = result.read(out / f"{name}.json")
    result.merged(earlier, found)  # complains now, and not after minutes
    command = ["python -m benchmarks.gpu", *(sys.argv[1:] if arguments is None else arguments)]
    revision = given.revision or machine.revision()
    scratch = Path(tempfile.mkdtemp(prefix="intellect-node-gpu-", dir=given.scratch))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the part in hand is ended, too
    ends = time.monotonic() + 60 * given.minutes
    print(f"{found['device']['name']}; to {out / name}.json\n", flush=True)
    try:
        for part in given.only:
            job = Job(given.device, quick, scratch, given.vllm_python, 0.0)
            found["parts"][part.name] = run_part(part, job, (ends - time.monotonic()) / 60, command, revision)
            result.write(out, name, result.merged(earlier, found))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    whole = result.merged(earlier, found)
    print(result.tables(found))
    print(f"written: {out / name}.json and .md")
    if given.json:
        print(json.dumps(whole))
    return 0 if all(one["state"] in ("done", "skipped") for one in found["parts"].values()) else 1


def merge(files: list[Path], out: Path) -> int:
    """Results of one device from several commands, earlier ones first."""
    whole: result.Result | None = None
    for file in files:
        one = result.read(file)
        if one is None:
            raise SystemExit(f"{file} is not there")
        name = machine.slug(one["device"]["name"]) + ("-rehearsal" if one["rehearsal"] else "")
        whole = result.merged(whole or result.read(out / f"{name}.json"), one)
        print(f"written: {result.write(out, name, whole)}")
    return 0


def parts_named(text: str) -> list[Part]:
    """In the order of PARTS: the best first."""
    wanted = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := wanted.difference(NAMES):
        raise argparse.ArgumentTypeError(f"no part {', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    return [part for part in PARTS if part.name in wanted]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--only", type=parts_named, default=list(PARTS), help=f"some of {', '.join(NAMES)}")
    made.add_argument("--quick", action="store_true", help="tiny models: a rehearsal")
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    made.add_argument("--minutes", type=float, default=25.0, help="of all parts together")
    made.add_argument("--out", type=Path, help="folder of the result")
    made.add_argument("--json", action="store_true", help="the result as one object on the last line")
    made.add_argument("--vllm-python", type=Path, help="an interpreter that can import vLLM, if not this one")
    made.add_argument("--scratch", type=Path, help="where to have some 15 GB for the time being")
    made.add_argument("--revision", help="of the code, where there is no repository to ask")
    made.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="only put these results together")
    return made


if __name__ == "__main__":
    sys.exit(main())
