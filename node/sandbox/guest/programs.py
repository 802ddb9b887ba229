"""Inside the sandbox: runs a program that is an answer. Standard library only.

What programs usually import is imported here, once, so that a call costs only what the program itself does.
"""

import bisect  # noqa: F401
import collections  # noqa: F401
import copy  # noqa: F401
import dataclasses  # noqa: F401
import datetime  # noqa: F401
import decimal  # noqa: F401
import fractions  # noqa: F401
import functools  # noqa: F401
import heapq  # noqa: F401
import io  # noqa: F401
import itertools  # noqa: F401
import math  # noqa: F401
import operator  # noqa: F401
import random  # noqa: F401
import re  # noqa: F401
import statistics  # noqa: F401
import string  # noqa: F401
import sys
import types
import typing  # noqa: F401


def run(source: str) -> None:
    """As `python answer.py` would, with standard input as it is. Exit code 0 is an ordinary end."""
    try:
        load(source, "__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def call(source: str, function: str, arguments: list[object]) -> object:
    """What a function of the program returns; a method of its class Solution, where it has one."""
    module = load(source, "answer")
    owner = module.Solution() if hasattr(module, "Solution") and not hasattr(module, function) else module
    return getattr(owner, function)(*arguments)


def load(source: str, name: str) -> types.ModuleType:
    """The program's module, executed."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    sys.argv[:] = ["answer.py"]
    exec(compile(source, "answer.py", "exec"), module.__dict__)  # noqa: S102 - that is what it is for
    return module
