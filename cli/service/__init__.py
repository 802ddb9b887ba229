"""`intellect-node service`: a daemon that systemd starts, watches, and starts again."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import CONFIGURATION, NETWORK, USAGE, CommandError
from cli.keyring import NODE_KEY
from cli.output import AsJson, clean, console, print_facts, print_json

if TYPE_CHECKING:
    from cli.service.unit import Manager, Unit

app = typer.Typer(help="Run a node as a systemd service.", no_args_is_help=True)
NAME = "intellect-node"
SECRETS = "service.env"
"""In the state directory: the password, where the environment had one."""
CARRIED = ("INTELLECT_NODE_HOME", "XDG_STATE_HOME", "PYTHONPATH")
"""Variables of the terminal that the service needs to find the same things."""

Name = Annotated[
    str | None, typer.Option(help="Name of a further service: intellect-node-NAME. Default: intellect-node.")
]
System = Annotated[bool, typer.Option("--system", help="The machine's systemd instead of this user's own.")]


@app.command(
    "install",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Examples:  intellect-node service install -- --role worker --network base-sepolia --pool 7   |   "
    "intellect-node service install --print -- --role validator --state-dir ~/nodes/v",
)
def install(
    context: typer.Context,
    name: Name = None,
    system: System = False,
    show: Annotated[bool, typer.Option("--print", help="Only show the unit; nothing is written.")] = False,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Enable and start it, or only write it.")] = True,
    as_json: AsJson = False,
) -> None:
    """Write a systemd unit for `join` with the flags after --, and start it.

    Type=notify with a watchdog: a daemon that dies or hangs is started again. The flags are tried before anything is
    written. A password in INTELLECT_NODE_PASSWORD goes into a private file beside the node's key.
    """
    from cli.service.unit import Manager, needs_linger

    manager, words = Manager(system), context.args
    unit = unit_for(_unit_name(name), words, system=system)
    if show:
        print(unit.render(), end="")
        return
    require_free(manager, unit)
    path = write(manager, unit)
    if start:
        _start(manager, unit)
    linger = not system and start and needs_linger()
    if as_json:
        facts = {"service": unit.name, "unit": str(path), "state_dir": str(unit.state_dir)}
        print_json(facts | {"started": start, "needs_linger": linger})
        return
    out = console()
    out.print(f"wrote {path}", soft_wrap=True)
    for line in _after_install(unit, system=system, start=start, linger=linger):
        out.print(line, soft_wrap=True, markup=False)


@app.command("uninstall", epilog="Example:  intellect-node service uninstall --name validator")
def uninstall(name: Name = None, system: System = False, as_json: AsJson = False) -> None:
    """Stop the service and remove its unit. Key, stake and state stay; `intellect-node leave` gives these up, too."""
    from cli.service.unit import Manager

    manager, unit = Manager(system), _unit_name(name)
    state = _installed(manager, unit)
    problem = None
    try:
        manager.ask("disable", "--now", f"{unit}.service")
    except CommandError as error:  # without systemd nothing of it runs: the file can still go
        problem = error.why
    manager.file_of(unit).unlink()
    if problem is None:
        manager.ask("daemon-reload")
    if as_json:
        print_json({"service": unit, "removed": True, "state_dir": str(state), "systemd": problem})
        return
    told = f" (systemd: {clean(problem)})" if problem else ""
    console().print(f"removed {unit}{told}; its state stays in {state}", soft_wrap=True, markup=False)


@app.command("status", epilog="Example:  intellect-node service status --json | jq .services[].active")
def status(system: System = False, as_json: AsJson = False) -> None:
    """Show the services of this user (or the machine): enabled, active, restarts, and whether their state is there.

    Exit code 5 where one of them is not active. What a node does: `intellect-node status`.
    """
    from cli.service.unit import Manager

    manager = Manager(system)
    rows = [row_of(manager, name, state) for name, state in manager.units()]
    if not rows:
        raise CommandError(
            "no service is installed",
            f"{manager.directory} holds no unit of ours",
            "intellect-node service install -- --role worker ...",
        )
    if as_json:
        print_json({"services": rows})
    else:
        for row in rows:
            print_facts(list(row.items()))
    if not all(row["active"] == "active" for row in rows):
        raise typer.Exit(NETWORK)


@app.command("logs", epilog="Example:  intellect-node service logs -f --level warning")
def logs(
    name: Name = None,
    system: System = False,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Stay, and show what comes.")] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", min=0, max=1_000_000, help="How many of the last events.")
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the log of a service's node. What systemd itself said of it: journalctl --user -u NAME."""
    from cli import logs as log_command
    from cli.service.unit import Manager

    state = _installed(Manager(system), _unit_name(name))
    log_command.command(state, follow=follow, lines=lines, level=log_command.LogLevel.debug, as_json=as_json)


# ---- inside


def unit_for(name: str, words: Sequence[str], *, system: bool) -> "Unit":
    """The unit that runs `join` with these flags. Raises CommandError where they make no configuration."""
    import getpass

    from cli.invocation import own_command
    from cli.service.unit import Unit, config_of

    state_dir = config_of(words).directory.absolute()
    # Written out: the default is made of network and role, which config.toml may change later.
    told = [] if _names_state(words) else ["--state-dir", str(state_dir)]
    command = [*own_command(), "join", *words, *told]
    environment = [(each, os.environ[each]) for each in CARRIED if os.environ.get(each)]
    # With sudo this process is root; the node runs as whoever typed the command.
    user = (os.environ.get("SUDO_USER") or getpass.getuser()) if system else None
    return Unit(name, command, state_dir, Path.cwd(), state_dir / SECRETS, environment, user)


def require_free(manager: "Manager", unit: "Unit") -> None:
    """Refuse a second service, or a service beside a daemon, in one state directory."""
    from cli.stop import daemon_of

    for name, state in manager.units():
        if state == unit.state_dir and name != unit.name:
            raise CommandError(
                f"the service {name} uses {state} already",
                "one key must not act twice, so a state directory has one daemon",
                f"give this one its own --state-dir, or: intellect-node service uninstall{_name_flag(name)}",
            )
        if name == unit.name and state != unit.state_dir:
            raise CommandError(
                f"there is a service {name} already",
                f"it runs the node in {state}",
                "choose another --name, or uninstall that one first",
            )
    pid = daemon_of(unit.state_dir)
    if pid is not None and not manager.file_of(unit.name).exists():
        raise CommandError(
            f"a daemon runs in {unit.state_dir}", f"process {pid} holds its lock", "stop it first: intellect-node stop"
        )


def write(manager: "Manager", unit: "Unit") -> Path:
    """The unit file, the state directory, and the private file for the password. Raises CommandError without access,
    and KeyError_ for a password that does not open the key that is there."""
    from cli.service.unit import environment_line
    from node.state.files import write_whole
    from node.state.keystore import load_key

    password, key = os.environ.get("INTELLECT_NODE_PASSWORD"), unit.state_dir / NODE_KEY
    # Another user's key is not for whoever installs a unit of the whole machine to open.
    if password and unit.user is None and key.exists():
        load_key(key, password)
    unit.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if password:
        write_whole(unit.secrets, environment_line("INTELLECT_NODE_PASSWORD", password).encode(), mode=0o600)
    path = manager.file_of(unit.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, unit.render().encode())
    except PermissionError as error:
        raise CommandError(
            f"cannot write {path}",
            error.strerror or str(error),
            "with --system: sudo intellect-node service install ...",
        ) from None
    return path


def row_of(manager: "Manager", name: str, state: Path) -> dict[str, Any]:
    """One service, JSON-ready."""
    facts = manager.facts(name)
    row: dict[str, Any] = {
        "service": name,
        "active": facts.get("ActiveState", "unknown: systemd does not run here"),
        "enabled": facts.get("UnitFileState", "unknown"),
        "doing": facts.get("StatusText", ""),
        "restarts": int(facts.get("NRestarts") or 0),
        "pid": int(facts.get("MainPID") or 0) or None,
        "state_dir": str(state),
        "unit": str(manager.file_of(name)),
    }
    if not state.is_dir():
        row["problem"] = (
            f"the state directory {state} was moved or deleted: the service does not start without it. "
            "Uninstall it, and install it again with --state-dir at the new place"
        )
    return row


def _start(manager: "Manager", unit: "Unit") -> None:
    try:
        manager.ask("daemon-reload")
        manager.ask("enable", "--now", f"{unit.name}.service")
    except CommandError as error:
        raise CommandError(
            f"the unit {manager.file_of(unit.name)} is written, but not started: {error.what}",
            error.why,
            f"{error.remedy}; the unit takes effect at the next boot after: systemctl "
            f"{'' if manager.system else '--user '}enable {unit.name}",
            CONFIGURATION,
        ) from None


def _after_install(unit: "Unit", *, system: bool, start: bool, linger: bool) -> list[str]:
    user = "" if system else " --user"
    lines = [] if start else [f"start it: systemctl{user} enable --now {unit.name}"]
    if linger:
        lines.append("it ends when you log out, unless you say once: loginctl enable-linger")
    if not os.environ.get("INTELLECT_NODE_PASSWORD"):
        lines.append(f"its key's password: the one beside the key, or INTELLECT_NODE_PASSWORD in {unit.secrets} (0600)")
    place = f"--state-dir {unit.state_dir}"
    return [*lines, f"look: intellect-node status {place}   log: intellect-node logs -f {place}"]


def _installed(manager: "Manager", name: str) -> Path:
    found = dict(manager.units())
    if name not in found:
        others = f"; there are: {', '.join(found)}" if found else ""
        raise CommandError(
            f"there is no service {name}", f"{manager.directory} holds none{others}", "intellect-node service install"
        )
    return found[name]


def _unit_name(name: str | None) -> str:
    if name is None:
        return NAME
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii() or len(name) > 40:
        raise CommandError(
            f"{clean(name, 40)!r} is no name", "letters, digits, - and _, at most 40", "choose another", USAGE
        )
    return f"{NAME}-{name}"


def _name_flag(unit: str) -> str:
    return "" if unit == NAME else f" --name {unit.removeprefix(NAME + '-')}"


def _names_state(words: Sequence[str]) -> bool:
    return any(word == "--state-dir" or word.startswith("--state-dir=") for word in words)
