"""systemd as this program sees it: where units lie, and what systemctl says."""

import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.errors import CommandError
from cli.service.unit import state_directory_of

PREFIX = "intellect-node"
DEADLINE = 90.0
"""Seconds for one answer: a stop waits for the daemon to drain."""
SHOWN = ("ActiveState", "SubState", "StatusText", "NRestarts", "MainPID", "UnitFileState", "Result")


@dataclass(frozen=True, slots=True)
class Manager:
    """system: the machine's manager; else this user's own."""

    system: bool

    @property
    def directory(self) -> Path:
        """Where its unit files of ours lie."""
        if self.system:
            return Path("/etc/systemd/system")
        config = os.environ.get("XDG_CONFIG_HOME")
        return (Path(config) if config else Path.home() / ".config") / "systemd" / "user"

    def file_of(self, name: str) -> Path:
        return self.directory / f"{name}.service"

    def units(self) -> Iterator[tuple[str, Path]]:
        """(name, state directory) of every unit of ours."""
        for path in sorted(self.directory.glob(f"{PREFIX}*.service")):
            found = state_directory_of(path.read_text(encoding="utf-8", errors="replace"))
            if found is not None:
                yield path.stem, found

    def ask(self, *words: str) -> str:
        """What systemctl answers. Raises CommandError where systemd does not run, or refuses."""
        command = ["systemctl", *([] if self.system else ["--user"]), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
        except FileNotFoundError:
            raise _absent("there is no systemctl here") from None
        except subprocess.TimeoutExpired:
            raise CommandError(
                f"systemd does not answer: {' '.join(command)}",
                f"{DEADLINE:g} s passed",
                "look at it: systemctl status",
            ) from None
        if done.returncode:
            raise _refused(command, (done.stderr or done.stdout).strip())
        return done.stdout

    def facts(self, name: str) -> dict[str, Any]:
        """What systemd knows of a unit, by systemd's own names; nothing where it does not run."""
        try:
            text = self.ask("show", f"{name}.service", *(f"--property={shown}" for shown in SHOWN))
        except CommandError:
            return {}
        return dict(line.partition("=")[::2] for line in text.splitlines())


def needs_linger() -> bool:
    """Whether this user's services end with the last session."""
    program = shutil.which("loginctl")
    if program is None:
        return False
    command = [program, "show-user", getpass.getuser(), "--property=Linger", "--value"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.stdout.strip() != "yes"


def _refused(command: list[str], words: str) -> CommandError:
    if "Failed to connect to bus" in words or "not been booted with systemd" in words:
        return _absent(words.splitlines()[0])
    return CommandError(
        f"systemd refused: {' '.join(command)}", words[:400] or "it does not say why", "look: journalctl -xe"
    )


def _absent(why: str) -> CommandError:
    return CommandError(
        "systemd does not run here",
        why,
        "log in to a session that has it (over ssh, not by su), or do without it: intellect-node join --detach",
    )
