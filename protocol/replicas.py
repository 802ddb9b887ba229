"""Replicas: whose rows, or whose rollouts, a peer learns from.

Each node says its own in its heartbeats; two that chose the same part again.

Pure: what is heard of others comes in. Two honest nodes may differ for a moment, so what follows is hearsay.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from blake3 import blake3

from protocol.identity import Address, address_bytes
from protocol.lots import unpack_groups
from protocol.manifest import ComposedBatch

Accepted = Callable[[bytes], bool]
_REPLICA = "intellect-node replica v1"
_SHARE = "intellect-node share of works v1"


def weight(run: bytes, replica_id: int, node: Address) -> bytes:
    """Of those who want a replica, the lightest has it."""
    return blake3(run + replica_id.to_bytes(4, "little") + address_bytes(node), derive_key_context=_REPLICA).digest()


def choose(run: bytes, own: Address, replicas: int, now: int, taken: Mapping[Address, int]) -> int:
    """The replica of `own`, -1 if none is free. now: its replica by now, or -1; taken: the replicas of the others that
    live.

    A replica is kept unless somebody lighter has it, too. A new one is the free one on which `own` is lightest.
    """
    rivals = [node for node, replica_id in taken.items() if replica_id == now and node != own]
    if 0 <= now < replicas and all(weight(run, now, own) < weight(run, now, node) for node in rivals):
        return now
    free = set(range(replicas)) - {replica_id for node, replica_id in taken.items() if node != own}
    return min(free, key=lambda replica_id: weight(run, replica_id, own), default=-1)


Used = tuple[bytes, int]
"""(work, number of the group in it)."""


def groups_of(batch: ComposedBatch) -> Iterator[Used]:
    """Those that a batch is learnt from."""
    for work in batch.works:
        for group in unpack_groups(work.used, 8 * len(work.used)) or ():
            yield work.name(batch.pool), group


def broken_rule(
    outer: bytes,
    replica_id: int,
    replicas: int,
    batches: Sequence[ComposedBatch],
    used: Container[Used],
    accepted: Accepted,
) -> str:
    """Why a replica may not have learnt from these batches in the round that begins at `outer`, in words; empty if it
    may. used: groups that contributions of rounds before were learnt from; accepted: whether the pool accepts a work.

    That each batch is of this run and round, and how old its works are, `ComposedBatch.check` says.
    """
    taken = set[Used]()
    for number, batch in enumerate(batches):
        for work in batch.works:
            name = work.name(batch.pool)
            if (of := share(outer, name, replicas)) != replica_id:
                return f"batch {number} has work {name.hex()[:16]} of replica {of}"
            if not accepted(name):
                return f"batch {number} has work {name.hex()[:16]}, which was not accepted"
        for one in groups_of(batch):
            if one in taken or one in used:
                return f"batch {number} has group {one[1]} of work {one[0].hex()[:16]}, which was learnt from before"
            taken.add(one)
    return ""


def share(outer: bytes, work: bytes, replicas: int) -> int:
    """The replica that may learn from a work in the round that begins at the state root `outer`.

    The shares are disjoint. No worker can choose the replica of work that it commits to before the round begins: the
    root follows from what all replicas learn in the round before. Another round deals anew what is left over.
    """
    return int.from_bytes(blake3(outer + work, derive_key_context=_SHARE).digest(16)) % replicas
