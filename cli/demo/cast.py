"""Who takes part in a demo, and what each one is told. Pure."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cli.demo.cheats import engine_module, nodes, program_module
from cli.demo.scene import Scene
from cli.demo.snapshot import Participant


class Casting(msgspec.Struct, frozen=True):
    """Who takes part, and the seed, where the command line does not say; what a demo began with is kept for
    `--resume`. cheats, liars: typed names; worker_engine: the engine command of honest workers."""

    workers: int = 2
    validators: int = 1
    cheats: tuple[str, ...] = ("own-problems",)
    liars: tuple[str, ...] = ()
    seed: int = 0
    worker_engine: str | None = None


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for. cheats: of workers, none for an honest swarm; liars: of the first validators; steps:
    None for the run file's own; page: HOST:PORT of the trainer's page, None for no page; worker_engine: another program
    that honest workers compute with."""

    directory: Path
    workers: int = 2
    validators: int = 1
    cheats: tuple[str, ...] = ("own-problems",)
    liars: tuple[str, ...] = ()
    steps: int | None = None
    seed: int = 0
    run_file: Path | None = None
    resume: bool = False
    page: str | None = None
    worker_engine: str | None = None

    @property
    def casting(self) -> Casting:
        return Casting(self.workers, self.validators, self.cheats, self.liars, self.seed, self.worker_engine)


def remembered(scene: Scene) -> Casting:
    """The casting that the demo of a directory began with; the default where it is not known."""
    try:
        return msgspec.json.decode(scene.cast_file.read_bytes(), type=Casting)
    except (OSError, msgspec.MsgspecError):
        return Casting()


def cast(options: DemoOptions) -> tuple[Participant, ...]:
    """One trainer, the workers, the validators, and the cheats, each a worker of its own."""
    workers = [Participant(f"worker {i + 1}", "worker") for i in range(options.workers)]
    lies = [*options.liars, *[None] * options.validators][: options.validators]
    validators = [
        Participant(name, "validator", lie) for name, lie in zip(_numbered("validator", len(lies)), lies, strict=True)
    ]
    names = _numbered("cheat", len(options.cheats))
    cheats = [Participant(name, "worker", cheat) for name, cheat in zip(names, options.cheats, strict=True)]
    return (Participant("trainer", "trainer"), *workers, *validators, *cheats)


def quorum_of(validators: int) -> int:
    """How many of a demo's validators decide: more than half."""
    return validators // 2 + 1


def join_command(
    part: Participant,
    scene: Scene,
    profile: Path,
    pool: int,
    page: str | None = None,
    worker_engine: str | None = None,
) -> Sequence[str]:
    """The command line of a participant: the daemon that everybody runs, or a dishonest one in its place."""
    command = [
        sys.executable,
        "-m",
        *program_module(part.cheat),
        "join",
        "--role",
        part.role,
        "--network",
        str(profile),
    ]
    command += ["--pool", str(pool), "--state-dir", str(scene.state_dir(part.name))]
    if part.role == "trainer":
        command += ["--run", str(scene.run_file)]
        command += ["--page", page] if page else []
    if part.cheat and part.cheat not in nodes():
        command += ["--engine-command", shlex.join([sys.executable, "-m", *engine_module(part.cheat)])]
    if part.role == "worker" and part.cheat is None and worker_engine:
        command += ["--engine-command", worker_engine]
    return command


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name} {i + 1}" for i in range(count)]
