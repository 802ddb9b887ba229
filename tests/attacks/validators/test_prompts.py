"""A prompt that validators compute differently is nobody's fault; a lie about prompts vetoes nothing."""

import pytest
import trio

from node.inference.wire import Inspect, Inspected
from node.services.judging.judge import Validator
from node.services.jury import describe_audits
from node.swarm.vote_set import FileState
from protocol.checks import Fault, Reason
from protocol.values import prompts_hash
from tests.attacks.validators.court import OTHER, WORKER, Court, Seat, TruthfulEngine, changed

WRONG_PROMPT = Fault(Reason.WRONG_PROMPT, "group 0 does not start from the prompt")
UNITS = Fault(Reason.UNITS, "too many units are claimed")
FILE = prompts_hash([[1, 2], [3]])
"""Of the prompts that the worker's file has."""


class Reading(TruthfulEngine):
    """Computes prompts of its own for every file. prompts: their hash; sees_others: whether they are not the file's."""

    def __init__(self, bad: dict[bytes, Fault], prompts: bytes, *, sees_others: bool) -> None:
        super().__init__(bad)
        self.prompts = prompts
        self.sees_others = sees_others

    def inspect(self, order: Inspect) -> Inspected:
        fault = self.bad.get(order.file_root) or (WRONG_PROMPT if self.sees_others else None)
        found = super().inspect(order)
        if fault is not None:
            found = changed(found, outcome=int(fault.outcome), reason=int(fault.reason), detail=fault.detail)
        return changed(found, prompts=self.prompts)


def reading(*words: bytes) -> Court:
    """A court whose validators compute these prompts; the file's are FILE."""
    hashes = [prompts_hash([[*word]]) if word else FILE for word in words]

    def engine(number: int, bad: dict[bytes, Fault]) -> TruthfulEngine:
        return Reading(bad, hashes[number], sees_others=hashes[number] != FILE)

    return Court([Validator] * len(words), engine=engine)


async def states(court: Court, *, fault: Fault | None = None) -> list[FileState]:
    """What everybody thinks of one file, once all had the time to say and to look again."""
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        id = await court.commit(fault=fault, key=OTHER if fault else WORKER)
        await trio.sleep(100)
        found = [seat.jury.state.vote_set.state(id) for seat in [court.trainer, *court.workers, *court.seats]]
        nursery.cancel_scope.cancel()
    return found


def told(court: Court, seat: Seat) -> int:
    """Works whose prompts differ, as a node's status says."""
    return describe_audits(seat.jury.state, seat.membership, court.run.audit)["disputes"]["prompts_differ"]


@pytest.mark.parametrize(
    "words", [(b"a", b"b", b"c"), (b"a", b"a", b"b"), (b"", b"a", b"b"), (b"a", b"b")], ids=lambda words: repr(words)
)
async def test_where_prompts_differ_nobody_loses_anything(words: tuple[bytes, ...], autojump_clock) -> None:
    """A template that prints an address: each process reads another prompt, and none that of the worker."""
    court = reading(*words)
    found = await states(court)
    assert set(found) == {FileState.UNDECIDED}
    assert court.slashed() == [] and not any(court.quarantined())
    assert [told(court, seat) for seat in court.seats] == [1] * len(words)
    assert all(seat.jury.state.disputes.raised == 0 for seat in court.seats)


async def test_a_prompt_that_all_compute_alike_and_the_worker_does_not_costs_the_stake(autojump_clock) -> None:
    """The control: a worker that answers something else than it was asked."""
    court = reading(b"a", b"a", b"a")
    assert set(await states(court)) == {FileState.REJECTED}
    assert {(node, reason) for node, reason, _ in court.slashed()} == {(WORKER.address, Reason.WRONG_PROMPT)}
    assert not any(court.quarantined()) and not any(told(court, seat) for seat in court.seats)


async def test_a_liar_about_prompts_vetoes_no_file(autojump_clock) -> None:
    """Its word counts with nobody's, so the two others decide."""
    court = reading(b"", b"", b"liar")
    assert set(await states(court)) == {FileState.ACCEPTED}
    assert court.slashed() == [] and not any(court.quarantined())


async def test_a_liar_about_prompts_may_shield_a_stake_and_never_has_the_file_paid(autojump_clock) -> None:
    """It says that it computed the worker's prompts: to the others a template is not the same everywhere (ADR 101)."""
    court = reading(b"a", b"a", b"")
    assert set(await states(court)) == {FileState.UNDECIDED}
    assert court.slashed() == [] and not any(court.quarantined())
    assert [told(court, seat) for seat in court.seats] == [1] * 3


async def test_a_liar_about_prompts_shields_no_worker_from_other_faults(autojump_clock) -> None:
    court = reading(b"", b"", b"liar")
    assert set(await states(court, fault=UNITS)) == {FileState.REJECTED}
    assert {(node, reason) for node, reason, _ in court.slashed()} == {(OTHER.address, Reason.UNITS)}
