"""The board: the recent signed messages of one pool, from gossip and, for what gossip lost, from any member.

Knows who may say what, and in which order to look at a message: the cheap first, signatures last. Leaves what is kept
to the shelf, what was missed to `catchup.py`, and what a message means to the subscribers.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
import structlog
import trio

from node.changes import Bell, side_by_side
from node.clock import Clock, PeerClocks, Seconds
from node.network.budget import Budgets
from node.network.interface import Network
from node.swarm.author_queue import Readers
from node.swarm.catchup import CatchingUp, name_of
from node.swarm.counts import ELSE, MUTED, PATIENCE, Authority, may_say, own_budgets
from node.swarm.message_store import MessageStore
from node.swarm.ownwords import OwnEar
from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey
from protocol.messages import (
    ANY_MESSAGE,
    Carried,
    DisputeRaised,
    EarningsVote,
    Entry,
    EpochRootSigned,
    Heartbeat,
    LeaderSilent,
    M,
    MalformedMessage,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    Signed,
    StepVerdict,
    ValidatorBatch,
    VerdictIssued,
    VerdictRequested,
    authenticate,
    entries,
    open_envelope,
    parse_envelope,
    seal,
    together,
    topic,
    with_carried,
)
from protocol.statements import Domain, signer_of

log = structlog.get_logger()


class Board:
    """Post, receive and remember the messages of one pool. clock: monotonic seconds; wall: unix seconds."""

    def __init__(
        self,
        wire: Network,
        key: NodeKey,
        domain: Domain,
        pool: int,
        authority: Authority,
        clock: Seconds = trio.current_time,
        wall: Seconds = time.time,
    ) -> None:
        self._wire = wire
        self._key = key
        self._domain = domain
        self._pool = pool
        self._authority = authority
        self._clock = clock
        self.clocks = PeerClocks(Clock(clock, wall))
        self._message_store = MessageStore()
        self._own, self._else = own_budgets(), Budgets(*ELSE)
        self._patience = Budgets(*PATIENCE)
        self._readers: Readers[Signed[Any]] = Readers()
        self.counts: Counter[str] = Counter()
        self.own = OwnEar(clock, wall)
        """Words of this node's key that this process did not say."""
        self.heard: dict[Address, float] = {}
        """When something new by each member came last, whichever way; monotonic seconds."""
        self._unsaid: list[tuple[float, Entry]] = []
        """What this node will say, with when it must be said at the latest."""
        self._more_to_say = Bell()
        self._topic = topic(domain, pool)
        # Everything is decided in the validator: what is refused must not be forwarded either.
        self._incoming = wire.subscribe(self._topic, self._accept)
        self.catching_up = CatchingUp(wire, authority, self._message_store, self._handed, self.counts, clock)

    async def run(self) -> None:
        """Drain gossip and catch up until cancelled."""
        await side_by_side(self._drain, self.catching_up.run, self._speak)

    def subscribe(self, *kinds: type[M]) -> trio.MemoryReceiveChannel[Signed[M]]:
        """Every new message of some kinds in the order in which they come, those already on the board first.

        A slow reader loses the excess, of each author by itself (`counts["lost"]`).
        """
        return self._readers.subscribe(kinds, self._message_store.messages(*kinds))

    def messages(self, kind: type[M]) -> list[Signed[M]]:
        """The kept messages of a kind, oldest first."""
        return self._message_store.messages(kind)

    def sealed(self, message: Message) -> bytes:
        """The signed envelope, for the journal to record before `post_raw`."""
        return seal(self._key, self._domain, message)

    async def post(self, message: Message) -> None:
        """Sign and gossip."""
        await self.post_raw(self.sealed(message))

    def say(self, words: Iterable[Entry], within: float) -> None:
        """Gossip these within so many seconds, together with all else that waits to be said by then."""
        self._unsaid += [(self._clock() + within, one) for one in words]
        self._more_to_say.ring()

    def withdraw(self, entry: Entry) -> bool:
        """Do not say this any more; False if it was said."""
        # By identity: two equal words may wait for different reasons, and each is taken back by whoever said it.
        before = len(self._unsaid)
        self._unsaid = [(due, one) for due, one in self._unsaid if one is not entry]
        return len(self._unsaid) < before

    async def _speak(self) -> None:
        while True:
            pause = min((due for due, _ in self._unsaid), default=math.inf) - self._clock()
            if pause > 0:
                await self._more_to_say.wait(pause)
                continue
            # What is due first must go; what is due later rides along while there is room, and costs no message of its
            # own.
            self._unsaid.sort(key=lambda one: one[0])
            message, rest = together(self._pool, (one for _, one in self._unsaid))
            left = {id(one) for one in rest}
            self._unsaid = [(due, one) for due, one in self._unsaid if id(one) in left]
            await self.post(message)

    async def post_raw(self, raw: bytes) -> None:
        """Gossip an envelope that was sealed earlier, and keep it for those who missed it."""
        # Opened like a stranger's: what is malformed here would be refused by everybody, at our cost.
        try:
            signed = open_envelope(self._domain, self._pool, raw)
        except ProtocolError as error:  # sealed by this node, so it is its journal's disk
            log.warning("journal.word_damaged", why=error.why, then="it is not said again")
            return
        self._message_store.saw(name_of(raw), signed)  # kept or not: what comes back of it is no other daemon's word
        self._take(signed, by=self._key.address)
        await self._wire.publish(self._topic, raw)

    def pin(self, envelopes: Sequence[bytes]) -> None:
        """Keep these for good, so that whoever comes later finds them: what shows that a validator lied.

        A newcomer without it disputes every file of a liar whom the others ignore, and gets no second looks.
        """
        for raw in envelopes:
            try:
                self._message_store.pin(name_of(raw), open_envelope(self._domain, self._pool, raw), self._clock())
            except ProtocolError as error:
                self._refuse(error, "pinned")

    def opened(self, raw: bytes, kind: type[M] = ANY_MESSAGE) -> Signed[M]:
        """A message that another one carries, checked as if it had come by itself; raises ProtocolError.

        kind: what it must be. Carried messages carry no further ones: what is checked for them stays bounded.
        """
        parsed = parse_envelope(self._pool, raw)
        if isinstance(parsed.message, DisputeRaised | VerdictRequested | ValidatorBatch):
            raise MalformedMessage("message refused", "a carried message carries another one")
        if not isinstance(parsed.message, kind):
            raise MalformedMessage("message refused", f"it carries {type(parsed.message).__name__}")
        signed = authenticate(self._domain, parsed)
        self._authorise(signed)
        return cast(Signed[M], signed)

    # receiving

    async def _drain(self) -> None:
        async for _ in self._incoming:
            pass  # everything happened in _accept

    def _accept(self, publisher: Address, raw: bytes) -> bool:
        """The gossip validator: True if the message may be forwarded."""
        # Of somebody who is no member there is nobody to charge: not even its bytes are looked at.
        if not (self._authority.is_member(publisher) or self._authority.is_trainer(publisher)):
            self.counts["strangers"] += 1
            return False
        name = name_of(raw)
        # Looked up before anything is parsed: a repetition must cost us no more than a hash.
        seen = self._message_store.seen(name)
        if seen is not None:
            return self._repeats(publisher, seen.author, seen.kind)
        at = "form"
        try:
            parsed = parse_envelope(self._pool, raw)
            kind, at = type(parsed.message), "signature"
            own = may_say(self._authority, publisher, kind)
            # Charged before the signature is checked, which is the dear part: whoever floods pays with its own budget.
            if not (self._spends_all(publisher, parsed.message) if own else self._spends(publisher, None)):
                return False
            signed = authenticate(self._domain, parsed)
            # Somebody else's message under the publisher's rights: the budget of its own kind was the wrong one.
            if own and signed.author != publisher and not self._spends(publisher, None):
                return False
            if self._is_future(signed, publisher):
                return False
            at = "office"
            self._authorise(signed)
        except ProtocolError as error:
            self._refuse(error, at)
            self._spends(publisher, None)
            return False
        return self._take(signed, by=publisher)

    def _repeats(self, publisher: Address, author: Address, kind: type[Message]) -> bool:
        """A message that is known comes again. Its author may have a reason to say it again; nobody else has one."""
        self.counts["repeated"] += 1
        if publisher == author:
            return self._spends(publisher, kind)
        self._spends(publisher, None)
        return False

    def _spends_all(self, publisher: Address, message: Message) -> bool:
        """Charge a member for a message of its own and for each entry of it: several in one save nothing."""
        # Otherwise a validator could say everything as entries of one message, past every bound of `COUNTS`.
        costs = Counter(type(one) for one in entries(message))
        return all(self._spends(publisher, kind, many) for kind, many in costs.items())

    def _spends(self, publisher: Address, kind: type | None, many: int = 1) -> bool:
        """Charge a member for what is its own, or (None) for anything else; False if it is too much."""
        now = self._clock()
        if (self._own[kind] if kind else self._else).take(publisher, many, now):
            return True
        self.counts[f"over_budget.{kind.__name__ if kind else 'else'}"] += 1
        if not self._patience.take(publisher, 1, now):
            self.counts["muted"] += 1
            # Muted for a while and not slashed: a busy or broken node floods, too, and nothing it signed is false.
            self._wire.mute(publisher, MUTED)
            log.warning("member.muted", node=publisher, seconds=MUTED)
        return False

    def _is_future(self, signed: Signed[Message], publisher: Address | None = None) -> bool:
        """Whether its author's clock is so far ahead that its word would outlast every later one. Nobody is charged for
        that: who has a wrong clock is heard again as soon as it is right."""
        at = signed.message.said_at()
        if at is None:
            return False
        # Only one that comes straight from its author was not delayed by others, so only that tells of its clock.
        if isinstance(signed.message, Heartbeat) and publisher == signed.author:
            self.clocks.heard(signed.author, at)
        ahead = self.clocks.is_future(at)
        self.counts["future"] += ahead
        return ahead

    def _refuse(self, error: ProtocolError, at: str) -> None:
        """at: by what: its form, its signature, its author's office; or how else it came."""
        self.counts["refused"] += 1
        self.counts[f"refused.{at}"] += 1
        log.debug("message.refused", why=error.why)

    def _handed(self, peer: Address, raw: bytes) -> bool | None:
        """A message that a peer hands over, whoever wrote it: whether it is news; None where its time has not come.
        Raises ProtocolError."""
        try:
            signed = open_envelope(self._domain, self._pool, raw)
            self._authorise(signed)
        except ProtocolError as error:
            self._refuse(error, "handed")
            raise
        return None if self._is_future(signed) else self._take(signed, by=peer)

    # rights

    def _authorise(self, signed: Signed[Message]) -> None:
        message, author = signed.message, signed.author
        if not may_say(self._authority, author, type(message)) or not self._is_borne_out(message, author):
            raise MalformedMessage("message refused", f"{author} may not say {type(message).__name__}")

    def _is_borne_out(self, message: Message, author: Address) -> bool:
        """Whether the signatures and envelopes that a message carries are what they should be."""
        match message:
            case PolicyAnnounced(statement=statement, signature=signature):
                return signer_of(self._domain, statement.commitment(author), signature) == author
            case RolloutCommitted(commitment=commitment, signature=signature):
                return signer_of(self._domain, commitment, signature) == author
            case ValidatorBatch(carried=carried):
                return all(self._may_carry(one, author) for one in carried)
            case StepVerdict(statement=statement, trainer=trainer, word=word):
                stated = signer_of(self._domain, statement.commitment(trainer), word) == trainer
                return stated and signer_of(self._domain, message.verdict, message.signature) == author
            case LeaderSilent(signature=signature):
                return signer_of(self._domain, message.statement, signature) == author
            case EarningsVote(earnings=earnings, signature=signature):
                return signer_of(self._domain, earnings, signature) == author
            case DisputeRaised(first=first, second=second):
                # Opened as if they had come alone: the carrier's signature vouches for nothing in them.
                for raw in (first, second):
                    self.opened(raw, VerdictIssued)
            case VerdictRequested(commitment=raw):
                self.opened(raw, RolloutCommitted)
            case _:  # it carries nothing that another one signed
                pass
        return True

    def _may_carry(self, one: Carried, author: Address) -> bool:
        """Likewise, of a message in another one; what comes by itself is by whoever signed it."""
        if isinstance(one, VerdictIssued):
            return signer_of(self._domain, one.verdict, one.signature) == author
        if isinstance(one, EpochRootSigned) and signer_of(self._domain, one.statement, one.signature) != author:
            return False
        return may_say(self._authority, author, type(one)) and self._is_borne_out(one, author)

    # keeping

    def _take(self, signed: Signed[Message], by: Address) -> bool:
        """Keep a message and tell it to who subscribed; False if it is no news."""
        now = self._clock()
        if signed.author == self._key.address and by != signed.author:
            # Before the shelf, which keeps no heartbeat of a lower number: another daemon's may be one.
            for one in with_carried(signed):
                self.own.hear(one)
        if not self._message_store.put(name_of(signed.raw), signed, now, direct=by == signed.author):
            return False
        self.heard[signed.author] = now
        name = type(signed.message).__name__
        self.counts[name] += 1
        self.counts[f"bytes.{name}"] += len(signed.raw)
        for one in with_carried(signed):
            kind = type(one.message)
            if one is not signed:
                self.counts[f"carried.{kind.__name__}"] += 1
                self.counts[f"carried_bytes.{kind.__name__}"] += len(msgspec.msgpack.encode(one.message))
            self._readers.tell(kind, one)
        if self._readers.lost:
            self.counts["lost"] = self._readers.lost
        return True

    def words_of(self, author: Address) -> list[Signed[Message]]:
        """What is kept of one author, newest first."""
        return self._message_store.of(author)
