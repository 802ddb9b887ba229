"""A validator recomputes what another one says that it recomputed: inventions cost the window's pay, noise does not."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from node.blobs.errors import StoreFull
from node.inference.wire import Inspected
from node.services.certifier import Certifier, RootEntry
from node.services.judging import peer_audit
from node.services.judging.peer_audit import PeerAudit
from node.services.training.values import Rows
from node.swarm.register import RegisteredWork
from protocol.earnings import Accepted
from protocol.identity import Address
from protocol.messages import DIGEST, Signed, VerdictIssued
from protocol.rollout import ReportRow
from protocol.statements import VerdictOutcome
from protocol.values import reward_tags
from tests.attacks.validators.court import GROUPS, SIZE, VALIDATORS
from tests.node.services.training.test_values import FLAT, SPIKED, TOKENS, TRUE, Trainer, work

BEN = VALIDATORS[1].address


class Looker:
    """This validator's own engine: knows the truth, or has no time."""

    def __init__(self, *, busy: bool = False) -> None:
        self.busy = busy
        self.asked: list[tuple[int, ...]] = []

    async def look(self, work: RegisteredWork, groups: tuple[int, ...]) -> tuple[Inspected, Rows] | None:
        await trio.lowlevel.checkpoint()
        self.asked.append(groups)
        if self.busy:
            return None
        found = Inspected(
            outcome=int(VerdictOutcome.ACCEPT),
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


class Auditor:
    """A validator that looks at a round of BEN's verdicts. own: what it found itself in the same file."""

    def __init__(self, trainer: Trainer, looker: Looker, own: VerdictIssued | None = None) -> None:
        self.trainer, self.looker = trainer, looker
        self.certifying = Certifier(trainer.context)
        self.audit = PeerAudit(trainer.context, looker.look, self.certifying)
        self.said: dict[Address, VerdictIssued] = {trainer.context.key.address: own} if own else {}
        trainer.context.state.vote_set.verdict_of = self.verdict_of  # type: ignore[method-assign]

    def verdict_of(self, id: bytes, validator: Address) -> Any:
        said = self.said.get(validator)
        return Signed(validator, said, b"") if said else None

    async def is_paid(self, said: tuple[Address, VerdictIssued], verdicts: int = 1) -> bool:
        """For all of so many verdicts that say the same, or for none of them."""
        self.said[BEN] = said[1]
        statement = Accepted(1, BEN, 0, bytes(32), 9)
        await self.audit._pay([RootEntry(BEN, work(number), statement, 0.0) for number in range(verdicts)])
        paid = len(self.certifying._shown.pop(BEN, ()))
        assert paid in (0, verdicts)
        return paid > 0

    def is_withheld(self) -> bool:
        jury = self.trainer.context.jury
        assert (
            not jury.state.seals.is_withheld(VALIDATORS[0].address, work())
            and BEN not in jury.state.disputes.quarantined
        )
        return jury.state.seals.is_withheld(BEN, work())


LIES = [
    ({}, False),
    ({"logprobs": [TRUE + 0.01] * TOKENS}, False),
    ({"logprobs": SPIKED}, True),
    ({"logprobs": [TRUE - 0.2] * TOKENS}, True),
    ({"reward": 0.0}, True),
]


@pytest.mark.parametrize("looked_itself", [True, False])
@pytest.mark.parametrize(("lie", "wrong"), LIES)
async def test_who_says_what_this_validator_does_not_find_is_not_paid_for_that_window(
    tmp_path: Path, monkeypatch, autojump_clock, lie: dict[str, Any], wrong: bool, looked_itself: bool
) -> None:
    """It recomputes only what differs from what it found itself; or, by lot, a group of what it did not look at."""
    monkeypatch.setattr(peer_audit, "LOT", 10**9 if looked_itself else 1)
    trainer, looker = Trainer(tmp_path), Looker()
    own = trainer.says(trainer.context.key.address, (1, 3, 5))[1] if looked_itself else None
    auditor = Auditor(trainer, looker, own)
    assert await auditor.is_paid(trainer.says(BEN, (3, 5), **lie)) is not wrong
    assert auditor.is_withheld() is wrong and auditor.audit.counts["contradicted"] == int(wrong)
    assert auditor.audit.counts["compared"] == int(looked_itself)
    assert looker.asked == [(3,)] if looked_itself and wrong else len(looker.asked) == int(not looked_itself)


async def test_a_difference_that_a_second_look_does_not_bear_out_costs_nothing(tmp_path: Path, autojump_clock) -> None:
    """This validator's own first look may have been the odd one; one that cannot look again does not pay, no more."""
    trainer = Trainer(tmp_path)
    odd = trainer.says(trainer.context.key.address, (3,), SPIKED)[1]
    for busy in (False, True):
        auditor = Auditor(trainer, Looker(busy=busy), odd)
        assert await auditor.is_paid(trainer.says(BEN, (3,))) is not busy and not auditor.is_withheld()


async def test_a_busy_engine_is_no_ground_to_withhold_pay(tmp_path: Path, monkeypatch, autojump_clock) -> None:
    monkeypatch.setattr(peer_audit, "LOT", 1)
    auditor = Auditor(Trainer(tmp_path), Looker(busy=True))
    assert await auditor.is_paid(auditor.trainer.says(BEN, (3,), reward=0.0)) and not auditor.is_withheld()
    assert auditor.audit.counts["recomputed"] == 0


async def test_a_report_that_cannot_be_had_leaves_its_round_unpaid_and_no_other(tmp_path: Path, autojump_clock) -> None:
    auditor = Auditor(Trainer(tmp_path), Looker())
    said = auditor.trainer.says(BEN, (3,))
    auditor.trainer.blobs.missing.add(said[1].report_root)
    assert not await auditor.is_paid(said, 5) and not auditor.is_withheld()
    unnamed = msgspec.structs.replace(said[1], report_root=b"", report_size=0)
    assert not await auditor.is_paid((BEN, unnamed))
    other = auditor.trainer.says(BEN, (4,))[1]
    assert not await auditor.is_paid((BEN, msgspec.structs.replace(said[1], report_root=other.report_root))), "another"
    both = msgspec.structs.replace(auditor.trainer.says(BEN, (3, 4))[1], report_root=other.report_root)
    assert not await auditor.is_paid((BEN, both)), "it leaves out what it says that it recomputed"
    auditor.trainer.blobs.missing.clear()
    assert await auditor.is_paid(said, 5)
    undecided = msgspec.structs.replace(unnamed, rewards=bytes(DIGEST * GROUPS))
    assert await auditor.is_paid((BEN, undecided)), "nothing of it could be scored, so there is nothing to show"


@pytest.mark.parametrize("error", [StoreFull("no space"), OSError(5, "input/output error")])
async def test_what_this_validators_own_machine_lacks_costs_nobody_its_round(
    tmp_path: Path, monkeypatch, autojump_clock, error: Exception
) -> None:
    auditor = Auditor(Trainer(tmp_path), Looker())
    said = auditor.trainer.says(BEN, (3,))

    async def fails(*_: Any, **__: Any) -> Path:
        await trio.lowlevel.checkpoint()
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(auditor.trainer.context.blobs, "fetch", fails)
        assert not await auditor.is_paid(said, 2) and not auditor.is_withheld()
    assert auditor.audit.counts["not_shown"] == 0
    (waiting,) = auditor.certifying.claims()
    await auditor.audit._pay(waiting)
    assert len(auditor.certifying._shown[BEN]) == 2, "looked at in the next round"


@pytest.mark.parametrize(("verdicts", "picked"), [(1, 1), (4, 1), (5, 2), (16, 4), (300, 8)])
async def test_of_a_round_a_few_reports_are_fetched_and_never_more_than_eight(
    tmp_path: Path, monkeypatch, autojump_clock, verdicts: int, picked: int
) -> None:
    monkeypatch.setattr(peer_audit, "LOT", 10**9)
    auditor, seen = Auditor(Trainer(tmp_path), Looker()), list[bytes]()

    async def note(claim: RootEntry, *, recompute: bool) -> bool:
        await trio.lowlevel.checkpoint()
        seen.append(claim.work.id)
        return True

    auditor.audit._is_so = note  # type: ignore[method-assign]
    assert await auditor.is_paid(auditor.trainer.says(BEN), verdicts)
    assert len(seen) == len(set(seen)) == picked
