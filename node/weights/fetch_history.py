"""What came of this node's own fetching of new policies: since when none can be had, how long those took that could.

A policy may be words only: signed, followed, and nobody has it. A validator says so of what it tried itself, never of
what it did not: its own disk, its rest, and a pool in which it follows nothing yet are no experience (ADR 125).
"""

from collections import deque

from node.clock import Seconds


class FetchHistory:
    """image_bytes: of the run's largest policy; clock: monotonic seconds."""

    def __init__(self, image_bytes: int, clock: Seconds) -> None:
        self._clock = clock
        usual_rate = 20_000_000  # bytes a second of a home's line, where nothing was fetched yet
        self._usual = image_bytes / usual_rate
        self._took: deque[float] = deque(maxlen=10)
        self._since: float | None = None
        self.last: tuple[int, float] | None = None
        """Bytes of the last policy that came, and the seconds that they took: what this node's own line does."""

    @property
    def in_vain_since(self) -> float | None:
        """When others first failed to deliver a new policy, after the newest one that they did deliver; None where
        nothing speaks against the one who announces them. Whichever policy it is: a newer one changes nothing."""
        return self._since

    @property
    def fair_seconds(self) -> float:
        """As long as a new policy may take here: ten times as long as the slowest of the last ones did."""
        return 10 * max(self._took, default=self._usual)

    def failed(self) -> None:
        """Nobody had it, or what they had is not what was signed."""
        if self._since is None:
            self._since = self._clock()

    def came(self) -> None:
        """A newer policy than all before is here and verified."""
        self._since = None

    def took(self, seconds: float) -> None:
        """A new policy was here so long after it was first asked for."""
        self._took.append(seconds)

    def handed_over(self, size: int, seconds: float) -> None:
        """So many bytes of a policy came in so many seconds, from whomever."""
        if size:
            self.last = size, seconds

    def forget(self) -> None:
        """What was in vain says nothing any more: it was this machine's fault, or another one leads."""
        self._since = None
