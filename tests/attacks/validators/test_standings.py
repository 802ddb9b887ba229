"""Who has no right to move something moves nothing: each attack with a control, over whole nodes.

The kinds: the right to speak is taken for what counts; one party moves everybody's clock; identity leaves out what its
author may vary.
"""

from typing import Any

import msgspec
import pytest
import trio

from node.services.judging.judge import Validator
from node.services.training.state_sync import StateSync
from protocol.checks import Reason
from protocol.identity import NodeKey
from protocol.messages import (
    CheckpointOffered,
    Heartbeat,
    LotsRevealed,
    PolicyAnnounced,
    Signed,
    StepVerdict,
    TaskOffered,
    VerdictRequested,
)
from protocol.statements import VerdictOutcome, sign
from protocol.tasks import TaskSpec, encode_task
from tests.attacks.validators.court import (
    DOMAIN,
    OTHER,
    POOL,
    TRAINER,
    VALIDATORS,
    WORKER,
    Court,
    announcement,
    policy_root,
)

KEPT = 512

FAR = 2**40


class Pool(Court):
    """Three validators and two trainers: TRAINER leads, OTHER stands by or (dismissed) has no seat any more."""

    def __init__(self) -> None:
        super().__init__([Validator, Validator, Validator])
        self.everybody = [self.trainer, *self.workers, *self.seats]
        self.standby = self.workers[1]

    async def begin(self, nursery: trio.Nursery, *, dismissed: bool = False) -> None:
        for seat in self.everybody:
            # OTHER has led until policy 0, and TRAINER since.
            seat.membership.terms.take(0, OTHER.address, 0, bytes(32), 10**6)
            seat.membership.terms.take(1, TRAINER.address, 0, bytes(32), 10**6)
            seats = (TRAINER.address,) if dismissed else (TRAINER.address, OTHER.address)
            seat.membership.terms.seat(seats, 10**6, 10)
        await self.open(nursery)

    async def announce(self, step: int) -> None:
        parent = policy_root(step - 1) if step else bytes(32)
        await self.trainer.board.post(announcement(step, policy_root(step), term=1, parent=parent))
        await trio.sleep(0.5)

    def told(self) -> set[int]:
        """Windows whose secrets were told."""
        return {one.message.window for one in self.trainer.board.messages(LotsRevealed)}


@pytest.mark.parametrize("by", [OTHER, TRAINER, None], ids=["who led", "who leads", "nobody"])
async def test_a_policy_of_a_step_far_ahead_has_nobody_tell_the_lots_of_windows_to_come(
    autojump_clock: Any, by: NodeKey | None
) -> None:
    """C2, F2: the lots of later steps would be known before these are made."""
    pool = Pool()
    async with trio.open_nursery() as nursery:
        await pool.begin(nursery)
        await pool.announce(1)
        if by is not None:
            seat = pool.trainer if by is TRAINER else pool.standby
            await seat.board.post(announcement(FAR, b"\7" * 32, by, term=0 if by is OTHER else 1))
        await trio.sleep(5)
        for seat, judge in zip(pool.seats, pool.validators, strict=True):
            assert judge.own_lots.newest == seat.jury.state.policies.newest_step == 1
        assert pool.told() == set()
        for step in range(2, 12):
            await pool.announce(step)
        await trio.sleep(5)
        assert pool.told() == {0, 1}, "the control: what is over is told"
        nursery.cancel_scope.cancel()


async def test_files_of_honest_workers_count_on_while_their_leader_states_a_step_far_ahead(autojump_clock: Any) -> None:
    """F2: every clock followed, and fresh files were no work."""
    pool = Pool()
    async with trio.open_nursery() as nursery:
        await pool.begin(nursery)
        await pool.announce(1)
        await pool.trainer.board.post(announcement(FAR, b"\7" * 32, term=1, parent=policy_root(1)))
        await trio.sleep(12)
        id = await pool.commit(step=1)
        await trio.sleep(10)
        for seat in (*pool.workers, *pool.seats):  # the leader follows itself
            work = seat.jury.state.register.get(id)
            assert work is not None and seat.jury.state.register.fault(work) is None
            assert seat.jury.state.vote_set.accepting(id)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("dismissed", [True, False])
async def test_a_dismissed_trainers_tasks_are_nobodys(autojump_clock: Any, dismissed: bool) -> None:
    """H4. The control: who stands by may ask for work."""
    pool = Pool()
    spec = encode_task(TaskSpec("evaluate", 4, policy=policy_root(0).hex(), step=0, part="training"))
    async with trio.open_nursery() as nursery:
        await pool.begin(nursery, dismissed=dismissed)
        raw = pool.standby.board.sealed(TaskOffered(pool=POOL, sequence=1, spec=spec))
        await pool.standby.network.publish(pool.standby.board._topic, raw)
        await trio.sleep(1)
        known = [seat.jury.state.tasks.tasks() for seat in pool.seats]
        assert all(bool(tasks) != dismissed for tasks in known)
        if not dismissed:
            for seat in pool.everybody:
                seat.membership.terms.seat((TRAINER.address,), 10**6, 10)
            assert not any(task.open for seat in pool.seats for task in seat.jury.state.tasks.tasks()), (
                "with its office"
            )
        nursery.cancel_scope.cancel()


async def test_what_a_standby_states_pushes_no_verdict_on_a_true_step_out(autojump_clock: Any) -> None:
    """H1b: as many statements as are remembered."""
    pool = Pool()
    async with trio.open_nursery() as nursery:
        await pool.begin(nursery)
        for step in (1, 2):
            await pool.announce(step)
        followed = pool.trainer.jury.state.policies.of_step(2)
        assert followed is not None
        word = followed.message.signature
        for number, key in enumerate(VALIDATORS[:2]):
            if number:
                for invented in range(KEPT):
                    false = announcement(3 + invented, bytes([invented % 251]) * 32, OTHER, term=1)
                    pool.trainer.jury.state._hear(_signed(OTHER, false), trio.current_time())
            draft = StepVerdict(
                followed.statement, TRAINER.address, word, int(VerdictOutcome.SLASH), int(Reason.STATE), b"", pool=POOL
            )
            judged = msgspec.structs.replace(draft, signature=sign(key, DOMAIN, draft.verdict))
            await pool.seats[number].board.post(judged)
            await trio.sleep(1)
            assert (pool.trainer.jury.state.policies.equivocation is not None) == bool(number), (
                "two of three, however far apart"
            )
        nursery.cancel_scope.cancel()


async def test_an_invented_checkpoint_takes_the_place_of_nobodys(autojump_clock: Any, tmp_path: Any) -> None:
    """H1b: the leader's is tried first, whoever offered last; and one of a policy that nobody follows is none."""
    pool = Pool()
    async with trio.open_nursery() as nursery:
        await pool.begin(nursery)
        for step in (1, 2):
            await pool.announce(step)
        for board, root in ((pool.trainer.board, b"\1" * 32), (pool.standby.board, b"\2" * 32)):
            await board.post(CheckpointOffered(pool=POOL, term=1, step=2, root=root, size=9))
            await trio.sleep(1)
        await pool.standby.board.post(CheckpointOffered(pool=POOL, term=1, step=FAR, root=b"\3" * 32, size=9))
        await trio.sleep(1)
        for seat in pool.seats:
            offers = seat.jury.state.checkpoints.of(TRAINER.address)
            assert [one.message.root[0] for one in offers[2]] == [1, 2] and offers.keys() == {2}
        best = StateSync(pool.workers[0].context, None, None, print).best(0)  # type: ignore[arg-type]
        assert best is not None and best.author == TRAINER.address
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("by", [OTHER, TRAINER])
async def test_only_the_leader_says_that_the_run_is_over(autojump_clock: Any, by: NodeKey) -> None:
    """F3: a standby's heartbeat turned newcomers away."""
    pool = Pool()
    async with trio.open_nursery() as nursery:
        await pool.begin(nursery)
        seat = pool.trainer if by is TRAINER else pool.standby
        beat: dict[str, Any] = {"role": "trainer", "state": "done", "contact": "", "policy_step": 9, "interval": 2.0}
        await seat.board.post(Heartbeat(pool=POOL, boot=9, count=1, at=1, finished=True, **beat))
        await trio.sleep(1)
        table = pool.workers[0].membership
        heard = await table.heard_from(table.trainer)
        assert heard.finished == (by is TRAINER)
        nursery.cancel_scope.cancel()


async def test_requests_of_who_is_in_no_office_cost_nobody_a_look(autojump_clock: Any) -> None:
    pool = Pool()
    async with trio.open_nursery() as nursery:
        await pool.begin(nursery, dismissed=True)
        await pool.commit(key=WORKER)
        await trio.sleep(1)
        (work,) = pool.trainer.jury.state.register.of(WORKER.address)
        raw = pool.standby.board.sealed(VerdictRequested(pool=POOL, commitment=work.signed.raw))
        before = pool.seats[0].board.counts["refused"]
        await pool.standby.network.publish(pool.standby.board._topic, raw)
        await trio.sleep(1)
        assert pool.seats[0].board.counts["refused"] > before
        nursery.cancel_scope.cancel()


def _signed(key: NodeKey, message: PolicyAnnounced) -> Signed[PolicyAnnounced]:
    return Signed(key.address, message, repr(message).encode())
