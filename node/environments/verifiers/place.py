"""Where verifiers v1 and its packages are installed: a virtual environment of their own, never ours."""

import os
from pathlib import Path

import platformdirs

VERSION = "0.4.0"
PYTHON_VARIABLE = "INTELLECT_NODE_VERIFIERS_PYTHON"


def own_place() -> Path:
    """The environment that `intellect-node verifiers install` makes."""
    return platformdirs.user_cache_path("intellect-node") / f"verifiers-{VERSION}"


def python() -> Path:
    """The interpreter that runs packages: the one that PYTHON_VARIABLE names, or that of `own_place`."""
    named = os.environ.get(PYTHON_VARIABLE)
    return Path(named) if named else own_place() / "bin" / "python"
