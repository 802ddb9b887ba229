"""Audits what nodes put on chain for whole epochs: is it work that the pool accepted, and no more units than that?

Follows every commitment of the pool (the ledger), reads the leaves that its node shows, and compares them with what
this validator knows. What is false it signs as an EpochVerdict, says it on the board, collects the equal verdicts of
the others and carries them to the chain, in turns, before the epoch is mature. The honest are waited for: half of the
time for works that nobody here has heard of, three quarters for votes and for leaves. About a time in which this node
was away it says nothing.
"""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import msgspec
import structlog
import trio

from contracts.bindings import PoolInfo, WorkInfo
from node.chain.errors import Reverted
from node.chain.keeper import CaseKeeper
from node.chain.ledger import Entry, Ledger
from node.recent import Recent
from node.services.base import Service
from node.services.court.turns import seconds_to_wait
from node.services.court.witness import Clock, Witness
from node.services.duties import Duties
from node.services.leaves import Leaves, ShownEpoch
from node.services.station import Station
from node.services.workplace import Workplace
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import EpochJudged
from protocol.statements import EpochVerdict, Outcome, sign, struct_hash
from protocol.work import EpochFault

log = structlog.get_logger()
PAUSES = (1.0, 15.0)
"""Seconds between two looks: a fortieth of the window, within these."""
CHECKS, LONGEST = 40, 120.0
"""One commitment's leaves are compared so often in a window, at least once in so many seconds."""
POOL_EVERY = 60.0
PATIENCE, DEADLINE = 0.5, 0.75
"""Of the time from commitment to maturity: for works that nobody heard of; for votes, and for leaves."""
AGE_IN_EPOCHS = 3
"""Beside a window: how old work may be when it is committed. Workers leave out what is older than one."""
REPEAT_EVERY = 60.0
VOTES = 256
"""Verdicts that are kept of one validator."""
JUDGED = 4096
TRIES = 10
RETRY_PAUSE = 5.0
FORGET_EVERY = 3600.0
CHUNK = 256
DONE = ("AlreadyJudged", "AlreadyMature", "NothingCommitted", "WorkIsVoided", "NodeEvicted", "NotMember")
"""What the contract answers when there is nothing (left) to take."""


class Books(Clock, Protocol):
    """The part of node.chain that an audit asks."""

    async def pool(self, pool: int) -> PoolInfo: ...
    async def work(self, pool: int, node: Address, epoch: int) -> WorkInfo: ...


class EpochCourt(Protocol):
    """The part of node.chain that executes a quorum's verdict over an epoch."""

    async def invalidate_epoch(
        self, pool: int, node: Address, epoch: int, outcome: int, reason: int, verdicts: Sequence[bytes]
    ) -> object: ...


class _Case(msgspec.Struct):
    """One commitment under audit. committed_at: its block's time; own: what this node signed, by reason; due: when it
    is this node's turn to carry, by reason; tried, next_try: at carrying; next_check: of its leaves."""

    entry: Entry
    committed_at: int
    own: dict[int, EpochJudged] = {}
    due: dict[int, float] = {}
    tried: int = 0
    next_try: float = 0.0
    next_check: float = 0.0
    done: bool = False


class Auditing(Service):
    """Runs beside a validator's judging, whose leaves it reads."""

    name = "auditing"

    def __init__(
        self, station: Station, books: Books, court: EpochCourt, ledger: Ledger, leaves: Leaves, duties: Duties
    ) -> None:
        self._station = station
        self._journal = station.journal
        self._books = books
        self._court = court
        self._ledger = ledger
        self._leaves = leaves
        self._witness = Witness(station, books, duties)
        self._pool: PoolInfo | None = None
        self._pool_at = 0.0
        self._repeated_at = self._forgot_at = self._station.clock.monotonic()
        self._cases: Recent[tuple[Address, int, bytes], _Case] = Recent(JUDGED)
        self._votes: dict[Address, Recent[EpochVerdict, bytes]] = {}
        self.refused = 0
        self.carried = 0

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        court = CaseKeeper(place.chain, place.directory / "cases")
        return cls(place.station, place.chain, court, place.ledger, place.leaves, place.duties)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._collect)
            nursery.start_soon(self._witness.run)
            while True:
                pause = PAUSES[0]
                try:
                    pool = await self._known_pool()
                    pause = min(max(pool.window / 40, PAUSES[0]), PAUSES[1])
                    await self.look(pool)
                except IntellectError as error:
                    log.info("audit.interrupted", why=error.why)
                await trio.sleep(pause)

    def status(self) -> dict[str, Any]:
        cases = [case for case in self._cases.values() if not case.done]
        return {"audit": {"epochs": {"open": len(cases), "refused": self.refused, "carried": self.carried}}}

    async def look(self, pool: PoolInfo) -> None:
        """One look at every commitment that can still be objected to."""
        now = (await self._witness.look()).timestamp
        first = pool.epoch_at(max(now - pool.window, 0))
        for entry in self._ledger.since(first):
            if entry.node == self._station.key.address:
                continue  # others' business
            key = (entry.node, entry.epoch, entry.root)
            if now >= pool.maturity(entry.epoch) or not entry.units or self._station.membership.is_evicted(entry.node):
                self._cases.pop(key, None)
                continue
            case = self._cases.get(key)
            if case is None:
                case = self._cases[key] = _Case(entry, (await self._books.block(entry.block)).timestamp)
            if case.done:
                continue
            if self._station.clock.monotonic() >= case.next_check:
                case.next_check = self._station.clock.monotonic() + min(max(pool.window / CHECKS, PAUSES[0]), LONGEST)
                for fault, why in await self._faults(case, pool, now):
                    await self._sign(case, fault, why)
            await self._carry(case)
        await self._repeat()
        await self._forget(pool, now)

    async def _known_pool(self) -> PoolInfo:
        if self._pool is None or self._station.clock.monotonic() - self._pool_at > POOL_EVERY:
            self._pool = await self._books.pool(self._station.pool)
            self._pool_at = self._station.clock.monotonic()
        return self._pool

    # finding

    async def _faults(self, case: _Case, pool: PoolInfo, now: int) -> list[tuple[EpochFault, str]]:
        """What is false about a commitment, as far as that can be said at this moment and was not said before."""
        entry = case.entry
        span = pool.maturity(entry.epoch) - case.committed_at
        patient = now < case.committed_at + PATIENCE * span
        late = now >= case.committed_at + DEADLINE * span
        seen_all = self._witness.has_seen(
            self._ledger.joined_at(entry.node), case.committed_at - pool.window - AGE_IN_EPOCHS * pool.epoch_seconds
        )
        shown = self._leaves.of(entry.node, entry.epoch, entry.root)
        if shown is not None:
            found = await self._faults_in(case, shown, patient, late, seen_all)
        else:
            found = await self._faults_without(case, patient, late, seen_all, span)
        return [(fault, why) for fault, why in found if fault not in case.own]

    async def _faults_in(
        self, case: _Case, shown: ShownEpoch, patient: bool, late: bool, seen_all: bool
    ) -> list[tuple[EpochFault, str]]:
        entry, found, unheard = case.entry, list[tuple[EpochFault, str]](), list[tuple[EpochFault, str]]()
        given = (entry.node, entry.epoch, entry.root, list(shown.works), self._witness.now)
        missing = await self._journal.do(self._journal.note_shown, *given)
        if entry.claimed > shown.units:
            found.append((EpochFault.UNITS, f"{entry.claimed} units, and leaves for {shown.units}"))
        twice = await self._stands_twice(entry)
        if twice is not None:
            found.append((EpochFault.TWICE, f"a work of it stands in epoch {twice}, too"))
        if patient or EpochFault.INVENTED in case.own or not missing:
            return found
        for number, id in enumerate(missing):
            if number % CHUNK == 0:
                await trio.lowlevel.checkpoint()
            leaf = shown.leaves[shown.index[id]]
            if not seen_all and not self._witness.knows_all_of(leaf.policy_root):
                continue
            fault = await self._witness.fault_of(entry.node, leaf, id, late=late)
            if fault is EpochFault.INVENTED:
                what = f"leaf {shown.index[id]} of {len(shown.works)} was accepted by nobody"
                return [*found, (fault, what)]
            if fault and not unheard:
                unheard = [(fault, f"of leaf {shown.index[id]} of {len(shown.works)} nobody heard")]
        return found + unheard

    async def _faults_without(
        self, case: _Case, patient: bool, late: bool, seen_all: bool, span: int
    ) -> list[tuple[EpochFault, str]]:
        """No leaves: more units than a node can have work for are false whatever they are; else its pay is lost, if
        this node has asked for a good part of the time."""
        entry, found = case.entry, list[tuple[EpochFault, str]]()
        if seen_all and not patient:
            most = await self._witness.units_of(entry.node)
            if entry.claimed > most:
                found.append((EpochFault.INVENTED, f"{entry.claimed} units, and work for at most {most} is known"))
        if late and self._witness.has_seen(entry.block, case.committed_at + int(PATIENCE * span)):
            had = await self._journal.do(self._journal.was_shown, entry.node, entry.epoch, entry.root)
            if not had:
                found.append((EpochFault.UNDELIVERED, "its leaves were not to be had"))
        return found

    async def _stands_twice(self, entry: Entry) -> int | None:
        """An earlier commitment in which a work of this one stands, too, and is or will be paid; None without one."""
        for epoch, root in await self._journal.do(self._journal.claims_elsewhere, entry.epoch, entry.root):
            other = self._ledger.entry(entry.node, epoch)
            paid = other is not None and (other.paid is not None or other.reserved > 0)
            if other is not None and paid and other.root == root and (other.block, epoch) < (entry.block, entry.epoch):
                return epoch
        return None

    # saying

    async def _sign(self, case: _Case, fault: EpochFault, why: str) -> None:
        entry = case.entry
        verdict = EpochVerdict(
            self._station.pool, entry.node, entry.epoch, entry.root[:20], int(fault.outcome), int(fault)
        )
        signature = sign(self._station.key, self._station.domain, verdict)
        message = EpochJudged(pool=self._station.pool, verdict=verdict, signature=signature, detail=why)
        case.own[fault] = message
        self.refused += 1
        log.warning("epoch.refused", node=entry.node, epoch=entry.epoch, reason=fault.name.lower(), why=why)
        await self._station.board.post(message)

    async def _repeat(self) -> None:
        """Say again what is not executed yet: whoever has started since has not heard it."""
        if self._station.clock.monotonic() - self._repeated_at < REPEAT_EVERY:
            return
        self._repeated_at = self._station.clock.monotonic()
        for case in list(self._cases.values()):
            for message in case.own.values() if not case.done else ():
                await self._station.board.post(message)

    async def _collect(self) -> None:
        async for signed in self._station.board.subscribe(EpochJudged):
            votes = self._votes.setdefault(signed.author, Recent(VOTES))
            votes[signed.message.verdict] = signed.message.signature

    # carrying

    async def _carry(self, case: _Case) -> None:
        """Execute what a quorum says, when it is this node's turn; what costs the stake first."""
        entry = case.entry
        for reason, message in sorted(case.own.items()):
            signatures = self._signatures(message.verdict)
            if len(signatures) < self._station.quorum:
                continue
            turn = self._station.clock.monotonic() + seconds_to_wait(self._station, struct_hash(message.verdict))
            if self._station.clock.monotonic() < max(case.due.setdefault(reason, turn), case.next_try):
                continue
            work = await self._books.work(self._station.pool, entry.node, entry.epoch)
            if work.root != entry.root[:20] or work.voided or not work.units:
                case.done = True
                return
            await self._execute(case, message.verdict, signatures)
            return

    def _signatures(self, verdict: EpochVerdict) -> list[bytes]:
        """Of the believed validators in office: one signature of somebody who left spoils the others."""
        believed = {
            author: votes[verdict]
            for author, votes in self._votes.items()
            if verdict in votes
            and self._station.membership.is_validator(author)
            and author not in self._station.jury.ballots.quarantined
        }
        return list(believed.values())

    async def _execute(self, case: _Case, verdict: EpochVerdict, signatures: list[bytes]) -> None:
        case.tried += 1
        case.next_try = self._station.clock.monotonic() + RETRY_PAUSE * case.tried
        given = (verdict.pool, verdict.node, verdict.epoch, verdict.outcome, verdict.reason, signatures)
        try:
            await self._court.invalidate_epoch(*given)
        except IntellectError as error:
            case.done = case.tried >= TRIES or (isinstance(error, Reverted) and error.name in DONE)
            log.warning("epoch.not_invalidated", node=verdict.node, epoch=verdict.epoch, why=error.why)
            return
        case.done = True
        self.carried += 1
        slashed = verdict.outcome == Outcome.SLASH
        log.warning("epoch.invalidated", node=verdict.node, epoch=verdict.epoch, slashed=slashed)

    async def _forget(self, pool: PoolInfo, now: int) -> None:
        if self._station.clock.monotonic() - self._forgot_at < FORGET_EVERY:
            return
        self._forgot_at = self._station.clock.monotonic()
        kept = 2 * (pool.window + AGE_IN_EPOCHS * pool.epoch_seconds)
        await self._journal.do(self._journal.forget_work, now - kept)
