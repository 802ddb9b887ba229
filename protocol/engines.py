"""Classes of engines: `hardware/dtype/attention`, such as cpu-avx512/bfloat16/sdpa.

Two engines of one class round alike; of two classes they need not. A rollout file declares the class of the engine
that made it, a run says which it permits, and a verifier computes as the worker did, wherever it can.
"""

import re
from collections.abc import Sequence

_PART = r"[a-z0-9][a-z0-9_.+-]{0,31}"
_CLASS = re.compile(rf"{_PART}/{_PART}/{_PART}")
_PATTERN = re.compile(rf"({_PART}|\*)/({_PART}|\*)/({_PART}|\*)")
DEFAULT_CLASS = "cpu/float32/sdpa"
MAX_PATTERNS = 32


def is_engine_class(name: str) -> bool:
    """Whether `name` has the form of a class: three parts of small letters, digits and _.+-"""
    return _CLASS.fullmatch(name) is not None


def is_engine_pattern(pattern: str) -> bool:
    """A class in which any part may be `*`."""
    return _PATTERN.fullmatch(pattern) is not None


def permits(patterns: Sequence[str], name: str) -> bool:
    """Whether one of `patterns` matches the class `name`."""
    parts = name.split("/")
    return any(
        all(wanted in ("*", part) for wanted, part in zip(pattern.split("/"), parts, strict=True))
        for pattern in patterns
        if pattern.count("/") == len(parts) - 1
    )


def arithmetic(name: str) -> tuple[str, str]:
    """(dtype, attention) of a class."""
    _, dtype, attention = name.split("/")
    return dtype, attention


def is_pair(name: str) -> bool:
    """Whether `name` is one that `pair` gives."""
    worker, _, verifier = name.partition(">")
    return is_engine_class(worker) and is_engine_class(verifier)


def pair(worker: str, verifier: str) -> str:
    """The name under which a run keeps what it knows of work by one class in the eyes of another."""
    return f"{worker}>{verifier}"
