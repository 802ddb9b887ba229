"""The environments that the program brings: one table, from which everything that names environments is read.

A row costs no import: commands that only want names stay fast, and a run imports what it uses.
"""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import msgspec

from node.environments.base import Environment, Tokenizer


class Module(Protocol):
    """What the module of an environment offers."""

    Arguments: type[msgspec.Struct]
    """Its parameters, [environment.args] of a run file: a frozen struct that forbids unknown fields."""

    def load(self, arguments: Any, assets: Path, tokenizer: Tokenizer) -> Environment:
        """arguments: an `Arguments`; assets: the directory of the run's files. Raises EnvironmentFault."""
        ...


@dataclass(frozen=True, slots=True)
class Builtin:
    """name: in run files; about: one line for people; module: where `Arguments` and `load` are; data: the argument
    that names a data file of the run, empty if it reads none; more: arguments that may name further ones."""

    name: str
    about: str
    module: str
    data: str = ""
    more: tuple[str, ...] = ()

    @property
    def offered(self) -> Module:
        return cast(Module, importlib.import_module(self.module))


BUILTIN = {
    row.name: row
    for row in (
        Builtin("sort", "put digits into ascending order", "node.environments.sort"),
        Builtin("reverse", "write digits backwards", "node.environments.reverse"),
        Builtin("retry", "put digits into ascending order, in several tries", "node.environments.retry"),
        Builtin("tools", "a dataset, with tools to call", "node.environments.tools.environment", "path", ("corpus",)),
        Builtin(
            "dataset", "rows of a JSONL or parquet file, as INTELLECT-2 published", "node.environments.dataset", "path"
        ),
        Builtin("repository", "mend a small repository, hidden tests", "node.environments.repository", "path"),
        Builtin("server", "behind an OpenEnv or MCP server, witnessed", "node.environments.server.environment", "path"),
        Builtin("reasoning_gym", "a data set of reasoning-gym (an extra)", "node.environments.reasoning.environment"),
        Builtin(
            "verifiers", "a package of verifiers v1 (an extra; at a desk)", "node.environments.verifiers.environment"
        ),
    )
}
