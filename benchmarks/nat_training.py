"""Training where worker and trainer are both behind routers that translate addresses, with real daemons.

    python -m benchmarks.nat_training [--steps 2] [--random-ports] [--json]

A public validator carries them. Chain, start model, run and pool are the demo's; each daemon is `intellect-node join`
in a network namespace of its own, and finds the chain at its own 127.0.0.1, by a door that passes no router.
Needs root, `ip` and `iptables`; exit code 77 with the reason without. --random-ports: the routers give every
connection another port, so that no hole can be punched.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trio

from benchmarks.namespaces import Host, conclude, world
from cli.api import get_status, socket_of
from cli.daemon_status import DaemonStatus
from cli.demo.cast import DemoOptions, cast, join_command
from cli.demo.chain import open_chain
from cli.demo.prepare import Stage, prepare
from cli.demo.scene import Scene
from cli.demo.story import demo_environment
from cli.demo.supervise import Program, Supervisor, start_anew
from cli.demo.view import PlainView
from cli.errors import CommandError
from node.chain.profile import read_profile

PATIENCE = 420.0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def train(steps: int, random_ports: bool) -> dict[str, Any]:
    """Bring up the chain, then the hosts and their daemons; watch until the run is done."""
    with tempfile.TemporaryDirectory() as folder:
        scene, view = Scene(Path(folder) / "demo"), PlainView(say)
        scene.claim()
        options = DemoOptions(scene.directory, workers=1, validators=1, cheats=(), steps=steps)
        environment = demo_environment(scene)
        async with open_chain(scene, environment, view) as chain:
            stage = await prepare(options, scene, chain, environment, start_anew, view)
            with world(1, 2, random_ports=random_ports) as (public, hidden), chain_doors(stage, [*public, *hidden]):
                hosts: dict[str, Host] = dict(
                    zip(("validator", "trainer", "worker 1"), (*public, *hidden), strict=True)
                )
                supervisor = Supervisor(view.say)
                try:
                    for program in programs(options, scene, stage, environment, hosts):
                        supervisor.start(program)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(supervisor.watch)
                        found = await watch(scene, steps)
                        nursery.cancel_scope.cancel()
                    return found
                finally:
                    await supervisor.stop()


@contextmanager
def chain_doors(stage: Stage, hosts: list[Host]) -> Iterator[None]:
    """The chain at 127.0.0.1 of every host."""
    place = urlsplit(read_profile(stage.profile).rpc_urls[0]).netloc
    door = stage.profile.with_suffix(".sock")
    forward = [sys.executable, "-m", "benchmarks.forward"]
    with ExitStack() as stack:
        commands = [[*forward, str(door), place], *([*host.prefix, *forward, place, str(door)] for host in hosts)]
        for command in commands:
            process = subprocess.Popen(command)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield


def programs(
    options: DemoOptions, scene: Scene, stage: Stage, environment: dict[str, str], hosts: dict[str, Host]
) -> Iterator[Program]:
    for one in cast(options):
        host = hosts[one.name]
        command = [*host.prefix, *join_command(one, scene, stage.profile, stage.pool)]
        command += ["--listen", f"/ip4/{host.address}/tcp/4001"]
        yield Program(one.name, command, environment, scene.log(one.name), scene.directory)


async def watch(scene: Scene, steps: int) -> dict[str, Any]:
    """Seconds from the daemons' start to each thing that happens, and how the two hidden ones saw each other."""
    began, found = time.monotonic(), {}
    seen: set[str] = set()

    def mark(name: str, happened: bool) -> None:
        if happened and name not in found:
            found[name] = round(time.monotonic() - began, 1)
            say(f"{name}: {found[name]} s")

    while time.monotonic() - began < PATIENCE:
        worker, trainer = await _status(scene, "worker 1"), await _status(scene, "trainer")
        if worker is not None and trainer is not None:
            way = _way(worker, trainer.node.address)
            seen |= {way} - {""}
            for kind in ("relayed", "punched"):
                mark(f"seconds_to_{kind}", way == kind)
            step = worker.run.step if worker.run and worker.run.step is not None else -1
            mark("seconds_to_first_policy", step >= 0)
            mark("seconds_to_first_accepted_file", bool(worker.work and worker.work.files_accepted))
            mark("seconds_to_first_step", step >= 1)
            if step >= steps:
                mark("seconds_to_last_step", True)
                return found | _outcome(worker, trainer, step, seen)
        await trio.sleep(0.5)
    raise TimeoutError(f"not done after {PATIENCE:g} s: {found}")


def _outcome(worker: DaemonStatus, trainer: DaemonStatus, step: int, seen: set[str]) -> dict[str, Any]:
    reach = [status.node.reach.way if status.node.reach else "" for status in (worker, trainer)]
    accepted = worker.work.files_accepted if worker.work else 0
    return {
        "steps": step,
        "files_accepted": accepted,
        "ways_seen": sorted(seen),
        "way_at_the_end": _way(worker, trainer.node.address),
        "worker_and_trainer_are_reached": reach,
        "worker_contacts": worker.node.contacts,
    }


def _way(status: DaemonStatus, member: str) -> str:
    return next((one.way for one in status.swarm if one.address == member), "")


async def _status(scene: Scene, name: str) -> DaemonStatus | None:
    ask: Callable[[], DaemonStatus] = lambda: get_status(socket_of(scene.state_dir(name)))  # noqa: E731
    try:
        return await trio.to_thread.run_sync(ask)
    except CommandError:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--random-ports", action="store_true", help="routers that translate to another port each time")
    return conclude(parser, lambda options: trio.run(train, options.steps, options.random_ports))


if __name__ == "__main__":
    sys.exit(main())
