"""A whole swarm on this machine with environments behind servers, and the catalogue asked of its live daemons.

    python -m benchmarks.witnessed [--steps 60] [--seconds 40] [--quick] [--package my_taskset]

One swarm (chain, trainer, two workers, three validators: the demo's) learns from `sort`, an OpenEnv server, and MCP
over HTTP and over stdio, all on loopback (audit.witnessed = "mixed"). For so many seconds the OpenEnv server pays
each asker otherwise: that work must be refused (heard_otherwise), unpaid, and cost nobody a stake. Then it says the
same to all, and groups of each server must be accepted: the trainer's metrics name them. With --package, a package of
`verifiers` (`intellect-node verifiers serve`) is one server more. Meanwhile an environment package is published at a
worker, found and shown at a validator, and named by its root in a run file. Exit code 1 unless all of that holds.
"""

import argparse
import json
import os
import random
import signal
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cli.api import socket_of
from node.environments.package.templates import template
from node.environments.server.dial import LOCAL_SERVERS, PROGRAM
from node.training.warmstart import SORT_ALPHABET, create_model
from tests.node.environments.servers import mcp, openenv

RUN = """
name = "witnessed"
model = "model"
[[environments]]
name = "sort"
args = {{ digits = 4 }}
{servers}
[audit]
witnessed = "mixed"
[rollout]
group_size = 4
prompts_per_step = 8
prompts_per_file = 4
max_prompt_tokens = 16
max_output_tokens = 6
max_environment_tokens = 64
[recipe]
name = "intellect2"
steps = {steps}
learning_rate = 1e-4
[evaluation]
problems = 8
every = 2
"""
SERVER = """
[[environments]]
name = "server"
label = "{label}"
dataset = "{rows}"
args = {{ url = "{url}", protocol = "{protocol}", turns = 2, held_back_share = 0.4 }}
"""
ALPHABET = "".join(dict.fromkeys(SORT_ALPHABET + string.printable[:95] + "\n"))


class Fickle:
    """An OpenEnv server that pays each asker otherwise, for a while from the first one on."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._draw = seconds, random.Random(1)
        self._until = 0.0
        self.asked, self.fickle = 0, 0

    def __call__(self, on_progress: dict[str, Any]) -> dict[str, Any]:
        self._until = self._until or time.monotonic() + self._seconds
        self.asked += 1
        if time.monotonic() > self._until:
            return on_progress
        self.fickle += 1
        return on_progress | {"data": on_progress["data"] | {"reward": self._draw.random()}}


@contextmanager
def package(folder: Path, name: str) -> Iterator[dict[str, tuple[str, str, str]]]:
    """A server of a package of verifiers by its label, (URL, protocol, rows); none without a name."""
    if not name:
        yield {}
        return
    words = f"verifiers serve {name} --tasks 40 --port 0 --json --rows".split()
    argv = _command(*words, str(folder / "package.jsonl"))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        try:
            told = json.loads((child.stdout.readline() if child.stdout else "") or "{}")
            if "url" not in told:
                raise SystemExit(f"the package {name!r} is not served")
            yield {"package": (told["url"], "openenv", "package.jsonl")}
        finally:
            child.send_signal(signal.SIGINT)


def played(folder: Path, steps: int, seconds: float, taskset: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the demo's summary, what the catalogue said)."""
    create_model(folder / "model", ALPHABET, seed=7, hidden=64, layers=2)
    rows = [{"problem_id": str(n), "prompt": f"{n}=", "reset": {"seed": n % 10}} for n in range(40)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fickle = Fickle(seconds)
    with openenv(fickle) as first, mcp() as second, package(folder, taskset) as more:
        labels = {
            "openenv": (first, "openenv", "rows.jsonl"),
            "http": (second, "mcp", "rows.jsonl"),
            "stdio": ("stdio:doubles", "mcp", "rows.jsonl"),
            **more,
        }
        servers = [
            SERVER.format(label=label, url=url, protocol=kind, rows=table)
            for label, (url, kind, table) in labels.items()
        ]
        (folder / "run.toml").write_text(RUN.format(servers="".join(servers), steps=steps))
        own = {
            LOCAL_SERVERS: "1",
            f"{PROGRAM}DOUBLES": f"{sys.executable} -m tests.node.environments.servers",
            "INTELLECT_NODE_HOME": str(folder / "home"),
        }
        words = "--validators 3 --workers 2 --no-cheat --json --no-page --no-view".split()
        argv = [*_command("demo"), *words, "--run", str(folder / "run.toml"), "--dir", str(folder / "demo")]
        with (folder / "demo.log").open("w") as log:
            swarm = subprocess.Popen(argv, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=log, text=True)
            try:
                told = catalogue(folder, swarm)
                out, _ = swarm.communicate()
            finally:
                if swarm.poll() is None:
                    swarm.terminate()
                    swarm.wait()
    if swarm.returncode:
        raise SystemExit(f"the swarm ended with {swarm.returncode}: {(folder / 'demo.log').read_text()[-2000:]}")
    rows = [json.loads(line) for line in (folder / "demo" / "report" / "metrics.jsonl").read_text().splitlines()]
    steps_of = {
        label: sum(label in row.get("reward_by_environment", {}) for row in rows) for label in ("sort", *labels)
    }
    told_by = {"asked": fickle.asked, "fickle": fickle.fickle, "steps_with_accepted_work": steps_of}
    return json.loads(out.splitlines()[-1]) | told_by, told


def catalogue(folder: Path, swarm: "subprocess.Popen[str]") -> dict[str, Any]:
    """A package from one node of the running swarm to the user of another, and into a run file."""
    at, to = (folder / "demo" / "nodes" / name for name in ("worker-1", "validator-1"))
    (folder / "guess.py").write_text(template("multi-turn", "guess"))
    sides = [{**os.environ, "INTELLECT_NODE_HOME": str(folder / name)} for name in ("publisher", "reader")]

    def ask(side: int, *words: str) -> dict[str, Any] | None:
        done = subprocess.run(
            _command(*words, "--json"), env=sides[side], capture_output=True, text=True, check=False, cwd=folder
        )
        errors.append(done.stderr[-300:])
        return json.loads(done.stdout) if done.returncode == 0 else None

    errors: list[str] = []
    published = found = None
    while swarm.poll() is None and not (found and found["environments"]):
        time.sleep(2.0)
        if published is None and socket_of(at).exists():
            published = ask(0, "env", "publish", "guess.py", "--state-dir", str(at))
        if published is not None:
            found = ask(1, "env", "search", "guess", "--state-dir", str(to))
    if published is None or found is None or not found["environments"]:
        log = (folder / "demo.log").read_text()[-2000:]
        raise SystemExit(f"nobody offers the package: {errors[-1:]}\n{log}")
    name = f"guess@{published['root']}"
    shown = ask(1, "env", "show", name, "--state-dir", str(to))
    text = (
        RUN.format(servers="", steps=2)
        .replace('"mixed"', '"no"')
        .replace("max_prompt_tokens = 16", "max_prompt_tokens = 96")
    )
    (folder / "named.toml").write_text(text.replace('name = "sort"\nargs = { digits = 4 }', f'package = "{name}"'))
    valid = ask(1, "run", "validate", "named.toml")
    return {
        "root": published["root"],
        "found": len(found["environments"]),
        "shown": bool(shown),
        "validated": bool(valid),
        "errors": errors[-2:],
    }


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "cli", *words]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=40.0, help="for which the OpenEnv server is fickle")
    parser.add_argument("--quick", action="store_true", help="24 steps, of which six seconds are fickle")
    parser.add_argument("--package", default="", help="of verifiers, which must be installed")
    options = parser.parse_args(arguments)
    if options.quick:
        options.steps, options.seconds = 24, 6.0
    with tempfile.TemporaryDirectory() as folder:
        told, offered = played(Path(folder), options.steps, options.seconds, options.package)
    keep = ("steps", "seconds", "verdicts", "slashed", "quarantined", "disputes", "pay", "quorum", "members")
    keep = (*keep, "asked", "fickle", "steps_with_accepted_work")
    print(json.dumps({**{key: told[key] for key in keep}, "catalogue": offered}, indent=1))
    good = (
        told["steps"] == options.steps
        and all(told["steps_with_accepted_work"].values())
        and told["asked"] > told["fickle"] > 0
        and int(told["pay"]["paid_wei"]) > 0
        and set(told["verdicts"]["by_reason"]) == {"heard_otherwise"}
        and not told["slashed"]
        and not told["quarantined"]
        and offered["shown"]
        and offered["validated"]
    )
    return int(not good)


if __name__ == "__main__":
    raise SystemExit(main())
