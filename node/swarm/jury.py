"""The jury: a pool's validators as every member sees them. Counts their verdicts, watches their lots, hears disputes.

A service over the board. Whoever needs a decision about a file asks `ballots`; whoever wants to know when to ask
again watches. Raises disputes that it is the first to see (validators and the trainer only: others may not).
"""

from collections import OrderedDict
from collections.abc import Callable

import msgspec
import structlog
import trio

from node.state.journal import Journal
from node.swarm.ballots import Ballots, Dispute, Quarantined
from node.swarm.board import Board
from node.swarm.lotbook import BrokenPromise, LotBook
from node.swarm.membership import Membership
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.messages import (
    DisputeRaised,
    Heartbeat,
    LotsRevealed,
    PolicyAnnounced,
    RolloutCommitted,
    Signed,
    VerdictIssued,
)
from protocol.run import RunSpec

log = structlog.get_logger()
WATCHED = 1024
QUARANTINE = "quarantined_validators"
REMEMBERED = 4096


class Jury:
    """One per node. journal: remembers who is not believed, with the evidence, over a restart."""

    def __init__(
        self, board: Board, membership: Membership, run: RunSpec, pool: int, quorum: int, journal: Journal
    ) -> None:
        self._board = board
        self._journal = journal
        self._judged = trio.Event()
        self._membership = membership
        self._pool = pool
        own = membership.own
        self._may_raise = membership.is_trainer(own) or membership.may_validate(own)
        self.ballots = Ballots(run, quorum, self.validators, trio.current_time)
        self.lots = LotBook(run, pool)
        self.ballots.on_quarantine = self._tell
        self._watchers: list[trio.MemorySendChannel[bytes]] = []
        self._raised: OrderedDict[bytes, None] = OrderedDict()

    def validators(self) -> list[Address]:
        """The validators that are alive at this moment."""
        live = self._membership.table.live(trio.current_time())
        return [address for address in live if self._membership.is_validator(address)]

    def watch(self) -> trio.MemoryReceiveChannel[bytes]:
        """Roots of files about which something was said. A slow reader loses some: ask about old ones by the clock."""
        send, receive = trio.open_memory_channel[bytes](WATCHED)
        self._watchers.append(send)
        return receive

    async def run(self) -> None:
        """Listen until cancelled."""
        kept = await self._journal.do(self._journal.recall, QUARANTINE)
        if kept is not None:
            self.ballots.restore(msgspec.msgpack.decode(kept, type=list[Quarantined]))
            for one in self.ballots.quarantined.values():
                self._board.pin(one.evidence)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, self._board.subscribe(PolicyAnnounced), self._on_policy)
            nursery.start_soon(self._follow, self._board.subscribe(RolloutCommitted), self._on_commitment)
            nursery.start_soon(self._follow, self._board.subscribe(Heartbeat), self._on_beat)
            nursery.start_soon(self._follow, self._board.subscribe(LotsRevealed), self._on_reveal)
            nursery.start_soon(self._follow, self._board.subscribe(DisputeRaised), self._on_dispute)
            nursery.start_soon(self._follow_verdicts)
            nursery.start_soon(self._remember)

    async def _remember(self) -> None:
        """Keep the evidence against validators."""
        while True:
            await self._judged.wait()
            self._judged = trio.Event()
            kept = msgspec.msgpack.encode(list(self.ballots.quarantined.values()))
            await self._journal.do(self._journal.remember, QUARANTINE, kept)

    async def _follow(self, messages: trio.MemoryReceiveChannel[Signed], act: Callable[[Signed], None]) -> None:
        async for signed in messages:
            act(signed)

    async def _follow_verdicts(self) -> None:
        async for signed in self._board.subscribe(VerdictIssued):
            message = signed.message
            assert isinstance(message, VerdictIssued)  # noqa: S101 - the subscription's type
            disputes = self.ballots.add(signed)
            self._punish(self.lots.verdict(signed))
            self._notify(message.verdict.file_root)
            for dispute in disputes[:1]:
                await self._raise(dispute)

    async def _raise(self, dispute: Dispute) -> None:
        log.warning("validators.disagree", root=dispute.root.hex()[:16], what=dispute.finding.what)
        if not self._may_raise or not self._first_of(dispute.root):
            return
        message = DisputeRaised(pool=self._pool, first=dispute.first.raw, second=dispute.second.raw)
        try:
            await self._board.post(message)
        except ProtocolError as error:  # two verdicts on a file of very many groups do not fit one message
            log.warning("dispute.not_raised", root=dispute.root.hex()[:16], why=error.why)

    def _first_of(self, root: bytes) -> bool:
        if root in self._raised:
            return False
        self._raised[root] = None
        while len(self._raised) > REMEMBERED:
            self._raised.popitem(last=False)
        return True

    def _on_policy(self, signed: Signed) -> None:
        message = signed.message
        assert isinstance(message, PolicyAnnounced)  # noqa: S101 - the subscription's type
        self.lots.policy(message.policy_root, message.step)

    def _on_commitment(self, signed: Signed) -> None:
        message = signed.message
        assert isinstance(message, RolloutCommitted)  # noqa: S101 - the subscription's type
        commitment = message.commitment
        self.lots.committed(commitment.node, commitment.policy_root, commitment.file_root)

    def _on_beat(self, signed: Signed) -> None:
        if self._membership.is_validator(signed.author):
            self._punish(self.lots.beat(signed))

    def _on_reveal(self, signed: Signed) -> None:
        self._punish(self.lots.reveal(signed))

    def _on_dispute(self, signed: Signed) -> None:
        message = signed.message
        assert isinstance(message, DisputeRaised)  # noqa: S101 - the subscription's type
        try:
            pair = (self._board.opened(message.first), self._board.opened(message.second))
        except ProtocolError as error:  # the board checked it; a validator may have left since
            log.debug("dispute.refused", why=error.why)
            return
        if self.ballots.heed(pair):
            root = pair[0].message.verdict.file_root  # type: ignore[union-attr]
            self._first_of(root)
            self._notify(root)

    def _punish(self, broken: BrokenPromise | None) -> None:
        if broken is not None:
            self.ballots.quarantine(broken.validator, broken.why, broken.evidence)

    def _tell(self, one: Quarantined) -> None:
        """Somebody is not believed any more: remember it, and keep what shows it where newcomers find it."""
        log.warning("validator.quarantined", validator=one.validator, why=one.why)
        self._board.pin(one.evidence)
        self._judged.set()

    def _notify(self, root: bytes) -> None:
        for channel in self._watchers:
            try:
                channel.send_nowait(root)
            except trio.WouldBlock:
                log.debug("jury.watcher_slow", root=root.hex()[:16])
