"""How many blocks to ask for at once: more while answers are small, fewer where an endpoint refuses.

Pure. Endpoints limit ranges (1,000 to 100,000 blocks, or none) and answers (10,000 logs) differently, and few say so.
"""

LEAST, FIRST, MOST = 1, 256, 100_000
FEW, MANY = 1_000, 2_500
"""Logs in one answer up to which the next range is twice as long, and from which on it is half as long. A log is a
kilobyte, and a megabyte holds the interpreter's lock for 20 ms while it is decoded."""
CAUTIOUS = 64
"""Answers after which a length that was refused is tried again."""


class Span:
    """`blocks`: of the next question."""

    def __init__(self) -> None:
        self.blocks = FIRST
        self._ceiling = MOST
        self._good = 0

    def answered(self, asked: int, logs: int) -> None:
        """asked: blocks of that question; one that was cut short by the end of the chain says nothing."""
        self._good += 1
        if self._good >= CAUTIOUS:
            self._good, self._ceiling = 0, MOST
        if logs >= MANY:
            self.blocks = max(LEAST, self.blocks // 2)
        elif logs <= FEW and asked >= self.blocks:
            self.blocks = min(2 * self.blocks, self._ceiling)

    def refused(self, asked: int) -> bool:
        """Whether a shorter range is left to try."""
        self._good = 0
        if asked <= LEAST:
            return False
        self.blocks = max(LEAST, asked // 2)
        self._ceiling = self.blocks
        return True
