"""What others have heard with this node's own key: asked for, handed over, and told apart.

A daemon with a journal of before learns from it what it must not say otherwise; one that is not alone learns that.
Whoever asks gets its own words and nobody else's: the connection proves who it is. Words carry this key's signature,
so a peer can keep some to itself or repeat old ones, and invent none. Pure but for the wire; clocks are arguments.
"""

from collections.abc import Iterator

import msgspec
import trio

from node.bounded_dict import BoundedDict
from node.clock import Seconds
from node.network.interface import Network
from protocol.codec import decode_msgpack
from protocol.identity import Address
from protocol.messages import (
    Heartbeat,
    MalformedMessage,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    RoundVote,
    Signed,
    StepVerdict,
    VerdictIssued,
    VerdictRechecked,
)
from protocol.statements import work_id

PROTOCOL = "/intellect-node/own/1"
MAX_ANSWER = 1 << 20


class OwnAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """envelopes: of the asker's words, newest first."""

    envelopes: list[bytes]


Promise = tuple[str, bytes, bytes]
"""(kind, slot, envelope), as the journal has it."""


def promise_in(signed: Signed[Message]) -> Promise | None:
    """What the journal must have of an own word; None where a second one costs nothing."""
    message, raw = signed.message, signed.raw
    match message:
        case RolloutCommitted(commitment=one):
            return "commitment", one.policy_root + one.index.to_bytes(8, "big"), raw
        case VerdictIssued():
            return "verdict", work_id(message.verdict), raw
        case VerdictRechecked():
            return "recheck", work_id(message.verdict), raw
        case StepVerdict(statement=statement):
            return "step-verdict", statement.struct_hash, raw
        case RoundVote():
            return "round_vote", f"{message.round}/{message.ballot}/{int(message.closed)}".encode(), raw
        case PolicyAnnounced(step=step, term=term):
            return "policy", step.to_bytes(8, "big") + term.to_bytes(4, "big"), raw
        case _:
            return None


class _Heard(msgspec.Struct):
    """Of one generation: its newest heartbeat, when that came, and how often it rose."""

    beat: Heartbeat
    at: float
    rises: int = 0


class OwnEar:
    """Hears words with this node's key that this process did not say. clock: monotonic seconds; wall: unix seconds."""

    def __init__(self, clock: Seconds, wall: Seconds) -> None:
        self._kept = 8192  # own words that are kept until they were looked at; two boards' full
        # Times that another daemon's heartbeats must have risen, as far apart as they say, before it is one that lives.
        # What a dead one left comes once or twice more, on slow ways.
        self._rises = 2
        self._clock, self._wall = clock, wall
        self._opened = wall()
        self._words: BoundedDict[bytes, Signed[Message]] = BoundedDict(self._kept)
        self._generations: BoundedDict[int, _Heard] = BoundedDict(16)
        self.news = trio.Event()
        self.heard_at = -1.0
        """When a heartbeat came that says of itself that it is of now; -1 for never."""

    def hear(self, signed: Signed[Message]) -> None:
        if isinstance(signed.message, Heartbeat):
            self._beat(signed.message)
        self._words[signed.raw + type(signed.message).__name__.encode()] = signed
        event, self.news = self.news, trio.Event()
        event.set()

    def take(self) -> list[Signed[Message]]:
        """What was heard since the last time, oldest first."""
        words, self._words = list(self._words.values()), BoundedDict(self._kept)
        return words

    def forget(self) -> None:
        """Whoever spoke is gone."""
        self._generations.clear()

    @property
    def newest_generation(self) -> int:
        return max(self._generations, default=0)

    @property
    def interval(self) -> float:
        """Seconds between its heartbeats, as the newest of them says; 0.0 where none was heard."""
        newest = self._generations.get(self.newest_generation)
        return newest.beat.interval if newest else 0.0

    @property
    def newest_step(self) -> int:
        """The newest policy that this key said to hold, -1 for none."""
        return max((one.beat.policy_step for one in self._generations.values()), default=-1)

    def is_fresh(self, beat: Heartbeat) -> bool:
        """Whether it was said while this process ran, and lately: an old one can be repeated by anybody."""
        said = beat.at / 1000
        # Seconds for which a heartbeat of this key shows that somebody speaks: later it is a repetition.
        return said > self._opened and abs(self._wall() - said) < 300.0

    def fresh(self, least: int) -> int | None:
        """The highest generation of at least this that speaks now; one heartbeat is enough. None where none does."""
        speak = (one for one, heard in self._generations.items() if self.is_fresh(heard.beat))
        return max((one for one in speak if one >= least), default=None)

    def living(self) -> int | None:
        """A generation whose heartbeats go on; None where none do."""
        return next((one for one, heard in self._generations.items() if heard.rises >= self._rises), None)

    def rising(self) -> bool:
        """Whether one may be living: another heartbeat will tell."""
        return any(heard.rises == self._rises - 1 for heard in self._generations.values())

    def _beat(self, beat: Heartbeat) -> None:
        now = self._clock()
        if self.is_fresh(beat):
            self.heard_at = now
        known = self._generations.get(beat.boot)
        if known is None:
            self._generations[beat.boot] = _Heard(beat, now)
        elif beat.count > known.beat.count:
            # Two that a dead daemon left at two peers come at once; what lives speaks in its own time.
            apart, said = now - known.at, (beat.at - known.beat.at) / 1000
            # Of the seconds between two heartbeats by their own word, that they must arrive apart.
            rises = known.rises + (apart >= 0.4 * max(said, 0.5) and self.is_fresh(beat))
            self._generations[beat.boot] = _Heard(beat, now, rises)


def answer(envelopes: Iterator[bytes]) -> bytes:
    """As much as fits, newest first."""
    room, chosen, seen = MAX_ANSWER - 64 * 1024, list[bytes](), set[bytes]()
    for raw in envelopes:
        if raw in seen or len(raw) + 5 > room:
            continue
        seen.add(raw)
        room -= len(raw) + 5
        chosen.append(raw)
    return msgspec.msgpack.encode(OwnAnswer(chosen))


async def ask(wire: Network, peer: Address) -> OwnAnswer:
    """What a peer has of this node's own words. Raises NetworkError, MalformedMessage."""
    data = await wire.request(peer, PROTOCOL, b"", max_response=MAX_ANSWER, timeout=10.0)
    return decode_msgpack(data, OwnAnswer, limit=MAX_ANSWER, error=MalformedMessage, what="bad answer about own words")
