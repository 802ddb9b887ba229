"""A run without its length: training may go on for longer than was planned, and nothing that is past depends on it.

The learning rate follows from `warmup_steps` and `decay_steps`, draws from policy and seed; only the last step of all
is special, in that it is always evaluated and always a checkpoint.
"""

import msgspec

from protocol.run import RunError, RunSpec, decode_run, encode_run


def without_length(run: RunSpec) -> bytes:
    """Canonical bytes, the same for runs that differ in `recipe.steps` only."""
    return encode_run(msgspec.structs.replace(run, recipe=msgspec.structs.replace(run.recipe, steps=1)))


def same_but_for_length(one: bytes, other: bytes) -> bool:
    """Whether two encoded runs differ in `recipe.steps` at the most; False for bytes that are no run."""
    try:
        return one == other or _without_length(one) == _without_length(other)
    except RunError:
        return False


def _without_length(encoded: bytes) -> bytes:
    return without_length(decode_run(encoded, desk=True))  # what may be in a run was checked when it was taken
