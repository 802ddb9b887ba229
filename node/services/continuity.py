"""Who am I? Whether this daemon is alone with its key, and knows all that the key has signed.

A start in doubt (`node.state.pen`) says nothing: it asks the pool for its key's own words, and listens. Where the key
speaks elsewhere it ends, and has taken nothing from the other one. Else its journal takes in what it lacks. What others
kept to themselves it cannot know: so a fence is closed before what may have been signed, and only what the journal has
is said of that. Then come heartbeats alone, for as long as a copy of the same moment takes to be heard, and then the
pen is open. A daemon that works and hears its key elsewhere holds still if the other one is newer, and ends if it is
not. What is not solved: two that go on from one memory may both sign within the time of one hop.
"""

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Self

import structlog
import trio

from node.bounded_dict import BoundedDict
from node.changes import every
from node.network.interface import Network
from node.services.base import Service
from node.services.context import Context
from node.services.judging.lots import pledge_fact
from node.services.workplace import Workplace
from node.state.journal import BOOT
from node.state.pen import Fence, TwinError
from node.swarm.membership import who_uses_work
from node.swarm.ownwords import (
    ANSWER_EVERY,
    MAX_ASKERS,
    PROTOCOL,
    answer,
    ask,
    promise_in,
)
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.liveness import heartbeat_interval
from protocol.messages import Heartbeat, Message, RolloutCommitted, RoundVote, Signed
from protocol.statements import work_id

log = structlog.get_logger()


class Continuity(Service):
    """Ready once the pen is open. vouch: its owner says that no other daemon has this key, and that the journal is its
    newest."""

    name = "continuity"

    def __init__(
        self, context: Context, network: Network, *, vouch: bool = False, at_once: int = 24, ask_again: float = 5.0
    ) -> None:
        self._at_once = at_once  # members that are asked at a time
        self._ask_again = ask_again
        self._context = context
        self._network = network
        self._journal = context.journal
        self._pen = context.journal.pen
        self._ear = context.board.own
        self._vouch = vouch
        self._told: BoundedDict[Address, float] = BoundedDict(MAX_ASKERS, refresh=True)
        self._answered: set[Address] = set()
        self._heard: dict[bytes, Signed[Message]] = {}
        self.adopted = self.holds = 0
        network.serve(PROTOCOL, self._answer, max_request=1)

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
        return {"node": {"pen": told | {"adopted": self.adopted, "holds": self.holds}}}

    # in doubt

    async def _make_sure(self) -> None:
        progress, pen = self._context.progress, self._pen
        progress.enter("continuity", f"asking the pool what this key has signed: {pen.doubt}")
        log.warning("continuity.doubt", why=pen.doubt, generation=pen.generation)
        began = self._context.clock.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_always)
            await self._listen(began)
            nursery.cancel_scope.cancel()
        await self._adopt()
        await self._close_fence()
        pen.generation = self._next_generation()
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
                if self._answered or self._vouch or not self._context.membership.addresses():
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
            await self._context.board.catching_up.now(self._at_once)
            self._end_if_living()
            if (other := self._ear.fresh(self._pen.generation)) is not None:
                raise self._ended(other)
            # Seconds between two times that members are asked what was missed, while copies of one moment hear each
            # other.
            await trio.sleep(1.0)
        if await self._adopt():
            await self._close_fence()

    async def _take_pen(self, seconds: float) -> None:
        await self._journal.do(self._journal.take_pen, self._pen.generation)
        self._pen.open()
        log.info("continuity.sure", seconds=round(seconds, 1), adopted=self.adopted, fence=self._journal.fence.step)
        told = f"alone with this key: {self.adopted} of its words were taken in, from {len(self._answered)} members"
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
            self._keep(words)
            return f"a daemon with this key speaks that is newer (generation {newer}, this one is {own})"
        self._end_if_living()
        if self._ear.fresh(own) is not None:
            raise self._ended(own)
        lacking = await self._journal.do(self._lacking, [(one, promise_in(one)) for one in words])
        self._keep(lacking)
        if lacking:
            kind = type(lacking[0].message).__name__
            return f"the journal lacks {len(lacking)} words of this key ({kind})"
        return ""

    def _lacking(self, words: Sequence[tuple[Signed[Message], Any]]) -> list[Signed[Message]]:
        """In the journal's thread."""
        said = self._journal.said
        return [one for one, promise in words if promise is not None and said(*promise[:2]) != promise[2]]

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
                if await self._amiss([one for one in words if _name(one) not in self._heard]):
                    silent_since = self._context.clock.monotonic()
        self._answered.clear()
        with trio.move_on_after(2 * self._ask_again):
            await self._ask_members()
        await self._adopt()
        await self._close_fence()
        self._pen.generation = self._next_generation()
        self._ear.forget()
        await self._take_pen(self._context.clock.monotonic() - began)

    def _next_generation(self) -> int:
        """Higher than of all that were heard; drawn, so that of copies of one moment all but the highest end."""
        drawn = 1000
        return max(self._pen.generation, self._ear.newest_generation) + 1 + secrets.randbelow(drawn)

    # what the key has said

    def _keep(self, words: Sequence[Signed[Message]]) -> None:
        self._heard |= {_name(one): one for one in words}

    async def _ask_always(self) -> None:
        await every(lambda: self._ask_again, self._ask_members)

    async def _ask_members(self) -> None:
        """Each that has not answered yet: who uses work first."""
        membership = self._context.membership
        near = sorted(self._network.connected(), key=lambda one: one not in membership.validators)
        named = dict.fromkeys((*who_uses_work(membership), *filter(membership.is_member, near)))
        asked = [one for one in (named or membership.addresses()) if one not in self._answered | {membership.own}]
        limiter = trio.CapacityLimiter(self._at_once)
        async with trio.open_nursery() as nursery:
            for peer in asked[:64]:  # members that are asked in one round: trainers and validators first
                nursery.start_soon(self._ask, peer, limiter)

    async def _ask(self, peer: Address, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            try:
                told = await ask(self._network, peer)
                await self._context.board.catching_up.take(peer, told.envelopes)
            except IntellectError as error:
                log.debug("continuity.not_answered", peer=peer, why=error.why)
                return
        self._answered.add(peer)

    async def _answer(self, asker: Address, _: bytes) -> bytes:
        now = self._context.clock.monotonic()
        if now - self._told.get(asker, -ANSWER_EVERY) < ANSWER_EVERY or not self._context.membership.is_member(asker):
            return answer(iter(()))
        self._told[asker] = now
        return answer(self._words_of(asker))

    def _words_of(self, asker: Address) -> Iterator[bytes]:
        state = self._context.state
        yield from (one.raw for one in self._context.board.words_of(asker))
        yield from state.lots.pledged_by(asker)
        yield from (one.raw for one in state.policies.words_of(asker))
        yield from (one.raw for by in state.checkpoints.of(asker).values() for one in by if one.author == asker)
        yield from (one.signed.raw for one in reversed(state.register.of(asker)))
        yield from (one.raw for one in state.vote_set.words_of(asker))
        yield from (one.raw for one in state.steps.words_of(asker))

    async def _adopt(self) -> int:
        """Into the journal with what it lacks of what was heard; how much that was."""
        self._keep(self._ear.take())
        words = list(self._heard.values())
        register, run = self._context.state.register, self._context.run.root
        files: dict[bytes, tuple[Any, ...]] = {}
        for one in words:
            if isinstance(one.message, RolloutCommitted):
                its = one.message.commitment
                known = register.get(id := work_id(its))
                step = known.step if known is not None and known.task is None else None
                made = (its.file_root, its.policy_root, its.index, its.units, self._context.clock.wall())
                files[one.raw] = (*made, run, step, its.epoch, id)
        found = await self._journal.do(self._taken_in, words, files)
        self.adopted += found
        if found:
            log.warning("continuity.adopted", words=found)
        return found

    def _taken_in(self, words: Sequence[Signed[Message]], files: dict[bytes, tuple[Any, ...]]) -> int:
        """In the journal's thread."""
        journal, found = self._journal, 0
        with journal.at_once():
            for one in words:
                promise = promise_in(one)
                if promise is not None and journal.adopt(*promise):
                    found += 1
                    if one.raw in files:
                        journal.files.add_file(*files[one.raw])
                elif isinstance(one.message, Heartbeat):
                    for pledge in one.message.lots:
                        found += journal.note_once(*pledge_fact(pledge.window, (pledge.rate, pledge.steps)))
        return found

    async def _close_fence(self) -> None:
        """Before all that may have been signed unheard. The owner's word is that there is nothing of that kind."""
        state, membership = self._context.state, self._context.membership
        newest, leader = self._context.policy_cache.newest, membership.table.get(membership.trainer)
        known = max(
            state.policies.newest_step,
            newest.step if newest else -1,
            membership.terms.reached or -1,
            state.reached(membership.trainer),
            self._ear.newest_step,
            *(one.message.round for one in self._heard.values() if isinstance(one.message, RoundVote)),
        )
        if leader is not None and leader.beat is not None:
            # Policies beyond those known here that a leader's heartbeat may name: it is one voice.
            known = max(known, min(leader.beat.policy_step, known + 64))
        tasks = tuple(task.id for task in state.tasks.tasks())
        fence = Fence() if self._vouch else self._journal.fence.with_more(known, tasks)
        await self._journal.do(self._journal.close_fence, fence)
        self._heard = {}


def _name(signed: Signed[Message]) -> bytes:
    return signed.raw + type(signed.message).__name__.encode()
