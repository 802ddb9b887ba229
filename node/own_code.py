"""A function that a run at a desk brings along: loaded from its source among the run's assets, from nowhere else.

The module runs in the process that needs it, with all that its owner may do: it is the owner's own code. Knows
nothing of what the function is for.
"""

import difflib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from protocol.errors import IntellectError
from protocol.own_code import source_asset

Function = Callable[..., Any]


class OwnCodeError(IntellectError):
    """A function of the run's own that is not there, fails, or returns what cannot be used."""


def load_function(import_path: str, assets: Path) -> Function:
    """The function that MODULE:FUNCTION names; its source lies below `assets`. Raises OwnCodeError."""
    module_name, _, name = import_path.partition(":")
    module = _load(module_name, assets / source_asset(import_path), import_path)
    function = getattr(module, name, None)
    if function is None:
        close = difflib.get_close_matches(name, vars(module), 1)
        hint = f"did you mean {close[0]!r}?" if close else "correct the name in the run file"
        raise OwnCodeError(f"there is no {import_path}", f"{module.__file__} has no {name!r}", hint)
    if not callable(function):
        raise OwnCodeError(f"{import_path} cannot be called", f"it is {_kind(function)}", "name a function")
    return function


def _load(name: str, source: Path, import_path: str) -> ModuleType:
    """Executed anew each time, under its own name: one that stands in a package finds its neighbours there."""
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise OwnCodeError(f"{import_path} cannot be loaded", f"{source} is no Python source", "name a .py file")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise OwnCodeError(
            f"{import_path} cannot be loaded",
            f"{source}: {told(error)}",
            "correct the file; it is one file by itself, and may import whatever is installed",
        ) from error
    finally:
        if before is not None:
            sys.modules[name] = before
    return module


def calling(import_path: str, function: Function, *arguments: Any, wanted: str) -> Any:
    """What the function returns. Raises OwnCodeError where it raises. wanted: what it is to return, for people."""
    try:
        return function(*arguments)
    except Exception as error:
        raise OwnCodeError(
            f"{import_path} failed", f"{told(error)}{_line(error)}", f"correct it: it must return {wanted}"
        ) from error


def unusable(import_path: str, returned: str, wanted: str) -> OwnCodeError:
    return OwnCodeError(f"{import_path} returned what cannot be used", returned, f"it must return {wanted}")


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"


def _line(error: BaseException) -> str:
    """Where it was raised: the last line of the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})" if trace else ""
