"""`intellect-node config`: the daemon's settings, and where each value comes from."""

import os
import tomllib
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.errors import USAGE, CommandError
from cli.output import AsJson, clean, console, print_json

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from node.config import NodeConfig


def build_config(**flags: Any) -> "NodeConfig":
    """The settings, flags first; flags that were not given (None) leave the word to environment and file.

    Raises CommandError naming the setting that makes no sense.
    """
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from node.config import NodeConfig, default_home

    # None is "not said", so that a flag's absence does not hide the file's word.
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return NodeConfig(**given)
    # Before ValueError, which it is as well; TOML that cannot be parsed is one, too.
    except ValidationError as error:
        raise _refused(error.errors()[0], given) from None
    except (SettingsError, ValueError) as error:
        raise CommandError(
            "the settings cannot be read",
            str(error),
            f"correct {default_home() / 'config.toml'} or the INTELLECT_NODE_* variables",
        ) from None


def _refused(first: "ErrorDetails", given: dict[str, Any]) -> CommandError:
    place = ".".join(str(part) for part in first["loc"]) or "settings"
    if first["type"] == "extra_forbidden":
        return _unknown(place, typed=place in given)
    return CommandError(
        f"the setting {place} cannot be used",
        first["msg"].removeprefix("Value error, "),
        "correct the flag, the INTELLECT_NODE_* variable or the line in config.toml",
        USAGE if place in given else 3,
    )


def _unknown(place: str, *, typed: bool) -> CommandError:
    """typed: a person has just named it; else config.toml does."""
    from node.config import default_home, program_version
    from node.preflight.settings import nearest

    unknown = f"version {program_version()} of this program does not know it"
    if typed:
        return CommandError(f"there is no setting {place}", unknown, nearest(place), USAGE)
    return CommandError(
        f"there is no setting {place}",
        f"{default_home() / 'config.toml'} names it, and {unknown}",
        f"{nearest(place)}; correct the line, or remove it if it is another version's",
    )


PREFIX = "INTELLECT_NODE_"
HIDDEN = "(set)"
app = typer.Typer(help="The daemon's settings.", no_args_is_help=True)


@app.command("show", epilog="Examples:  intellect-node config show   |   intellect-node config show --json")
def show(as_json: AsJson = False) -> None:
    """Show the settings in effect and where each comes from: environment, config.toml or default. Flags do not count.

    Exit code 3 if one of them cannot be used.
    """
    from node.config import default_home

    config, file = build_config(), default_home() / "config.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    sources = sources_of(type(config).model_fields, dict(os.environ), table)
    rows = {name: {"value": value, "from": sources[name]} for name, value in values_of(config).items()}
    if as_json:
        print_json({"file": str(file), "settings": rows})
        return
    _show(rows)
    console().print(f"\nfile: {file}{'' if file.is_file() else ' (not there)'}", soft_wrap=True)


@app.command(
    "set",
    epilog="Examples:  intellect-node config set role worker   |   "
    "intellect-node config set trainer.world_size 2   |   intellect-node config set page --unset",
)
def set_(
    name: Annotated[str, typer.Argument(help="A setting, as `config show` names it.")],
    value: Annotated[str | None, typer.Argument(help="Its value: true, 3, 0.5, or text as it is.")] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Remove the line: the default counts again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write one setting into config.toml; all else in it stays, comments too.

    The file is not touched if the setting cannot be used. A daemon that runs keeps what it has until it starts again.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    from node.config import default_home
    from node.state.files import write_whole

    if (value is None) != unset:
        raise CommandError("which value?", "a setting needs a value or --unset", "give one of them", USAGE)
    file = default_home() / "config.toml"
    try:
        document = tomlkit.parse(file.read_text(encoding="utf-8") if file.is_file() else "")
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} cannot be read", str(error), "correct it: it must be TOML in UTF-8") from None
    table, _, key = name.rpartition(".")
    place: Any = document.setdefault(table, tomlkit.table()) if table else document
    place.pop(key, None)
    if value is not None:
        place[key] = _value_of(value)
    # In any case of letters: the settings are read from the environment without regard to it.
    environment = {one for one in os.environ if one.upper() == f"{PREFIX}{(table or key).upper()}"}
    # The whole setting is tried before the file is written: a daemon that could not start would be the price of a
    # typing mistake.
    config = build_config(**{table or key: document.unwrap().get(table or key)})
    # Private, since `password` is one of the settings.
    write_whole(file, tomlkit.dumps(document).encode(), mode=0o600)
    shown = values_of(config)[table or key]
    shown = shown.get(key) if table else shown
    if as_json:
        return print_json({"file": str(file), "setting": name, "value": shown})
    said = f"{file}: {name} = {clean(str(shown), 300)}" if value is not None else f"{file}: {name} is not set any more"
    console().print(said, soft_wrap=True, markup=False)
    if environment:
        console().print(f"${environment.pop()} is set, and counts before the file", soft_wrap=True, markup=False)
    return None


def _value_of(text: str) -> bool | int | float | str | list[Any]:
    """As TOML reads it; what is no TOML is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def sources_of(names: Any, environment: dict[str, str], table: dict[str, Any]) -> dict[str, str]:
    """Where each setting's value comes from. Pure."""
    variables = {name.upper() for name in environment}

    def source(name: str) -> str:
        if f"{PREFIX}{name.upper()}" in variables:
            return "environment"
        return "config.toml" if name in table else "default"

    return {name: source(name) for name in names}


def values_of(config: "NodeConfig") -> dict[str, Any]:
    """For people and programs; the password is not told."""
    plain = config.model_dump(mode="json")
    return {name: HIDDEN if name == "password" and value else value for name, value in plain.items()}


def _show(rows: dict[str, dict[str, Any]]) -> None:
    table = Table(box=None, header_style="dim", padding=(0, 2), show_edge=False)
    for name in ("setting", "value", "from"):
        table.add_column(name, overflow="fold")
    for name, row in rows.items():
        style = "" if row["from"] == "default" else "bold"
        for key, value in _named(name, row["value"]):
            table.add_row(Text(key, style), Text("-" if value is None else clean(str(value), 300), style), row["from"])
    console().print(table)


def _named(name: str, value: Any) -> list[tuple[str, Any]]:
    """As `config set` names them: each of a section by itself."""
    section = value if isinstance(value, dict) else None
    return [(f"{name}.{key}", one) for key, one in section.items()] if section else [(name, value)]
