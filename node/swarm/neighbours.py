"""Whom a node stays connected with, of all members: few enough that a large swarm costs no more than a small one.

Pure. Everybody else can still be asked, and is dialled then; and gossip crosses a graph like this in a few hops.
"""

from collections.abc import Iterable
from functools import lru_cache

from blake3 import blake3

from protocol.identity import Address

MOST = 24
VALIDATORS = 8
"""Of those, at most, besides the ones that chance picks."""


def choose(own: Address, trainer: Address, validators: Iterable[Address], members: Iterable[Address]) -> set[Address]:
    """At most MOST members: the trainer, some validators, and others by a draw that stays the same for each node, so
    that who joins or leaves moves one place and not all."""
    there = set(members) - {own}
    if len(there) <= MOST:
        return there
    chosen = [trainer] if trainer in there else []
    for group, most in (((each for each in validators if each in there), VALIDATORS), (there, MOST)):
        drawn = sorted(set(group) - set(chosen), key=lambda member: _rank(own, member))
        chosen += drawn[: min(most, MOST - len(chosen))]
    return set(chosen)


@lru_cache(maxsize=4096)
def _rank(own: Address, member: Address) -> bytes:
    return blake3(f"{own}{member}".encode()).digest()
