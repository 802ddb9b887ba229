"""Who offers the state of which followed policy. All offers stay: the bytes say which are true, not who came last."""

from node.bounded_dict import BoundedDict
from node.swarm.counts import CHECKPOINTS
from protocol.identity import Address
from protocol.messages import CheckpointOffered, Signed


class OfferedCheckpoints:
    """One per node."""

    def __init__(self) -> None:
        self._offered: BoundedDict[tuple[int, int], dict[Address, Signed[CheckpointOffered]]] = BoundedDict(CHECKPOINTS)
        """By term and step; of each author one, the first."""
        self._gone: BoundedDict[tuple[int, int], dict[Address, Signed[CheckpointOffered]]] = BoundedDict(CHECKPOINTS)
        """Of policies that were taken back."""

    def offered(self, signed: Signed[CheckpointOffered]) -> bool:
        """Whether it is news. What is offered is of a followed policy (`counts.py`)."""
        of = self._offered.setdefault((signed.message.term, signed.message.step), {})
        return of.setdefault(signed.author, signed) is signed

    def forget(self, term: int, step: int) -> None:
        """That policy is none any more."""
        if offers := self._offered.pop((term, step), None):
            self._gone[term, step] = offers

    def again(self, term: int, step: int) -> None:
        """It is one again."""
        if offers := self._gone.pop((term, step), None):
            self._offered[term, step] = offers

    def of(self, first: Address) -> dict[int, list[Signed[CheckpointOffered]]]:
        """By step: the offers, that of `first` before others'."""
        found: dict[int, list[Signed[CheckpointOffered]]] = {}
        for (_, step), offers in self._offered.items():
            found.setdefault(step, []).extend(offers.values())
        return {step: sorted(offers, key=lambda one: one.author != first) for step, offers in found.items()}
