"""`intellect-node join`: be a member of a swarm, in the foreground, until stopped."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import USAGE, CommandError

if TYPE_CHECKING:
    from node.config import NodeConfig

EXAMPLES = (
    "Examples:  intellect-node join --role worker --network local   |   "
    "intellect-node join --role trainer --run my-run.toml --network local   |   "
    "intellect-node join --role validator --network base-sepolia.toml --pool 7"
)


class RoleName(StrEnum):
    """What a node does in the swarm; auto lets the hardware decide."""

    trainer = "trainer"
    worker = "worker"
    validator = "validator"
    auto = "auto"


class LogLevel(StrEnum):
    """What goes to the log."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def command(
    context: typer.Context,
    role: Annotated[RoleName | None, typer.Option(help="What to do in the swarm. Default: auto.")] = None,
    network: Annotated[
        str | None, typer.Option(help="A network profile (TOML file), or 'local' for this machine's devnet.")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="Key, journal and blobs of this node. One daemon each.")
    ] = None,
    pool: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="The pool on chain; default: the profile's.")
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Run file (TOML); for the trainer.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="Multiaddr to listen on, e.g. /ip4/0.0.0.0/tcp/4001. Port 0: any.")
    ] = None,
    announce: Annotated[
        str | None, typer.Option(help="Multiaddr that others shall dial, where it is not the one listened on.")
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", help="Password of the node key (mode 0600).")
    ] = None,
    provider_key: Annotated[
        Path | None, typer.Option("--provider-key", help="Keystore of the provider that stakes for this node.")
    ] = None,
    gateway: Annotated[
        str | None, typer.Option(help="HOST:PORT on which policies and blobs are served by HTTPS too. Default: off.")
    ] = None,
    gateway_tls: Annotated[
        bool | None,
        typer.Option("--gateway-tls/--gateway-plain", help="Plain HTTP is what SHARDCAST clients need."),
    ] = None,
    gateway_announce: Annotated[
        str | None, typer.Option(help="HOST:PORT under which others reach the gateway, where that differs.")
    ] = None,
    http_source: Annotated[
        list[str] | None,
        typer.Option(help="An HTTP source asked before the swarm: https://HOST:PORT#sha256=... Repeatable."),
    ] = None,
    engine_command: Annotated[
        str | None, typer.Option("--engine-command", help="Another program that speaks the engine protocol.")
    ] = None,
    auto_setup: Annotated[
        bool | None,
        typer.Option("--auto-setup/--no-auto-setup", help="On a local devnet: fund, stake and register this node."),
    ] = None,
    metrics_address: Annotated[
        str | None,
        typer.Option("--metrics-address", help="HOST:PORT: serve /metrics (Prometheus) over TCP too; no password."),
    ] = None,
    log_to: Annotated[
        str | None, typer.Option("--log", help="Trainer: also send metrics to wandb, tensorboard (comma between).")
    ] = None,
    log_level: Annotated[LogLevel | None, typer.Option("--log-level", help="Default: info.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="In the background: returns once it is in, or says why.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --detach: one JSON object about what was started.")
    ] = False,
) -> None:
    """Join a swarm and stay until stopped. SIGTERM or Ctrl-C drains: finish, leave, exit; a second one cuts."""
    config = build_config(
        role=role.value if role else None,
        network=network,
        state_dir=state_dir,
        pool=pool,
        run_file=run,
        listen=listen,
        announce=announce,
        password_file=password_file,
        provider_key_file=provider_key,
        gateway=gateway,
        gateway_tls=gateway_tls,
        gateway_announce=gateway_announce,
        http_sources=tuple(http_source) if http_source else None,
        engine_command=engine_command,
        auto_setup=auto_setup,
        metrics_address=metrics_address,
        metrics_log=log_to,
        log_level=log_level.value if log_level else None,
    )
    if detach:
        from cli.detach import join_in_background

        join_in_background(context.obj, config.directory, as_json=as_json)
        return
    from node.daemon import run as run_daemon

    run_daemon(config)


def build_config(**flags: Any) -> "NodeConfig":
    """The settings, flags first; flags that were not given (None) leave the word to environment and file.

    Raises CommandError naming the setting that makes no sense.
    """
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from node.config import NodeConfig

    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return NodeConfig(**given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "settings"
        raise CommandError(
            f"the setting {place} cannot be used",
            first["msg"],
            "correct the flag, the INTELLECT_NODE_* variable or the line in config.toml",
            USAGE if place in given else 3,
        ) from None
    except (SettingsError, ValueError) as error:
        raise CommandError(
            "the settings cannot be read", str(error), "correct config.toml or the INTELLECT_NODE_* variables"
        ) from None
