"""Who takes part in a demo, and what each one is told. Pure."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.demo.scene import Scene
from cli.demo.snapshot import Participant

CHEATS = {"own-problems": "tests.cheats.own_problems", "other-weights": "tests.cheats.other_weights"}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the user asked for. cheat: None for an honest swarm; steps: None for the run file's own."""

    directory: Path
    workers: int = 2
    cheat: str | None = "own-problems"
    steps: int | None = None
    seed: int = 0
    run_file: Path | None = None
    resume: bool = False


def cast(options: DemoOptions) -> tuple[Participant, ...]:
    """One trainer, one validator, the workers, and the cheat."""
    workers = [Participant(f"worker {i + 1}", "worker") for i in range(options.workers)]
    cheats = [Participant("cheat", "worker", options.cheat)] if options.cheat else []
    return (Participant("trainer", "trainer"), *workers, Participant("validator", "validator"), *cheats)


def join_command(part: Participant, scene: Scene, profile: Path, pool: int) -> Sequence[str]:
    """The command line of a participant: the daemon that everybody runs."""
    command = [sys.executable, "-m", "cli", "join", "--role", part.role, "--network", str(profile)]
    command += ["--pool", str(pool), "--state-dir", str(scene.state_dir(part.name))]
    if part.role == "trainer":
        command += ["--run", str(scene.run_file)]
    if part.cheat:
        command += ["--engine-command", f"{shlex.quote(sys.executable)} -m {CHEATS[part.cheat]}"]
    return command
