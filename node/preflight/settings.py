"""Settings that nobody reads: keys of config.toml and variables of the environment that name none."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from node.config import NodeConfig
from node.preflight.finding import CheckFinding, failure, ok, warning

PREFIX = "INTELLECT_NODE_"
OTHERS = ("CACHE", "ENGINE_KEY", "LOCAL_SERVERS", "REASONING_GYM_PYTHON", "VERIFIERS_PYTHON")
"""Variables with the prefix that are no settings, and that other parts of the program read."""
NAMED = "MCP_"
"""Such ones with a name of the owner's choice behind it."""


def check_settings(file: Path, environment: Mapping[str, str]) -> list[CheckFinding]:
    """One finding for the file, one for the environment."""
    return [_check_file(file), _check_environment(environment)]


def nearest(name: str) -> str:
    """The setting that was meant, most likely; else what to do."""
    near = difflib.get_close_matches(name.lower(), known(), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else "intellect-node config show names all settings"


def known() -> Iterable[str]:
    return tuple(NodeConfig.model_fields)


def _check_file(file: Path) -> CheckFinding:
    if not file.is_file():
        return ok("settings", f"no {file}: the defaults count")
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return failure("settings", f"{file} cannot be read: {error}", "correct it")
    unknown = [key for key in table if key not in known()]
    if unknown:
        hints = "; ".join(f"{key}: {nearest(key)}" for key in unknown)
        what = f"{file} has unknown settings: {', '.join(unknown)}"
        return failure("settings", what, f"{hints} (or remove them: they may be another version's)", unknown=unknown)
    return ok("settings", f"{file}: {len(table)} settings", keys=sorted(table))


def _check_environment(environment: Mapping[str, str]) -> CheckFinding:
    names = [name.removeprefix(PREFIX) for name in environment if name.startswith(PREFIX)]
    unknown = [name for name in names if not _is_read(name)]
    if unknown:
        hints = "; ".join(f"{PREFIX}{name}: {nearest(name)}" for name in unknown)
        return warning("environment", f"variables that nothing reads: {', '.join(unknown)}", hints, unknown=unknown)
    return ok("environment", f"{len(names)} settings in the environment", names=sorted(names))


def _is_read(name: str) -> bool:
    return name.lower() in known() or name in OTHERS or name.startswith(NAMED)
