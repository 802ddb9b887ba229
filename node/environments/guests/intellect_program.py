"""Runs one answer that is a program. What it should have printed or returned is known outside only.

Imported once, before any program: what solutions take for granted is there already, as judges of programs have it.
"""

import bisect
import collections
import copy
import datetime
import functools
import heapq
import io
import itertools
import json
import math
import operator
import random
import re
import statistics
import string
import sys
import typing
from types import ModuleType
from typing import Any

_MODULES = (bisect, collections, copy, datetime, functools, heapq, io, itertools, json, math, operator, random, re)
_MODULES += (statistics, string, sys, typing)
_PRESENT = {name: value for name, value in vars(typing).items() if name in typing.__all__}
_PRESENT |= {module.__name__: module for module in _MODULES}
_PRESENT |= {name: getattr(collections, name) for name in collections.__all__}
_PRESENT |= {name: getattr(functools, name) for name in ("cache", "lru_cache", "reduce")}
_PRESENT |= {name: getattr(heapq, name) for name in ("heapify", "heappush", "heappop")}
_PRESENT |= {name: getattr(bisect, name) for name in ("bisect_left", "bisect_right")}


def run(source: str) -> None:
    """As a script; it reads standard input and prints."""
    _execute(source, "__main__")


def call(source: str, name: str, arguments: list[Any]) -> Any:
    """What its function returns: one of the module, or a method of its class, `Solution` first."""
    space = _execute(source, "answer")
    return _function(space, name)(*arguments)


def _execute(source: str, name: str) -> dict[str, Any]:
    module = ModuleType(name)
    sys.modules[name] = module
    module.__dict__.update(_PRESENT)
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
