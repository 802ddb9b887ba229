"""What a server says behind an answer, whatever protocol it speaks."""

from dataclasses import dataclass
from typing import Any, Protocol

from node.environments.errors import Undecided


@dataclass(frozen=True, slots=True)
class Heard:
    """shown: what the model is told; done: whether the rollout is over; reward: so far, None for none yet."""

    shown: str
    done: bool
    reward: float | None


FAILED = Heard("", True, None)
"""What was said made the server fail: the rollout is over and worth nothing."""


class Episode(Protocol):
    """One rollout at a server. All raise Undecided where it does not answer, or not in form, or not in time."""

    def begin(self, reset: dict[str, Any]) -> None: ...
    def say(self, answer: str) -> Heard: ...
    def close(self) -> None: ...


def silent(why: str) -> Undecided:
    return Undecided("a server does not answer as it should", why[:200], "see whether it is up and reached from here")
