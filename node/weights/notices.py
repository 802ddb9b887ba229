"""Announcements of policies: read from their envelopes, and admitted or refused by what was announced before. Pure."""

import msgspec

from protocol.messages import Envelope, Message, PolicyAnnounced, Signed
from protocol.policy import MalformedPolicy

INLINE_BYTES = 8 * 1024
"""A manifest up to this size travels inside its announcement."""
REMEMBERED = 256
"""Steps whose announcement is remembered, so that a second, different one is recognised."""


def notice_of(raw: bytes) -> PolicyAnnounced:
    """The announcement in an envelope that was authenticated before. Raises MalformedPolicy if there is none in it."""
    try:
        message = msgspec.msgpack.decode(msgspec.msgpack.decode(raw, type=Envelope).payload, type=_ANY)
    except msgspec.MsgspecError as error:
        raise MalformedPolicy("unreadable announcement", str(error)[:200]) from error
    if not isinstance(message, PolicyAnnounced):
        raise MalformedPolicy("unreadable announcement", "it is another kind of message")
    return message


_ANY = Message


class Announcements:
    """Every announced step, once: a second policy for a step is a fork, a second step for a policy is a lie (its root
    follows from its step), and whoever signed both is to blame."""

    def __init__(self) -> None:
        self._by_step: dict[int, Signed[PolicyAnnounced]] = {}

    @property
    def newest_step(self) -> int:
        return max(self._by_step, default=-1)

    @property
    def newest(self) -> Signed[PolicyAnnounced] | None:
        return self._by_step[max(self._by_step)] if self._by_step else None

    def admit(self, signed: Signed[PolicyAnnounced]) -> bool:
        """Take note of an announcement. False: known, or too old to matter. Raises MalformedPolicy for either."""
        message = signed.message
        known = self._by_step.get(message.step)
        if known is not None:
            if known.message.policy_root != message.policy_root:
                raise MalformedPolicy("forked policy", f"two policies were announced for step {message.step}")
            return False
        if message.step <= self.newest_step - REMEMBERED:
            return False
        twin = self.by_root(message.policy_root)
        if twin is not None:
            raise MalformedPolicy(
                "forked policy", f"one policy was announced for the steps {twin.message.step} and {message.step}"
            )
        self._by_step[message.step] = signed
        if len(self._by_step) > REMEMBERED:
            del self._by_step[min(self._by_step)]
        return True

    def by_root(self, root: bytes) -> Signed[PolicyAnnounced] | None:
        """The announcement of a policy."""
        return next((signed for signed in self._by_step.values() if signed.message.policy_root == root), None)

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted(self._by_step))

    def step_with(self, step: int) -> Signed[PolicyAnnounced] | None:
        return self._by_step.get(step)
