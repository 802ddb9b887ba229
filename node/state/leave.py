"""A node's request to leave its pool, as its journal keeps it."""

from node.state.journal import Journal
from protocol.statements import Domain

LEAVING = "leaving"
"""The fact that this node leaves once it is paid: the label of the pool that it leaves, or nothing."""


def label_of(domain: Domain, pool: int) -> bytes:
    """Chain, contract and number: what a journal calls its pool."""
    return f"{domain.chain_id}:{domain.contract}:{pool}".encode()


def leaves(journal: Journal, label: str) -> bool:
    """Whether it is this pool that the node leaves."""
    return journal.recall(LEAVING) == label.encode()
