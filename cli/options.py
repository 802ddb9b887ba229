"""Commands made of own arguments and of options that many take."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Options = Mapping[str, tuple[Any, Any]]
"""Name of a parameter -> its annotation, its default."""


def command_of(
    planner: Callable[..., Any], given_by_us: Iterable[str], common: Options, call: Callable[[dict[str, Any]], None]
) -> Callable[..., None]:
    """A function for typer: `planner`'s parameters, less those that its caller gives, and the common options. What is
    typed comes to `call`; the help is the planner's docstring."""
    own = [one for one in inspect.signature(planner).parameters.values() if one.name not in given_by_us]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in common.items()
    ]

    def command(**given: Any) -> None:
        call(given)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + shared
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__doc__ = planner.__doc__
    return command
