"""What a server says counts where a quorum hears the same; nobody alone is a witness, and no fault follows."""

from typing import Any

import pytest
import trio

from node.services.judging.judge import Validator
from node.swarm.vote_set import FileState
from protocol.checks import Fault, Reason
from protocol.statements import VerdictOutcome
from tests.attacks.validators.court import Court

OTHERWISE = Fault(Reason.HEARD_OTHERWISE, "the servers pay otherwise than the file says")


async def state_of(otherwise: tuple[int, ...], absent: tuple[int, ...], witnessed: str = "alone") -> FileState:
    """What becomes of a file that the validators `otherwise` hear otherwise, once everybody has been waited for."""
    court = Court([Validator] * 3, witnessed=witnessed)
    for number in range(3):
        court.engines[number].bad = {}
    async with trio.open_nursery() as nursery:
        await court.open(nursery, absent=absent)
        work = await court.commit(fault=OTHERWISE)
        for number in otherwise:
            court.engines[number].bad = court.bad
        await trio.sleep(120)
        vote_set = court.trainer.jury.state.vote_set
        assert not vote_set.disputes.quarantined and not vote_set.disputes.raised
        assert not any(one.slashed for one in court.judges)
        said = [court.trainer.jury.state.vote_set.verdict_of(work, court.seats[n].key.address) for n in otherwise]
        assert all(one and one.message.verdict.outcome == VerdictOutcome.REJECT for one in said)
        state = vote_set.state(work)
        nursery.cancel_scope.cancel()
    return state


@pytest.mark.parametrize(
    ("otherwise", "absent", "state"),
    [
        ((2,), (), FileState.ACCEPTED),
        ((1, 2), (), FileState.REJECTED),
        ((1,), (2,), FileState.OPEN),
    ],
)
async def test_work_counts_where_a_quorum_heard_the_same(
    autojump_clock: Any, otherwise: tuple[int, ...], absent: tuple[int, ...], state: FileState
) -> None:
    assert await state_of(otherwise, absent) is state


async def test_in_a_bench_of_three_one_word_decides_nothing_whoever_is_away_or_could_not_have_the_file(
    autojump_clock: Any,
) -> None:
    """A worker serves its file to one validator alone, while another one is away."""
    assert await state_of((1,), (2,), witnessed="no") is FileState.OPEN
    assert await state_of((), (2,), witnessed="no") is FileState.ACCEPTED, "the control: two who had it"
