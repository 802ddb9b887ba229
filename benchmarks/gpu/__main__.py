"""Everything that wants a GPU, in one command: engines, proofs, learner, swaps, vLLM, a model that learns.

    python -m benchmarks.gpu [--only PARTS] [--quick] [--device cuda|cpu] [--minutes 25] [--out DIR] [--json]
        [--vllm-python PATH] [--scratch DIR] [--revision TEXT]
    python -m benchmarks.gpu --lease [--device cuda|cpu] [--out DIR] ...
    python -m benchmarks.gpu --merge FILE... [--out DIR]
    python -m benchmarks.gpu --supersede PART=WHY... --merge FILE [--out DIR]
    python -m benchmarks.gpu --wheels DIR [--only PARTS] [--python 3.12]

Writes benchmarks/results/DEVICE.json and DEVICE.md, anew after each part; parts of an earlier command stay in it. Each
part is a process of its own with a deadline. What the parts are, and which packages they need, is told in
`benchmarks/gpu/__init__.py`. --minutes: of all parts together; what does not fit is listed as left out.
--device cpu rehearses all of it with tiny models, as --quick does on a GPU; the result then goes to a temporary folder
unless --out says where. --lease: the parts for a card that is lent for a quarter of an hour, with deadlines of 740 s
together, on a CPU, too (benchmarks/gpu/lease.sh). --merge: puts results of several commands, brought home one by one,
into one. --supersede: marks parts of a result that no longer hold. --wheels: fetches what the parts need of a machine
that has torch and transformers, and no network.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu import result, wheels
from benchmarks.gpu.job import Job
from benchmarks.gpu.parts import LEASE, NAMES, PARTS, Part, leased

RESULTS = result.REPOSITORY / "benchmarks" / "results"
REHEARSED = Path(tempfile.gettempdir()) / "intellect-node-gpu-rehearsal"


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    if given.merge:
        return merge(given.merge, given.out or RESULTS, given.supersede)
    if given.supersede:
        raise SystemExit("--supersede marks parts of a result that --merge names")
    if given.lease:
        given.only, given.minutes = list(leased()), sum(seconds for _, seconds in LEASE) / 60
    if given.wheels:
        print(wheels.collect(given.only, given.python, given.wheels))
        return 0
    quick = given.quick or given.device == "cpu"
    out: Path = given.out or (REHEARSED if quick else RESULTS)
    found = result.new(result.look(given.device), rehearsal=quick)
    name = result.slug(found["device"]["name"]) + ("-rehearsal" if quick else "")
    earlier = result.read(out / f"{name}.json")
    result.merged(earlier, found)  # complains now, and not after minutes
    command = ["python -m benchmarks.gpu", *(sys.argv[1:] if arguments is None else arguments)]
    revision = given.revision or result.revision()
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


def merge(files: list[Path], out: Path, superseded: Sequence[tuple[str, str]] = ()) -> int:
    """Results of one device from several commands, earlier ones first. superseded: (part, why it no longer holds)."""
    whole: result.Result | None = None
    for file in files:
        one = result.read(file)
        if one is None:
            raise SystemExit(f"{file} is not there")
        name = result.slug(one["device"]["name"]) + ("-rehearsal" if one["rehearsal"] else "")
        whole = result.merged(whole or result.read(out / f"{name}.json"), one)
        for part, why in superseded:
            result.supersede(whole, part, why)
        print(f"written: {result.write(out, name, whole)}")
    return 0


def parts_named(text: str) -> list[Part]:
    """In the order of PARTS: the best first."""
    wanted = {name.strip() for name in text.split(",") if name.strip()}
    if unknown := wanted.difference(NAMES):
        raise argparse.ArgumentTypeError(f"no part {', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    return [part for part in PARTS if part.name in wanted]


def marked(text: str) -> tuple[str, str]:
    """(part, why) of PART=WHY."""
    name, equals, why = text.partition("=")
    if not equals or not why.strip() or name not in NAMES:
        raise argparse.ArgumentTypeError(f"{text!r} is not PART=WHY; there are {', '.join(NAMES)}")
    return name, why.strip()


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
    made.add_argument("--lease", action="store_true", help="the parts and deadlines of a card that is lent")
    made.add_argument(
        "--supersede", type=marked, nargs="+", default=[], metavar="PART=WHY", help="with --merge: no longer holds"
    )
    made.add_argument("--wheels", type=Path, metavar="DIR", help="only fetch what a machine without a network needs")
    made.add_argument("--python", default="3.12", help="that machine's, for --wheels")
    return made


HEARTBEAT = 30.0
"""Seconds between two words that a part is still at it."""
MOST_THREADS = 16


def run_part(part: Part, job: Job, minutes_left: float, command: Sequence[str], revision: str | None) -> dict[str, Any]:
    """What a result says of a part: its state, why if it is not done, and its figures as far as it came."""
    entry: dict[str, Any] = {
        "state": "out of time",
        "what": part.what,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "revision": revision,
        "command": " ".join(command),
        "quick": job.quick,
        "seconds": 0.0,
        "figures": {},
    }
    if minutes_left < part.least:
        return entry | {"why": f"{minutes_left:.1f} minutes were left, and it takes {part.least:g} at least"}
    most = 60 * min(part.most, minutes_left)
    print(f"{part.name}: {part.what} (at most {most:.0f} s)", flush=True)
    started = time.monotonic()
    ended = _in_a_process(part.name, replace(job, seconds=most))
    entry |= {"seconds": round(time.monotonic() - started, 1), **ended}
    print(f"{part.name}: {entry['state']} after {entry['seconds']} s", entry.get("why", ""), "\n", flush=True)
    return entry


def _in_a_process(name: str, job: Job) -> dict[str, Any]:
    """state, why, figures."""
    found, said = job.scratch / f"{name}.rows", job.scratch / f"{name}.log"
    found.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.gpu.child", name]
    command += [str(job.write(job.scratch / f"{name}.job")), str(found)]
    with said.open("wb") as log:
        child = subprocess.Popen(
            command, stderr=log, env=_environment(job.device), cwd=result.REPOSITORY, start_new_session=True
        )
        try:
            late = not _waited(child, name, job.seconds)
        finally:
            _end_group(child)
    figures, ended = read_rows(found)
    if late and not ended:
        ended = {"state": "out of time", "why": f"ended after {job.seconds:.0f} s"}
    if not ended:
        tail = " ".join(said.read_text(errors="replace").split())[-500:]
        ended = {"state": "failed", "why": f"the process ended with status {child.returncode}: {tail}"}
    if ended["state"] == "failed":
        print(said.read_text(errors="replace")[-3000:], file=sys.stderr)
    return {**ended, "figures": figures}


def _environment(device: str) -> dict[str, str]:
    """On a CPU one thread, so that its seconds can be compared; of several GPUs one; no model hub anywhere."""
    threads = 1 if device == "cpu" else min(MOST_THREADS, os.cpu_count() or 1)
    path = os.pathsep.join(filter(None, (str(result.REPOSITORY), os.environ.get("PYTHONPATH"))))
    own = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    return {"CUDA_VISIBLE_DEVICES": "0", **os.environ, **own}


def _waited(child: subprocess.Popen[bytes], name: str, seconds: float) -> bool:
    """Whether it ended by itself in time."""
    started = time.monotonic()
    while (left := seconds - (time.monotonic() - started)) > 0:
        try:
            child.wait(min(HEARTBEAT, left))
            return True
        except subprocess.TimeoutExpired:
            print(f"  {name} {time.monotonic() - started:5.0f} s  ...", flush=True)
    return False


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """It and what it started: a process that is left would keep the device's memory."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all have ended
    child.wait()


def read_rows(file: Path) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """(rows by section, how it ended if it says so). The last line may be half of one."""
    figures: dict[str, list[dict[str, Any]]] = {}
    ended: dict[str, Any] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            told = json.loads(line)
        except ValueError:
            break
        if "section" in told:
            figures.setdefault(told["section"], []).append(told["row"])
        else:
            ended = told
    return figures, ended


if __name__ == "__main__":
    sys.exit(main())
