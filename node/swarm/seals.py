"""Seals: when each validator had its verdict on a work, when it showed it, and whether it is paid for it.

A verdict is sealed first and shown later, so that nobody copies it. Whoever seals and does not show is not counted on
for a while, nor paid. Pure: the clock is an argument.
"""

import math
from collections import Counter, deque
from collections.abc import Callable
from itertools import islice

import msgspec

from node.bounded_dict import BoundedDict
from node.swarm.audit_lots import AuditLots
from node.swarm.disputes import Bench
from node.swarm.facts import WorkId
from node.swarm.register import Register, RegisteredWork
from node.swarm.vote_set import VoteSet
from protocol.identity import Address
from protocol.messages import Seal, Signed, VerdictIssued, seal_of
from protocol.statements import work_id

WITHHELD = 1024
"""Windows of validators that are not paid for, the newest; and works of one window whose verdict one took back."""
TURNED = 64
"""Windows in which one validator took verdicts back, the newest."""
SEALS = 4096
"""Works that one validator has sealed a verdict on and that are remembered. It loses its pay for those forgotten."""
SEAL_SECONDS = 3.0
"""So long a verdict that the quorum has sealed waits for slower validators."""
OPENING_GRACE = 5.0
"""Seconds that a verdict may travel after its time to be shown."""
UNOPENED, UNOPENED_SECONDS = 4, 600.0
"""Seals of this time that a validator may leave unopened. One that has seen others' verdicts could show its own only
where they agree: with more it is neither awaited nor paid. A restart with many seals costs an honest one ten minutes'
pay at most; verdicts that it shows late count. One that let a single seal's time pass is not counted on for as long."""


class _Seal(msgspec.Struct):
    """A verdict's way to be shown. seal: empty where it was shown without one, and not as the last that was awaited;
    at: when the seal came, or the verdict without one; shown: when the verdict did; hurried: who was still waited for
    then, and may seal after it."""

    seal: bytes
    at: float
    shown: float = math.inf
    hurried: frozenset[Address] = frozenset()


class _Sealer(msgspec.Struct):
    """One validator's seals by work. unopened: when those came whose verdicts are not shown, oldest first; late: when
    the first came that was not opened in its time, of the last UNOPENED_SECONDS."""

    seals: BoundedDict[WorkId, _Seal]
    unopened: BoundedDict[WorkId, float]
    late: float = -math.inf


class Seals:
    """One per node. patience: seconds that a seal may stay closed; windows: of lots."""

    def __init__(
        self,
        register: Register,
        vote_set: VoteSet,
        bench: Bench,
        patience: float,
        windows: AuditLots,
        clock: Callable[[], float],
    ) -> None:
        self._windows = windows
        self._withheld: BoundedDict[tuple[Address, int], None] = BoundedDict(WITHHELD)
        self._turned: dict[Address, BoundedDict[int, BoundedDict[WorkId, None]]] = {}
        """By validator and window that this may cost it: works of which it took its word back."""
        self._register = register
        self._vote_set = vote_set
        self._bench = bench
        self._clock = clock
        self._patience = patience
        self._opening = patience + OPENING_GRACE
        self._sealers: dict[Address, _Sealer] = {}
        self._late_files: Counter[Address] = Counter()
        """By validator: files in a row that it had not sealed SEAL_SECONDS after the quorum."""
        self._counting: deque[tuple[float, WorkId]] = deque(maxlen=SEALS)
        """Works that a quorum has sealed, and when that time is over."""
        self._moment = -math.inf
        register.follow_closed(self._close)

    def _close(self, work: RegisteredWork) -> None:
        """Those that were never opened are counted until their own time is over."""
        for sealer in self._sealers.values():
            sealer.seals.pop(work.id, None)

    def sealed(self, author: Address, said: Seal) -> None:
        """A validator has its verdict on a work."""
        fresh, sealer = self._sealed(author, said.work, said.seal), self._sealers[author]
        # Gossip may bring the verdict before its seal: that one is not left unopened.
        if fresh and sealer.seals[said.work].shown == math.inf:
            sealer.unopened[said.work] = self._clock()

    def shown(self, signed: Signed[VerdictIssued]) -> None:
        """A validator shows its verdict."""
        id = work_id(signed.message.verdict)
        # The last that was awaited: shown before the others' it is as good as sealed.
        sealing = {signed.author, *self.sealing(id)}
        is_last = len(sealing) >= self._bench.quorum
        self._sealed(signed.author, id, seal_of(signed.message, signed.author) if is_last else b"")
        self._is_late(signed.author)  # noted while it can be seen
        sealer = self._sealers[signed.author]
        sealer.unopened.pop(id, None)
        way = sealer.seals[id]
        if way.shown == math.inf:
            way.shown = self._next_moment()
            way.hurried = self._hurried(id, way, sealing)

    def _hurried(self, id: WorkId, way: _Seal, sealing: set[Address]) -> frozenset[Address]:
        """Whom a verdict that was just shown did not wait for, though everybody else would have. sealing: with its
        author."""
        # A validator shows its verdict once nobody is awaited, or its own time or the others' is over. Words travel: of
        # its own time OPENING_GRACE may be lacking here, of the others' a second.
        sealed = sorted(one.seals[id].at for who, one in self._sealers.items() if who in sealing and id in one.seals)
        others_over = (sealed[self._bench.quorum - 1 :] or [math.inf])[0] + SEAL_SECONDS - 1.0
        own_over = way.at + max(self._patience / 2, self._patience - OPENING_GRACE)
        if len(sealed) > self._bench.quorum or way.shown >= min(others_over, own_over):
            return frozenset()
        return frozenset(self.awaited(id))

    def awaited(self, id: WorkId) -> set[Address]:
        """Living validators without a seal on a work that are waited for though a quorum has sealed it: not those that
        sealed none of the last files in time."""
        self._count_late()
        let_pass = self._vote_set.files_let_pass(self._bench.quorum)
        living = set(self._vote_set.active_validators()) - self.has_sealed(id)
        return {one for one in living if self._late_files[one] < let_pass}

    def _count_late(self) -> None:
        while self._counting and self._counting[0][0] <= self._clock():
            over, id = self._counting.popleft()
            if self._register.get(id) is None:
                continue  # nobody committed to it, or it is closed
            for one in self._vote_set.active_validators():
                sealer = self._sealers.get(one)
                in_time = sealer is not None and id in sealer.seals and sealer.seals[id].at <= over
                self._late_files[one] = 0 if in_time else self._late_files[one] + 1

    def _sealed(self, author: Address, id: WorkId, seal: bytes) -> bool:
        """Note a seal; False if there was one. The first of a work counts: another one for the same work fits nothing
        that its author will show."""
        sealer = self._sealers.setdefault(author, _Sealer(BoundedDict(SEALS), BoundedDict(SEALS)))
        known = sealer.seals.get(id)
        if known is None:
            sealer.seals[id] = _Seal(seal, self._next_moment())
            if sum(id in one.seals for one in self._sealers.values()) == self._bench.quorum:
                self._counting.append((self._clock() + SEAL_SECONDS, id))
        # The first seal binds. A second one would let its author choose, after it has seen the others.
        elif known.seal:
            return False
        else:  # gossip may bring the verdict before its seal
            known.seal = seal
        return True

    def _next_moment(self) -> float:
        """By the clock, and later than the last one: what is read one after the other came so."""
        # Seals and verdicts that come within one tick of the clock still have an order, and all of them must be
        # comparable.
        self._moment = max(self._clock(), math.nextafter(self._moment, math.inf))
        return self._moment

    def sealing(self, id: WorkId) -> set[Address]:
        """Who has shown a verdict on a work, or sealed one and may be counted on to show it. Not whose work it is."""
        late = {author for author in self._sealers if self._is_late(author)}
        # A seal whose time is over is nobody's promise any more.
        since = self._clock() - self._opening
        awaited = {author for author, one in self._sealers.items() if one.unopened.get(id, since) > since}
        return awaited - late - self._owner(id) | self._vote_set.has_spoken(id)

    def _owner(self, id: WorkId) -> set[Address]:
        work = self._register.get(id)
        return {work.node} if work is not None else set()

    def has_sealed(self, id: WorkId) -> set[Address]:
        """Who has shown or sealed a verdict on a work, counted on or not."""
        return {author for author, one in self._sealers.items() if id in one.seals} | self._vote_set.has_spoken(id)

    def _is_late(self, validator: Address) -> bool:
        """Whether a validator let the time of a seal pass a while ago. To open it then changes nothing: it could let
        one pass after the other."""
        now, sealer = self._clock(), self._sealers[validator]
        if not sealer.unopened:  # of nearly all, each time that somebody asks
            return now - sealer.late <= UNOPENED_SECONDS
        leaves = self.leaves_unopened(validator)
        oldest = next(iter(sealer.unopened.values()), now)
        if now - oldest >= self._opening and now - sealer.late > UNOPENED_SECONDS:
            sealer.late = oldest
        return leaves or now - sealer.late <= UNOPENED_SECONDS

    def _lets_pass(self, validator: Address, work: RegisteredWork, way: _Seal) -> bool:
        """Whether others counted on a validator that let the time pass to show its verdict on a work. Not once they
        could have noticed, and not if it sealed before there was the work: else it could help a copier for long."""
        if not self._is_late(validator) or min(way.shown, self._clock()) - way.at < self._opening:
            return False
        late = self._sealers[validator].late
        return max(late, work.at) <= way.at <= late + self._opening

    def leaves_unopened(self, validator: Address) -> bool:
        """Whether a validator does not show what it sealed."""
        sealer = self._sealers.get(validator)
        if sealer is None:
            return False
        now = self._clock()
        while sealer.unopened and now - next(iter(sealer.unopened.values())) > UNOPENED_SECONDS:
            sealer.unopened.popitem(last=False)
        # Oldest first, so the fifth tells whether more than four are overdue, however many there are.
        overdue = list(islice(sealer.unopened.values(), UNOPENED + 1))
        full = len(sealer.unopened) >= SEALS  # newer ones would push out those that are overdue
        return full or (len(overdue) > UNOPENED and now - overdue[-1] > self._opening)

    def is_behind(self, validator: Address) -> bool:
        """Whether a validator may be one that shows what it likes of what it sealed: of more files than it has shown
        since, or of too many, a quorum has shown its verdicts for a while. It waits for its pay until it is not."""
        sealer, now = self._sealers.get(validator), self._clock()
        oldest = list(islice(sealer.unopened.items(), 4 * UNOPENED)) if sealer else []
        overdue = [at for id, at in oldest if now > self._shown_by(id, at)]
        if not sealer or not overdue:
            return False
        shown = sum(way.at >= overdue[0] and way.shown < math.inf for way in sealer.seals.values())
        return len(overdue) > min(shown, UNOPENED)

    def _shown_by(self, id: WorkId, sealed_at: float) -> float:
        """When the verdict behind a seal should have come: soon after a quorum showed theirs, as nobody waits then."""
        spoken = self._vote_set.has_spoken(id)
        ways = (one.seals[id] for author, one in self._sealers.items() if author in spoken and id in one.seals)
        shown = sorted(way.shown for way in ways)[self._bench.quorum - 1 :]
        return max(shown[0], sealed_at) + SEAL_SECONDS + OPENING_GRACE if shown else sealed_at + self._opening

    def was_sealed(self, id: WorkId, validator: Address) -> bool:
        """Whether a validator is paid for its verdict on a work, as far as seals go: it sealed before anybody's was
        shown that had to be, or in the place of those who sealed and did not show; otherwise it may have copied it. And
        it did not show its own before it had to, to a copier. Who hurries takes nobody's pay who is waited for."""
        if len(self._bench.validators) == 1:
            return True  # there is nobody to copy from
        said, work = self._vote_set.verdict_of(id, validator), self._register.get(id)
        ways = {author: one.seals[id] for author, one in self._sealers.items() if id in one.seals}
        for owner in self._owner(id):
            ways.pop(owner, None)
        own = ways.pop(validator, None)
        # What was shown must be what was sealed, or the seal bound its author to nothing.
        if said is None or work is None or own is None or seal_of(said.message, validator) != own.seal:
            return False
        quorum, every = self._bench.quorum, [own, *ways.values()]

        def had_to(way: _Seal) -> bool:
            """Show, since a quorum had sealed, or nobody else for long."""
            return way.shown - way.at >= self._patience / 2 or sum(one.at <= way.shown for one in every) >= quorum

        before = {author: way for author, way in ways.items() if way.at < own.at}
        missing = {author for author, way in before.items() if self._lets_pass(author, work, way)}
        showed = {author for author, way in before.items() if way.shown < math.inf} - missing
        stands_in = missing and len(showed) < quorum
        first = not any(way.shown < own.at and had_to(way) and validator not in way.hurried for way in ways.values())
        return had_to(own) and bool(first or stands_in)

    def withhold(self, validator: Address, window: int) -> None:
        """This node has seen a validator say what is not so: nothing that it judged in this window is paid here."""
        self._withheld[validator, window] = None

    def is_withheld(self, validator: Address, work: RegisteredWork) -> bool:
        """Whether this node has seen that a validator is not to be paid for a work, whatever it says of it."""
        return (validator, self._windows.window_of(work)) in self._withheld

    def note_turn(self, work: RegisteredWork, validator: Address) -> None:
        """A validator spoke of a work: it may have taken its word back."""
        if self._vote_set.has_turned(work.id, validator):
            windows = self._turned.setdefault(validator, BoundedDict(TURNED))
            for window in {self._windows.window_of(work), self._windows.current_window}:
                windows.setdefault(window, BoundedDict(WITHHELD))[work.id] = None

    def turned(self, validator: Address) -> set[int]:
        """Windows for which a validator is not paid yet: of works whose verdict it took back in a second look that
        nobody asked for, and in which it did. Messages overtake each other: the dispute may be told yet."""
        windows = self._turned.get(validator, BoundedDict[int, BoundedDict[WorkId, None]](TURNED))
        for works in windows.values():
            while works and not self._vote_set.has_turned(next(iter(works)), validator):
                works.popitem(last=False)  # it was asked, or this is long ago
        return {window for window, works in windows.items() if works}
