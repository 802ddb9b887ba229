"""What this node's key has said, wherever it was said: asked for, taken into the journal, and closed off by a fence.

A journal of before lacks the newest of it. Each member is asked what it has of this key's words, and what the board
brings is kept beside; what the journal lacks is adopted. What nobody showed can only be guarded against: a fence is
closed before all that may have been signed. Knows nothing of who else speaks with the key (`node.services.continuity`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import structlog
import trio

from node.changes import every
from node.network.budget import Budgets
from node.network.interface import Network
from node.services.context import Context
from node.services.judging.lots import pledge_fact
from node.state.pen import Fence
from node.swarm.membership import who_uses_work
from node.swarm.ownwords import PROTOCOL, answer, ask, promise_in
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import Heartbeat, Message, RolloutCommitted, RoundVote, Signed
from protocol.statements import work_id

log = structlog.get_logger()


class OwnWordsServer:
    """Hands every member what this node has of the member's own words, from when it is made."""

    def __init__(self, context: Context, network: Network) -> None:
        self._context = context
        self._answers = Budgets(1 / 10.0, 1)  # for one asker
        network.serve(PROTOCOL, self._answer, max_request=1)

    async def _answer(self, asker: Address, _: bytes) -> bytes:
        known, now = self._context.membership.is_member(asker), self._context.clock.monotonic()
        return answer(self._words_of(asker) if known and self._answers.take(asker, 1, now) else iter(()))

    def _words_of(self, asker: Address) -> Iterator[bytes]:
        state = self._context.state
        yield from (one.raw for one in self._context.board.words_of(asker))
        yield from state.lots.pledged_by(asker)
        yield from (one.raw for one in state.policies.words_of(asker))
        yield from (one.raw for by in state.checkpoints.of(asker).values() for one in by if one.author == asker)
        yield from (one.signed.raw for one in reversed(state.register.of(asker)))
        yield from (one.raw for one in state.vote_set.words_of(asker))
        yield from (one.raw for one in state.steps.words_of(asker))


class OwnWords:
    """vouch: the owner says that the journal is the key's newest, so that no fence is needed. at_once: members that are
    asked at a time; answered: who has answered; adopted: words that the journal lacked."""

    def __init__(self, context: Context, network: Network, *, vouch: bool) -> None:
        self._context, self._network, self._journal = context, network, context.journal
        self._vouch = vouch
        self.at_once, self._ask_again = 24, 5.0  # seconds between two rounds of asking
        self._heard: dict[bytes, Signed[Message]] = {}
        self.answered: set[Address] = set()
        self.adopted = 0

    def keep(self, words: Sequence[Signed[Message]]) -> None:
        """For the next time that something is adopted."""
        self._heard |= {_name(one): one for one in words}

    def new_among(self, words: Sequence[Signed[Message]]) -> list[Signed[Message]]:
        """Those that are not kept yet."""
        return [one for one in words if _name(one) not in self._heard]

    async def lacking(self, words: Sequence[Signed[Message]]) -> list[Signed[Message]]:
        """Promises among them that the journal has not, or has otherwise."""
        said = self._journal.said

        def lacking(promises: list[tuple[Signed[Message], Any]]) -> list[Signed[Message]]:
            return [one for one, promise in promises if promise is not None and said(*promise[:2]) != promise[2]]

        return await self._journal.do(lacking, [(one, promise_in(one)) for one in words])

    # asking

    async def ask_again_and_again(self) -> None:
        await every(self._ask_again, self._ask_members)

    async def ask_anew(self) -> None:
        """Everybody once more, for no longer than two rounds take."""
        self.answered.clear()
        with trio.move_on_after(2 * self._ask_again):
            await self._ask_members()

    async def _ask_members(self) -> None:
        """Each that has not answered yet: who uses work first."""
        membership = self._context.membership
        near = sorted(self._network.connected(), key=lambda one: one not in membership.validators)
        named = dict.fromkeys((*who_uses_work(membership), *filter(membership.is_member, near)))
        asked = [one for one in (named or membership.addresses()) if one not in self.answered | {membership.own}]
        limiter = trio.CapacityLimiter(self.at_once)
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
        self.answered.add(peer)

    # into the journal

    async def adopt(self, words: Sequence[Signed[Message]]) -> int:
        """These, and all that were kept, as far as the journal lacks them; behind a fence. How much it lacked."""
        self.keep(words)
        heard, files = list(self._heard.values()), dict[bytes, tuple[Any, ...]]()
        register, run = self._context.state.register, self._context.run.root
        for one in heard:
            if isinstance(one.message, RolloutCommitted):
                its = one.message.commitment
                known = register.get(id := work_id(its))
                step = known.step if known is not None and known.task is None else None
                made = (its.file_root, its.policy_root, its.index, its.units, self._context.clock.wall())
                files[one.raw] = (*made, run, step, its.epoch, id)
        found = await self._journal.do(self._taken_in, heard, files)
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

    async def close_fence(self) -> None:
        """Before all that may have been signed unheard. The owner's word is that there is nothing of that kind."""
        state, membership = self._context.state, self._context.membership
        newest, leader = self._context.policy_cache.newest, membership.table.get(membership.trainer)
        known = max(
            state.policies.newest_step,
            newest.step if newest else -1,
            membership.terms.reached or -1,
            state.reached(membership.trainer),
            self._context.board.own.newest_step,
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
