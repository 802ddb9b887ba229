"""What can be wrong around a sandbox. What the code inside does wrong is an Outcome, never one of these."""

from protocol.errors import IntellectError


class SandboxError(IntellectError):
    """A sandbox that cannot be opened: an entry module that does not load, files that are not allowed."""


class RuntimeMissing(SandboxError):
    """The interpreter that runs strangers' code is not here, or is another one."""


class Undecided(SandboxError):
    """This machine found no outcome where another might: wall clock, memory of the host, a killed child.

    Whoever asks counts it as "gave up" and says nothing about it to others: it is never a reward.
    """
