"""Which gossip is let in, and handed to whom: what each giver and each author may send, replays, the muted, and each
topic's own check.

Knows messages and who wrote them; nothing of streams and trees.
"""

import time

import msgspec
import trio
from libp2p.pubsub.pb import rpc_pb2

from node.network.budget import Budgets
from node.network.hardening import Fault
from node.network.interface import MAX_GOSSIP_BYTES, SUBSCRIPTION_BUFFER, Accept, NetworkCounters
from node.network.links import KnownPeers
from protocol.identity import Address
from protocol.liveness import AHEAD

WIDTH = 4096
"""Messages that may overtake each other."""
CLOCKED = range(1_577_836_800 * 10**9, 4_102_444_800 * 10**9)
"""Numbers that can be a clock in nanoseconds: from 2020 to 2100."""


class Window(msgspec.Struct, gc=False, eq=False):
    """The newest number of one publisher, and which of the WIDTH before it were taken. Pure.

    Without it, anybody could spend a member's budget by sending its old messages again, whose signatures stay good:
    gossip forgets a message after 32,768 others. Our numbers, and those of go-libp2p, begin with the clock and rise by
    one. js-libp2p draws them at random; such publishers are recognised, and let be.
    """

    _newest: int = 0
    _taken: int = 0
    _random: bool = False

    def fresh(self, number: int, latest: int = CLOCKED.stop) -> bool:
        """Whether a message with that number has not been taken, and is not older than all that are remembered. latest:
        what is above that is from the future, and nothing is remembered of it: else a clock that was a day ahead and
        is put right would make its node mute for a day."""
        behind = self._newest - number
        if self._random or number not in CLOCKED or number > latest or behind < 0:
            return True
        return behind < WIDTH and not self._taken >> behind & 1

    def take(self, number: int, latest: int = CLOCKED.stop) -> bool:
        """The same, and it is taken from now on. Only for numbers whose signature was checked."""
        self._random = self._random or number not in CLOCKED
        if self._random or number > latest:
            return True
        if not self.fresh(number):
            return False
        ahead = number - self._newest
        if ahead > 0:
            self._taken = (self._taken << ahead | 1) & (1 << WIDTH) - 1 if ahead < WIDTH else 1
            self._newest = number
        else:
            self._taken |= 1 << -ahead
        return True


# Per peer that hands us messages, and per peer that wrote them: messages per second, and in a burst.
FORWARDED = (200.0, 1000.0)
PUBLISHED = (25.0, 400.0)


class _Subscription:
    def __init__(self, accept: Accept) -> None:
        self.accept = accept
        self.send, self.receive = trio.open_memory_channel[tuple[Address, bytes]](SUBSCRIPTION_BUFFER)


class GossipScreen:
    """What gossip asks of a node (`gossip.Listener`). fault: told of every error that was caught on a peer's behalf."""

    def __init__(self, known: KnownPeers, tally: NetworkCounters, fault: Fault) -> None:
        self.is_member = known.is_members
        self._known = known
        self._fault = fault
        self._tally = tally
        self._subscriptions: dict[str, _Subscription] = {}
        self._forwarded = Budgets(*FORWARDED)
        self._published = Budgets(*PUBLISHED)
        self._muted: dict[Address, float] = {}
        self._windows: dict[Address, Window] = {}

    def fault(self, where: str, error: BaseException) -> None:
        self._fault(where, error)

    def topics(self) -> tuple[str, ...]:
        return tuple(self._subscriptions)

    def subscribe(self, topic: str, accept: Accept) -> trio.MemoryReceiveChannel[tuple[Address, bytes]]:
        # Two would share one channel and each hear half of the news.
        if topic in self._subscriptions:
            raise ValueError(f"already subscribed to {topic}")
        subscription = self._subscriptions[topic] = _Subscription(accept)
        return subscription.receive

    def mute(self, member: Address, seconds: float) -> None:
        now = trio.current_time()
        # Swept here, where it grows, so that it needs no task of its own.
        self._muted = {muted: until for muted, until in self._muted.items() if until > now}
        self._muted[member] = now + seconds

    def forget(self, member: Address) -> None:
        """It is no member any more."""
        self._windows.pop(member, None)

    def admit(self, giver: bytes, message: rpc_pb2.Message) -> bool:
        """Before any signature: so nothing is charged to the publisher, whose name may be borrowed."""
        now = trio.current_time()
        # The giver is charged first, for it is who is certain: the connection proves its key.
        if self._forwarded.take(giver, 1, now) and self._is_worth_reading(message, now):
            return True
        self._tally.add(dropped=1)
        return False

    def _is_worth_reading(self, message: rpc_pb2.Message, now: float) -> bool:
        publisher = self._known.address_of(message.from_id)
        if publisher is None or self._muted.get(publisher, 0.0) > now:
            return False
        window = self._windows.get(publisher)
        return window is None or window.fresh(_number(message), _latest())

    def accepts(self, topic: str, message: rpc_pb2.Message) -> bool:
        """Whether a signed message may be delivered and forwarded. Never raises."""
        publisher = self._known.address_of(message.from_id)
        if publisher is None or len(message.data) > MAX_GOSSIP_BYTES:
            self._tally.add(rejected=1)
            return False
        # By now the signature is checked: only what the publisher itself wrote is charged to it.
        if not self._is_news(publisher, message) or not self._published.take(publisher, 1, trio.current_time()):
            self._tally.add(dropped=1)
            return False
        try:
            # A topic's own check reads what strangers wrote: an error in it is a fault of ours, and must not end the
            # task that reads all gossip.
            accepted = bool(self._subscriptions[topic].accept(publisher, message.data))
        except Exception as error:
            self.fault("accept", error)
            accepted = False
        if not accepted:
            self._tally.add(rejected=1)
        return accepted

    def _is_news(self, publisher: Address, message: rpc_pb2.Message) -> bool:
        """Members only: anybody can make up publishers, and windows would be forgotten for theirs."""
        if not self._known.is_member(publisher):
            return True
        return self._windows.setdefault(publisher, Window()).take(_number(message), _latest())

    def deliver(self, topic: str, message: rpc_pb2.Message) -> None:
        publisher = self._known.address_of(message.from_id)
        subscription = self._subscriptions.get(topic)
        if publisher is None or subscription is None:
            return
        try:
            # Never waits: one subscriber that is slow must not keep gossip from the others. What it loses, it is sent
            # again by the board.
            subscription.send.send_nowait((publisher, message.data))
            self._tally.add(messages_in=1, bytes_in=len(message.data))
        except (trio.WouldBlock, trio.BrokenResourceError):
            self._tally.add(dropped=1)


def _number(message: rpc_pb2.Message) -> int:
    return int.from_bytes(message.seqno[:8])


def _latest() -> int:
    return time.time_ns() + int(AHEAD * 1e9)
