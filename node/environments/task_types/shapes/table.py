"""Which shapes there are, and which one a row has."""

from collections.abc import Mapping
from typing import Any

from node.environments.task_types.shapes import gsm8k, gym, intellect, livecodebench, solved, verifiers_v0, verl
from node.environments.task_types.shapes.base import Published, present

SHAPES = (
    intellect.SHAPE,
    livecodebench.SHAPE,
    livecodebench.DEEPCODER,
    verl.SHAPE,
    gsm8k.SHAPE,
    gym.SHAPE,
    solved.SHAPE,
    verifiers_v0.SHAPE,
)


def read_published(raw: Mapping[str, Any]) -> Published:
    """A row in the one form that task types read. Raises ValueError that says what is wrong."""
    row = present(raw)
    fitting = [shape for shape in SHAPES if shape.fits(row)]
    if not fitting:
        forms = "; ".join(f"{shape.name}: {shape.columns}" for shape in SHAPES)
        has = ", ".join(map(str, list(row)[:12])) or "nothing"
        raise ValueError(f"it has no task_type, and the columns of no published form ({forms}); it has {has}")
    if len(fitting) > 1:
        raise ValueError(f"it has the truths of two forms, {fitting[0].name} and {fitting[1].name}: leave one out")
    return fitting[0].read(row)
