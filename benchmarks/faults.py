"""What does a node of a live swarm say, and lose, when its machine fails: kills, stops, full disks, flips, errors?

    python -m benchmarks.faults [--node worker-1] [--only NAME ...] [--work DIR] [--quick] [--json]

A demo's swarm trains on this machine. Each fault strikes one node, `--node` (or what the fault names), for some
seconds. Told are what its log said then, seconds from the end of the fault to its next work (a file that it commits, a
verdict, a step), and whether anything was refused or slashed. What strikes system calls needs strace (and the right to
trace), a full disk the right to mount: run as root for these, or they are skipped with a line. On a machine with other
work the seconds are that machine's.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.command import parser_of, tell
from benchmarks.recovery import WARM_STEPS, chain_of, child, daemon, guardian_of, progress
from benchmarks.watching import Demo
from node.logs import log_files

NODES = ("worker-1", "validator", "trainer")
SECONDS, WITHOUT_FILES = 12.0, 32.0
STANDARD_STREAMS = 3
ENGINES = {"trainer": "learner"}
ROOM = "3g"
"""Of the disk that is filled."""
Fault = Callable[[Demo, str], Iterator[None]]
"""Strikes the node of that name, yields as the fault ends, and tidies up."""


class NotHere(Exception):
    """This machine cannot be made to fail so."""


def kill(of: Callable[[Demo, str], int | None]) -> Fault:
    def strike(demo: Demo, node: str) -> Iterator[None]:
        os.kill(demo.until(lambda: of(demo, node)), signal.SIGKILL)
        yield

    return strike


def stop(of: Callable[[Demo, str], int | None]) -> Fault:
    def strike(demo: Demo, node: str) -> Iterator[None]:
        victim = demo.until(lambda: of(demo, node))
        os.kill(victim, signal.SIGSTOP)
        time.sleep(SECONDS)
        yield
        os.kill(victim, signal.SIGCONT)

    return strike


def calls(names: str, error: str) -> Fault:
    """System calls of the daemon fail."""

    def strike(demo: Demo, node: str) -> Iterator[None]:
        strace = os.environ.get("STRACE") or shutil.which("strace")
        if strace is None:
            raise NotHere("strace is not here")
        victim = demo.until(lambda: daemon(demo, node))
        words = ["-f", "-qq", "-o", os.devnull, "-p", str(victim), "-e", f"trace={names}"]
        tracer = subprocess.Popen([strace, *words, "-e", f"inject={names}:error={error}"], stderr=subprocess.PIPE)
        time.sleep(SECONDS)
        if tracer.poll() is not None and psutil.pid_exists(victim):
            raise NotHere(f"strace: {tracer.stderr.read().decode()[:200] if tracer.stderr else ''}")
        yield
        tracer.terminate()
        tracer.wait()

    return strike


def no_files(demo: Demo, node: str) -> Iterator[None]:
    """None is opened any more, also where an older one was closed."""
    victim = demo.until(lambda: daemon(demo, node))
    before = resource.prlimit(victim, resource.RLIMIT_NOFILE)
    resource.prlimit(victim, resource.RLIMIT_NOFILE, (STANDARD_STREAMS, before[1]))
    time.sleep(WITHOUT_FILES)
    yield
    if psutil.pid_exists(victim):
        resource.prlimit(victim, resource.RLIMIT_NOFILE, before)


def full_disk(demo: Demo, node: str) -> Iterator[None]:
    """Of the whole swarm."""
    if not os.path.ismount(demo.directory.parent):
        raise NotHere("nothing may be mounted here")
    filler = demo.directory.parent / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):  # until nothing fits any more
        while True:
            file.write(bytes(1 << 20))
    time.sleep(SECONDS)
    yield
    filler.unlink()


def flips(demo: Demo, node: str) -> Iterator[None]:
    """A bit of each stored blob that is a file of the run, or the run itself; then a restart."""
    victim = demo.until(lambda: daemon(demo, node))
    os.kill(victim, signal.SIGSTOP)
    tell(f"{flip_run_files(demo.state_dir(node))} blobs have a bit flipped")
    os.kill(victim, signal.SIGKILL)
    yield


def flip_run_files(directory: Path) -> int:
    """In the store of a state directory; how many they are."""
    named = {path.stat().st_size for path in directory.glob("run/*/**/*") if path.is_file()}
    complete = directory / "blobs" / "complete"
    hit = [path for path in complete.iterdir() if path.suffix == "" and path.stat().st_size in named]
    for path in hit:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(bytes(data))
    return len(hit)


FAULTS: dict[str, Fault] = {
    "daemon killed": kill(daemon),
    "guardian and daemon killed": kill(lambda demo, node: guardian_of(daemon(demo, node))),
    "engine killed, as for memory": kill(lambda demo, node: child(demo, node, ENGINES.get(node, "engine"))),
    "daemon stopped": stop(daemon),
    "chain stopped": stop(lambda demo, _: chain_of(demo)),
    "no more files may be open": no_files,
    "every sync fails (EIO)": calls("fsync,fdatasync", "EIO"),
    "read-only (EROFS)": calls("pwrite64,ftruncate,fsync,fdatasync,rename,mkdir,unlink", "EROFS"),
    "disk full": full_disk,
    "bits of stored files flip": flips,
}


def refused(demo: Demo, node: str) -> tuple[int, int]:
    """(files that were refused, slashes)."""
    status = demo.status(node)
    if status is None:
        return 0, 0
    return status.work.files_rejected if status.work else 0, len(status.slashed)


def said(directory: Path, since: float) -> list[str]:
    """Events of the log of a state directory from then on, warnings and worse, each once."""
    found: dict[str, None] = {}
    for path in reversed([one for one in log_files(directory / "logs") if one.exists()]):
        for line in path.read_text(errors="replace").splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("level") in ("warning", "error", "critical") and _seconds(entry) >= since:
                found[str(entry.get("event"))] = None
    return list(found)


def _seconds(entry: dict[str, Any]) -> float:
    from datetime import datetime

    return datetime.fromisoformat(entry["timestamp"]).timestamp() if "timestamp" in entry else 0.0


def tried(demo: Demo, node: str, name: str) -> dict[str, Any]:
    before = demo.until(lambda: progress(demo, node))
    lost, victim, at = refused(demo, node), daemon(demo, node), time.time()
    try:
        for _ in FAULTS[name](demo, node):
            lifted = time.monotonic()
    except NotHere as error:
        return {"skipped": str(error)}

    def went_on() -> bool:
        """The last figure counts work; one before it is the daemon's, whose successor counts from nothing."""
        now = progress(demo, node)
        return now is not None and (now[-1] > before[-1] or (now[:-1] != before[:-1] and now[-1] > 0))

    before = progress(demo, node) or before
    demo.until(went_on)
    files, slashes = (now - then for now, then in zip(refused(demo, node), lost, strict=True))
    return {
        "same_daemon": daemon(demo, node) == victim,
        "seconds": round(time.monotonic() - lifted, 1),
        "refused": files,
        "slashed": slashes,
        "said": said(demo.state_dir(node), at),
    }


@contextmanager
def own_disk(wanted: bool, work: Path | None) -> Iterator[Path]:
    """A directory on a disk of its own, if one may be mounted; or the one that is named, which stays."""
    if work is not None:
        yield work
        return
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", folder]
        mounted = wanted and subprocess.run(command, capture_output=True, check=False).returncode == 0
        try:
            yield Path(folder)
        finally:
            if mounted:
                subprocess.run(["umount", "-l", folder], check=False)


def main() -> None:
    parser = parser_of(__doc__, "The daemon and the engine are killed, nothing else.", "line")
    parser.add_argument("--node", choices=NODES, default=NODES[0])
    parser.add_argument("--only", choices=list(FAULTS), action="append", help="Repeatable; default: all of them.")
    parser.add_argument("--work", type=Path, help="where the swarm lies; default: a directory that is removed")
    arguments = parser.parse_args()
    names = arguments.only or (list(FAULTS)[:3:2] if arguments.quick else list(FAULTS))
    found: dict[str, Any] = {}
    with (
        own_disk("disk full" in names, arguments.work) as folder,
        Demo(folder / "demo", "--steps", "2000", "--no-kill") as demo,
    ):
        demo.until(lambda: (progress(demo, "trainer") or (0,))[0] >= WARM_STEPS)
        demo.until(lambda: (progress(demo, arguments.node) or (0,))[-1] > 0)
        for name in names:
            found[name] = tried(demo, arguments.node, name)
            tell(f"{name}: {found[name]}")
    print(json.dumps(found) if arguments.json else json.dumps(found, indent=1))
    sys.exit(0)


if __name__ == "__main__":
    main()
