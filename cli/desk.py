"""The directory of `intellect-node train`: what lies where, who may use it, and the run in it put together."""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from cli.errors import CommandError
from cli.runtext import render_run

if TYPE_CHECKING:
    from node.metrics.observer import Observer
    from node.roles.local import LocalRun, Told
    from node.runfile import CompiledRun, RunFile
    from node.training.settings import TrainerSettings

MARKER = ".intellect-node-train"
OURS = (
    "run.toml",
    "assets",
    "spool",
    "rollouts",
    "metrics.jsonl",
    "async-level",
    "logs",
    "report",
    "model",
    "wandb",
    "tensorboard",
)


@dataclass(frozen=True, slots=True)
class Desk:
    """Paths below the directory of one local run."""

    directory: Path

    @property
    def run_file(self) -> Path:
        """The run as it is trained: with the command line's overrides, and real paths."""
        return self.directory / "run.toml"

    @property
    def spool(self) -> Path:
        return self.directory / "spool"

    @property
    def assets(self) -> Path:
        return self.directory / "assets"

    @property
    def report(self) -> Path:
        return self.directory / "report"

    @property
    def model(self) -> Path:
        return self.directory / "model"

    @property
    def log(self) -> Path:
        """What the learner and the engine write."""
        return self.directory / "logs" / "processes.log"

    def hold(self) -> AbstractContextManager[None]:
        """Only one process trains in a directory; raises CommandError for the second."""
        from cli.directory_lock import directory_lock

        return directory_lock(self.directory, "training")

    def claim(self, *, fresh: bool) -> None:
        """Make an empty directory ours, or clear an old run of ours if `fresh`. Raises CommandError otherwise."""
        marker = self.directory / MARKER
        held = [entry.name for entry in self.directory.iterdir() if entry.name not in (MARKER, ".lock", ".matplotlib")]
        if held and not marker.exists():
            raise CommandError(
                f"will not train in {self.directory}",
                f"it holds other files: {', '.join(sorted(held)[:3])}",
                "name an empty or a new directory: --dir DIR",
            )
        if held and not fresh:
            raise CommandError(
                f"there is a run in {self.directory} already",
                "it may be unfinished, or its results may still be wanted",
                "--resume goes on with it, --fresh deletes it, --dir DIR leaves it alone",
            )
        marker.touch()
        for name in OURS:
            path = self.directory / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def can_resume(self) -> bool:
        return (self.directory / MARKER).exists() and self.run_file.exists()

    def write_run(self, run: "RunFile") -> None:
        partial = self.run_file.with_name("run.toml.partial")
        partial.write_text(render_run(run), encoding="utf-8")
        partial.replace(self.run_file)

    def place_assets(self, compiled: "CompiledRun") -> None:
        """The run's files under their asset names: by link where the disk allows, else by copy."""
        for name, source in compiled.files.items():
            target = self.assets / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            try:
                os.link(source.resolve(), target)
            except OSError:
                shutil.copyfile(source, target)


@contextmanager
def quiet_children(log: Path) -> Iterator[tuple[IO[str], IO[str]]]:
    """(output, errors): the terminal for us, while everything that child processes print goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    out, err = (os.fdopen(os.dup(descriptor), "w", encoding="utf-8", buffering=1) for descriptor in saved)
    try:
        yield out, err
    finally:
        out.close()
        err.close()
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in zip((1, 2), saved, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


def assemble(
    desk: Desk,
    compiled: "CompiledRun",
    *,
    async_level: int,
    engine_command: Sequence[str],
    sinks: str,
    settings: "TrainerSettings",
    told: "Told",
) -> "tuple[LocalRun, Observer]":
    """The run's parts, wired. Raises ConfigError for a sink that is not installed."""
    from node.inference.client import EngineProcess
    from node.metrics.observer import open_observer
    from node.roles.local import LocalRun
    from node.training.client import TrainerProcess
    from node.training.spool import Spool

    observer = open_observer(compiled.spec, desk.directory, sinks)
    spool = Spool(desk.spool)
    local = LocalRun(
        compiled.spec,
        compiled.encoded,
        desk.directory,
        desk.assets,
        engine=EngineProcess(engine_command, compiled.encoded, desk.assets),
        learner=TrainerProcess(spool, settings=settings),
        spool=spool,
        observer=observer,
        async_level=async_level,
        told=told,
    )
    return local, observer
