"""From flags, environment and config.toml to the daemon's settings; and whatever cannot be one, in words."""

from typing import TYPE_CHECKING, Any

from cli.errors import USAGE, CommandError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from node.config import NodeConfig


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
        raise _refused(error.errors()[0], given) from None
    except (SettingsError, ValueError) as error:
        raise CommandError(
            "the settings cannot be read", str(error), "correct config.toml or the INTELLECT_NODE_* variables"
        ) from None


def _refused(first: "ErrorDetails", given: dict[str, Any]) -> CommandError:
    place = ".".join(str(part) for part in first["loc"]) or "settings"
    if first["type"] == "extra_forbidden":
        return _unknown(place)
    return CommandError(
        f"the setting {place} cannot be used",
        first["msg"],
        "correct the flag, the INTELLECT_NODE_* variable or the line in config.toml",
        USAGE if place in given else 3,
    )


def _unknown(place: str) -> CommandError:
    from node.config import default_home
    from node.preflight.settings import nearest
    from node.status import program_version

    return CommandError(
        f"there is no setting {place}",
        f"{default_home() / 'config.toml'} names it, and version {program_version()} of this program does not know it",
        f"{nearest(place)} correct the line, or remove it if it is another version's",
    )
