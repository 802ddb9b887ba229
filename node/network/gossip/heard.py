"""Which messages were heard, from whom first, and the last ones themselves. Pure: the clock is a count of ticks."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import msgspec
from libp2p.pubsub.pb import rpc_pb2

from node.network.gossip.messages import name_of
from node.recent import Recent

MAX_NAMES = 32_768
"""Of messages that are not looked at again."""
MAX_BYTES = 8 * 1024**2
"""Of messages that are kept for those who missed them."""
KEPT_TICKS = 20
TOLD_TICKS = 6
"""How long digests name a message: to three draws of peers, at one a second."""


class First(msgspec.Struct, frozen=True, gc=False):
    """giver: the link that brought it, as a raw peer id, empty for nobody's merit; at: when, seconds."""

    giver: bytes
    at: float


class Heard:
    def __init__(self) -> None:
        self.now = 0
        self._firsts: Recent[bytes, First] = Recent(MAX_NAMES)
        self._kept: OrderedDict[bytes, tuple[int, rpc_pb2.Message]] = OrderedDict()
        self._bytes = 0

    def first(self, name: bytes) -> First | None:
        """How a message came first; None for one not heard yet."""
        return self._firsts.get(name)

    def note(self, name: bytes, giver: bytes, at: float) -> None:
        self._firsts[name] = First(giver, at)

    def keep(self, message: rpc_pb2.Message) -> None:
        """For those who missed it; once, also where its name was forgotten and it came again."""
        name = name_of(message)
        if (known := self._kept.pop(name, None)) is not None:
            self._bytes -= known[1].ByteSize()
        self._kept[name] = self.now, message
        self._bytes += message.ByteSize()
        while self._bytes > MAX_BYTES:
            self._drop_oldest()

    def tick(self) -> None:
        """Half a second has gone by: what is old is dropped."""
        self.now += 1
        while self._kept and next(iter(self._kept.values()))[0] <= self.now - KEPT_TICKS:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, message) = self._kept.popitem(last=False)
        self._bytes -= message.ByteSize()

    def recent(self, topic: str, most: int) -> list[bytes]:
        """Names of the newest messages of a topic that a digest tells, newest first."""
        found: list[bytes] = []
        for name in reversed(self._kept):
            at, message = self._kept[name]
            if at <= self.now - TOLD_TICKS or len(found) == most:
                break
            if message.topicIDs[0] == topic:
                found.append(name)
        return found

    def wanted(self, names: Iterable[bytes], room: int) -> Iterator[rpc_pb2.Message]:
        """The kept ones of these, each once, of at most `room` bytes in all."""
        for name in dict.fromkeys(names):
            _, message = self._kept.get(name, (0, None))
            if message is not None:
                room -= message.ByteSize()
                if room < 0:
                    return
                yield message
