"""A swarm whose RPC endpoint goes silent while it trains: does it go on, does a killed member come back, what is lost?

    python -m benchmarks.silence [--minutes 10] [--rest SECONDS] [--work DIR] [--quick] [--json]

The demo's daemons (trainer, two workers, a validator) on a local chain, which they reach through a TCP proxy of this
program, with two bootnodes in their network profile. Stretches, each with its steps:

    before       as it is
    no bootnodes both bootnodes were killed (-9)
    silent       the proxy refuses and cuts every connection, for so many minutes; after a third of them `worker 2` is
                 killed (-9, with its engine) and started again: it can come back only by what it remembers of the pool
    after        the proxy lets through again

Leases are 240 s, so that several renewals fall into the silence; the audit window is four times the silence, as a
day's is many times an hour, and stakes unbond for longer than that. `--rest 20` lets workers rest before each file, so
that a machine which others use is not filled for an hour. Memory is that of the daemons alone, without their engines.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import trio

import cli.demo.prepare
import cli.pools
from benchmarks.command import parser_of, silence_logs, tell
from benchmarks.live_attacks import prepare as prepare_run
from benchmarks.watching import Watcher
from cli.demo.cast import DemoOptions, Scene, cast
from cli.demo.chain import open_chain
from cli.demo.prepare import Stage, prepare
from cli.demo.story import demo_environment, program_of
from cli.demo.supervise import Supervisor, open_zygote
from cli.demo.view import PlainView
from cli.events import event_rows
from node.chain.devnet import DevnetOptions
from node.chain.profile import read_profile, write_profile
from node.network.host import Libp2pNetwork
from protocol.identity import NodeKey

STEPS = 100_000
LEASE = 240
WARM_STEPS = 3
WARM_SECONDS = 600.0
EVERY = 1.0
WINDOWS = 4
"""Audit windows are so many silences; stakes unbond for one more, as no window may be longer."""
LONGEST_BESIDE = 180.0
"""Seconds of each stretch before and after the silence."""
VICTIM = "worker 2"


class Proxy:
    """A TCP port that leads to the chain, or nowhere."""

    def __init__(self, to: int, nursery: trio.Nursery) -> None:
        self._to = to
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self.port = 0

    async def open(self) -> None:
        self._scope = trio.CancelScope()
        self.port = await self._nursery.start(self._run)

    def cut(self) -> None:
        self._scope.cancel()

    async def _run(self, task_status: trio.TaskStatus[int]) -> None:
        with self._scope:
            listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
            task_status.started(listeners[0].socket.getsockname()[1])
            await trio.serve_listeners(self._carry, listeners)

    async def _carry(self, asker: trio.SocketStream) -> None:
        try:
            async with await trio.open_tcp_stream("127.0.0.1", self._to) as chain, trio.open_nursery() as nursery:
                nursery.start_soon(_pump, asker, chain)
                nursery.start_soon(_pump, chain, asker)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.aclose_forcefully(asker)


async def _pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
    async for data in source:
        await sink.send_all(data)
    await sink.send_eof()


class Bootnodes:
    """Two nodes that are in nobody's pool: all they do is be there."""

    def __init__(self, many: int) -> None:
        command = [sys.executable, "-m", "benchmarks.silence", "--bootnode"]
        self._processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(many)]
        self.contacts = tuple((each.stdout.readline() if each.stdout else "").strip() for each in self._processes)

    def kill(self) -> None:
        for each in self._processes:
            each.kill()
            each.wait()


async def be_bootnode() -> None:
    network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: network.run(task_status=task_status))
        print(network.contacts()[0], flush=True)


class Story(Watcher):
    """What happens, and what was seen of it."""

    def __init__(self, scene: Scene, names: list[str]) -> None:
        super().__init__(scene, names, EVERY)
        self.stretches: list[dict[str, Any]] = []

    def rpc_ok(self) -> list[str]:
        return sorted(name for name, status in self.seen.items() if status.network.rpc_ok)

    def _memory(self) -> dict[str, int]:
        """Resident, in MiB, of each daemon."""
        live = {name: one.node.pid for name, one in self.seen.items() if psutil.pid_exists(one.node.pid)}
        return {name: psutil.Process(pid).memory_info().rss >> 20 for name, pid in live.items()}

    async def stretch(self, name: str, seconds: float, meanwhile: Callable[[], Any] | None = None) -> None:
        first, refused, began = self.step(), self.refused, trio.current_time()
        if meanwhile is not None:
            await meanwhile()
        await trio.sleep(max(0.0, began + seconds - trio.current_time()))
        took = trio.current_time() - began
        row = {"stretch": name, "seconds": round(took, 1), "steps": self.step() - first}
        row["steps_per_minute"] = round(60 * row["steps"] / took, 2)
        row |= {"rpc_ok": self.rpc_ok(), "memory_mib": self._memory(), "status_errors": self.refused - refused}
        self.stretches.append(row)
        tell(f"{name:12} {took:5.0f} s  {row['steps']:3} steps  {row['steps_per_minute']:5.2f} a minute")


async def kill_and_watch(story: Story, silence: float, found: dict[str, Any]) -> None:
    """After a third of the silence: the victim's processes, all of them at once; then what becomes of it."""
    await trio.sleep(silence / 3)
    before = story.seen[VICTIM].node
    os.killpg(os.getpgid(before.pid), signal.SIGKILL)
    killed = trio.current_time()

    def is_back() -> bool:
        now = story.seen.get(VICTIM)
        return now is not None and now.node.pid != before.pid and now.node.state == "working"

    await story.until(is_back, silence / 2)
    found["back_after"] = round(trio.current_time() - killed, 1) if is_back() else None
    tell(f"{VICTIM} killed; works again after {found['back_after']} s, without the chain")
    await story.until(lambda: is_back() and _files(story) > 0, silence / 3)
    found["first_file_after"] = round(trio.current_time() - killed, 1) if _files(story) else None


def _files(story: Story) -> int:
    status = story.seen.get(VICTIM)
    return status.work.files_committed if status and status.work else 0


async def play(minutes: float, work: Path, rest: float) -> dict[str, Any]:
    """All of it."""
    silence = 60.0 * minutes
    cli.pools.LEASE_SECONDS = LEASE  # type: ignore[attr-defined]
    cli.demo.prepare.WINDOW_SECONDS = int(WINDOWS * silence)  # type: ignore[misc]
    run = (await trio.to_thread.run_sync(prepare_run, work, STEPS))["plain"]
    engine = f"{sys.executable} -m benchmarks.slow_engine {rest}" if rest else None
    options = DemoOptions(work / "demo", workers=2, validators=1, cheats=(), run_file=run, worker_engine=engine)
    scene = Scene(options.directory.resolve())
    scene.claim()
    scene.clear()
    environment = demo_environment(scene)
    view = PlainView(tell)
    bootnodes = Bootnodes(2)
    try:
        async with open_zygote(environment) as spawn, open_chain(scene, environment, view, _chain(silence)) as chain:
            stage = await prepare(options, scene, chain, environment, spawn, view)
            async with trio.open_nursery() as nursery:
                proxy = Proxy(int(chain.client.url.rpartition(":")[2]), nursery)
                await proxy.open()
                behind = replace(stage, profile=_behind(proxy, stage, bootnodes, scene))
                async with swarm(options, scene, behind, environment, spawn, nursery) as story:
                    found = await _happen(story, proxy, bootnodes, silence)
                rows = await event_rows(chain.client)
                nursery.cancel_scope.cancel()
    finally:
        bootnodes.kill()
    found["events"] = dict(Counter(row["event"] for row in rows))
    return found


def _chain(silence: float) -> DevnetOptions:
    deployment = DevnetOptions().deployment
    unbonding = max(deployment.unbonding_seconds, int((WINDOWS + 1) * silence))
    return DevnetOptions(deployment=msgspec.structs.replace(deployment, unbonding_seconds=unbonding))


def _behind(proxy: Proxy, stage: Stage, bootnodes: Bootnodes, scene: Scene) -> Path:
    """The network profile that the daemons get."""
    path = scene.home / "behind-proxy.toml"
    profile = read_profile(stage.profile)
    url = f"http://127.0.0.1:{proxy.port}"
    write_profile(path, msgspec.structs.replace(profile, rpc_urls=(url,), bootnodes=bootnodes.contacts))
    return path


@asynccontextmanager
async def swarm(
    options: DemoOptions,
    scene: Scene,
    stage: Stage,
    environment: dict[str, str],
    spawn: Any,
    nursery: trio.Nursery,
) -> AsyncIterator[Story]:
    """The daemons, and what they say while they run."""
    supervisor = Supervisor(tell, spawn=spawn)
    story = Story(scene, [one.name for one in cast(options)])
    try:
        for one in cast(options):
            await supervisor.start(program_of(one, scene, stage, environment, options))
        nursery.start_soon(supervisor.watch)
        nursery.start_soon(story.watch)
        yield story
    finally:
        await supervisor.stop()


async def _happen(story: Story, proxy: Proxy, bootnodes: Bootnodes, silence: float) -> dict[str, Any]:
    if await story.until(lambda: story.step() >= WARM_STEPS, WARM_SECONDS) is None:
        raise SystemExit("the swarm does not begin to train")
    short = min(max(60.0, silence / 6), LONGEST_BESIDE)
    found: dict[str, Any] = {"minutes": silence / 60}
    await story.stretch("before", short)
    bootnodes.kill()
    await story.stretch("no bootnodes", short)
    proxy.cut()
    await story.stretch("silent", silence, lambda: kill_and_watch(story, silence, found))
    restored = trio.current_time()
    await proxy.open()
    found["all_hear_the_chain_after"] = await story.until(lambda: len(story.rpc_ok()) == 4, WARM_SECONDS)
    await story.stretch("after", max(short, 90.0 - (trio.current_time() - restored)))
    found["stretches"], found["status_errors"] = story.stretches, story.refused
    found["evicted"] = sorted(name for name, status in story.seen.items() if status.node.state == "evicted")
    found["pay"] = {name: msgspec.to_builtins(status.pay) for name, status in story.seen.items() if status.pay}
    found["work"] = {name: msgspec.to_builtins(status.work) for name, status in story.seen.items() if status.work}
    return found


def main() -> None:
    parser = parser_of(__doc__, "three minutes of silence", "line")
    parser.add_argument("--minutes", type=float, default=10.0, help="of silence")
    parser.add_argument("--rest", type=float, default=0.0, help="seconds before each file, so that it trains slowly")
    parser.add_argument("--work", type=Path, help="where all of it lies and stays; default: a temporary directory")
    parser.add_argument("--bootnode", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    silence_logs()
    if given.bootnode:
        trio.run(be_bootnode)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = trio.run(play, 3.0 if given.quick else given.minutes, given.work or Path(folder), given.rest)
    found["load"] = os.getloadavg()[1]
    if given.json:
        print(json.dumps(found))
        return
    for row in found["stretches"]:
        print(f"{row['stretch']:12} {row['seconds']:6.0f} s {row['steps']:4} steps {row['steps_per_minute']:6.2f} /min")
    print(f"{VICTIM}: killed, working again after {found['back_after']} s, first file {found['first_file_after']} s")
    print(f"all hear the chain {found['all_hear_the_chain_after']} s after it returned; events {found['events']}")


if __name__ == "__main__":
    main()
