"""Whether a node still hears those it works for: the trainer, or one validator at least.

A connection is no voice: a dead line stays open for half a minute and more. What counts is what they signed and what
came here. The rule is pure, its clock an argument (seconds, monotonic).
"""

from collections.abc import Iterable

import msgspec

from node.swarm.board import Board
from node.swarm.membership import Membership
from protocol.liveness import MISSED_UNHEALTHY

SHORTEST_SILENCE = 5.0


class Voice(msgspec.Struct, frozen=True):
    """Somebody who uses work. heard: when it was heard last; interval: seconds between its heartbeats, as it says."""

    heard: float
    interval: float


def is_cut_off(voices: Iterable[Voice], now: float) -> bool:
    """Whether all of them have been silent for three of their own intervals; true where nobody was ever heard."""
    return all(now - voice.heard > max(SHORTEST_SILENCE, MISSED_UNHEALTHY * voice.interval) for voice in voices)


def voices(board: Board, membership: Membership) -> list[Voice]:
    """The trainer and the validators, as this node has heard them."""
    found: list[Voice] = []
    for author in membership.who_uses_work():
        heard, member = board.heard.get(author), membership.table.get(author)
        if heard is not None and member is not None and author != membership.own:
            found.append(Voice(heard, member.beat.interval if member.beat else 0.0))
    return found
