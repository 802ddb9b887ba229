"""Classes of engines: `hardware/dtype/attention`, such as cpu-avx512/bfloat16/sdpa.

Two engines of one class round alike; of two classes they need not. A rollout file declares the class of the engine
that made it, a run says which it permits, and a verifier computes as the worker did, wherever it can.

The name is the worker's word, and anybody can make one up. In float32 that is no matter: all hardware computes nearly
alike (less than 0.01 mantissa steps apart), so a class that was measured stands for its arithmetic on any. In lower
precision the hardware decides (AVX2 and AVX-512 are 0.9 steps apart in bfloat16), and a class stands for itself alone.
"""

import re
from collections.abc import Iterable, Sequence

_PART = r"[a-z0-9][a-z0-9_.+-]{0,31}"
_CLASS = re.compile(rf"{_PART}/{_PART}/{_PART}")
_PATTERN = re.compile(rf"({_PART}|\*)/({_PART}|\*)/({_PART}|\*)")
DEFAULT_CLASS = "cpu/float32/sdpa"
MAX_PATTERNS = 32
ALIKE_EVERYWHERE = ("float32",)
"""Types in which all hardware computes nearly alike."""


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


def kind(name: str) -> str:
    """Classes of one kind stand for each other: a pattern for what is alike on all hardware, else the class itself.

    What is not in the form of a class is a kind of its own, too.
    """
    if not is_engine_class(name):
        return name
    dtype, attention = arithmetic(name)
    return f"*/{dtype}/{attention}" if dtype in ALIKE_EVERYWHERE else name


def overlap(one: str, other: str) -> str | None:
    """The pattern of the classes that match both patterns; None if there are none."""
    if one.count("/") != other.count("/"):
        return None
    parts = list(zip(one.split("/"), other.split("/"), strict=True))
    if any(a != b and "*" not in (a, b) for a, b in parts):
        return None
    return "/".join(b if a == "*" else a for a, b in parts)


def is_pair(name: str) -> bool:
    """Whether `name` is one that `pair` gives."""
    worker, _, verifier = name.partition(">")
    return is_engine_class(worker) and is_engine_class(verifier)


def pair(worker: str, verifier: str) -> str:
    """The name under which a run keeps what it knows of work by one class in the eyes of another."""
    return f"{worker}>{verifier}"


def classes(name: str) -> tuple[str, str]:
    """(worker's, verifier's) class of a pair."""
    worker, _, verifier = name.partition(">")
    return worker, verifier


def standing_for(known: Iterable[str], worker: str, verifier: str) -> list[str]:
    """The pairs by which work of one class is judged that another sees: the pair itself if it is known, else all known
    ones of the same two kinds. Empty if nothing is known of such a pair."""
    names = list(known)
    if pair(worker, verifier) in names:
        return [pair(worker, verifier)]
    wanted = kind(worker), kind(verifier)
    return [name for name in names if tuple(map(kind, classes(name))) == wanted]


def missing_pairs(known: Iterable[str]) -> list[str]:
    """What lacks until every verifier's class has seen every worker's: no name may lead to where nothing is known."""
    names = list(known)
    workers, verifiers = ({classes(name)[side] for name in names} for side in (0, 1))
    return sorted({pair(worker, verifier) for worker in workers for verifier in verifiers} - set(names))
