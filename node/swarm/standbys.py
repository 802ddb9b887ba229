"""Which standbys replayed which steps, as they told it in time, and for which step of a window they are paid.

A standby tells a proof of each state that it came to. Of each audit window a lot draws one policy, which nobody knows
until some policies later: all validators audit that one, and who told the right proof of it is paid for the window. So
a standby's pay grows with the share of the steps that it replayed, and who has roots alone is paid nothing. Pure.
"""

from collections.abc import Mapping

import msgspec
from blake3 import blake3

from node.recent import Recent
from node.swarm.policies import PolicyClock
from node.swarm.terms import Terms
from protocol.audit import last_step_of
from protocol.earnings import standing_units
from protocol.identity import Address
from protocol.manifest import PolicyStatement
from protocol.messages import PolicyAnnounced, Signed, StepReplayed
from protocol.run import RunSpec

TIME = 3
"""Policies after a step until which a proof of it counts. A standby is at most one behind; from then on the state may
be fetched, and the lot be known."""
BEHIND = 4
"""Policies that come while an auditor, which does one audit after the other, fetches what the next one takes."""
_LOT = "intellect-node standing lot v1"


class Drawn(msgspec.Struct, frozen=True):
    """A window's policy that standbys are paid by. epoch: of their pay; told: proofs, by who told them in time."""

    window: int
    epoch: int
    statement: PolicyStatement
    told: Mapping[Address, bytes]


def held_back(run: RunSpec, terms: Terms) -> int:
    """For how many policies a checkpoint is not offered: its bytes would make the proofs that standbys are paid for."""
    return TIME if standing_units(run) and len(terms.trainers) > 1 else 0


def audited_back(run: RunSpec, terms: Terms) -> int:
    """How many policies behind the newest one an audit may be. What standbys are paid by is drawn when its window is
    over, and its lot known."""
    return BEHIND + (run.audit.window - 1 + TIME if held_back(run, terms) else 0)


class StandbyBook:
    """One per validator. policies: whose newest one says what is in time."""

    def __init__(self, run: RunSpec, policies: PolicyClock, terms: Terms) -> None:
        self._audit = run.audit
        self._policies = policies
        self._terms = terms
        self._told: dict[Address, Recent[tuple[int, int], bytes]] = {}
        """Of each trainer, by term and step."""
        self._offered: Recent[int, None] = Recent(4 * TIME)
        self._next = 0
        """The window that is drawn next."""

    def told(self, signed: Signed[StepReplayed]) -> bool:
        """Whether a proof came in time. The first one of a step counts."""
        step = signed.message.step
        if signed.author not in self._terms.trainers or not self._is_in_time(step) or step in self._offered:
            return False
        table = self._told.setdefault(signed.author, Recent(2 * (self._audit.window + TIME)))
        table.setdefault((signed.message.term, step), signed.message.proof)
        return True

    def offered(self, step: int) -> None:
        """Somebody shows a checkpoint: from now on whoever has its bytes could make a proof."""
        if self._is_in_time(step):  # invented ones push out nothing
            self._offered[step] = None

    def _is_in_time(self, step: int) -> bool:
        # The next one's may overtake its announcement; of later ones nobody can have the state.
        newest = self._policies.newest_step
        return newest - TIME < step <= newest + 1

    def draw(self) -> list[Drawn]:
        """The windows that are decided since the last time."""
        found: list[Drawn] = []
        while (at := last_step_of(self._next, self._audit) + TIME) <= self._policies.newest_step:
            beacon = self._policies.of_step(at)
            drawn = self._drawn(self._next, beacon) if beacon is not None else None
            found += [drawn] if drawn is not None and drawn.told else []
            self._next += 1
        return found

    def _drawn(self, window: int, beacon: Signed[PolicyAnnounced]) -> Drawn | None:
        # Policy 0 was not trained: there is nothing to replay.
        steps = range(max(window * self._audit.window, 1), (window + 1) * self._audit.window)
        word = blake3(beacon.message.policy_root + window.to_bytes(8, "little"), derive_key_context=_LOT).digest(8)
        signed = self._policies.of_step(steps[int.from_bytes(word, "little") % len(steps)]) if steps else None
        statement = signed.message.statement if signed is not None else None
        if signed is None or statement is None:
            return None
        place = statement.term, statement.step
        told = {who: table[place] for who, table in self._told.items() if place in table and who != signed.author}
        return Drawn(window, beacon.message.epoch, statement, told)
