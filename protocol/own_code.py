"""Code that a run brings along: how its functions are named, and where their source stands among the run's files.

A run at a desk may name a loss, an advantage or a reward as MODULE:FUNCTION. The module's source is an asset of the
run, so what was trained with stands in the run by its hash. Nobody else's machine ever runs it: see RunSpec.check.
"""

import re

DESK_ENVIRONMENTS = frozenset({"verifiers"})
"""Environments whose code comes from neither the program nor the run: what a member would run, nobody can tell."""
SERVED_ENVIRONMENTS = frozenset({"server"})
"""Environments of class witnessed: a server says what follows an answer, and what it is worth."""

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*){0,2}:[A-Za-z_]\w*", re.ASCII)


def is_import_path(text: str) -> bool:
    """Whether `text` is MODULE:FUNCTION, the module with at most two dots."""
    return len(text) <= 128 and _IMPORT_PATH.fullmatch(text) is not None


def source_asset(import_path: str) -> str:
    """The asset that holds the function's module: "code/my_losses.py" for "my_losses:clipped"."""
    return f"code/{import_path.partition(':')[0].replace('.', '/')}.py"
