"""The flags of `join`, read and tried without joining."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import USAGE, CommandError

if TYPE_CHECKING:
    from node.config import NodeConfig

SETTINGS = {
    "run": "run_file",
    "provider_key": "provider_key_file",
    "http_source": "http_sources",
    "bootnode": "bootnodes",
    "logs": "show_logs",
}
"""Flags whose setting has another name."""
ONLY_BY_HAND = ("detach", "dry_run", "as_json", "logs")
"""Flags that a service does without."""


def config_of(words: Sequence[str]) -> "NodeConfig":
    """The settings that `join` would have with these words. Ends as `join` would for flags that are none of its own;
    raises CommandError for settings that cannot be."""
    import typer

    from cli import join
    from cli.settings import build_config
    from node.config import NodeConfig

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
    named = {SETTINGS.get(name, name): _plain(value) for name, value in context.params.items()}
    given = {name: value for name, value in named.items() if name in NodeConfig.model_fields}
    return build_config(**given | {"state_dir": _absolute(given.get("state_dir"))})


def _plain(value: object) -> object:
    value = value.value if isinstance(value, Enum) else value
    return (tuple(value) or None) if isinstance(value, (list, tuple)) else value


def _absolute(path: object) -> Path | None:
    return Path(str(path)).absolute() if path else None
