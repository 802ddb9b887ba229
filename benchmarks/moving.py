"""What an operator does to a node's memory some day, and what the node makes of it: copies, backups, journals, flips.

    python -m benchmarks.moving [--tries 3] [--only ROW ...] [--quick] [--json FILE] [--work DIR]

One live swarm, as a demo's: a trainer, two workers, three validators, each its own daemon, on a local chain. Each row
is done to one of them while the run goes on:

    copied      its directory is copied as it runs, and the copy is started beside it: worker, validator, trainer
    older       it is killed and started with its journal of two files before: a worker
    empty       it is killed and started without a journal: worker, validator
    restored    it is stopped, `state export`ed and started; some policies later it is killed, its directory is removed,
                and `state import` makes a new one: worker, validator, trainer
    flipped     it is killed, and a bit of each stored file of the run is flipped: worker, validator

Told are how often a stake was lost (as the chain has it), who was not believed, with what the daemon in question ended,
seconds until the node's own work went on (its next file, verdict or policy), and what it said. The exit code is 1 where
a stake was lost or work did not go on.
"""

import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import trio

from benchmarks.command import parser_of, save, silence_logs, tell
from benchmarks.faults import flip_run_files, said
from cli.api import get_status_async, socket_of
from cli.demo.cast import DemoOptions, Scene, cast, join_command
from cli.demo.chain import DemoChain, open_chain
from cli.demo.prepare import DemoStage, prepare
from cli.demo.snapshot import DemoMember
from cli.demo.story import demo_environment
from cli.demo.supervise import (
    Spawn,
    SupervisedProcess,
    SupervisedProgram,
    Supervisor,
    last_error,
    open_zygote,
    run_to_end,
)
from cli.demo.view import PlainView
from cli.events import event_rows
from node.state.directory import JOURNAL_NAME
from node.status_schema import DaemonStatus

PATIENCE = 240.0
ENDS = 120.0
"""Seconds that a second daemon may take until it has ended."""
EVERY = 0.25
STEPS_LATER = 4
"""Policies between a backup and its restoring."""
NODES = {"worker": "worker 1", "validator": "validator 1", "trainer": "trainer"}
COPY = "copy"


class Swarm:
    """One demo's daemons, each of which may be stopped, changed and started."""

    def __init__(
        self, scene: Scene, stage: DemoStage, chain: DemoChain, environment: dict[str, str], spawn: Spawn
    ) -> None:
        self.scene, self._stage, self._chain, self._environment = scene, stage, chain, environment
        self.processes: dict[str, SupervisedProcess] = {}
        self._spawn = spawn
        self.supervisor = Supervisor(tell, spawn=self._started)
        self.password = scene.directory / "state-password"
        self.password.write_text("a password of the state file's own\n")
        self.password.chmod(0o600)

    async def _started(self, program: SupervisedProgram) -> SupervisedProcess:
        process = self.processes[program.name] = await self._spawn(program)
        return process

    async def start(self, role: str, name: str) -> None:
        command = list(join_command(DemoMember(name, role), self.scene, self._stage.profile, self._stage.pool))
        command += self.with_password(name)
        place = (self._environment, self.scene.log(name), self.scene.directory)
        await self.supervisor.start(
            SupervisedProgram(name, command, *place, restart=name != COPY, optional=name == COPY)
        )

    def with_password(self, name: str) -> list[str]:
        """Of a node that was imported: its key has the file's."""
        directory = self.scene.state_dir(name)
        own = (directory / "password").exists() or not (directory / "node-key.json").exists()
        return [] if own else ["--password-file", str(self.password)]

    async def stop(self, name: str) -> None:
        """As its owner does."""
        os.kill(self.processes[name].pid, signal.SIGTERM)
        await self.ended(name)

    async def ended(self, name: str) -> int | None:
        """Its exit code, once there is one."""
        with trio.move_on_after(ENDS):
            while self.processes[name].poll() is None:
                await trio.sleep(EVERY)
        return self.processes[name].poll()

    async def kill(self, name: str) -> None:
        self.supervisor.kill(name)
        await self.ended(name)

    async def run(self, *words: str) -> None:
        """A command of ours."""
        log = self.scene.log("commands")
        command = [sys.executable, "-m", "cli", *words]
        await run_to_end(SupervisedProgram(words[0], command, self._environment, log, self.scene.directory))

    async def status(self, name: str) -> DaemonStatus | None:
        return await get_status_async(socket_of(self.scene.state_dir(name)))

    async def done(self, role: str) -> int:
        """How much of its own work a node has done: files, verdicts, or the step of its newest policy; -1: it says
        nothing of that."""
        status = await self.status(NODES[role])
        if status is None:
            return -1
        if role == "worker":
            return status.work.files_accepted if status.work else -1
        if role == "validator":
            return status.verdicts.accepted if status.verdicts else -1
        return status.training.step if status.training else -1

    async def until(self, true: Callable[[], Awaitable[bool]], patience: float = PATIENCE) -> float | None:
        """Seconds; None where it did not come to be."""
        began = trio.current_time()
        with trio.move_on_after(patience):
            while not await true():
                await trio.sleep(EVERY)
            return round(trio.current_time() - began, 1)
        return None

    async def further(self, role: str, by: int = 1, *, than: int | None = None) -> float | None:
        """Seconds until so much more of its work is done."""
        before = await self.done(role) if than is None else than

        async def so() -> bool:
            return await self.done(role) >= before + by

        return await self.until(so)

    async def slashed(self) -> list[str]:
        """By the chain."""
        return [str(row["node"]) for row in await event_rows(self._chain.client) if row["event"] == "Slashed"]

    def not_believed(self, since: float) -> int:
        """How many nodes said meanwhile that they believe a validator no more."""
        places = (self.scene.directory / "nodes").iterdir()
        return sum("validator.quarantined" in said(place, since) for place in places)


Row = Callable[[Swarm, str], Awaitable[dict[str, Any]]]


async def copied(swarm: Swarm, role: str) -> dict[str, Any]:
    first, copy = swarm.scene.state_dir(NODES[role]), swarm.scene.state_dir(COPY)
    # As it runs: neither its lock nor its socket is a file that a copy takes over.
    leave_out = shutil.ignore_patterns("*.lock", "*.sock", "tmp", "logs", "control*")
    await trio.to_thread.run_sync(lambda: shutil.copytree(first, copy, symlinks=True, ignore=leave_out))
    swarm.scene.log(COPY).unlink(missing_ok=True)
    pid, began = swarm.processes[NODES[role]].pid, trio.current_time()
    await swarm.start(role, COPY)
    code = await swarm.ended(COPY)
    took = trio.current_time() - began
    if code is None:
        await swarm.kill(COPY)
    on = await swarm.further(role)
    told = last_error(swarm.scene.log(COPY))
    await trio.to_thread.run_sync(shutil.rmtree, copy)
    same = swarm.processes[NODES[role]].pid == pid and swarm.processes[NODES[role]].poll() is None
    return {"code": code, "seconds": round(took, 1), "on": on if same else None, "told": told[0] if told else ""}


def backup_of(journal: Path, to: Path) -> None:
    with closing(sqlite3.connect(journal)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def without_journal(directory: Path) -> None:
    for one in directory.glob(f"{JOURNAL_NAME}*"):
        one.unlink()


async def older(swarm: Swarm, role: str) -> dict[str, Any]:
    directory = swarm.scene.state_dir(NODES[role])
    kept = swarm.scene.directory / "older.sqlite"
    await trio.to_thread.run_sync(backup_of, directory / JOURNAL_NAME, kept)
    await swarm.further(role, 2)
    await swarm.kill(NODES[role])
    without_journal(directory)
    shutil.move(kept, directory / JOURNAL_NAME)
    return await started_again(swarm, role)


async def empty(swarm: Swarm, role: str) -> dict[str, Any]:
    await swarm.kill(NODES[role])
    without_journal(swarm.scene.state_dir(NODES[role]))
    return await started_again(swarm, role)


async def restored(swarm: Swarm, role: str) -> dict[str, Any]:
    name, directory = NODES[role], swarm.scene.state_dir(NODES[role])
    file, password = swarm.scene.directory / "backup.state", ["--new-password-file", str(swarm.password)]
    file.unlink(missing_ok=True)
    await swarm.stop(name)
    await swarm.run(
        "state", "export", "--state-dir", str(directory), "--to", str(file), *password, *swarm.with_password(name)
    )
    await swarm.start(role, name)
    await swarm.until(lambda: _working(swarm, role))
    await swarm.further("trainer", STEPS_LATER)
    await swarm.further(role)
    before = await swarm.done("trainer")
    await swarm.kill(name)
    await trio.to_thread.run_sync(shutil.rmtree, directory)
    await swarm.run("state", "import", str(file), "--state-dir", str(directory), *password)
    return await started_again(swarm, role, before=before if role == "trainer" else None)


async def _working(swarm: Swarm, role: str) -> bool:
    return await swarm.done(role) >= 0


async def flipped(swarm: Swarm, role: str) -> dict[str, Any]:
    await swarm.kill(NODES[role])
    count = await trio.to_thread.run_sync(flip_run_files, swarm.scene.state_dir(NODES[role]))
    found = await started_again(swarm, role)
    return found | {"told": f"{count} files: {found['told']}"}


async def started_again(swarm: Swarm, role: str, *, before: int | None = None) -> dict[str, Any]:
    """before: the step that the trainer must come beyond."""
    at, began = time.time(), trio.current_time()
    await swarm.start(role, NODES[role])
    opened = await swarm.until(lambda: _open(swarm, role))
    on = await swarm.further(role, than=before)
    status = await swarm.status(NODES[role])
    pen = status.node.pen if status else None
    code = swarm.processes[NODES[role]].poll()
    took = round(trio.current_time() - began, 1)
    told = f"pen after {opened} s, {pen.adopted} words taken in, fence {pen.fence}" if pen else ""
    events = [
        one for one in said(swarm.scene.state_dir(NODES[role]), at) if one.startswith(("contin", "trainer.", "blob.d"))
    ]
    return {"code": code, "seconds": took, "on": on, "told": "; ".join([told, *events])}


async def _open(swarm: Swarm, role: str) -> bool:
    status = await swarm.status(NODES[role])
    return bool(status and status.node.pen and status.node.pen.state == "open")


ROWS: dict[str, tuple[Row, str]] = {
    "copied, worker": (copied, "worker"),
    "copied, validator": (copied, "validator"),
    "copied, trainer": (copied, "trainer"),
    "older, worker": (older, "worker"),
    "empty, worker": (empty, "worker"),
    "empty, validator": (empty, "validator"),
    "restored, worker": (restored, "worker"),
    "restored, validator": (restored, "validator"),
    "restored, trainer": (restored, "trainer"),
    "flipped, worker": (flipped, "worker"),
    "flipped, validator": (flipped, "validator"),
}
QUICK = ("copied, worker", "flipped, worker")


async def play(work: Path, names: list[str], tries: int, keep: Callable[[list[dict[str, Any]]], None]) -> list[Any]:
    options = DemoOptions(work / "swarm", workers=2, validators=3, cheats=(), steps=100_000)
    scene, rows = Scene(options.directory.resolve()), list[dict[str, Any]]()
    scene.directory.mkdir(parents=True)
    scene.claim()
    environment, view = demo_environment(scene), PlainView(tell)
    async with open_zygote(environment) as spawn, open_chain(scene, environment, view) as chain:
        swarm = Swarm(scene, await prepare(options, scene, chain, environment, spawn, view), chain, environment, spawn)
        try:
            async with trio.open_nursery() as nursery:
                for one in cast(options):
                    await swarm.start(one.role, one.name)
                nursery.start_soon(swarm.supervisor.watch)
                for role in NODES:
                    await swarm.further(role, 3, than=0)
                for number in range(tries):
                    for name in names:
                        rows.append(await tried(swarm, name, number))
                        keep(rows)
                nursery.cancel_scope.cancel()
        finally:
            await swarm.supervisor.stop()
    return rows


async def tried(swarm: Swarm, name: str, number: int) -> dict[str, Any]:
    row, role = ROWS[name]
    before, at = await swarm.slashed(), time.time()
    found = await row(swarm, role)
    await swarm.further("trainer", 2)  # what it signed has been heard by then
    lost = (await swarm.slashed())[len(before) :]
    found |= {"row": name, "try": number + 1, "slashed": len(lost), "not_believed": swarm.not_believed(at)}
    tell(str(found))
    return found


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| row | tries | stakes lost | not believed | exit codes | seconds | worked on | said last |",
        "|---" * 8 + "|",
    ]
    for name in dict.fromkeys(one["row"] for one in rows):
        some = [one for one in rows if one["row"] == name]
        codes = ", ".join(sorted({"runs" if one["code"] is None else str(one["code"]) for one in some}))
        seconds = ", ".join(str(one["seconds"]) for one in some)
        counts = f"{len(some)} | {sum(one['slashed'] for one in some)} | {sum(one['not_believed'] for one in some)}"
        on = sum(one["on"] is not None for one in some)
        lines.append(f"| {name} | {counts} | {codes} | {seconds} | {on} | {some[-1]['told']} |")
    return "\n".join(lines)


def main() -> None:
    parser = parser_of(__doc__, "one try of two rows")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--only", choices=list(ROWS), action="append", help="Repeatable; default: all of them.")
    parser.add_argument("--work", type=Path, help="where the swarm lies; default: a directory that is removed")
    given = parser.parse_args()
    silence_logs()
    names: list[str] = list(QUICK) if given.quick else given.only or list(ROWS)
    tries: int = 1 if given.quick else given.tries
    with tempfile.TemporaryDirectory() as folder:
        rows = trio.run(play, given.work or Path(folder), names, tries, lambda rows: save(given.json, rows))
    print(table(rows))
    sys.exit(int(any(one["slashed"] or one["on"] is None for one in rows)))


if __name__ == "__main__":
    main()
