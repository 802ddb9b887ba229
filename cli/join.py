"""`intellect-node join`: be a member of a swarm, in the foreground, until stopped."""

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.config import build_config
from cli.errors import CONFIGURATION, INTERRUPTED, UNEXPECTED, USAGE, CommandError
from cli.invocation import IMPORTING, own_command, without
from cli.keyring import key_file
from cli.logs import LogLevel
from cli.options import Sets
from cli.output import clean, console, print_json
from cli.places import NetworkName, PoolNumber, state_dir_option
from cli.status import is_member, wanted

if TYPE_CHECKING:
    from node.config import NodeConfig

EXAMPLES = (
    "Examples:  intellect-node join --role worker --network local   |   "
    "intellect-node join --role trainer --run my-run.toml --network local   |   "
    "intellect-node join theirs.toml --dry-run"
)


SETTINGS = {
    "run": "run_file",
    "sets": "run_sets",
    "provider_key": "provider_key_file",
    "http_source": "http_sources",
    "bootnode": "bootnodes",
    "logs": "show_logs",
}
"""Options whose setting has another name."""


class RoleName(StrEnum):
    """What a node does in the swarm; auto lets the hardware decide."""

    trainer = "trainer"
    worker = "worker"
    validator = "validator"
    auto = "auto"


class Choice(StrEnum):
    """Of relay, auto: while this node can be dialled; of lan, auto: where the chain is in the local network, too."""

    auto = "auto"
    on = "on"
    off = "off"


class EngineName(StrEnum):
    """As in node.config."""

    auto = "auto"
    torch = "torch"
    vllm = "vllm"


def command(
    context: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="An invitation or another profile: as --network FILE."),
    ] = None,
    role: Annotated[RoleName | None, typer.Option(help="What to do in the swarm. Default: auto.")] = None,
    network: NetworkName = None,
    state_dir: Annotated[Path | None, state_dir_option("Key, journal and blobs of this node. One daemon each.")] = None,
    pool: PoolNumber = None,
    run: Annotated[Path | None, typer.Option("--run", help="Run file (TOML); for the trainer.")] = None,
    sets: Sets = None,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            help="Multiaddr to listen on; port 0: any. Repeatable. Default: TCP port 4001 or the next free one, kept "
            "over restarts, of IPv4, and of IPv6 where that leads out; on a local devnet loopback."
        ),
    ] = None,
    announce: Annotated[
        list[str] | None,
        typer.Option(help="Multiaddr that others shall dial, where it is not one listened on. Repeatable."),
    ] = None,
    lan: Annotated[
        Choice | None,
        typer.Option(help="Dial private addresses and look for members in the local network: on, off, or auto."),
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", help="Password of the node key (mode 0600).")
    ] = None,
    provider_key: Annotated[
        str | None,
        typer.Option("--provider-key", help="Who stakes for this node: a keystore file, or a name from `keys list`."),
    ] = None,
    gateway: Annotated[
        str | None, typer.Option(help="HOST:PORT on which policies and blobs are served by HTTPS too. Default: off.")
    ] = None,
    gateway_tls: Annotated[
        bool | None,
        typer.Option("--gateway-tls/--gateway-plain", help="HTTPS for the gateway; SHARDCAST clients need plain HTTP."),
    ] = None,
    gateway_announce: Annotated[
        str | None, typer.Option(help="HOST:PORT under which others reach the gateway, where that differs.")
    ] = None,
    http_source: Annotated[
        list[str] | None,
        typer.Option(help="A gateway asked before the swarm: https://HOST:PORT#sha256=... Repeatable."),
    ] = None,
    bootnode: Annotated[
        list[str] | None,
        typer.Option(help="A member to dial whatever the chain says: /ip4/HOST/tcp/PORT/p2p/PEER. Repeatable."),
    ] = None,
    relay: Annotated[
        Choice | None,
        typer.Option(
            help="Carry members who cannot dial each other: on, off, or auto (while this node can be dialled)."
        ),
    ] = None,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="What computes. Default: auto, which is vllm on a GPU if it is installed, else torch."),
    ] = None,
    engine_command: Annotated[
        str | None, typer.Option("--engine-command", help="Another program that speaks the engine protocol.")
    ] = None,
    vouch: Annotated[
        bool | None,
        typer.Option(
            "--vouch",
            help="After a reboot or a move, where no member can tell: your word that no other daemon has this key, and "
            "that this journal is the newest. If it is not so, the stake is lost.",
        ),
    ] = None,
    auto_setup: Annotated[
        bool | None,
        typer.Option("--auto-setup/--no-auto-setup", help="On a local devnet: fund, stake and register this node."),
    ] = None,
    page: Annotated[
        str | None, typer.Option(help="HOST:PORT: serve a page that shows the swarm, live; read-only, no password.")
    ] = None,
    metrics_address: Annotated[
        str | None,
        typer.Option("--metrics-address", help="HOST:PORT: serve /metrics (Prometheus) over TCP too; no password."),
    ] = None,
    metrics_log: Annotated[
        str | None,
        typer.Option(
            "--metrics-log", help="Trainer: send metrics to wandb, trackio, tensorboard, too (comma between)."
        ),
    ] = None,
    wait: Annotated[
        bool | None, typer.Option("--wait/--no-wait", help="Where stake or gas is missing: wait for it. Default: wait.")
    ] = None,
    preflight: Annotated[
        bool | None, typer.Option("--preflight/--no-preflight", help="Look at what can fail before joining.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only the admission check; nothing is joined or sent. Exit code 0: admitted."),
    ] = False,
    logs: Annotated[
        bool, typer.Option("--log", "--logs", help="Show the raw log instead of what the node is doing.")
    ] = False,
    log_level: Annotated[LogLevel | None, typer.Option("--log-level", help="Default: info.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="In the background: returns once it is in, or says why.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Phases and events as JSON, one object a line; with --detach one for all.")
    ] = False,
) -> None:
    """Join a swarm and stay until stopped: from nothing to contributing in one command.

    Makes the node's key, chooses a role, and checks everything that can fail. Says which stake and gas are missing,
    waits for them, and joins. Then it shows how far it is to the first accepted contribution.
    SIGTERM or Ctrl-C drains: the node finishes its work and exits; it stays a member while its lease runs. A second one
    ends it at once.
    """
    # By their names, as `service install` reads them: an option is a setting, or one of SETTINGS.
    config = config_of(context.params)
    if dry_run:
        raise typer.Exit(_rehearse(config, as_json=as_json))
    if not as_json and not detach:
        # Seconds of imports come first, a minute of them on a busy machine: nobody shall wonder what hangs.
        typer.echo(f"{time.strftime('%H:%M:%S')}  start: {IMPORTING}", err=True)
    from node.preflight.early import refuse_early

    # Before --detach: what is refused is said in this terminal, not in a log.
    refuse_early(config)
    if detach:
        join_in_background(context.obj.words, config.directory, as_json=as_json)
        return
    from node.guest.machine import keep_to_cores
    from node.processes.launch import for_role, fork_or_launch
    from node.processes.threads import without_pools

    keep_to_cores(config.limits.cores)  # first: what is started from now on keeps to them
    server = fork_or_launch(for_role(config.role))  # its imports run beside ours
    with without_pools():
        from cli.joinview import open_json_view, open_view
        from node.daemon import import_for
        from node.daemon import run as run_daemon
        from node.processes.guardian import become_guarded

        # Imported before the guardian forks: a daemon that it starts again then has everything at once.
        import_for(config.role)
    # A test's process must not be replaced by a guardian that forks daemons.
    up = become_guarded(MACHINE) if context.obj.own_process else bool
    view = open_json_view() if as_json else open_view(logs=logs)  # has a thread: after the guardian has forked
    run_daemon(config, server, view.run, up)


def config_of(options: Mapping[str, Any]) -> "NodeConfig":
    """The settings that typed options make. Raises CommandError for what cannot be used."""
    from node.config import NodeConfig

    if options.get("file") and options.get("network"):
        raise CommandError("which network?", "both FILE and --network were given", "give one of them", USAGE)
    options = {**options, "network": options.get("file") or options.get("network")}
    given = {SETTINGS.get(name, name): _setting(name, value) for name, value in options.items()}
    return build_config(**{name: value for name, value in given.items() if name in NodeConfig.model_fields})


def _setting(option: str, value: Any) -> Any:
    """As the settings take it; None where nothing was typed."""
    if option == "provider_key":
        return key_file(value) if value else None
    if isinstance(value, list | tuple):
        return (",".join(value) if option in ("listen", "announce") else tuple(value)) or None
    return value


def _rehearse(config: "NodeConfig", *, as_json: bool) -> int:
    """The admission check; returns the exit code."""
    from cli.doctor import as_dict, look
    from node.preflight.survey import Scope, exit_code

    scope = Scope(joining=True, visit=True, engine=True)
    findings = look(config, scope, quiet=as_json)
    # As of `doctor`: a script asks one or the other with the same codes.
    code = exit_code(findings)
    if as_json:
        print_json({"admitted": code == 0, **as_dict(findings)})
    else:
        typer.echo("this node would be admitted" if code == 0 else "this node would not be admitted")
    return code


MACHINE = (CONFIGURATION,)
"""How a daemon that was up ends when its machine failed: its guardian tries again."""

if TYPE_CHECKING:
    from node.status_schema import DaemonStatus

UNDER_WAY = ("policy", "first-contribution", "working", "leaving")
"""Phases of a node that has its run and its engine, or needs none any more."""
START_LOG = "start.log"
"""In the logs of the state directory: what the process itself prints; its events are in the log beside it."""


@dataclass(frozen=True, slots=True)
class StartedDaemon:
    """A daemon that answers. log: what it printed while it started."""

    pid: int
    directory: Path
    log: Path
    status: "DaemonStatus"

    def facts(self) -> dict[str, Any]:
        """JSON-ready."""
        node = self.status.node
        phase = node.phase.text if node.phase else node.state
        facts: dict[str, Any] = {"pid": self.pid, "state_dir": str(self.directory), "log": str(self.log)}
        return facts | {"address": node.address, "role": node.role, "state": node.state, "phase": phase}

    def lines(self) -> list[str]:
        """For people: what runs, how to look at it, how to end it."""
        facts, place = self.facts(), f"--state-dir {self.directory}"
        return [
            f"{facts['role'] or 'node'} {facts['address']} runs in the background (process {self.pid})",
            f"  now:   {facts['phase']}",
            *(f"  do:    {clean(command, 300)}" for command in wanted(self.status)),
            f"  look:  intellect-node status {place}",
            f"  log:   intellect-node logs -f {place}",
            f"  stop:  intellect-node stop {place}",
        ]


def join_in_background(words: Sequence[str], directory: Path, *, as_json: bool) -> None:
    """Start the same command again without --detach, and say what came of it."""
    say: Callable[[str], None] = (lambda _: None) if as_json else lambda text: console().print(text, soft_wrap=True)
    again = [*without(words, "--detach", "--json", "--log", "--logs"), "--json"]  # which leaves only errors to its log
    started = start_detached(again, directory.resolve(), say)
    if as_json:
        print_json(started.facts())
        return
    for line in started.lines():
        say(line)


def start_detached(
    words: Sequence[str], directory: Path, say: Callable[[str], None], *, patience: float = 20.0
) -> StartedDaemon:
    """Run this program with `words` in the background. Raises CommandError with the daemon's own words if it fails. Who
    breaks it off with Ctrl-C has no daemon. patience: seconds for its end."""
    from cli.stop import daemon_of

    pid = daemon_of(directory)
    # The daemon would refuse by its lock as well, but into a log that nobody is shown.
    if pid is not None:
        raise CommandError(
            f"a daemon runs in {directory} already",
            f"process {pid} holds its lock",
            "stop it first (intellect-node stop), or give this one its own --state-dir",
        )
    log = directory / "logs" / START_LOG
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    process = _spawn([*own_command(), *words], log)
    try:
        say(f"  - {IMPORTING}")
        status = _await(process, directory, log, say)
    except CommandError:
        raise
    except BaseException as error:
        # Its session is its own, so that no Ctrl-C reaches it: it would go on, with a stake, and nobody told of it.
        _end(process, directory, patience)
        if not isinstance(error, KeyboardInterrupt):
            raise
        why = "Ctrl-C or SIGINT; the daemon that was starting has been stopped"
        raise CommandError("interrupted", why, "run the command again", INTERRUPTED) from None
    process.returncode = 0  # it outlives us: nobody is to warn that we did not wait for it
    return StartedDaemon(process.pid, directory, log, status)


def _end(process: subprocess.Popen[bytes], directory: Path, patience: float) -> None:
    """Raises CommandError, which says how to stop it, where it does not end in time or a second Ctrl-C comes."""
    try:
        process.terminate()
        process.wait(patience)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.returncode = 0  # it outlives us
        raise CommandError(
            "interrupted, and the daemon still runs in the background",
            f"process {process.pid} was told to end and has not yet",
            f"see that it does: intellect-node stop --state-dir {shlex.quote(str(directory))}",
            INTERRUPTED,
        ) from None


def _spawn(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    # the same command again, no fork: after imports a fork would copy locks that threads hold
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            # With --json it prints an object for each event, which nobody reads here.
            stdout=subprocess.DEVNULL,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )


def _await(process: subprocess.Popen[bytes], directory: Path, log: Path, say: Callable[[str], None]) -> "DaemonStatus":
    """The daemon's word once it is under way, or after a while. It is ended if it never answers."""
    began, first, told = time.monotonic(), None, ""
    # Seconds until its socket must answer, and from then on until it is left to itself, under way or not yet.
    longest_start = 120.0
    while process.poll() is None:
        now = time.monotonic()
        status = _status(directory, process.pid)
        if status is not None:
            first = first or now
            phase = status.node.phase.text if status.node.phase else status.node.state
            if phase != told:
                say(f"  - {phase}")
                told = phase
            if _is_under_way(status) or now - first > 20.0:
                return status
        elif now - began > longest_start:
            process.terminate()
            raise CommandError(
                "the daemon does not answer", f"nothing came within {longest_start:g} s", f"read {log}", CONFIGURATION
            )
        time.sleep(0.1)
    raise _failed(process.returncode, log)


def _is_under_way(status: "DaemonStatus") -> bool:
    """Whether all that usually fails is behind it: the chain, the pool, the run and the engine."""
    phase = status.node.phase
    return is_member(status) and (phase is None or phase.name in UNDER_WAY)


def _status(directory: Path, pid: int) -> "DaemonStatus | None":
    """What this very process says by now."""
    # Asked for only here: a foreground join needs no client of its own daemon.
    from cli import api

    try:
        status = api.get_status(api.socket_of(directory), timeout=2.0)
    except CommandError:
        return None
    # The socket may still be that of a daemon that is just going: its word is not about the one that was started.
    return status if _session_of(status.node.pid) == pid else None


def _session_of(pid: int) -> int | None:
    """The daemon may be a child of the process that was started; it stays in its session."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _failed(code: int, log: Path) -> CommandError:
    """The daemon's own three lines where it printed some."""
    from cli.demo.supervise import last_error

    printed = last_error(log)
    # Codes that our commands give; another one, as of a signal, would say something false to a script.
    known = code if 1 < code < 8 else UNEXPECTED
    if printed is not None:
        return CommandError(*printed, known)
    return CommandError("the daemon ended while it started", f"exit code {code}", f"read {log}", known)
