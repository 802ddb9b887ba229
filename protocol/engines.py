"""Classes of engines: `hardware/dtype/attention/precision/parallel/build`.

For example x86_64-avx512/float32/sdpa/ieee/tp1/torch-2.13.0 or cuda-sm90/bfloat16/vllm/ieee/tp2/vllm-0.32.0. The parts
name all that arithmetic depends on: what adds numbers up, in which type, by which kernel of which engine, how products
of float32 are rounded, over how many devices a model is split, and which build of the engine computes. An engine of
somebody's own may leave the last three away.

Two engines of one class round alike; of two classes they need not, float32 included: on a GPU a kernel may multiply
float32 in TF32 and say nothing of it. So no class stands for another: a run knows the pairs of classes that were
calibrated, and admits no class besides them. A rollout file declares the class of the engine that made it, and a
verifier computes as the worker did, wherever it can; of the kernel `fixed` that gives the same bits, and nothing is
forgiven. The name is the worker's word: who states another is met there.
"""

import re
from collections.abc import Iterable, Sequence

FIXED = "fixed"
"""The kernel of batch-invariant arithmetic (node.inference.fixed); on a GPU its number of multiprocessors follows."""
LORA = "lora"
"""The kernel that keeps adapters beside the weights (node.inference.adapters), instead of merging them."""
_PART = r"[a-z0-9][a-z0-9_.+-]{0,31}"
_CLASS = re.compile(rf"{_PART}/{_PART}/{_PART}(/{_PART}){{0,3}}")
_PATTERN = re.compile(rf"({_PART}|\*)/({_PART}|\*)/({_PART}|\*)(/({_PART}|\*)){{0,3}}")
DEFAULT_CLASS = "cpu/float32/sdpa"
MAX_PATTERNS = 32
MAX_CLASS = 128
"""Characters of a class: what messages have room for."""


def is_engine_class(name: str) -> bool:
    """Whether `name` has the form of a class: three to six parts of small letters, digits and _.+-"""
    # The length first: a pattern is matched in time that grows with the name.
    return len(name) <= MAX_CLASS and _CLASS.fullmatch(name) is not None


def is_engine_pattern(pattern: str) -> bool:
    """A class in which any part may be `*`. Parts that are left away at the end may be any, too."""
    return len(pattern) <= MAX_CLASS and _PATTERN.fullmatch(pattern) is not None


def permits(patterns: Sequence[str], name: str) -> bool:
    """Whether one of `patterns` matches the class `name`."""
    parts = name.split("/")
    return any(_matches(pattern.split("/"), parts) for pattern in patterns)


def _matches(wanted: Sequence[str], parts: Sequence[str]) -> bool:
    if not 3 <= len(wanted) <= 6 or len(parts) < 3:
        return False
    # A class without its last parts matches `*` there, and no name.
    padded = [*parts, *[""] * (len(wanted) - len(parts))]
    return all(one in ("*", part) for one, part in zip(wanted, padded, strict=False))


def arithmetic(name: str) -> tuple[str, str]:
    """(dtype, attention) of a class: what one engine can change at will."""
    _, dtype, attention = name.split("/")[:3]
    return dtype, attention


def with_arithmetic(name: str, way: tuple[str, str]) -> str:
    """The class of the same engine on the same device, computing in another way."""
    hardware, _, _, *rest = name.split("/")
    return "/".join((hardware, *way, *rest))


def is_exact(worker: str, verifier: str) -> bool:
    """Whether honest work by one class is equal, bit for bit, to what the other recomputes: both are one class, whose
    arithmetic does not depend on the batch nor on how a token came into it."""
    return worker == verifier and is_engine_class(worker) and arithmetic(worker)[1].partition("-")[0] == FIXED


def kind(name: str) -> str:
    """Classes of one kind see the same: hardware and dtype. Two looks of one kind convict nobody, whatever kernel and
    build they were made with. What is not in the form of a class is a kind of its own."""
    return "/".join(name.split("/")[:2]) if is_engine_class(name) else name


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


def missing_pairs(known: Iterable[str]) -> list[str]:
    """What lacks until every verifier's class has seen every worker's: no name may lead to where nothing is known."""
    names = list(known)
    workers, verifiers = ({classes(name)[side] for name in names} for side in (0, 1))
    # All with all: one that is missing would be a place where nothing is known, and cheating has no evidence.
    return sorted({pair(worker, verifier) for worker in workers for verifier in verifiers} - set(names))
