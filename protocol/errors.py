"""The root of every error that a person may see.

An error says three things: what happened, why, and what to do now. Every package grows its own
subtree below `IntellectError`; the command line prints the three lines and nothing else.
"""

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no message. Of text that is no UTF-8 and of brackets without end it raises
errors that are not its own, and both can come from a stranger."""


class IntellectError(Exception):
    """An expected failure.

    what: the event, in words a user understands; why: the cause; remedy: what to do now.
    """

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what
        self.why = why
        self.remedy = remedy


class OwnFailure(IntellectError):
    """What this machine lacks or lost: memory, a device, its disk. Whoever makes a word about somebody else's work of
    an error asks for this one first: it says nothing of the work."""


class ProtocolError(IntellectError):
    """Bytes or statements that break the protocol's rules."""

    def __init__(self, what: str, why: str, remedy: str = "the sender must be fixed; nothing to do here") -> None:
        super().__init__(what, why, remedy)


class InvalidSignature(ProtocolError):
    """A signature that is malformed, malleable (high s) or not by the claimed key."""


class InvalidIdentity(ProtocolError):
    """A key, peer id or address that does not have the required form."""
