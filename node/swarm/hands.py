"""In whose hands nodes are: a node has one provider for life, who answers for it and is paid for it.

Nobody judges its own doing, nor that of another node of its provider.
"""

from collections.abc import Callable, Collection

from node.bounded_dict import BoundedDict
from protocol.identity import Address
from protocol.liveness import MAX_MEMBERS

PROVIDERS = 2 * MAX_MEMBERS
"""Nodes whose provider is known, those that joined last."""


class Hands:
    """bench: the validators in office, and how many of them must agree."""

    def __init__(self, bench: Callable[[], tuple[Collection[Address], int]]) -> None:
        self._bench = bench
        self._providers: BoundedDict[Address, Address] = BoundedDict(PROVIDERS, refresh=True)

    def joined(self, node: Address, provider: Address) -> None:
        """The chain tells who answers for a node, in the pool by now or long gone."""
        self._providers[node] = provider

    def is_party(self, validator: Address, to: Address) -> bool:
        """Whether a validator may not judge what somebody does: both are in one hand, and the others in office are
        enough to decide. Of a pool in one hand there is nobody else."""
        validators, quorum = self._bench()
        return self._are_one(validator, to) and sum(not self._are_one(one, to) for one in validators) >= quorum

    def _are_one(self, one: Address, other: Address) -> bool:
        provider = self._providers.get(one)
        return one == other or (provider is not None and provider == self._providers.get(other))
