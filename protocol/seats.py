"""Seats: whose rows, or whose rollouts, a peer learns from.

Each node says its own in its heartbeats; two that chose the same part again.

Pure: what is heard of others comes in. Two honest nodes may differ for a moment, so what follows is hearsay.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from blake3 import blake3

from protocol.identity import Address, address_bytes
from protocol.lots import unpack_groups
from protocol.manifest import ComposedBatch

Accepted = Callable[[bytes], bool]
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


Used = tuple[bytes, int]
"""(work, number of the group in it)."""


def groups_of(batch: ComposedBatch) -> Iterator[Used]:
    """Those that a batch is learnt from."""
    for work in batch.works:
        for group in unpack_groups(work.used, 8 * len(work.used)) or ():
            yield work.name(batch.pool), group


def broken_rule(
    outer: bytes, seat: int, seats: int, batches: Sequence[ComposedBatch], used: Container[Used], accepted: Accepted
) -> str:
    """Why a seat may not have learnt from these batches in the round that begins at `outer`, in words; empty if it
    may. used: groups that contributions of rounds before were learnt from; accepted: whether the pool accepts a work.

    That each batch is of this run and round, and how old its works are, `ComposedBatch.check` says.
    """
    taken = set[Used]()
    for number, batch in enumerate(batches):
        for work in batch.works:
            name = work.name(batch.pool)
            if (of := share(outer, name, seats)) != seat:
                return f"batch {number} has work {name.hex()[:16]} of seat {of}"
            if not accepted(name):
                return f"batch {number} has work {name.hex()[:16]}, which was not accepted"
        for one in groups_of(batch):
            if one in taken or one in used:
                return f"batch {number} has group {one[1]} of work {one[0].hex()[:16]}, which was learnt from before"
            taken.add(one)
    return ""


def share(outer: bytes, work: bytes, seats: int) -> int:
    """The seat that may learn from a work in the round that begins at the state root `outer`.

    The shares are disjoint. No worker can choose the seat of work that it commits to before the round begins: the root
    follows from what all seats learn in the round before. Another round deals anew what is left over.
    """
    return int.from_bytes(blake3(outer + work, derive_key_context=_SHARE).digest(16)) % seats
