"""What is not shown is not paid: before others' verdicts are certified, some of their reports are fetched and compared.

What the pool decided as a validator said waits here for a round. Of each validator's verdicts of a round this one picks
a few at random, when they are signed and cannot be chosen any more. It fetches their reports from whoever has them, and
compares them token by token with what it found itself in the same groups. A report that nobody hands over, or that is
not what its verdict says, leaves its round unpaid. One that differs is looked at again with this validator's own
engine, and so is one group of a file by a lot of its own; what is then not so costs the whole window. Nothing is said
aloud: each validator certifies what it was shown, and a quorum pays.
"""

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

import structlog
import trio

from node.changes import every
from node.inference.wire import Inspected
from node.services.certifier import Certifier, RootEntry
from node.services.context import Context
from node.services.training.values import Rows, contradiction, read_report
from node.swarm.register import RegisteredWork
from protocol.audit import window_of
from protocol.disputes import UNDECIDED
from protocol.errors import IntellectError, OwnFailure, ProtocolError
from protocol.identity import Address
from protocol.lots import unpack_groups
from protocol.messages import DIGEST, Judgement
from protocol.values import rows_differ

log = structlog.get_logger()
LOT = 24
"""One in so many files has a group recomputed, of one of its validators."""

Look = Callable[[RegisteredWork, tuple[int, ...]], Awaitable[tuple[Inspected, Rows] | None]]
"""Recomputes groups of a work's file here; None if that cannot be done now."""


class PeerAudit:
    """Runs beside a validator's judging. look: recomputes groups of a file here; certifier: what waits to be paid."""

    def __init__(self, context: Context, look: Look, certifier: Certifier) -> None:
        self._context = context
        self._own = context.key.address
        self._look = look
        self._certifier = certifier
        self._tolerance = context.run.spec.audit.logprob_tolerance
        self._turn = trio.Lock()
        self.counts: Counter[str] = Counter()

    def status(self) -> dict[str, int]:
        """compared, recomputed: reports; contradicted, not_shown: of these, and of those that were sought."""
        return {name: self.counts[name] for name in ("compared", "recomputed", "contradicted", "not_shown")}

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:

            def pay() -> None:
                for claims in self._certifier.claims():
                    nursery.start_soon(self._pay, claims)

            # Seconds between two rounds, or an eighth of the pool's window where that is less.
            await every(lambda: min(30.0, self._context.time.certified_after / 2), pay, at_once=False)

    async def _pay(self, claims: Sequence[RootEntry]) -> None:
        """One validator's verdicts of a round: all of them are paid, or none."""
        vote_set = self._context.state.vote_set
        claims = [one for one in claims if vote_set.verdict_of(one.work.id, one.validator)]  # works are forgotten
        lot = [one for one in claims if not secrets.randbelow(LOT * self._others(one))]
        # Files that this node judged itself can be compared without its engine.
        known = [one for one in claims if self._own_word(one.work) is not None] or claims
        # Unpredictable: who could guess the picks would take care with those files alone.
        # Of a validator's verdicts of a round one in four is picked, at least one and at most eight.
        picks = secrets.SystemRandom().sample(known, min(-(-len(claims) // 4), 8, len(known)))
        for claim in dict.fromkeys([*picks, *lot]):
            try:
                if not await self._is_so(claim, recompute=claim in lot):
                    return
            # What this machine lacks says nothing of a report, and must cost nobody its round.
            except (OwnFailure, OSError) as error:
                log.warning("report.not_looked_at", validator=claim.validator, verdicts=len(claims), why=str(error))
                return self._certifier.put_off(claims)
            except IntellectError as error:
                self.counts["not_shown"] += 1
                log.warning("report.not_shown", validator=claim.validator, verdicts=len(claims), why=error.why)
                return
        self._certifier.shown(claims)

    def _others(self, claim: RootEntry) -> int:
        """Validators whose word about a file this one could look at."""
        return max(1, len(self._context.state.vote_set.has_spoken(claim.work.id) - {self._own}))

    def _own_word(self, work: RegisteredWork) -> Judgement | None:
        """This validator's own verdict, if there is a report of it."""
        said = self._context.state.vote_set.verdict_of(work.id, self._own)
        return said.message if said is not None and said.message.report_root else None

    async def _is_so(self, claim: RootEntry, *, recompute: bool) -> bool:
        """Whether nothing shows that a verdict says what is not so. Raises IntellectError for a report that cannot be
        had, or is not the verdict's."""
        work, validator = claim.work, claim.validator
        said = self._context.state.vote_set.verdict_of(work.id, validator)
        if said is None:
            return False  # forgotten meanwhile
        vote = said.message
        groups = unpack_groups(vote.checked, work.groups) or ()
        if not vote.report_root and all(_is_undecided(vote, group) for group in groups):
            return True  # there is nothing to report
        if not vote.report_root:
            raise ProtocolError("no report", "it names none")
        # Seconds for a report, or the pool's window where that is less: a restart or a busy machine must cost nobody a
        # round, and what is certified after the window is in no table.
        patience = min(120.0, 4 * self._context.time.certified_after)
        theirs = await self._report(work, vote, [validator, *self._holders(validator)], patience)
        left_out = [group for group in groups if group not in theirs and not _is_undecided(vote, group)]
        if left_out and vote.rewards:  # a file of very many groups does not say which were undecided
            raise ProtocolError("incomplete report", f"it leaves out group {left_out[0]}")
        ours = await self._own_rows(work)
        common = sorted(ours.keys() & theirs.keys())
        differing = await trio.to_thread.run_sync(
            lambda: [one for one in common if rows_differ(ours[one], theirs[one], self._tolerance) is not None]
        )
        self.counts["compared"] += bool(common)
        wanted = differing[:1] or ([secrets.choice(groups)] if recompute and groups else [])
        found = None
        if wanted:
            async with self._turn:  # two who judged one file would have one report
                found = await self._look(work, tuple(wanted))
        if found is None:
            return not differing
        self.counts["recomputed"] += 1
        finding = contradiction(*found, vote, theirs, self._tolerance)
        if finding is None:
            return True  # this validator's first look was the odd one
        self.counts["contradicted"] += 1
        window = window_of(work.step, self._context.run.spec.audit)
        log.warning("validator.contradicted", validator=validator, window=window, what=finding.what)
        self._context.progress.trouble(f"validator {validator} is paid nothing for window {window}: {finding.what}")
        self._context.state.seals.withhold(validator, window)
        return False

    def _holders(self, validator: Address) -> list[Address]:
        """Who may have fetched a report: one that its author serves only some is served by these."""
        others = [*self._context.state.validators(), self._context.membership.trainer]
        return [one for one in others if one not in (self._own, validator)]

    async def _own_rows(self, work: RegisteredWork) -> Rows:
        """What this validator found itself; nothing where it did not look, or has its report no more."""
        own = self._own_word(work)
        try:
            # Seconds for the own one, which is here or nowhere.
            return await self._report(work, own, [], 1.0) if own is not None else {}
        except IntellectError:
            return {}

    async def _report(self, work: RegisteredWork, vote: Judgement, sources: list[Address], timeout: float) -> Rows:
        rollout = self._context.run.spec.rollout
        limit = min(vote.report_size, rollout.most_report_bytes)
        with self._context.blobs.holding([vote.report_root]):
            path = await self._context.blobs.fetch(vote.report_root, sources, max_size=limit, timeout=timeout)
            return await trio.to_thread.run_sync(read_report, rollout, work.commitment.file_root, vote, path)


def _is_undecided(vote: Judgement, group: int) -> bool:
    return vote.rewards[DIGEST * group : DIGEST * (group + 1)] == UNDECIDED
