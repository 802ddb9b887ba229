"""With which arithmetic a step was computed, read from its metrics. Without torch: the daemon reads it, too."""

from collections.abc import Mapping
from typing import Any

import msgspec

from node.training.errors import TrainingError
from protocol.manifest import Arithmetic


def arithmetic_in(metrics: Mapping[str, Any]) -> Arithmetic:
    """With which a step was computed, by the metrics in its spool. Raises TrainingError for those of older programs."""
    told = metrics.get("arithmetic") or {}
    try:
        # What an older program did not tell is None here, which no field takes.
        return msgspec.convert([told.get(name) for name in Arithmetic.__struct_fields__], Arithmetic)
    except msgspec.ValidationError as error:
        raise TrainingError(
            f"step {metrics.get('step')} does not say how it was computed",
            str(error),
            "it was published by another version of this program; go on from its checkpoint in a new directory",
        ) from None
