"""A demo's swarm under a benchmark's eyes: the command as a process, and what daemons say of themselves."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeVar

import trio

from benchmarks.command import tell
from cli.api import get_status, get_status_async, socket_of
from cli.demo.cast import Scene
from cli.errors import CommandError
from node.status_schema import DaemonStatus

PATIENCE = 300.0
LOOK_SECONDS = 0.05
STOP_SECONDS = 60.0
T = TypeVar("T")


class Demo:
    """A running `intellect-node demo`; its log lies beside its directory."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        self._log = directory.with_suffix(".log")
        command = [sys.executable, "-m", "cli", "demo", "--dir", str(directory), "--no-view", "--no-cheat", *flags]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Interrupt it as a user does; what is left of it then is killed."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @property
    def nodes(self) -> list[str]:
        return sorted(state.name for state in self.state_dir("").glob("*"))

    def state_dir(self, node: str) -> Path:
        return self.directory / "nodes" / node

    def status(self, node: str, timeout: float = 2.0) -> DaemonStatus | None:
        """None where it does not answer."""
        try:
            return get_status(socket_of(self.state_dir(node)), timeout)
        except CommandError:
            return None

    def check(self) -> None:
        """Raises SystemExit if it has ended by itself."""
        if self.process.poll() is not None:
            raise SystemExit(f"the demo ended with {self.process.returncode}: {self.told[-2000:]}")

    @property
    def told(self) -> str:
        return self._log.read_text(errors="replace")

    def until(self, done: Callable[[], T | None]) -> T:
        """What `done` says, once it says something."""
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            self.check()
            if value := done():
                return value
            time.sleep(LOOK_SECONDS)
        raise SystemExit("the swarm did not go on")


class Watcher:
    """What daemons of a scene say, over and over. seen: the last word of each; refused: questions that were answered
    with an error."""

    def __init__(self, scene: Scene, names: Sequence[str], every: float) -> None:
        self._scene, self._names, self._every = scene, names, every
        self.seen: dict[str, DaemonStatus] = {}
        self.refused = 0

    async def watch(self) -> None:
        async with trio.open_nursery() as nursery:
            for name in self._names:
                nursery.start_soon(self._watch, name)

    async def _watch(self, name: str) -> None:
        while True:
            try:
                status = await get_status_async(socket_of(self._scene.state_dir(name)))
            except CommandError as error:
                tell(f"{name}: {error.why}")
                self.refused += 1
            else:
                if status is not None:
                    self.seen[name] = status
                    self.heard(status)
            await trio.sleep(self._every)

    def heard(self, status: DaemonStatus) -> None:
        """Whatever else is to be made of a word."""

    def step(self, name: str = "trainer") -> int:
        """Of that trainer; -1 before the first."""
        status = self.seen.get(name)
        return status.training.step if status and status.training else -1

    async def until(self, done: Callable[[], bool], patience: float = PATIENCE) -> float | None:
        """Seconds; None where it did not come to be."""
        began = trio.current_time()
        with trio.move_on_after(patience):
            while not done():
                await trio.sleep(min(self._every, 0.25))
            return round(trio.current_time() - began, 1)
        return None
