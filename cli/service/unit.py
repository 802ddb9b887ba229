"""A systemd unit that runs one daemon, as text. Pure; systemd.unit(5) and systemd.service(5) say what each line does.

What torch needs is left alone: memory that is written and then run (its compilers), and the devices of a GPU. What a
user manager cannot always do (namespaces for files) is asked for in system units only.
"""

import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import USAGE, CommandError

if TYPE_CHECKING:
    from node.config import NodeConfig

ONLY_BY_HAND = ("detach", "dry_run", "as_json", "logs")
"""Flags that a service does without."""


def config_of(words: Sequence[str]) -> "NodeConfig":
    """The settings that `join` would have with these words. Ends as `join` would for flags that are none of its own;
    raises CommandError for settings that cannot be."""
    import typer

    from cli import join

    app = typer.Typer()
    app.command()(join.command)
    context = typer.main.get_command(app).make_context("join", list(words))
    for flag in ONLY_BY_HAND:
        if context.params.get(flag):
            raise CommandError(
                f"a service does without --{flag.replace('as_', '').replace('_', '-')}",
                "systemd keeps it in the background, and its log is in its state directory",
                "leave it out",
                USAGE,
            )
    if context.params["file"]:
        remedy = f"give --network {Path(context.params['file']).absolute()}"
        raise CommandError("a service takes flags alone", "systemd starts it in another directory", remedy, USAGE)
    state_dir = context.params["state_dir"]
    # Whole: systemd starts the program in another directory.
    return join.config_of(context.params | {"state_dir": Path(state_dir).absolute() if state_dir else None})


PREFIX = "intellect-node"
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
        deadline = 90.0  # seconds for one answer: a stop waits for the daemon to drain
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=deadline, check=False)
        except FileNotFoundError:
            raise _absent("there is no systemctl here") from None
        except subprocess.TimeoutExpired:
            raise CommandError(
                f"systemd does not answer: {' '.join(command)}",
                f"{deadline:g} s passed",
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
        lines = [line.partition("=") for line in text.splitlines()]
        return {name: value for name, _, value in lines}


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


SECTION, STATE_LINE = "[X-intellect-node]", "StateDirectory="
"""Of our own: systemd passes over sections that begin with X-."""
HOPELESS = "2 6 7"
"""Exit codes that a restart does not mend: usage, run file, evicted."""

_EVERYWHERE = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    # AF_NETLINK, for the C library asks it for this machine's addresses.
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "SystemCallArchitectures=native",
    "UMask=0077",
    "LimitNOFILE=65536",
    # continue: the kernel kills one process, mostly the engine, and the daemon starts it again; "stop" would end the
    # node.
    "OOMPolicy=continue",
)
_SYSTEM_ONLY = (
    "ProtectSystem=full",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectControlGroups=yes",
    "ProtectClock=yes",
)


@dataclass(frozen=True, slots=True)
class Unit:
    """name: without its suffix; command: whole words; user: who runs it, None for a user manager's own; environment:
    what the daemon needs to find its things; secrets: a private file with more of that."""

    name: str
    command: Sequence[str]
    state_dir: Path
    directory: Path
    secrets: Path
    environment: Sequence[tuple[str, str]] = ()
    user: str | None = None

    def render(self) -> str:
        """The unit file."""
        return "\n".join([*self._unit(), "", *self._service(), "", *self._install(), "", *self._own(), ""])

    def _unit(self) -> list[str]:
        return [
            "[Unit]",
            f"Description=intellect-node in {_plain(self.state_dir)}",
            "Wants=network-online.target",
            "After=network-online.target",
            f"RequiresMountsFor={_word(str(self.state_dir))}",
            "# without it a daemon would make a new key there and be somebody else",
            f"AssertPathIsDirectory={_plain(self.state_dir)}",
            # no limit: a full disk or a chain that is away passes; what a restart does not mend is in HOPELESS
            "StartLimitIntervalSec=0",
        ]

    def _service(self, *, restart_pause: int = 30) -> list[str]:
        user = [f"User={self.user}"] if self.user else []
        watchdog = 60  # seconds: without a sign of life, for draining, until the control socket answers
        stop = 60
        start = 180
        return [
            "[Service]",
            "Type=notify",
            "# the guardian is the main process, the daemon its child",
            "NotifyAccess=all",
            f"ExecStart={' '.join(_word(word, command=True) for word in self.command)}",
            f"WorkingDirectory={_plain(self.directory)}",
            *(f"Environment={_word(f'{name}={value}')}" for name, value in self.environment),
            # With the minus systemd starts without the file: it is there only where a password was set.
            f"EnvironmentFile=-{_plain(self.secrets)}",
            *user,
            "Restart=on-failure",
            # The guardian has tried at once, several times: what comes this far wants patience.
            f"RestartSec={restart_pause}",
            f"RestartPreventExitStatus={HOPELESS}",
            # A daemon that drained after a signal exits so: else systemd would start what was just stopped.
            "SuccessExitStatus=130",
            "# the daemon alone is asked to drain; what is left of its children afterwards is killed",
            "KillMode=mixed",
            f"TimeoutStartSec={start}",
            f"TimeoutStopSec={stop}",
            f"WatchdogSec={watchdog}",
            *_EVERYWHERE,
            *(_SYSTEM_ONLY if self.user else ()),
        ]

    def _install(self) -> list[str]:
        return ["[Install]", f"WantedBy={'multi-user' if self.user else 'default'}.target"]

    def _own(self) -> list[str]:
        return [SECTION, f"{STATE_LINE}{self.state_dir}"]


def state_directory_of(text: str) -> Path | None:
    """The state directory of a unit that was rendered here; None of any other."""
    _, ours, rest = text.partition(SECTION)
    line = next((line for line in rest.splitlines() if line.startswith(STATE_LINE)), None)
    return Path(line.removeprefix(STATE_LINE)) if ours and line else None


def environment_line(name: str, value: str) -> str:
    """A line of an environment file."""
    return f"{name}={_quoted(_one_line(value))}\n"


def _word(text: str, *, command: bool = False) -> str:
    """One word for systemd: quoted where that is needed; % is its own sign, in commands $ is, too."""
    # A path with %h in it would otherwise become somebody's home directory.
    text = _one_line(text).replace("%", "%%")
    text = text.replace("$", "$$") if command else text
    return _quoted(text) if not text or any(c in " \t'\"\\;" for c in text) else text


def _plain(path: Path) -> str:
    """A path that fills the rest of its line."""
    return _one_line(str(path)).replace("%", "%%")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _one_line(text: str) -> str:
    # A line break in a setting would be another line of the unit: another ExecStart, for one.
    if not text.isprintable():
        raise CommandError(
            f"{text!r} cannot stand in a unit", "it has a line break or another invisible character", "change it", USAGE
        )
    return text
