"""Runs one answer that is a program. What it should have printed or returned is known outside only.

Imported once, before any program: what solutions take for granted is there already, as judges of programs have it.
"""

import ast
import builtins
import importlib
import sys
import threading
import traceback
from types import ModuleType
from typing import Any

_STARRED = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json "
    "builtins typing"
)
"""All names of these, the later ones over the earlier: what LiveCodeBench puts in front of every program
(lcb_runner/evaluation/testing_util.py), and after it APPS, TACO and ASPO."""
_NAMED = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json "
    "typing time fractions decimal os"
)
"""These under their own names, over all names above: LiveCodeBench's, and behind them PRIME's and verl's
(verl/utils/reward_score/prime_code)."""
_RENAMED = {"commonprefix": ("os.path", "commonprefix"), "re_search": ("re", "search")}
"""These as ASPO has them (rewards/code_utils/base.py)."""
RECURSION = 50_000
"""Calls: LiveCodeBench's limit."""


def _starred(module: ModuleType) -> dict[str, Any]:
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    return {name: getattr(module, name) for name in names}


_PRESENT: dict[str, Any] = {}
for _name in _STARRED.split():
    _PRESENT |= _starred(importlib.import_module(_name))
for _name in _NAMED.split():
    _PRESENT[_name] = importlib.import_module(_name)
for _name, (_module, _named) in _RENAMED.items():
    _PRESENT[_name] = getattr(importlib.import_module(_module), _named)


# There is one thread here. Solutions start another for its deep stack and wait for it, so that it may run at once.


def _start(thread: threading.Thread) -> None:
    if thread.ident is not None:
        raise RuntimeError("threads can only be started once")
    thread._ident = threading.get_ident()  # type: ignore[attr-defined]
    _finish(thread.run)


def _finish(function: Any, *arguments: Any) -> None:
    """An error ends its thread, not the program."""
    try:
        function(*arguments)
    except SystemExit:
        pass
    except BaseException:  # noqa: BLE001
        traceback.print_exc()


def _start_new(function: Any, arguments: Any, keywords: Any = None) -> int:
    _finish(lambda: function(*arguments, **(keywords or {})))
    return threading.get_ident()


threading.Thread.start = _start  # type: ignore[method-assign,assignment]
threading.Thread.join = lambda self, timeout=None: None  # type: ignore[method-assign,assignment] # noqa: ARG005
threading.Thread.is_alive = lambda self: False  # type: ignore[method-assign] # noqa: ARG005
threading.stack_size = lambda size=0: 0  # noqa: ARG005
importlib.import_module("_thread").start_new_thread = _start_new  # type: ignore[attr-defined]
importlib.import_module("_thread").stack_size = threading.stack_size  # type: ignore[attr-defined]


def _no_limits() -> ModuleType:
    """`resource`, with which solutions ask for a deep stack: there is none here, and no limit to raise."""
    module = ModuleType("resource")
    unlimited = -1
    module.__dict__.update(RLIM_INFINITY=unlimited, RLIMIT_STACK=3, RLIMIT_DATA=2, RLIMIT_AS=9)
    module.__dict__.update(setrlimit=lambda *_: None, getrlimit=lambda *_: (unlimited, unlimited))
    return module


try:
    importlib.import_module("resource")
except ImportError:
    sys.modules["resource"] = _no_limits()


def run(source: str) -> None:
    """As a script; it reads standard input and prints."""
    _execute(source, "__main__")


def call(source: str, name: str, arguments: list[Any]) -> Any:
    """What its function returns: one of the module, or a method of its class, `Solution` first."""
    space = _execute(source, "answer")
    return _function(space, name)(*arguments)


def call_written(source: str, name: str, arguments: str) -> Any:
    """Likewise, with arguments that JSON has not: tuples, sets."""
    return call(source, name, ast.literal_eval(arguments))


def _execute(source: str, name: str) -> dict[str, Any]:
    module = ModuleType(name)
    sys.modules[name] = module
    # Behind the program's own names, as Python's built-in ones are: else `operator.add` would be its function `add`.
    # The streams are those of this run, not those of the import.
    present = _PRESENT | {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
    module.__dict__["__builtins__"] = vars(builtins) | present
    sys.setrecursionlimit(RECURSION)
    sys.set_int_max_str_digits(0)  # a program pays for its digits with fuel
    exec(compile(source, "answer.py", "exec"), module.__dict__)  # noqa: S102 - this is what the sandbox is for
    return module.__dict__


def _function(space: dict[str, Any], name: str) -> Any:
    if callable(space.get(name)):
        return space[name]
    classes = [value for value in (space.get("Solution"), *space.values()) if isinstance(value, type)]
    for one in classes:
        if one.__module__ == "answer" and callable(getattr(one, name, None)):
            return getattr(one(), name)
    raise NameError(f"there is no function {name}")
