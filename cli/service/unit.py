"""A systemd unit that runs one daemon, as text. Pure; systemd.unit(5) and systemd.service(5) say what each line does.

What torch needs is left alone: memory that is written and then run (its compilers), and the devices of a GPU. What a
user manager cannot always do (namespaces for files) is asked for in system units only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.errors import USAGE, CommandError

SECTION, STATE_LINE = "[X-intellect-node]", "StateDirectory="
"""Of our own: systemd passes over sections that begin with X-."""
WATCHDOG, STOP, START = 60, 60, 180
"""Seconds: without a sign of life, for draining, until the control socket answers."""
RESTART_PAUSE = 30
HOPELESS = "2 6 7"
"""Exit codes that a restart does not mend: usage, run file, evicted."""

_EVERYWHERE = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "SystemCallArchitectures=native",
    "UMask=0077",
    "LimitNOFILE=65536",
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
            "StartLimitIntervalSec=0",
        ]

    def _service(self) -> list[str]:
        user = [f"User={self.user}"] if self.user else []
        return [
            "[Service]",
            "Type=notify",
            "# the guardian is the main process, the daemon its child",
            "NotifyAccess=all",
            f"ExecStart={' '.join(_word(word, command=True) for word in self.command)}",
            f"WorkingDirectory={_plain(self.directory)}",
            *(f"Environment={_word(f'{name}={value}')}" for name, value in self.environment),
            f"EnvironmentFile=-{_plain(self.secrets)}",
            *user,
            "Restart=on-failure",
            f"RestartSec={RESTART_PAUSE}",
            f"RestartPreventExitStatus={HOPELESS}",
            "SuccessExitStatus=130",
            "# the daemon alone is asked to drain; what is left of its children afterwards is killed",
            "KillMode=mixed",
            f"TimeoutStartSec={START}",
            f"TimeoutStopSec={STOP}",
            f"WatchdogSec={WATCHDOG}",
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
    if not text.isprintable():
        raise CommandError(
            f"{text!r} cannot stand in a unit", "it has a line break or another invisible character", "change it", USAGE
        )
    return text
