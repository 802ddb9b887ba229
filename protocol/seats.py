"""Seats: whose rows, or whose rollouts, a peer learns from.

Each node says its own in its heartbeats; two that chose the same part again.

Pure: what is heard of others comes in. Two honest nodes may differ for a moment, so what follows is hearsay.
"""

from collections.abc import Mapping

from blake3 import blake3

from protocol.identity import Address, address_bytes

_SEAT = "intellect-node seat v1"
_SHARE = "intellect-node share of works v1"


def weight(run: bytes, seat: int, node: Address) -> bytes:
    """Of those who want a seat, the lightest has it."""
    return blake3(run + seat.to_bytes(4, "little") + address_bytes(node), derive_key_context=_SEAT).digest()


def choose(run: bytes, own: Address, seats: int, now: int, taken: Mapping[Address, int]) -> int:
    """The seat of `own`, -1 if none is free. now: its seat by now, or -1; taken: the seats of the others that live.

    A seat is kept unless somebody lighter has it, too. A new one is the free one on which `own` is lightest.
    """
    rivals = [node for node, seat in taken.items() if seat == now and node != own]
    if 0 <= now < seats and all(weight(run, now, own) < weight(run, now, node) for node in rivals):
        return now
    free = set(range(seats)) - {seat for node, seat in taken.items() if node != own}
    return min(free, key=lambda seat: weight(run, seat, own), default=-1)


def share(outer: bytes, work: bytes, seats: int) -> int:
    """The seat that may learn from a work in the round that begins at the state root `outer`.

    The shares are disjoint. No worker can choose the seat of work that it commits to before the round begins: the root
    follows from what all seats learn in the round before. Another round deals anew what is left over.
    """
    return int.from_bytes(blake3(outer + work, derive_key_context=_SHARE).digest(16)) % seats
