"""The directory of `intellect-node train`: what lies where, who may use it, and the run in it put together."""

import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cli.errors import USAGE, CommandError
from cli.places import clear, directory_lock
from cli.run_template import render_run
from node.state.files import link_or_copy, write_whole

if TYPE_CHECKING:
    from node.inference.client import EngineProcess
    from node.local.pretraining import LocalPretraining
    from node.local.rollouts import Activity, LocalRollouts, OnRecord
    from node.metrics.observer import Observer
    from node.processes.forkserver import Starter
    from node.run.file import CompiledRun, RunFile
    from node.training.planner import TrainingPlan
    from node.training.settings import TrainerSettings

MARKER = ".intellect-node-train"
OURS = (
    "run.toml",
    "begun.toml",
    "assets",
    "spool",
    "rollouts",
    "metrics.jsonl",
    "async-level",
    "peers",
    "logs",
    "report",
    "model",
    "wandb",
    "trackio",
    "tensorboard",
)


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths below the directory of one local run."""

    directory: Path

    @property
    def run_file(self) -> Path:
        """The run as it is trained: with the command line's overrides, and real paths."""
        return self.directory / "run.toml"

    @property
    def begun_file(self) -> Path:
        """The run file as it was when the training began, without overrides."""
        return self.directory / "begun.toml"

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
        return directory_lock(self.directory, "training")

    def claim(self, *, fresh: bool) -> None:
        """Make an empty directory ours, or clear an old run of ours if `fresh`. Raises CommandError otherwise."""
        marker = self.directory / MARKER
        # The lock is held already, and matplotlib may have made its cache: neither is anybody's work.
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
        # Before anything is cleared: a claim that is cut short must still find the directory to be ours.
        marker.touch()
        # By name, never the whole directory: what a person has put beside a run stays.
        clear(self.directory, OURS)

    def can_resume(self) -> bool:
        return (self.directory / MARKER).exists() and self.run_file.exists()

    def write_run(self, run: "RunFile") -> None:
        write_whole(self.run_file, render_run(run).encode())

    def write_level(self, level: int) -> None:
        (self.directory / "async-level").write_text(f"{level}\n", encoding="ascii")

    def read_level(self, default: int) -> int:
        """The async level that the run was begun with."""
        return self._number("async-level", default)

    def write_peers(self, peers: int) -> None:
        (self.directory / "peers").write_text(f"{peers}\n", encoding="ascii")

    def read_peers(self) -> int:
        """How many trainers the run was begun with."""
        return self._number("peers", 1)

    def _number(self, name: str, default: int) -> int:
        try:
            return int((self.directory / name).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return default

    def write_begun(self, run: "RunFile") -> None:
        write_whole(self.begun_file, render_run(run).encode())

    def place_assets(self, compiled: "CompiledRun") -> None:
        """The run's files under their asset names: by link where the disk allows, else by copy."""
        for name, source in compiled.files.items():
            # Resolved: a hard link to a symbolic link is a symbolic link.
            link_or_copy(source.resolve(), self.assets / name)


@dataclass(frozen=True, slots=True)
class TrainingMeans:
    """What this machine gives to a training. sinks: names with commas; said: the learner's settings that its owner
    named; settings: the same with defaults, before a plan is made; metrics_address: HOST:PORT or None."""

    engine_command: Sequence[str]
    sinks: str
    said: Mapping[str, Any]
    settings: "TrainerSettings"
    metrics_address: str | None = None

    @classmethod
    def of(
        cls, engine: Sequence[str], sinks: str, words: Sequence[str], metrics_address: str | None
    ) -> "TrainingMeans":
        """From the command line's words. Raises CommandError, ConfigError or TrainingError for what cannot be used:
        before a directory is touched."""
        from node.metrics.observer import checked_names
        from node.web.front import METRICS, METRICS_FLAG
        from node.web.host import bind

        checked_names(sinks)
        if metrics_address:
            bind(metrics_address, METRICS, METRICS_FLAG).close()
        return cls(engine, sinks, said_of_the_trainer(words), trainer_settings(words), metrics_address)


def trainer_settings(words: Sequence[str]) -> "TrainerSettings":
    """Those that are said, with defaults for all others. Raises CommandError, TrainingError."""
    from node.training.settings import read_settings

    return read_settings(said_of_the_trainer(words))


def said_of_the_trainer(words: Sequence[str]) -> dict[str, Any]:
    """[trainer] of config.toml with the command line's NAME=VALUE words over it. Raises CommandError."""
    import tomllib

    from cli.config import build_config

    values: dict[str, Any] = dict(build_config().trainer)
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise CommandError(f"--trainer {word}", "it is not NAME=VALUE", "for example --trainer world_size=2", USAGE)
        try:
            values[name.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            # Words without quotes are meant as text: nobody types TOML's quotes through a shell's gladly.
            values[name.strip()] = text.strip()
    return values


@contextmanager
def quiet_children(log: Path) -> Iterator[tuple[IO[str], IO[str]]]:
    """(output, errors): the terminal for us, while everything that child processes print goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # What Python still holds for the terminal would else come out in the log.
    sys.stdout.flush()
    sys.stderr.flush()
    # By descriptor, not by sys.stdout: child processes and C libraries write there directly.
    saved = [os.dup(1), os.dup(2)]
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    # Copies of the copies: closing a file closes its descriptor, and `saved` is needed at the end.
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


def planned(compiled: "CompiledRun", assets: Path, means: TrainingMeans) -> "TrainingPlan":
    """Of this training on this machine. Raises TrainingError, NothingFits among them."""
    from node.hardware import inspect_hardware
    from node.training.planning import machine_of, plan_here

    machine = machine_of(inspect_hardware())
    return plan_here(compiled.spec, assets, means.said, machine, samples=compiled.spec.pretraining is None)


def engines_of(
    plan: "TrainingPlan", means: TrainingMeans, run: bytes, assets: Path, starter: "Starter"
) -> "list[EngineProcess]":
    """One process for each place of the plan. run: canonical bytes of what they sample for."""
    from node.config import NodeConfig
    from node.inference.client import EngineProcess
    from node.training.planning import only
    from node.units import GIB

    own = NodeConfig.engine_program()
    # Another program has words of its own, and what an owner said of ours stands.
    ours = list(means.engine_command[: len(own)]) == own and "--most-gib" not in means.engine_command
    return [
        EngineProcess(
            [*means.engine_command, *(("--most-gib", f"{place.most / GIB:.2f}") if ours and place.most else ())],
            run,
            assets,
            starter=starter,
            env=only([place.card] if place.card else []),
        )
        for place in plan.engines
    ]


def assemble(
    home: RunDirectory,
    compiled: "CompiledRun",
    level: int,
    means: TrainingMeans,
    plan: "TrainingPlan",
    on_progress: "OnRecord",
    activity: "Activity",
) -> "tuple[LocalRollouts, Observer, Callable[[], Awaitable[None]]]":
    """The run's parts, wired as planned, and what does all of the work: training, with /metrics where that was asked
    for.

    Raises ConfigError for a sink that cannot be opened.
    """
    import msgspec

    from node.local.replicas import LocalReplicas
    from node.local.rollouts import LocalRollouts
    from node.metrics.observer import open_observer
    from node.processes.forkserver import ForkServer
    from node.processes.launch import ENGINE, LEARNER, fork_or_launch
    from node.training.client import EvaluatorProcess, TrainerProcess
    from node.training.spool import Spool
    from protocol.run import encode_run

    kind: Callable[..., LocalRollouts] = LocalRollouts
    if compiled.spec.diloco is not None:
        _refuse_machines(means)
        kind = partial(LocalReplicas, peers=home.read_peers())
    spool = Spool(home.spool, means.settings.milestones)
    observer = open_observer(compiled.spec, home.directory, means.sinks, spool.answers_path)
    # Nobody distrusts a machine's own work: any engine of a permitted type will do, by the loosest thresholds.
    own = msgspec.structs.replace(compiled.spec, verification=compiled.spec.verification.at_a_desk())
    # Engine, learner and evaluator all import torch: once instead of three times.
    children = ForkServer(fork_or_launch((*ENGINE, *LEARNER)))
    local = kind(
        compiled.spec,
        compiled.encoded,
        home.directory,
        home.assets,
        engines=engines_of(plan, means, encode_run(own), home.assets, children),
        learner=TrainerProcess(spool, plan.settings, children, plan.learners),
        evaluator=EvaluatorProcess(spool, compiled.spec, plan.settings, children, plan.evaluators),
        spool=spool,
        observer=observer,
        async_level=level,
        on_progress=on_progress,
        activity=activity,
    )
    return local, observer, _served(local, children.run, means)


def assemble_pretraining(
    home: RunDirectory,
    compiled: "CompiledRun",
    peers: int,
    means: TrainingMeans,
    plan: "TrainingPlan",
    on_progress: "OnRecord",
    activity: "Activity",
) -> "tuple[LocalPretraining, Observer, Callable[[], Awaitable[None]]]":
    """The same for a run that pre-trains: no engine, and a learner that is all of its peers."""
    from node.local.pretraining import LocalPretraining
    from node.metrics.observer import open_observer
    from node.processes.forkserver import ForkServer
    from node.processes.launch import LEARNER, fork_or_launch
    from node.training.client import TrainerProcess
    from node.training.spool import Spool

    _refuse_machines(means)
    observer = open_observer(compiled.spec, home.directory, means.sinks)
    children, spool = ForkServer(fork_or_launch(LEARNER)), Spool(home.spool, means.settings.milestones)
    local = LocalPretraining(
        compiled.spec,
        compiled.encoded,
        home.assets,
        peers=peers,
        learner=TrainerProcess(spool, plan.settings, children, plan.learners),
        spool=spool,
        observer=observer,
        on_progress=on_progress,
        activity=activity,
    )
    return local, observer, _served(local, children.run, means)


def _refuse_machines(means: TrainingMeans) -> None:
    if means.settings.nodes > 1:
        raise CommandError(
            "a peer trains on one machine only",
            "--nnodes divides a learner among machines, which runs with [diloco] cannot do yet",
            "leave --nnodes out; --trainer world_size=N takes the GPUs of this machine",
            USAGE,
        )


def _served(
    local: "LocalRollouts | LocalPretraining", forking: "Callable[..., Awaitable[None]]", means: TrainingMeans
) -> "Callable[[], Awaitable[None]]":
    """All of the work: training, with /metrics where that was asked for."""
    import trio

    from node.web.front import METRICS, METRICS_FLAG, metrics_routes
    from node.web.host import bind
    from node.web.listener import HttpListener

    async def served() -> None:
        async with AsyncExitStack() as held:
            listener: HttpListener | None = None
            if means.metrics_address:
                bound = held.enter_context(closing(bind(means.metrics_address, METRICS, METRICS_FLAG)))
                listener = HttpListener(bound)
                listener.mount(metrics_routes(local.status))
            nursery = await held.enter_async_context(trio.open_nursery())
            # First: the run asks it for its children at once.
            await nursery.start(forking)
            if listener:
                nursery.start_soon(listener.run)
            await local.run()
            nursery.cancel_scope.cancel()

    return served
