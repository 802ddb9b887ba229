"""The board: the recent signed messages of one pool, from gossip and, for what gossip lost, from any member.

Knows how to authenticate and keep messages; leaves what they mean to its subscribers. Nothing is kept or
forwarded that is not signed by a member with the right to say it. The board is bounded: the latest heartbeat
per member, the newest policies, and everything else by age and count.
"""

import random
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec
import structlog
import trio
from blake3 import blake3

from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey
from protocol.messages import (
    MAX_MESSAGE_BYTES,
    CheckRequested,
    DisputeRaised,
    Heartbeat,
    LotsRevealed,
    MalformedMessage,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    Signed,
    VerdictIssued,
    WorkPublished,
    open_envelope,
    seal,
    topic,
)
from protocol.statements import Domain, Outcome, signer_of

log = structlog.get_logger()
M = TypeVar(
    "M",
    Heartbeat,
    PolicyAnnounced,
    RolloutCommitted,
    VerdictIssued,
    LotsRevealed,
    DisputeRaised,
    CheckRequested,
    WorkPublished,
)

CATCH_UP_PROTOCOL = "/intellect-node/board/1"
CATCH_UP_EVERY = 2.0
CATCH_UP_TIMEOUT = 5.0
MAX_CATCH_UP_BYTES = 256 * 1024
MAX_KNOWN = 4096
MAX_MESSAGES = 4096
MAX_AGE = 240.0
KEPT_POLICIES = 32
SUBSCRIBER_BUFFER = 512
MAX_PINNED = 2048


class Authority(Protocol):
    """Who may say what."""

    def is_member(self, address: Address) -> bool: ...
    def is_validator(self, address: Address) -> bool: ...
    def is_trainer(self, address: Address) -> bool: ...


class Wire(Protocol):
    """The part of node.network that the board needs."""

    def connected(self) -> frozenset[Address]: ...
    async def publish(self, topic: str, data: bytes) -> None: ...
    def subscribe(
        self, topic: str, accept: Callable[[Address, bytes], bool]
    ) -> trio.MemoryReceiveChannel[tuple[Address, bytes]]: ...
    def serve(
        self, protocol: str, handler: Callable[[Address, bytes], Awaitable[bytes]], *, max_request: int
    ) -> None: ...
    async def request(
        self, peer: Address, protocol: str, data: bytes, *, max_response: int, timeout: float
    ) -> bytes: ...


class CatchUp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """known: 8-byte ids of the messages that the asker already has."""

    known: list[bytes]


class _Kept(msgspec.Struct):
    signed: Signed
    at: float


class Board:
    """Post, receive and remember the messages of one pool."""

    def __init__(self, wire: Wire, key: NodeKey, domain: Domain, pool: int, authority: Authority) -> None:
        self._wire = wire
        self._key = key
        self._domain = domain
        self._pool = pool
        self._authority = authority
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._pinned: OrderedDict[bytes, None] = OrderedDict()
        self._latest_beat: dict[Address, bytes] = {}
        self._subscribers: list[tuple[type, trio.MemorySendChannel[Signed]]] = []
        self.counts: Counter[str] = Counter()
        self.heard: dict[Address, float] = {}
        """When something new by each member came last, whichever way; monotonic seconds."""
        self._topic = topic(domain, pool)
        self._incoming = wire.subscribe(self._topic, self._accept)
        wire.serve(CATCH_UP_PROTOCOL, self._answer_catch_up, max_request=16 * MAX_KNOWN)

    async def run(self) -> None:
        """Drain gossip and catch up until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._drain)
            nursery.start_soon(self._catch_up_forever)

    def subscribe(self, kind: type[M]) -> trio.MemoryReceiveChannel[Signed]:
        """Every new message of a kind, those already on the board first. A slow reader loses the excess."""
        send, receive = trio.open_memory_channel[Signed](SUBSCRIBER_BUFFER)
        self._subscribers.append((kind, send))
        for kept in list(self._kept.values()):
            if isinstance(kept.signed.message, kind):
                self._offer(send, kept.signed)
        return receive

    def messages(self, kind: type[M]) -> list[Signed]:
        """The kept messages of a kind, oldest first."""
        return [kept.signed for kept in self._kept.values() if isinstance(kept.signed.message, kind)]

    def sealed(self, message: Message) -> bytes:
        """The signed envelope, for the journal to record before `post_raw`."""
        return seal(self._key, self._domain, message)

    async def post(self, message: Message) -> None:
        """Sign and gossip."""
        await self.post_raw(self.sealed(message))

    async def post_raw(self, raw: bytes) -> None:
        """Gossip an envelope that was sealed earlier, and keep it for those who missed it."""
        self._take(open_envelope(self._domain, self._pool, raw))
        await self._wire.publish(self._topic, raw)

    def pin(self, envelopes: Sequence[bytes]) -> None:
        """Keep these for good, so that whoever comes later finds them: what shows that a validator lied."""
        for raw in envelopes:
            self._pinned[_id(raw)] = None
            self._accept(self._key.address, raw)
        while len(self._pinned) > MAX_PINNED:
            self._pinned.popitem(last=False)

    # receiving

    async def _drain(self) -> None:
        async for _ in self._incoming:
            pass  # everything happened in _accept

    def _accept(self, _publisher: Address, raw: bytes) -> bool:
        """The gossip validator: True if the message may be kept and forwarded."""
        if _id(raw) in self._kept:
            return True
        try:
            signed = open_envelope(self._domain, self._pool, raw)
            self._authorise(signed)
        except ProtocolError as error:
            self.counts["refused"] += 1
            log.debug("message.refused", why=error.why)
            return False
        self._take(signed)
        return True

    def _authorise(self, signed: Signed) -> None:
        message, author = signed.message, signed.author
        match message:
            case Heartbeat():
                allowed = self._authority.is_member(author)
            case PolicyAnnounced():
                allowed = self._authority.is_trainer(author)
            case RolloutCommitted(commitment=commitment, signature=signature):
                allowed = self._authority.is_member(author)
                allowed = allowed and signer_of(self._domain, commitment, signature) == author
            case VerdictIssued(verdict=verdict, signature=signature, recheck=recheck):
                allowed = self._authority.is_validator(author)
                among_us = recheck or verdict.outcome == Outcome.ACCEPT  # may be said to members alone
                unsigned = among_us and not signature
                allowed = allowed and (unsigned or signer_of(self._domain, verdict, signature) == author)
            case WorkPublished():
                allowed = self._authority.is_member(author)
            case LotsRevealed():
                allowed = self._authority.is_validator(author)
            case DisputeRaised(first=first, second=second):
                allowed = self._authority.is_validator(author) or self._authority.is_trainer(author)
                allowed = allowed and all(self._is_verdict(raw) for raw in (first, second))
            case CheckRequested(commitment=raw):
                allowed = self._authority.is_trainer(author)
                allowed = allowed and isinstance(self.opened(raw).message, RolloutCommitted)
        if not allowed:
            raise MalformedMessage("message refused", f"{author} may not say {type(message).__name__}")

    def opened(self, raw: bytes) -> Signed:
        """A message that another one carries, checked as if it had come by itself; raises ProtocolError.

        Carried messages carry no further ones: what is checked for them stays bounded.
        """
        signed = open_envelope(self._domain, self._pool, raw)
        if isinstance(signed.message, DisputeRaised | CheckRequested):
            raise MalformedMessage("message refused", "a carried message carries another one")
        self._authorise(signed)
        return signed

    def _is_verdict(self, raw: bytes) -> bool:
        return isinstance(self.opened(raw).message, VerdictIssued)

    def _take(self, signed: Signed) -> None:
        name = _id(signed.raw)
        if name in self._kept:
            return
        if isinstance(signed.message, Heartbeat) and not self._supersede(signed, name):
            return
        self.heard[signed.author] = now = trio.current_time()
        self._kept[name] = _Kept(signed, now)
        self._expire()
        self.counts[type(signed.message).__name__] += 1
        for kind, channel in self._subscribers:
            if isinstance(signed.message, kind):
                self._offer(channel, signed)

    def _supersede(self, signed: Signed, name: bytes) -> bool:
        """Keep only the newest heartbeat of each member."""
        old = self._latest_beat.get(signed.author)
        kept = self._kept.get(old) if old else None
        if kept and kept.signed.message.sequence >= signed.message.sequence:  # type: ignore[union-attr]
            return False
        if old:
            self._kept.pop(old, None)
        self._latest_beat[signed.author] = name
        return True

    def _expire(self) -> None:
        oldest_kept = trio.current_time() - MAX_AGE
        steps = sorted(message.step for message in self._policies())
        floor = steps[-KEPT_POLICIES] if len(steps) >= KEPT_POLICIES else -1
        for name, kept in list(self._kept.items()):
            message = kept.signed.message
            if isinstance(message, PolicyAnnounced):
                if message.step < floor:
                    del self._kept[name]
            elif name in self._pinned:
                continue
            elif kept.at < oldest_kept or len(self._kept) > MAX_MESSAGES:
                del self._kept[name]
            else:
                break  # the rest is newer

    def _policies(self) -> list[PolicyAnnounced]:
        messages = (kept.signed.message for kept in self._kept.values())
        return [message for message in messages if isinstance(message, PolicyAnnounced)]

    def _offer(self, channel: trio.MemorySendChannel[Signed], signed: Signed) -> None:
        try:
            channel.send_nowait(signed)
        except trio.WouldBlock:
            self.counts["lost"] += 1
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._subscribers = [entry for entry in self._subscribers if entry[1] is not channel]

    # catching up

    async def _catch_up_forever(self) -> None:
        greeted: set[Address] = set()
        while True:
            peers = {peer for peer in self._wire.connected() if self._authority.is_member(peer)}
            greeted &= peers
            fresh = list(peers - greeted)
            for peer in fresh or random.sample(list(peers), min(1, len(peers))):  # noqa: S311 - load spreading
                await self._catch_up(peer)
                greeted.add(peer)
            await trio.sleep(CATCH_UP_EVERY if not fresh else 0.2)

    async def _catch_up(self, peer: Address) -> None:
        asked = msgspec.msgpack.encode(CatchUp(list(self._kept)[-MAX_KNOWN:]))
        try:
            answer = await self._wire.request(
                peer, CATCH_UP_PROTOCOL, asked, max_response=2 * MAX_CATCH_UP_BYTES, timeout=CATCH_UP_TIMEOUT
            )
            missed = decode_msgpack(
                answer, list[bytes], limit=2 * MAX_CATCH_UP_BYTES, error=MalformedMessage, what="bad catch-up"
            )
        except Exception as error:  # whatever a peer does ends here, as a count
            self.counts["catch_up_failed"] += 1
            log.debug("board.catch_up_failed", peer=peer, why=str(error)[:200])
            return
        for raw in missed:
            if len(raw) <= MAX_MESSAGE_BYTES and self._accept(peer, raw):
                self.counts["caught_up"] += 1
            await trio.lowlevel.checkpoint()  # each one is two signatures' work

    async def _answer_catch_up(self, _asker: Address, data: bytes) -> bytes:
        asked = decode_msgpack(data, CatchUp, limit=16 * MAX_KNOWN, error=MalformedMessage, what="bad catch-up")
        known = set(asked.known[:MAX_KNOWN])
        answer: list[bytes] = []
        room = MAX_CATCH_UP_BYTES
        for name, kept in reversed(self._kept.items()):
            if name in known:
                continue  # takes no room, or what is older would never be told
            room -= len(kept.signed.raw)
            if room < 0:
                break
            answer.append(kept.signed.raw)
        return msgspec.msgpack.encode(list(reversed(answer)))


def _id(raw: bytes) -> bytes:
    return blake3(raw).digest(8)
