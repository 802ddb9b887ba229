"""Signed words for tests."""

from collections.abc import Callable
from typing import Any

import trio

from contracts.bindings import Slashed
from node.swarm.facts import Equivocation, Facts, LeaderDisbelieved
from node.swarm.policies import PolicyIndex
from node.swarm.terms import LeaderTerms
from protocol.identity import Address, NodeKey
from protocol.manifest import PolicyStatement
from protocol.messages import PolicyAnnounced, Signed
from protocol.statements import Domain, sign


def stating(statement: PolicyStatement, key: NodeKey | None = None, domain: Domain | None = None, **fields: Any):
    """An announcement with this statement; unsigned, as only a board would mind, where no key is given."""
    signature = sign(key, domain, statement.commitment(key.address)) if key and domain else bytes(65)
    said = {"manifest_root": bytes(32), "manifest_size": 1} | fields
    return PolicyAnnounced(pool=statement.pool, statement=statement, signature=signature, **said)


def announced(
    step: int,
    root: bytes,
    key: NodeKey | None = None,
    domain: Domain | None = None,
    *,
    pool: int = 1,
    term: int = 0,
    epoch: int = 0,
    parent: bytes = bytes(32),
    batch: bytes = bytes(32),
    state: bytes = bytes(32),
    **fields: Any,
) -> PolicyAnnounced:
    """The policy `root` of a step."""
    return stating(PolicyStatement(pool, term, step, epoch, parent, root, batch, state), key, domain, **fields)


def slash_of(node: Address, transaction: str = "0x") -> Slashed:
    """What the chain tells of a node that lost its stake."""
    told: dict[str, Any] = {"block": 7, "transaction": transaction, "log_index": 0, "pool": 1}
    return Slashed(**told, node=node, provider=node, reason=5, amount=10, file_root=bytes(32), case_id=0)


def policies(trainer: Address, clock: Callable[[], float] = lambda: 0.0) -> PolicyIndex:
    """A clock of which one trainer leads for good, and everything it announces is reached by a quorum."""
    return PolicyIndex(clock, LeaderTerms(trainer, clock), lambda _: 2**62)


class Ear:
    """Hears a trainer's announcements, and tells which policies are followed."""

    def __init__(self, trainer: Address, clock: Callable[[], float] = trio.current_time) -> None:
        self.facts, self.policies = Facts(clock), policies(trainer, clock)

    def hear(self, signed: Signed[Any]) -> None:
        found = self.policies.announce(signed)
        if isinstance(found, Equivocation):
            self.facts.tell([LeaderDisbelieved(signed.author, signed.message.term, found)])
        elif found is not None:
            self.facts.tell([found])
