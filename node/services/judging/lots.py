"""A validator's own lots: its secrets, what it pledges, what it draws, and how much it can do.

Pledges are in the journal before anybody hears them, so that a restart repeats them. What a file's lot was follows
from the secret; which rate was used stands in the verdict.
"""

import math
from collections import deque

import msgspec
import structlog
import trio

from node.audit.order import memory_for
from node.changes import Bell
from node.hardware import Hardware
from node.run.assets import image_limit
from node.services.context import Context
from node.swarm.register import WorkId
from protocol.audit import (
    AuditLoad,
    as_rate,
    as_share,
    last_step_of,
    pledged_share,
    share_of_file,
    window_of,
)
from protocol.identity import Address
from protocol.lots import LotPledge, drawn_groups, draws_file, draws_step, lot_master, secret_hash, window_secret
from protocol.messages import LotsRevealed
from protocol.run import RunSpec

log = structlog.get_logger()
HORIZON = 60.0


def step_share(run: RunSpec, hardware: Hardware) -> float:
    """The share of the trainer's steps that a validator pledges to audit: none without the memory for one."""
    needed = memory_for(image_limit(run) // 4, run.rollout.prompts_per_step)  # two bytes each, twice the model
    # Share of the trainer's steps, each of which costs an auditor about what it cost the trainer.
    share = 1 / 8
    return share if needed <= hardware.free else 0.0


class Lot(msgspec.Struct, frozen=True):
    """What one file's lot says. rate: of RATE_ONE; groups: drawn ones, ascending."""

    window: int
    rate: int
    groups: tuple[int, ...]


def pledge_fact(window: int, rates: tuple[int, int] = (0, 0)) -> tuple[str, bytes]:
    """(name, value) of what the journal has of a pledge. rates: of groups and of steps."""
    return f"lot_pledge_{window}", " ".join(map(str, rates)).encode()


class OwnLots:
    """One validator's. Call `prepare` before anything else. steps: the share of the trainer's steps to pledge, 0
    without the memory for one."""

    def __init__(self, context: Context, steps: float = 0.0) -> None:
        self._clock, self._steps = context.clock.monotonic, steps
        self._run, self._audit = context.run.spec, context.run.spec.audit
        self._pool, self._own = context.pool, context.key.address
        self._journal, self._board = context.journal, context.board
        # All secrets follow from the key: whatever becomes of the journal, those that were pledged can be told.
        self._master = lot_master(context.key, context.domain, context.pool)
        self._pledged: dict[int, LotPledge] = {}
        self._revealed: set[int] = set()
        self.newest = -1
        """The newest policy's step, -1 before the first."""
        self._moved = Bell()
        self.prepared = trio.Event()
        self._arrived: deque[tuple[float, Address]] = deque()
        self._seconds_per_group: float | None = None
        self._waiting = 0

    @property
    def pledges(self) -> tuple[LotPledge, ...]:
        """For the heartbeat: this window and the next."""
        window = window_of(max(self.newest, 0), self._audit)
        return tuple(self._pledged[w] for w in (window, window + 1) if w in self._pledged)

    async def prepare(self) -> None:
        """Make the first pledges."""
        await self._pledge(0, 1)
        self.prepared.set()

    def policy(self, step: int) -> None:
        """The trainer announced a policy."""
        if step > self.newest:
            self.newest = step
            self._moved.ring()

    async def run(self) -> None:
        """Pledge ahead and reveal behind until cancelled."""
        recalled = 4  # windows before this one whose secrets may still be owed
        while True:
            await self._moved.wait()
            window = window_of(self.newest, self._audit)
            await self._recall(range(max(0, window - recalled), window))
            # One window ahead: a pledge counts towards the swarm's power only if it was heard before its window.
            await self._pledge(window, window + 1)
            await self._reveal()

    def draws_file(self, work: WorkId, step: int, share: float) -> bool:
        """Whether this validator is one of those that look at a file. share: of all files that each looks at."""
        return draws_file(self._secret(window_of(max(step, 0), self._audit)), work, share)

    def draw(self, work: WorkId, step: int, verified: int, suspect: bool, groups: int = 0) -> Lot:
        """The groups of a file that must be recomputed. verified: of its worker, found in order; groups: of the file,
        0: as many as files of the run have."""
        window = window_of(step, self._audit)
        pledge = self._pledged.get(window)
        pledged = as_share(pledge.rate) if pledge else 1.0
        # Never below the pledge, however busy: the secret will show what the lot was (`broken_promise`).
        rate = as_rate(max(pledged, share_of_file(pledged, self.load(), verified, suspect, self._audit)))
        groups = groups or self._run.groups_per_file
        return Lot(window, rate, drawn_groups(self._secret(window), work, groups, rate))

    def draws_step(self, statement: bytes, step: int) -> LotPledge | None:
        """The pledge by which this validator audits the step of the trainer that led to policy `step`; None if it drew
        otherwise."""
        window = window_of(step, self._audit)
        pledge = self._pledged.get(window)
        return pledge if pledge and draws_step(self._secret(window), statement, pledge.steps) else None

    def _secret(self, window: int) -> bytes:
        return window_secret(self._master, self._pool, window)

    # how much this node can do

    def arrived(self, node: Address) -> None:
        """A file came that this validator is to look at."""
        self._arrived.append((self._clock(), node))
        self._forget()

    def took(self, waiting: int) -> None:
        """A file was taken from a queue in which so many wait."""
        self._waiting = waiting

    def worked(self, groups: int, seconds: float) -> None:
        """The engine recomputed so many groups in so many seconds."""
        memory = 0.9
        if groups > 0:
            took = seconds / groups
            known = self._seconds_per_group
            self._seconds_per_group = took if known is None else memory * known + (1 - memory) * took

    def load(self) -> AuditLoad | None:
        """What arrives and what can be done, groups per second; None before anything was measured."""
        self._forget()
        if self._seconds_per_group is None or not self._arrived:
            return None
        span = max(self._clock() - self._arrived[0][0], 1.0)
        per_file = self._run.groups_per_file
        return AuditLoad(
            arriving=len(self._arrived) * per_file / span,
            capacity=1.0 / max(self._seconds_per_group, 1e-9),
            backlog=self._waiting * per_file * self._seconds_per_group,
        )

    def _forget(self) -> None:
        while self._arrived and self._arrived[0][0] < self._clock() - HORIZON:
            self._arrived.popleft()

    def is_calm(self) -> bool:
        """Whether there is time to look at more than must be."""
        load = self.load()
        return load is None or load.is_calm

    def looks(self) -> str:
        """What this validator looks at now, in words."""
        load = self.load()
        if load is None or load.is_calm:
            return "looks at everything"
        share = f"{as_share(self.pledges[0].rate if self.pledges else 0):.0%} of"
        if load.is_behind:
            return f"is behind: looks at {share} all groups, as it pledged, and at no more"
        return f"is busy: looks at newcomers and suspects whole, at {share} the others' groups"

    # pledging and revealing

    async def _recall(self, windows: range) -> None:
        """After a restart: what was pledged for windows that are not revealed yet."""
        for window in windows:
            if window not in self._pledged and await self._journal.do(self._journal.recall, pledge_fact(window)[0]):
                await self._pledge(window)

    async def _pledge(self, *windows: int) -> None:
        for window in windows:
            if window in self._pledged:
                continue
            journal = self._journal
            name, wanted = pledge_fact(window, (as_rate(self._promise()), as_rate(self._steps)))
            raw = await journal.do(journal.recall, name)
            fence = journal.fence.step
            # A window ahead: so far a daemon pledges.
            if raw is None and fence >= 0 and window <= window_of(fence, self._audit) + 1:
                continue  # another daemon may have pledged otherwise with this key
            if raw is None:
                await journal.promise(journal.note_once, name, wanted)
                raw = await journal.do(journal.recall, name)
            rates = map(int, (raw or wanted).split())
            hashed = secret_hash(self._secret(window), self._own, self._pool, window)
            self._pledged[window] = LotPledge(window, hashed, *rates)
        for window in sorted(self._pledged)[:-64]:
            del self._pledged[window]

    def _promise(self) -> float:
        """The share to pledge for a window to come."""
        per_step = self._run.rollout.files_per_step
        workers = len({node for _, node in self._arrived}) or per_step  # unknown: so many that each makes one file
        groups = math.ceil(per_step / workers) * self._audit.window * self._run.groups_per_file
        return pledged_share(self.load(), groups, self._audit)

    async def _reveal(self) -> None:
        staleness = self._run.recipe.max_staleness
        # Policies beyond the last one for which a window's files are accepted: others may be a little behind.
        reveal_after = 2
        due = [w for w in self._pledged if last_step_of(w, self._audit) + staleness + reveal_after <= self.newest]
        for window in sorted(set(due) - self._revealed):
            await self._board.post(LotsRevealed(pool=self._pool, window=window, secret=self._secret(window)))
            self._revealed.add(window)
            self._revealed = {one for one in self._revealed if one > window - 64}
            log.debug("lots.revealed", window=window)
