"""The numbers of a merge, as `weights merge` at a desk and `task merge` in a swarm take them."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import USAGE, CommandError

if TYPE_CHECKING:
    from protocol.merging import Merge

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
