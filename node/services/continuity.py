"""Who am I? Whether this daemon is alone with its key, and knows all that the key has signed.

A start in doubt (`node.state.pen`) says nothing: it asks the pool for its key's own words, and listens. Where the key
speaks elsewhere it ends, and has taken nothing from the other one. Else its journal takes in what it lacks. What others
kept to themselves it cannot know: so a fence is closed before what may have been signed, and only what the journal has
is said of that. Then come heartbeats alone, for as long as a copy of the same moment takes to be heard, and then the
pen is open. A daemon that works and hears its key elsewhere holds still if the other one is newer, and ends if it is
not. What is not solved: two that go on from one memory may both sign within the time of one hop.
"""

from collections.abc import Sequence
from typing import Any, Self

import structlog
import trio

from node.network.interface import Network
from node.services.base import Service
from node.services.context import Context
from node.services.own_words import OwnWords, OwnWordsServer
from node.services.workplace import Workplace
from node.state.journal import BOOT
from node.state.pen import TwinError
from protocol.liveness import heartbeat_interval
from protocol.messages import Message, Signed

log = structlog.get_logger()


class Continuity(Service):
    """Ready once the pen is open. vouch: its owner says that no other daemon has this key, and that the journal is its
    newest."""

    name = "continuity"

    def __init__(self, context: Context, network: Network, *, vouch: bool = False) -> None:
        self._context = context
        self._journal = context.journal
        self._pen = context.journal.pen
        self._ear = context.board.own
        self._vouch = vouch
        self._server = OwnWordsServer(context, network)
        self._words = OwnWords(context, network, vouch=vouch)
        self.holds = 0

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.context, place.member.network, vouch=place.config.vouch)

    async def start(self, nursery: trio.Nursery) -> None:
        if self._pen.doubt:
            await self._make_sure()
        nursery.start_soon(self.run)

    async def run(self) -> None:
        """Heed what is heard with this key, until cancelled. Raises TwinError."""
        while True:
            news = self._ear.news
            why = await self._amiss(self._ear.take())
            if why:
                await self._hold(why)
            else:
                await news.wait()

    def status(self) -> dict[str, Any]:
        pen = "held" if self._pen.held else "open" if self._pen.may_write else "shut"
        why = self._pen.held or self._pen.doubt
        told = {"state": pen, "why": why, "fence": self._journal.fence.step}
        return {"node": {"pen": told | {"adopted": self._words.adopted, "holds": self.holds}}}

    # in doubt

    async def _make_sure(self) -> None:
        progress, pen = self._context.progress, self._pen
        progress.enter("continuity", f"asking the pool what this key has signed: {pen.doubt}")
        log.warning("continuity.doubt", why=pen.doubt, generation=pen.generation)
        began = self._context.clock.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._words.ask_again_and_again)
            await self._listen(began)
            nursery.cancel_scope.cancel()
        await self._words.adopt(self._ear.take())
        await self._words.close_fence()
        pen.renew(self._ear.newest_generation)
        await self._journal.do(self._journal.remember, BOOT, pen.generation.to_bytes(8))
        pen.speak()
        await self._hear_each_other()
        await self._take_pen(self._context.clock.monotonic() - began)

    async def _listen(self, began: float) -> None:
        """Until somebody has answered, and another daemon would have been heard."""
        told = False
        listen_least = 4.0
        listen_most = 180.0
        beats_heard = 2.5  # intervals for which another daemon of this key is listened for
        while True:
            self._end_if_living()
            passed = self._context.clock.monotonic() - began
            interval = self._ear.interval
            wanted = max(listen_least, 2.0 + beats_heard * interval)
            if self._ear.rising():  # the next one tells what lives from what was late
                wanted = max(wanted, self._ear.heard_at - began + beats_heard * interval)
            if passed >= min(wanted, listen_most):
                if self._words.answered or self._vouch or not self._context.membership.addresses():
                    return
                if not told:
                    told = True
                    self._context.progress.trouble(
                        "no member answers what this key has signed: nothing is signed until one does, or until the "
                        "owner knows that no other daemon has it and its journal is the newest (join --vouch)"
                    )
            await self._news()

    async def _hear_each_other(self) -> None:
        """Heartbeats for so long that a copy which began at the same moment is heard; one of its is enough."""
        beats_said = 1.5  # intervals for which nothing but heartbeats is said
        until = self._context.clock.monotonic() + beats_said * self._interval
        over = False
        while not over:
            over = self._context.clock.monotonic() >= until
            # Gossip brings nobody its own words: they come with what is asked for.
            await self._context.board.catching_up.now(self._words.at_once)
            self._end_if_living()
            if (other := self._ear.fresh(self._pen.generation)) is not None:
                raise self._ended(other)
            # Seconds between two times that members are asked what was missed, while copies of one moment hear each
            # other.
            await trio.sleep(1.0)
        if await self._words.adopt(self._ear.take()):
            await self._words.close_fence()

    async def _take_pen(self, seconds: float) -> None:
        await self._journal.do(self._journal.take_pen, self._pen.generation)
        self._pen.open()
        adopted, answered = self._words.adopted, len(self._words.answered)
        log.info("continuity.sure", seconds=round(seconds, 1), adopted=adopted, fence=self._journal.fence.step)
        told = f"alone with this key: {adopted} of its words were taken in, from {answered} members"
        if (fence := self._journal.fence.step) >= 0 and not self._vouch:
            told += f"; nothing new is signed up to step {fence}"
        self._context.progress.tell("continuity", told)

    async def _news(self) -> None:
        # Seconds between two looks at what was heard: the time that passes tells as much as what comes.
        with trio.move_on_after(0.25):
            await self._ear.news.wait()

    def _end_if_living(self) -> None:
        if (other := self._ear.living()) is not None:
            raise self._ended(other)

    def _ended(self, other: int) -> TwinError:
        self._pen.give_up()
        log.error("continuity.twin", other=other, own=self._pen.generation)
        return TwinError(
            "another daemon runs with this node's key",
            f"its heartbeats go on (generation {other}, this one is {self._pen.generation}); this one ends, and "
            "nothing was signed here since it was heard",
            "run one daemon per key: to move it, stop the other one and use `intellect-node state export` there; "
            "for a second node make a key of its own: `intellect-node keys new --state-dir DIR`",
        )

    @property
    def _interval(self) -> float:
        """Seconds between this key's heartbeats, here or elsewhere."""
        members = self._context.membership.table
        own = heartbeat_interval(1 + len(members.live(self._context.clock.monotonic())), 2.0)
        return max(own, self._ear.interval)

    # while it works

    async def _amiss(self, words: Sequence[Signed[Message]]) -> str:
        """What of the words with this key shows a newer daemon, empty for nothing. Raises TwinError for one that is
        not newer."""
        own = self._pen.generation
        if (newer := self._ear.fresh(own + 1)) is not None:
            self._words.keep(words)
            return f"a daemon with this key speaks that is newer (generation {newer}, this one is {own})"
        self._end_if_living()
        if self._ear.fresh(own) is not None:
            raise self._ended(own)
        lacking = await self._words.lacking(words)
        self._words.keep(lacking)
        if lacking:
            kind = type(lacking[0].message).__name__
            return f"the journal lacks {len(lacking)} words of this key ({kind})"
        return ""

    async def _hold(self, why: str) -> None:
        """Promise nothing until the other one was silent for long enough; then go on with all that it has said."""
        progress, began = self._context.progress, self._context.clock.monotonic()
        self._pen.hold(why)
        self.holds += 1
        log.warning("continuity.held", why=why)
        progress.trouble(f"{why}: nothing is signed here while it is heard; stop one of the two")
        silent_since = began
        beats_silent = 3.0  # intervals after which another daemon that was heard is gone
        while self._context.clock.monotonic() < silent_since + beats_silent * self._interval:
            await self._news()
            if words := self._ear.take():
                if await self._amiss(self._words.new_among(words)):
                    silent_since = self._context.clock.monotonic()
        await self._words.ask_anew()
        await self._words.adopt(self._ear.take())
        await self._words.close_fence()
        self._pen.renew(self._ear.newest_generation)
        self._ear.forget()
        await self._take_pen(self._context.clock.monotonic() - began)
