"""Catching up: what gossip lost is asked of any member, by the names of what one has.

Each new peer is asked at once, and one of the others at random now and then. A peer is charged for what it hands over,
whoever wrote it.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import structlog
import trio
from blake3 import blake3

from node.bounded_dict import BoundedDict
from node.changes import every
from node.clock import Seconds
from node.network.budget import Budgets
from node.network.interface import Network
from node.swarm.counts import HANDED, Authority
from node.swarm.message_store import MAX_MESSAGES, MessageStore
from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.liveness import MAX_MEMBERS
from protocol.messages import MalformedMessage

log = structlog.get_logger()
CATCH_UP_PROTOCOL = "/intellect-node/board/1"
MAX_CATCH_UP_BYTES = 256 * 1024
NAME, SHORT = 32, 8
"""Bytes of a message's name, and of the part of it that stands in a question. Which part is drawn anew for each: two
messages that agree in one of them are easily made, and the second would never be handed over."""
MAX_KNOWN = 2 * MAX_MESSAGES + MAX_MEMBERS
"""Names in a question: fewer than a board can keep would bring the others again with every answer."""
MAX_QUESTION = 10 * MAX_KNOWN + 64
MAX_REFUSED = 128
"""Refused messages in one answer after which the rest is left: an honest peer knows a few members more than we."""
ASKED = (1.0, 20.0)
"""Answers per second, and in a burst, that one peer gets: it asks each of us at most once in `every` seconds."""


class CatchUp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """known: SHORT bytes of the name of each message that the asker has, or wants no more; at: where in the names."""

    known: list[bytes]
    at: int


def name_of(raw: bytes) -> bytes:
    return blake3(raw).digest(NAME)


class CatchingUp:
    """handed: takes a message that a peer hands over; whether it was news, None where its time has not come, and
    ProtocolError where it is refused; counts: the board's; clock: monotonic seconds; every: seconds between two
    questions at least; named_each_second: messages of which a question may tell the names, on average: 5 kB/s however
    large the pool."""

    def __init__(
        self,
        wire: Network,
        authority: Authority,
        message_store: MessageStore,
        handed: Callable[[Address, bytes], bool | None],
        counts: Counter[str],
        clock: Seconds,
        *,
        every: float = 2.0,
        named_each_second: float = 500.0,
    ) -> None:
        self.every, self._named = every, named_each_second
        self._wire, self._authority, self._message_store = wire, authority, message_store
        self._handed, self.counts, self._clock = handed, counts, clock
        self._budgets, self._asked = Budgets(*HANDED), Budgets(*ASKED)
        self._refused: BoundedDict[bytes, float] = BoundedDict(MAX_MESSAGES)
        wire.serve(CATCH_UP_PROTOCOL, self.answer, max_request=MAX_QUESTION)

    async def run(self) -> None:
        greeted, pause = set[Address](), 0.0

        async def ask() -> None:
            nonlocal greeted, pause
            # Of strangers nothing is asked: their answers could not be charged to anybody.
            peers = {peer for peer in self._wire.connected() if self._authority.is_member(peer)}
            # A peer that was away is greeted anew: it may bring what was said meanwhile.
            greeted &= peers
            # Each new peer at once, and of the others one at random: so all boards converge, at the price of one
            # question.
            fresh, brought = list(peers - greeted), 0
            for peer in fresh or random.sample(list(peers), min(1, len(peers))):
                brought += await self._ask(peer)
                greeted.add(peer)
            # Seconds until the next question after an answer that brought so many messages: who was away lacks more
            # than gossip loses, and whoever was asked may have been away, too.
            # A question names all that is kept, so who keeps much asks more seldom.
            pause = 0.2 if fresh or brought >= 16 else max(self.every, len(self._message_store) / self._named)

        await every(lambda: pause, ask)

    async def now(self, most: int) -> None:
        """Ask so many members at once what was missed."""
        peers = [peer for peer in self._wire.connected() if self._authority.is_member(peer)]
        async with trio.open_nursery() as nursery:
            for peer in random.sample(peers, min(most, len(peers))):
                nursery.start_soon(self._ask, peer)

    async def _ask(self, peer: Address) -> int:
        """How many messages that brought."""
        # What was refused is named, too, or the same peer would hand it over with every answer.
        names = [*self._unwanted(), *self._message_store.names(MAX_KNOWN)]
        # The newest names, where there are too many: old messages are soon forgotten at the other end as well.
        at = random.randrange(NAME - SHORT + 1)  # noqa: S311 - a new one for each question is enough
        asked = msgspec.msgpack.encode(CatchUp([name[at : at + SHORT] for name in names[-MAX_KNOWN:]], at))
        try:
            answer = await self._wire.request(
                peer, CATCH_UP_PROTOCOL, asked, max_response=2 * MAX_CATCH_UP_BYTES, timeout=5.0
            )
            missed = decode_msgpack(
                answer, list[bytes], limit=2 * MAX_CATCH_UP_BYTES, error=MalformedMessage, what="bad catch-up"
            )
        except Exception as error:  # whatever a peer does ends here, as a count
            self.counts["catch_up_failed"] += 1
            log.debug("board.catch_up_failed", peer=peer, why=str(error)[:200])
            return 0
        before = self.counts["caught_up"]
        await self.take(peer, missed)
        return self.counts["caught_up"] - before

    def _unwanted(self) -> list[bytes]:
        """What was refused a moment ago."""
        # Seconds for which we do not ask for a refused message again: its author may be a member by then.
        while self._refused and next(iter(self._refused.values())) < self._clock() - 20.0:
            self._refused.popitem(last=False)
        return list(self._refused)

    async def take(self, peer: Address, missed: Sequence[bytes]) -> None:
        """What a peer hands over is charged to that peer, whoever wrote it."""
        self._unwanted()  # forgets what may be taken by now: a light client by HTTP asks no peer, and hands over again
        refused = 0
        for raw in missed:
            await trio.lowlevel.checkpoint()  # each one is two signatures' work
            name = name_of(raw)
            if self._message_store.seen(name) or name in self._refused:
                continue
            # A peer may hold it in good faith, so a few refusals are free; a stream of them ends the answer.
            if refused >= MAX_REFUSED or not self._budgets.take(peer, 1, self._clock()):
                self.counts["over_budget.handed"] += 1
                return
            try:
                fresh = self._handed(peer, raw)
            except ProtocolError:
                fresh, refused = None, refused + 1
            if fresh is None:
                self._refused[name] = self._clock()
            self.counts["caught_up"] += bool(fresh)

    async def answer(self, asker: Address, data: bytes) -> bytes:
        if not self._asked.take(asker, 1, self._clock()):
            self.counts["over_budget.asked"] += 1
            return msgspec.msgpack.encode([])
        asked = decode_msgpack(data, CatchUp, limit=MAX_QUESTION, error=MalformedMessage, what="bad catch-up")
        if not 0 <= asked.at <= NAME - SHORT:
            raise MalformedMessage("bad catch-up", "it names a part that no name has")
        known, part = set(asked.known[:MAX_KNOWN]), slice(asked.at, asked.at + SHORT)
        return msgspec.msgpack.encode(self._message_store.share(lambda name: name[part] in known, MAX_CATCH_UP_BYTES))
