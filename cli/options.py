"""Commands made of own arguments and of options that many take."""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import USAGE, CommandError

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
    # Typer reads defaults from the signature and types from the annotations: it needs both.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__doc__ = planner.__doc__
    return command


if TYPE_CHECKING:
    from protocol.merging import Merge

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE as if it stood in the run file: recipe.steps=20. May be repeated."),
]


def hear(line: str) -> None:
    """What takes time while names are fetched: beside the command's own answer."""
    print(line, file=sys.stderr, flush=True)


Method = Annotated[str, typer.Option(help="average, ties (arXiv 2306.01708) or dare (arXiv 2311.03099).")]
Weight = Annotated[
    list[int] | None, typer.Option(help="Weight of each model, in their order, a whole number; default: 1 each.")
]
Density = Annotated[float, typer.Option(help="Share of each tensor's differences that ties and dare keep.")]
Scale = Annotated[float, typer.Option(help="Factor of what ties and dare add to the base.")]
Seed = Annotated[int, typer.Option(help="Seed by which dare chooses what it keeps.")]


def numbers_of(method: str, models: int, weight: list[int] | None, density: float, scale: float, seed: int) -> "Merge":
    """Raises CommandError, MergeError."""
    from protocol.merging import METHODS, Merge

    if method not in METHODS:
        raise CommandError(f"no method {method!r}", f"there are {', '.join(METHODS)}", "choose one of them", USAGE)
    weights = tuple(weight or [1] * models)
    if len(weights) != models:
        why = f"{models} models, {len(weights)} weights"
        raise CommandError("which weights?", why, "give --weight once for each model, or never", USAGE)
    numbers = Merge(method=method, weights=weights, density=density, scale=scale, seed=seed)  # type: ignore[arg-type]
    numbers.check()
    return numbers
