"""The docket: which commitments a validator has heard of, when, and what that allows it to hold against a worker.

Ages and gaps are counted from what was heard *then*. A validator that has just come (back) cannot know how old the
files were that it finds, nor which ones it missed: it holds neither against anybody.
"""

from collections import OrderedDict, deque
from collections.abc import Callable

import msgspec

from protocol.checks import Fault, Reason, Slot, check_duplicate, check_gap, check_staleness, slot_of
from protocol.messages import RolloutCommitted, Signed
from protocol.run import RunSpec
from protocol.statements import WorkCommitment

REMEMBERED = 8192
BACKLOG_SECONDS = 20.0
"""After a start: what is heard in this time may be old news."""
GRACE_SECONDS = 10.0
"""For so long after a policy was heard of, files that arrive may have been committed to before it: messages of two
authors overtake each other, and on a busy machine by seconds."""


class Heard(msgspec.Struct, frozen=True):
    """at: clock; newest_step: of the policies known for long enough at that moment; backlog: found on arrival, so of
    unknown age."""

    message: RolloutCommitted
    at: float
    newest_step: int
    backlog: bool


class Docket:
    """One validator's memory of commitments. clock: monotonic seconds."""

    def __init__(self, run: RunSpec, clock: Callable[[], float]) -> None:
        self._run = run
        self._clock = clock
        self._opened = clock()
        self._slots: OrderedDict[Slot, Heard] = OrderedDict()
        self._roots: dict[bytes, Heard] = {}
        self._indices: OrderedDict[tuple[str, bytes], set[int]] = OrderedDict()
        self._owners: OrderedDict[bytes, Slot] = OrderedDict()
        self._policies: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self._recent: deque[tuple[float, int]] = deque()
        self.newest_step = -1
        """of the policies that everybody has had the time to hear of"""

    def policy(self, root: bytes, step: int) -> None:
        """The trainer announced a policy."""
        if root not in self._policies:
            self._policies[root] = (step, self._clock())
            self._recent.append((self._clock(), step))
        while len(self._policies) > 4096:
            self._policies.popitem(last=False)

    def step_of(self, policy_root: bytes) -> int | None:
        known = self._policies.get(policy_root)
        return known[0] if known else None

    def hear(self, signed: Signed) -> Heard | None:
        """Note a commitment; None if this very one is known. Ask `rival` first."""
        message = signed.message
        assert isinstance(message, RolloutCommitted)  # noqa: S101 - the subscription's type
        commitment = message.commitment
        slot = slot_of(commitment)
        if slot in self._slots:
            return None
        now = self._clock()
        while self._recent and now - self._recent[0][0] >= GRACE_SECONDS:
            self.newest_step = max(self.newest_step, self._recent.popleft()[1])
        heard = Heard(message, now, self.newest_step, now - self._opened < BACKLOG_SECONDS)
        self._slots[slot] = self._roots[commitment.file_root] = heard
        self._indices.setdefault((commitment.node, commitment.policy_root), set()).add(commitment.index)
        self._forget()
        return heard

    def rival(self, message: RolloutCommitted) -> RolloutCommitted | None:
        """Another commitment of the same node for the same slot: evidence by itself."""
        known = self._slots.get(slot_of(message.commitment))
        if known is None or known.message.commitment.file_root == message.commitment.file_root:
            return None
        return known.message

    def find(self, root: bytes) -> Heard | None:
        """The commitment to a file."""
        return self._roots.get(root)

    def owned_by(self, root: bytes, slot: Slot) -> None:
        """The header of file `root` was read: it is this slot's."""
        self._owners[root] = slot
        while len(self._owners) > REMEMBERED:
            self._owners.popitem(last=False)

    def duplicate(self, commitment: WorkCommitment) -> Fault | None:
        """Whether this file was read before as another slot's."""
        return check_duplicate(commitment, self._owners.get(commitment.file_root))

    def gap(self, commitment: WorkCommitment) -> Fault | None:
        """An index that was left out before this one, if we would have heard of it."""
        known = self._policies.get(commitment.policy_root)
        if known is None or known[1] - self._opened < BACKLOG_SECONDS:
            return None
        return check_gap(commitment.index, self._indices.get((commitment.node, commitment.policy_root), set()))

    def fault(self, heard: Heard) -> Fault | None:
        """What is wrong with a commitment by itself: its age when it was heard."""
        if heard.backlog:
            return None
        commitment = heard.message.commitment
        step = self.step_of(commitment.policy_root)
        if step is None:
            return Fault(Reason.STALE, "made by a policy that is not among the announced ones")
        return check_staleness(step, max(heard.newest_step, step), self._run)

    def _forget(self) -> None:
        while len(self._slots) > REMEMBERED:
            _, old = self._slots.popitem(last=False)
            self._roots.pop(old.message.commitment.file_root, None)
        while len(self._indices) > REMEMBERED:
            self._indices.popitem(last=False)
