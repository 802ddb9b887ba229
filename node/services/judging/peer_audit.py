"""Validators look at each other: what one says that it recomputed, another recomputes by a lot of its own.

Of a few per cent of the accepted files this validator takes the report of another and a group of it, and compares
token by token. Whoever invents values, or copies what it should compute and copies wrong, is seen without anybody
else's word; and is paid nothing for that window. Nothing is said aloud: what others believe is for them to find out.
"""

import secrets
from collections.abc import Awaitable, Callable

import structlog
import trio

from node.inference.wire import Inspected
from node.recent import Recent
from node.services.station import Station
from node.services.training.values import Rows, contradiction, read_report
from node.swarm.ballots import FileState
from node.swarm.register import Work, WorkId
from protocol.audit import window_of
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.lots import draws_file, unpack_groups
from protocol.messages import Judgement

log = structlog.get_logger()
SHARE = 1 / 24
"""Of the accepted files: four per cent, of which one group is recomputed that its author says it recomputed."""
FETCH_TIMEOUT = 30.0
SEEN = 4096


Look = Callable[[Work, tuple[int, ...]], Awaitable[tuple[Inspected, Rows] | None]]
"""Recomputes groups of a work's file here; None if that cannot be done now."""


class PeerAudit:
    """Runs beside a validator's judging. look: recomputes groups of a file here."""

    def __init__(self, station: Station, look: Look) -> None:
        self._station = station
        self._own = station.key.address
        self._look = look
        self._secret = secrets.token_bytes(32)
        self._seen: Recent[WorkId, None] = Recent(SEEN)
        self.looked = 0
        self.contradicted = 0

    async def run(self) -> None:
        async for id in self._station.jury.watch():
            jury = self._station.jury
            if id in self._seen or jury.ballots.state(id) is not FileState.ACCEPTED:
                continue
            self._seen[id] = None
            work = jury.register.get(id)
            if work is not None and work.task is None and draws_file(self._secret, id, SHARE):
                await self._audit(work)

    async def _audit(self, work: Work) -> None:
        """One other validator's word about one group."""
        accepting = self._station.jury.ballots.accepting(work.id)
        said = {author: vote for author, vote in accepting.items() if author != self._own and vote.report_root}
        if not said:
            return
        author = secrets.choice(sorted(said))
        try:
            await self._compare(work, author, said[author])
        except IntellectError as error:
            log.info("peer_audit.not_made", validator=author, why=error.why)

    async def _compare(self, work: Work, author: Address, vote: Judgement) -> None:
        groups = unpack_groups(vote.checked, work.groups) or ()
        if not groups:
            return
        rollout = self._station.run.spec.rollout
        limit = min(vote.report_size, rollout.most_report_bytes)
        path = await self._station.blobs.fetch(vote.report_root, [author], max_size=limit, timeout=FETCH_TIMEOUT)
        theirs = await trio.to_thread.run_sync(read_report, rollout, work.commitment.file_root, vote, path)
        found = await self._look(work, (secrets.choice(groups),))
        if found is None:
            return
        self.looked += 1
        audit = self._station.run.spec.audit
        finding = contradiction(*found, vote, theirs, audit.logprob_tolerance)
        if finding is None:
            return
        self.contradicted += 1
        window = window_of(work.step, audit)
        log.warning("validator.contradicted", validator=author, window=window, what=finding.what)
        self._station.progress.trouble(f"validator {author} is paid nothing for window {window}: {finding.what}")
        self._station.jury.withhold(author, window)
