"""A validator that comes back with another journal than its key's newest: its own ballots held its first words."""

from typing import Any

import pytest
import trio

from node.services.continuity import Continuity
from node.services.judging.judge import Validator
from node.swarm.facts import JudgeContradicted
from node.swarm.ownwords import PROTOCOL
from protocol.identity import Address
from tests.attacks.validators.court import VALIDATORS, Court, Seat


class Lives(Court):
    """A court of three, whose first validator lives twice."""

    async def first(self, nursery: trio.Nursery) -> None:
        with trio.CancelScope() as self.scope:
            async with trio.open_nursery() as inner:
                await self.arrive(0, inner)
                await trio.sleep_forever()

    async def second(self, nursery: trio.Nursery, journal: str) -> Seat:
        before = self.seats[0]
        seat = self.seats[0] = Seat(self, VALIDATORS[0], "validator")
        self.validators[0] = self._validator(0, Validator)
        if journal == "own":
            before.context.journal._db.backup(seat.context.journal._db)
        if journal not in ("asked", "silent"):
            await self.arrive(0, nursery)
            return seat
        pen = seat.context.journal.pen
        pen._shut = pen._silent = True
        pen.doubt = "the journal is another file"
        continuity = Continuity(seat.context, seat.network)
        for other in (self.trainer, *self.workers, *self.seats[1:]):
            Continuity(other.context, other.network)  # answers
            if journal == "silent":
                other.network._handlers.pop(PROTOCOL)
        await seat.run(nursery)
        for other in (self.trainer, *self.workers, *self.seats):
            seat.membership.joined(other.key.address, other.network.contacts()[0])
        with trio.move_on_after(60):
            await continuity.start(nursery)
            nursery.start_soon(self.validators[0].run)
            nursery.start_soon(seat.beat)
        return seat


@pytest.mark.parametrize(
    ("journal", "convicted"), [("own", False), ("empty", True), ("asked", False), ("silent", False)]
)
async def test_an_empty_journal_convicts_its_validator_unless_it_asks_first(
    journal: str, convicted: bool, autojump_clock: Any
) -> None:
    court, told = Lives([Validator] * 3, verdict_seconds=20.0), list[Address]()

    async def listen(seat: Seat) -> None:
        async for fact in seat.context.facts.subscribe(JudgeContradicted):
            told.append(fact.author)

    async with trio.open_nursery() as nursery:
        await court.open(nursery, absent=[0])
        nursery.start_soon(listen, court.seats[1])
        nursery.start_soon(court.first, nursery)
        await trio.sleep(1)
        for index in range(4):
            await court.commit(index=index)
            await trio.sleep(2)
        await trio.sleep(10)
        spoken = len(court.seats[1].jury.state.vote_set.words_of(VALIDATORS[0].address))
        assert spoken >= 2
        court.scope.cancel()
        await trio.sleep(5)
        seat = await court.second(nursery, journal)
        await trio.sleep(60)
        assert (VALIDATORS[0].address in told) == convicted
        disbelieved = [names for names in court.quarantined()[:3] if VALIDATORS[0].address in names]
        assert bool(disbelieved) == convicted
        if journal == "asked":
            assert seat.context.journal.pen.may_write and seat.context.journal.fence.step == 0
            # It works on behind the fence, and says no second word on what lies under it.
            await court.announce(1)
            for index in range(4):
                await court.commit(step=1, index=index)
                await trio.sleep(2)
            await trio.sleep(20)
            assert len(court.seats[1].jury.state.vote_set.words_of(VALIDATORS[0].address)) > spoken
            assert VALIDATORS[0].address not in told
        nursery.cancel_scope.cancel()
