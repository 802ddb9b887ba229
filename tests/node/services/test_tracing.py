"""What becomes of accepted files, in a pool of real validators: each signs what it held accepted, policy by policy."""

from typing import Any

import trio

from node.services.judging.judge import Validator
from node.services.tracing import Tracing
from protocol.messages import DueSigned
from tests.attacks.validators.court import Court


async def test_validators_name_each_accepted_work_once_and_all_come_to_the_same_due(autojump_clock: Any) -> None:
    court = Court([Validator, Validator])
    async with trio.open_nursery() as nursery:
        seats = [court.trainer, *court.seats]
        tracers = [Tracing(seat.station) for seat in seats]
        for one in tracers:
            nursery.start_soon(one.run)
        await court.open(nursery)
        first = await court.commit()
        await trio.sleep(20)
        said = [one.message for one in court.trainer.board.messages(DueSigned)]
        assert not said, "the control: it was accepted after policy 0"
        await court.announce(1)
        await trio.sleep(5)
        second = await court.commit(index=1)
        await trio.sleep(20)
        await court.announce(2)
        await trio.sleep(5)
        cuts = {(one.author, one.message.step, one.message.works) for one in court.trainer.board.messages(DueSigned)}
        judges = [seat.key.address for seat in court.seats]
        assert cuts == {(one, step, (work,)) for one in judges for step, work in ((1, first), (2, second))}
        for one in tracers:
            found = [one.book.due(work) for work in (first, second)]
            assert [due[0] for due in found if due] == [1, 2]
        nursery.cancel_scope.cancel()
