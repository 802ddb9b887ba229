"""Daemons in memory with a pen: boards, juries, journals, heartbeats and continuity are the real ones; the rest is one
worker's loop, which signs a file of its own for whatever the fence leaves free."""

import itertools
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from node.clock import Clock
from node.errors import StateError
from node.member import BlobService, Participant
from node.progress import ProgressRecord
from node.run.assets import Run
from node.services.base import ServiceManager
from node.services.committing import commit
from node.services.context import make_context
from node.services.continuity import Continuity
from node.services.heartbeat import HeartbeatSender
from node.state.pen import Pen, TwinError
from node.swarm.membership import Membership
from protocol.blobs import BlobInfo, describe
from protocol.identity import NodeKey
from protocol.statements import Domain
from tests.attacks.validators.court import InlineJournal, announcement, court_run, policy_root
from tests.memory_network import MemoryHub, MemoryNetwork

NOON = 1_800_000_000.0
TRAINER, WORKER, OTHER = (NodeKey(bytes([n]) * 32) for n in (1, 2, 3))
VALIDATORS = tuple(NodeKey(bytes([n]) * 32) for n in (11, 12, 13))
DOMAIN = Domain(31337, TRAINER.address)
FILES = 3
"""That a worker makes of a policy."""
_numbers = itertools.count()


class Blobs:
    """Every file is another one."""

    async def add(self, source: Any) -> BlobInfo:
        await trio.lowlevel.checkpoint()
        return describe(str(source).encode())


class Daemon:
    """One start of a node. journal: what lies in its directory; doubt: why it is in doubt, if it is; error: seconds
    that its clock is ahead."""

    def __init__(
        self,
        hub: MemoryHub,
        key: NodeKey,
        journal: InlineJournal | None = None,
        *,
        doubt: str = "",
        error: float = 0.0,
        vouch: bool = False,
    ) -> None:
        self.key, self.error = key, error
        self.network = MemoryNetwork(key, hub)
        own = (key.address, self.network, TRAINER.address, tuple(one.address for one in VALIDATORS))
        self.membership = Membership(*own, quorum=2)
        none: Any = None
        blobs: Any = Blobs()
        self.member = Participant(
            key, DOMAIN, 1, self.network, self.membership, BlobService(blobs, none, none), wall=self.wall
        )
        self.board = self.member.board
        self.journal = journal or InlineJournal(Pen(shut=True))
        self.journal.pen.doubt = doubt
        self.journal.booted(int(self.wall()))
        self.progress = ProgressRecord()
        given = (self.member, Run(court_run(), bytes(32), b"", Path("/")), self.journal, self.progress)
        self.context = make_context(*given, clock=Clock(wall=self.wall))
        self.jury = self.context.jury
        manager: Any = ServiceManager()
        self.beating = HeartbeatSender(self.context, manager, "worker", lambda: (), 2.0, self.journal.pen)
        self.continuity = Continuity(self.context, self.network, vouch=vouch)
        self.alive = trio.CancelScope()
        self.ended: TwinError | None = None
        self.opened_after: float | None = None

    @property
    def pen(self) -> Pen:
        return self.journal.pen

    def wall(self) -> float:
        return NOON + self.error + trio.current_time()

    def meet(self, others: Sequence["Daemon"]) -> None:
        for one in others:
            self.membership.joined(one.key.address, f"/ip4/127.0.0.1/tcp/1/p2p/{one.key.peer_id}")

    async def live(self) -> None:
        """Until it is killed, or ends by itself."""
        began = trio.current_time()
        with self.alive:
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.network.run)
                    nursery.start_soon(self.member.listen)
                    nursery.start_soon(self.jury.run)
                    nursery.start_soon(self.beating.run)
                    if not self.pen.doubt:
                        self.journal.take_pen(self.pen.generation)
                        self.pen.open()
                    await self.continuity.start(nursery)
                    self.opened_after = trio.current_time() - began
                    if self.key == WORKER:
                        await self.work()
                    await trio.sleep_forever()
            except* TwinError as group:
                self.ended = _first(group)

    async def work(self) -> None:
        while True:
            step, journal = self.jury.state.policies.newest_step, self.journal
            index = await journal.do(journal.count_said, "commitment", policy_root(step))
            if step >= 0 and index < FILES and not journal.fence.covers(step):
                path = Path(f"/nonexistent/{next(_numbers)}")
                with suppress(StateError):  # as the worker does: the fence may have come meanwhile
                    await commit(self.context, policy_root(step), index, path, 10, step)
            await trio.sleep(0.7)

    async def announce_always(self, every: float, root: Any = policy_root) -> None:
        """As the trainer."""
        for step in itertools.count():
            parent = root(step - 1) if step else bytes(32)
            await self.board.post(announcement(step, root(step), parent=parent))
            await trio.sleep(every)

    def files(self) -> dict[bytes, bytes]:
        """Commitments by slot."""
        return files_in(self.journal)


def _first(error: BaseException) -> Any:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def files_in(journal: InlineJournal) -> dict[bytes, bytes]:
    return dict(journal._db.execute("SELECT slot, raw FROM said WHERE kind = 'commitment'").fetchall())


def copied(journal: InlineJournal) -> InlineJournal:
    """As a state directory is copied, or put into a backup."""
    copy = InlineJournal(Pen(shut=True))
    journal._db.backup(copy._db)
    copy.fence = journal.fence
    return copy


class Swarm:
    """A trainer, three validators and two workers; of WORKER there may be several daemons."""

    def __init__(self, nursery: trio.Nursery, *, delay: float = 0.05, drop: float = 0.0, seed: int = 0) -> None:
        self.nursery = nursery
        self.hub = MemoryHub(delay=delay, drop=drop, seed=seed)
        self.others = [Daemon(self.hub, key) for key in (TRAINER, *VALIDATORS, OTHER)]
        self.rivals: list[tuple[Any, Any]] = []
        """Two commitments of one node for one slot, as a validator sees them: its stake is lost."""
        self.others[1].jury.state.register.follow_rivals(lambda *both: self.rivals.append(both))

    async def begin(self, every: float = 6.0) -> None:
        for one in self.others:
            one.meet([*self.others, self.stranger(WORKER)])
            self.nursery.start_soon(one.live)
        await trio.sleep(1.0)
        self.nursery.start_soon(self.others[0].announce_always, every)

    def stranger(self, key: NodeKey) -> Any:
        """A member by its name alone."""

        class Named:
            def __init__(self) -> None:
                self.key = key

        return Named()

    def start(self, journal: InlineJournal | None = None, key: NodeKey = WORKER, **how: Any) -> Daemon:
        made = Daemon(self.hub, key, journal, **how)
        made.meet([*self.others, self.stranger(key)])
        self.nursery.start_soon(made.live)
        return made

    @property
    def newest(self) -> int:
        return self.others[1].jury.state.policies.newest_step
