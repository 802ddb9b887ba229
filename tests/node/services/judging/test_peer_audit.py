"""A validator recomputes what another one says that it recomputed: inventions cost the window's pay, noise does not."""

from pathlib import Path
from typing import Any

import pytest
import trio

from node.inference.wire import Inspected
from node.services.judging import peer_audit
from node.services.judging.peer_audit import PeerAudit
from node.services.training.values import Rows
from node.swarm.register import Work
from protocol.messages import VerdictIssued
from protocol.rollout import ReportRow
from protocol.statements import Outcome
from protocol.values import reward_tags
from tests.attacks.validators.court import GROUPS, SIZE, VALIDATORS, Court
from tests.node.services.training.test_values import FLAT, SPIKED, TOKENS, TRUE, Trainer, work

BEN = VALIDATORS[1].address


class Looker:
    """This validator's own engine: knows the truth, or has no time."""

    def __init__(self, *, busy: bool = False) -> None:
        self.busy = busy
        self.asked: list[tuple[int, ...]] = []

    async def look(self, work: Work, groups: tuple[int, ...]) -> tuple[Inspected, Rows] | None:
        await trio.lowlevel.checkpoint()
        self.asked.append(groups)
        if self.busy:
            return None
        found = Inspected(
            outcome=int(Outcome.ACCEPT),
            reason=0,
            detail="",
            report_path="",
            rewards_mean=1.0,
            tokens=1,
            seconds=0.0,
            statistics={},
            checked=groups,
            rewards=reward_tags([1.0] * GROUPS * SIZE, SIZE, ()),
        )
        return found, {g: [ReportRow(g, s, 1.0, FLAT) for s in range(SIZE)] for g in groups}


async def audited(trainer: Trainer, looker: Looker, said: tuple[Any, VerdictIssued]) -> PeerAudit:
    audit = PeerAudit(trainer.station, looker.look)
    await audit._compare(work(), *said)
    return audit


@pytest.mark.parametrize(
    ("lie", "withheld"),
    [
        ({}, False),
        ({"logprobs": [TRUE + 0.01] * TOKENS}, False),
        ({"logprobs": SPIKED}, True),
        ({"logprobs": [TRUE - 0.2] * TOKENS}, True),
        ({"reward": 0.0}, True),
    ],
)
async def test_who_says_what_this_validator_does_not_find_is_not_paid_for_that_window(
    tmp_path: Path, monkeypatch, autojump_clock, lie: dict[str, Any], withheld: bool
) -> None:
    trainer, looker = Trainer(tmp_path, monkeypatch), Looker()
    audit = await audited(trainer, looker, trainer.says(BEN, (3, 5), **lie))
    assert len(looker.asked) == 1 and looker.asked[0][0] in (3, 5) and audit.looked == 1
    jury = trainer.station.jury
    assert jury.is_withheld(BEN, work()) is withheld and audit.contradicted == int(withheld)
    assert not jury.is_withheld(VALIDATORS[0].address, work()) and BEN not in jury.ballots.quarantined


async def test_a_busy_engine_or_an_empty_word_is_no_ground_to_withhold_pay(
    tmp_path: Path, monkeypatch, autojump_clock
) -> None:
    trainer, looker = Trainer(tmp_path, monkeypatch), Looker(busy=True)
    audit = await audited(trainer, looker, trainer.says(BEN, (3,), reward=0.0))
    assert audit.looked == 0 and not trainer.station.jury.is_withheld(BEN, work())


async def test_of_the_accepted_files_a_few_per_cent_are_looked_at(monkeypatch, autojump_clock) -> None:
    assert 0.02 < peer_audit.SHARE < 0.06
    monkeypatch.setattr(peer_audit, "SHARE", 1.0)
    from node.services.judging.judge import Validator

    court, seen = Court([Validator] * 3), []

    async def note(self: PeerAudit, work: Work) -> None:
        await trio.lowlevel.checkpoint()
        seen.append(work.id)

    monkeypatch.setattr(PeerAudit, "_audit", note)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        ids = [await court.commit(index=index) for index in range(3)]
        await trio.sleep(15)
        assert sorted(seen) == sorted(ids * 3)  # each validator, each file once
        nursery.cancel_scope.cancel()
