"""Who of several validators goes to the chain first, so that they do not all pay for the same transaction.

The order follows from the case, so nobody is first by right; whoever is first and does nothing delays by one turn.
"""

from blake3 import blake3

from node.services.context import Context
from node.swarm.register import WorkId


def seconds_to_wait(context: Context, work: WorkId) -> float:
    """How long this node lets others act on a work before it does so itself; 0 where it is alone."""
    own = context.key.address
    others = [one for one in context.state.vote_set.active_validators() if one != own]
    turn = 10.0  # seconds that each one before this node is given
    if own in context.state.disputes.quarantined:  # the others do not count on it
        return turn * len(others)
    return turn * sum(place(work, one) < place(work, own) for one in others)


def place(work: WorkId, address: str) -> bytes:
    """Who comes first has the smallest: 32 bytes that follow from the case and the validator."""
    return blake3(work + address.lower().encode()).digest()
