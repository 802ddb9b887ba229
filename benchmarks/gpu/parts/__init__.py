"""What is measured, best first: when time is short, the end of the list is left out."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Part:
    """A module of this package. most: minutes after which it is ended; least: minutes without which it is not begun."""

    name: str
    what: str
    most: float
    least: float


PARTS = (
    Part("challenge", "the timed product of matrices that a claim of a GPU is checked by", 1, 0.3),
    Part("engine", "tokens per second drawn and read, beside transformers", 7, 2),
    Part("proofs", "decoding against prefill, honest and with cheats, under calibrated rules", 7, 3),
    Part("invariance", "batch-invariant arithmetic: which rows are equal, and its cost", 4, 1),
    Part("learner", "tokens per second, share of the device's peak and memory of the learner", 6, 2),
    Part("memory", "memory that runs out on a card of 24 GiB: planned for, and not", 3, 0.5),
    Part("costs", "what replayable drawing and activation proofs take", 2, 0.5),
    Part("swap", "a policy's image into a running engine", 3, 1),
    Part("vllm", "vLLM itself, and the engine on it", 8, 3),
    Part("smollm", "a small model learns, for real", 4, 1),
    Part("tests", "the tests of all engines, on this device", 3, 0.5),
)
NAMES = tuple(part.name for part in PARTS)

LEASE = (
    ("learner", 180),
    ("engine", 130),
    ("costs", 60),
    ("invariance", 80),
    ("proofs", 110),
    ("smollm", 90),
    ("memory", 90),
)
"""(part, seconds until it is ended), for a card that is lent for a quarter of an hour: the best first, 740 of 900. What
is left over is for its start and for bringing the result home."""


def leased() -> tuple[Part, ...]:
    """The parts of a lease with its deadlines; each begins however little time is left."""
    named = {part.name: part for part in PARTS}
    return tuple(replace(named[name], most=seconds / 60, least=0.0) for name, seconds in LEASE)
