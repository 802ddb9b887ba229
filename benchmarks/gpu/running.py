"""Parts one after the other, each in a process of its own that is ended at its deadline."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.job import Job
from benchmarks.gpu.machine import REPOSITORY
from benchmarks.gpu.parts import Part

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
            command, stderr=log, env=_environment(job.device), cwd=REPOSITORY, start_new_session=True
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
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
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
