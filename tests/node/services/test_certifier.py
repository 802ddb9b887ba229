"""Which policies validators certify for pay, with several trainers: each is its maker's, and once."""

from typing import Any

import pytest
import trio

from node.services.certifier import Certifier, RootEntry, Wanted
from node.services.context import PoolTime
from node.services.judging.judge import Validator
from protocol.earnings import Accepted, of_policy
from protocol.identity import Address
from tests.attacks.validators.court import OTHER, POOL, TRAINER, VALIDATORS, Court, announcement, policy_root


class Bench:
    """A leader, a standby that says what it likes, and a validator that certifies."""

    def __init__(self) -> None:
        self.court = Court([Validator], quorum=1)
        self.seats = [self.court.trainer, *self.court.workers, *self.court.seats]
        self.certifying = Certifier(self.court.seats[0].context)

    async def open(self, nursery: trio.Nursery) -> None:
        await self.court.open(nursery)
        self.certifying._context.time = PoolTime(window=20, wall=trio.current_time)
        for seat in self.seats:
            seat.membership.terms.seat((TRAINER.address, OTHER.address), 60, 10)
        nursery.start_soon(self.certifying._hear_policies)
        await trio.sleep(0.1)

    async def decided(self) -> set[tuple[Address, int]]:
        """(trainer, step) of the policies that are certified by now."""
        await self.certifying.decide()
        run, journal = self.court.run, self.certifying._journal
        own, found = self.certifying._own, set[tuple[Address, int]]()
        for key in (TRAINER, OTHER):
            for step in range(1, 5):
                work = of_policy(run, POOL, key.address, step, policy_root(step), 0).work
                if journal.pay.leaf(own, POOL, work) is not None:
                    found.add((key.address, step))
        return found


@pytest.mark.parametrize("flood", [0, 3])
async def test_a_standby_is_not_paid_for_policies_that_it_copies_and_crowds_out_nobodys(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, flood: int
) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await bench.open(nursery)
        standby = bench.court.workers[1].board
        await bench.court.announce(1)
        await standby.post(announcement(1, policy_root(1), OTHER))
        for number in range(flood):
            await standby.post(announcement(2, number.to_bytes(32), OTHER))
            await trio.sleep(1)
        await bench.court.announce(2)
        await standby.post(announcement(2, policy_root(2), OTHER))
        await trio.sleep(1)
        assert await bench.decided() == {(TRAINER.address, 1), (TRAINER.address, 2)}
        nursery.cancel_scope.cancel()


async def test_a_policy_that_a_term_took_back_is_not_paid_and_the_next_leaders_is(autojump_clock: Any) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await bench.open(nursery)
        for step in (1, 2):
            await bench.court.announce(step)
        for seat in bench.seats:
            seat.membership.terms.take(1, OTHER.address, 2, policy_root(1), 10**6)
        for step, parent in ((2, policy_root(1)), (3, policy_root(20))):
            root = policy_root(20) if step == 2 else policy_root(3)
            await bench.court.workers[1].board.post(announcement(step, root, OTHER, term=1, parent=parent))
        await trio.sleep(1)
        assert await bench.decided() == {(TRAINER.address, 1), (OTHER.address, 3)}
        nursery.cancel_scope.cancel()


async def test_what_was_decided_in_time_is_certified_however_long_the_look_at_it_took(autojump_clock: Any) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await bench.open(nursery)
        certifying = bench.certifying
        certifying._context.time = PoolTime(epoch_seconds=10, window=20, wall=lambda: 26.0)
        id = await bench.court.commit()
        await trio.sleep(1)
        work = bench.seats[0].jury.state.register.get(id)
        assert work is not None
        kept = list[bool]()
        for number, at in enumerate((19.0, 21.0, 19.0)):  # the epoch's end is 10, half of the window later 20
            statement = Accepted(POOL, VALIDATORS[0].address, 0, number.to_bytes(32), 9)
            if number == 2:
                certifying._context.state.seals.withhold(VALIDATORS[0].address, 0)
            certifying.shown([RootEntry(VALIDATORS[0].address, work, statement, at)])
            await certifying.decide()
            kept.append(certifying._journal.pay.leaf(certifying._own, POOL, statement.work) is not None)
        assert kept == [True, False, False]
        nursery.cancel_scope.cancel()


async def test_a_trainer_that_is_no_member_is_paid_no_policies(autojump_clock: Any) -> None:
    """It has no stake that answers for them. The control: the other policy, of one that is."""
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await bench.open(nursery)
        await bench.court.announce(1)
        await trio.sleep(1)
        assert await bench.decided() == {(TRAINER.address, 1)}
        bench.seats[3].membership.left(TRAINER.address)
        await bench.court.announce(2)
        await trio.sleep(1)
        assert await bench.decided() == {(TRAINER.address, 1)}
        nursery.cancel_scope.cancel()


async def test_a_policy_that_is_announced_again_with_another_epoch_is_paid_once(autojump_clock: Any) -> None:
    """By a validator that has started again, after a table has covered the first one."""
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await bench.open(nursery)
        await bench.court.announce(1)
        await trio.sleep(1)
        assert await bench.decided() == {(TRAINER.address, 1)}
        certifying, root = bench.certifying, policy_root(1)
        certifying._journal.pay.forget_epochs(5)
        certifying._context.time = PoolTime(epoch_seconds=10, window=20, wall=lambda: 65.0)
        for epoch, number, certified in ((6, 1, False), (6, 2, True)):
            again = of_policy(bench.court.run, POOL, TRAINER.address, number, root, epoch)
            await certifying._name([Wanted(again, once=True)])
            found = certifying._journal.pay.leaf(certifying._own, POOL, again.work)
            assert (found is not None) is certified, "the control: another policy"
        nursery.cancel_scope.cancel()
