"""`intellect-node join`: be a member of a swarm, in the foreground, until stopped."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.config import build_config
from cli.invocation import IMPORTING
from cli.keyring import key_file
from cli.logs import Level
from cli.output import print_json
from cli.places import NetworkName, PoolNumber, state_dir_option

if TYPE_CHECKING:
    from node.config import NodeConfig

EXAMPLES = (
    "Examples:  intellect-node join --role worker --network local   |   "
    "intellect-node join --role trainer --run my-run.toml --network local   |   "
    "intellect-node join --network base-sepolia.toml --pool 7 --dry-run"
)


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
    role: Annotated[RoleName | None, typer.Option(help="What to do in the swarm. Default: auto.")] = None,
    network: NetworkName = None,
    state_dir: Annotated[Path | None, state_dir_option("Key, journal and blobs of this node. One daemon each.")] = None,
    pool: PoolNumber = None,
    run: Annotated[Path | None, typer.Option("--run", help="Run file (TOML); for the trainer.")] = None,
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
        typer.Option("--metrics-log", help="Trainer: also send metrics to wandb, tensorboard (comma between)."),
    ] = None,
    wait: Annotated[
        bool | None,
        typer.Option("--wait/--no-wait", help="Where stake or gas is missing: wait for it. Default: wait."),
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
    log_level: Annotated[Level | None, typer.Option("--log-level", help="Default: info.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="In the background: returns once it is in, or says why.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Phases and events as JSON, one object a line; with --detach one for all.")
    ] = False,
) -> None:
    """Join a swarm and stay until stopped: from nothing to contributing in one command.

    Makes the node's key, chooses a role, looks at everything that can fail, says which stake and gas are missing and
    waits for them, joins, and shows how far it is until the first accepted contribution.
    SIGTERM or Ctrl-C drains: finish, leave, exit; a second one cuts.
    """
    config = build_config(
        role=role.value if role else None,
        network=network,
        state_dir=state_dir,
        pool=pool,
        run_file=run,
        listen=",".join(listen) if listen else None,
        announce=",".join(announce) if announce else None,
        lan=lan.value if lan else None,
        password_file=password_file,
        provider_key_file=key_file(provider_key) if provider_key else None,
        gateway=gateway,
        gateway_tls=gateway_tls,
        gateway_announce=gateway_announce,
        http_sources=tuple(http_source) if http_source else None,
        bootnodes=tuple(bootnode) if bootnode else None,
        relay=relay.value if relay else None,
        engine=engine.value if engine else None,
        engine_command=engine_command,
        auto_setup=auto_setup,
        wait=wait,
        preflight=preflight,
        page=page,
        metrics_address=metrics_address,
        metrics_log=metrics_log,
        show_logs=logs,
        log_level=log_level.value if log_level else None,
    )
    if dry_run:
        raise typer.Exit(_rehearse(config, as_json=as_json))
    if not as_json and not detach:
        _say_first_word()
    from node.preflight.early import refuse_early

    # Before --detach: what is refused is said in this terminal, not in a log.
    refuse_early(config)
    if detach:
        from cli.detach import join_in_background

        join_in_background(context.obj.words, config.directory, as_json=as_json)
        return
    from node.processes.launch import for_role, fork_or_launch

    server = fork_or_launch(for_role(config.role))  # its imports run beside ours
    from cli.joinview import open_json_view, open_view
    from node.daemon import import_for
    from node.daemon import run as run_daemon
    from node.processes.guardian import become_guarded

    # Imported before the guardian forks: a daemon that it starts again then has everything at once.
    import_for(config.role)
    if context.obj.own_process:
        become_guarded()
    view = open_json_view() if as_json else open_view(logs=logs)  # has a thread: after the guardian has forked
    run_daemon(config, server, view.run)


def _say_first_word() -> None:
    """Seconds of imports come first, a minute of them on a busy machine: nobody shall wonder what hangs."""
    typer.echo(f"{time.strftime('%H:%M:%S')}  start: {IMPORTING}", err=True)


def _rehearse(config: "NodeConfig", *, as_json: bool) -> int:
    """The admission check; returns the exit code."""
    from cli.doctor import as_dict, look
    from node.preflight.survey import Scope, exit_code

    scope = Scope(joining=True, visit=True, engine=True)
    findings = look(config, scope, quiet=as_json)
    code = exit_code(findings)
    if as_json:
        print_json({"admitted": code == 0, **as_dict(findings)})
    else:
        typer.echo("this node would be admitted" if code == 0 else "this node would not be admitted")
    return code
