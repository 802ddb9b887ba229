"""What counts for pay, as everybody hears it: accepted files, verdicts that the pool decided likewise, policies.

A file counts for its worker once the quorum has accepted it; a verdict for its validator once the pool has decided as
it says; a policy for the trainer once as many groups were accepted as its step needs. Who hears the same comes to the
same leaves, so validators can audit each other and the trainer. What this node did of that goes into its journal, from
where `Paying` puts it on chain.
"""

from collections import deque
from collections.abc import Callable

import structlog
import trio

from node.recent import Recent
from node.services.station import Station
from node.swarm.ballots import FileState
from node.swarm.register import BACKLOG_SECONDS, Work, WorkId
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.lots import unpack_groups
from protocol.messages import PolicyAnnounced, Signed, VerdictIssued
from protocol.statements import Outcome, work_id
from protocol.work import Leaf, commitment_of, judgement_leaf, policy_leaf

log = structlog.get_logger()
POLL = 2.0
WAITING = 512
"""Files of one worker, verdicts of one validator, policies of the trainer that wait to be decided."""
BURST = 8.0
"""Policies that may come at once beside those of the run's staleness: groups of theirs were accepted long before."""

Counted = Callable[[Address, WorkId, int], None]
"""Told (node, work id of its leaf, units)."""


class Duties:
    """One per node that has a part in paying; run until cancelled."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._own = station.key.address
        self._journal = station.journal
        self._run = station.run.spec
        self._files: dict[Address, Recent[WorkId, Work]] = {}
        self._verdicts: dict[Address, Recent[WorkId, tuple[bool, Leaf]]] = {}
        self._policies: deque[Leaf] = deque(maxlen=WAITING)
        self._most_steps = self._run.recipe.max_staleness + BURST
        self._steps = self._most_steps
        self._opened = self._station.clock.monotonic()  # nobody here knows what was accepted before
        self._listeners: list[Counted] = []
        station.jury.register.follow(self._wait_for)

    def follow(self, listener: Counted) -> None:
        self._listeners.append(listener)

    async def run(self) -> None:
        await self._recall()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear_verdicts)
            nursery.start_soon(self._hear_policies)
            while True:
                await self.decide()
                await trio.sleep(POLL)

    async def decide(self) -> None:
        """Tell of everything that has come to count since the last time."""
        for waiting in list(self._files.values()):
            await trio.lowlevel.checkpoint()
            self._decide_files(waiting)
        for validator, verdicts in list(self._verdicts.items()):
            await trio.lowlevel.checkpoint()
            for leaf in self._decided_as_said(validator, verdicts):
                await self._count(validator, leaf)
        for leaf in self._trained():
            await self._count(self._station.membership.trainer, leaf)

    # what is heard

    def _wait_for(self, work: Work) -> None:
        self._files.setdefault(work.node, Recent(WAITING))[work.id] = work

    async def _recall(self) -> None:
        """Own verdicts of before a restart that the pool may not have decided then."""
        for raw in await self._journal.do(self._journal.last_said, "verdict", WAITING):
            try:
                self._note(self._station.board.opened(raw, VerdictIssued))
            except ProtocolError as error:
                log.warning("verdict.unreadable", why=error.why)

    async def _hear_verdicts(self) -> None:
        async for signed in self._station.board.subscribe(VerdictIssued):
            if not signed.message.recheck and self._station.membership.is_validator(signed.author):
                self._note(signed)

    def _note(self, signed: Signed[VerdictIssued]) -> None:
        message = signed.message
        groups = len(message.rewards) // 4 or self._run.rollout.prompts_per_file
        leaf = judgement_leaf(self._run, message.verdict, len(unpack_groups(message.checked, groups) or ()), groups)
        if leaf.units:
            accepts = message.verdict.outcome == Outcome.ACCEPT
            self._verdicts.setdefault(signed.author, Recent(WAITING))[work_id(message.verdict)] = (accepts, leaf)

    async def _hear_policies(self) -> None:
        """All but the first, which is what the run began with."""
        async for signed in self._station.board.subscribe(PolicyAnnounced):
            leaf = policy_leaf(self._run, signed.message.step, signed.message.policy_root)
            if leaf.units and signed.message.step > 0:
                self._policies.append(leaf)

    # what counts

    def _decide_files(self, waiting: Recent[WorkId, Work]) -> None:
        jury = self._station.jury
        for id, work in list(waiting.items()):
            if jury.ballots.state(id) is FileState.ACCEPTED:
                del waiting[id]
                rollout = self._run.rollout
                if work.task is None:
                    self._steps = min(
                        self._steps + rollout.prompts_per_file / rollout.prompts_per_step, self._most_steps
                    )
                self._tell(work.node, id, work.commitment.units)
            elif jury.register.get(id) is None:
                del waiting[id]

    def _decided_as_said(self, validator: Address, verdicts: Recent[WorkId, tuple[bool, Leaf]]) -> list[Leaf]:
        ballots, found = self._station.jury.ballots, list[Leaf]()
        if validator in ballots.quarantined:
            verdicts.clear()
        for id, (accepts, leaf) in list(verdicts.items()):
            state = ballots.state(id)
            if state in (FileState.ACCEPTED, FileState.REJECTED):
                del verdicts[id]
                if (state is FileState.ACCEPTED) == accepts:
                    found.append(leaf)
        return found

    def _trained(self) -> list[Leaf]:
        """Policies that the clock knows and that enough was accepted for; none of a trainer that contradicts itself."""
        clock, found = self._station.jury.policies, list[Leaf]()
        if clock.fork is not None:
            self._policies.clear()
        while self._policies and clock.find(self._policies[0].policy_root) is not None:
            if self._steps < 1.0 and self._station.clock.monotonic() >= self._opened + BACKLOG_SECONDS:
                break
            self._steps = max(self._steps - 1.0, 0.0)
            found.append(self._policies.popleft())
        return found

    async def _count(self, node: Address, leaf: Leaf) -> None:
        if node == self._own:
            await self._journal.do(
                self._journal.earn, leaf, self._station.clock.wall(), self._station.run.root, self._step(leaf)
            )
        self._tell(node, work_id(commitment_of(self._station.pool, node, leaf)), leaf.units)

    def _step(self, leaf: Leaf) -> int | None:
        """Of the policy that a leaf is about, where this node knows it."""
        known = self._station.jury.policies.find(leaf.policy_root)
        return known.step if known else None

    def _tell(self, node: Address, id: WorkId, units: int) -> None:
        for listener in self._listeners:
            listener(node, id, units)
