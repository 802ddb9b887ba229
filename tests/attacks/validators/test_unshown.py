"""What is not shown is not paid: validators that do no harm to what is learnt, and were paid for it.

A court whose validators certify each other. Reports lie in shelves of their own, each of which serves whom it likes.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from node.inference.wire import Inspect
from node.services.context import PoolTime
from node.services.judging.judge import Validator
from protocol.blobs import BlobInfo, describe
from protocol.earnings import of_judgement
from protocol.identity import Address
from protocol.lots import unpack_groups
from protocol.messages import DisputeRaised, VerdictRechecked, signed
from protocol.rollout import ValidatorReport
from protocol.statements import Rechecked, VerdictOutcome
from tests.attacks.validators.court import (
    DOMAIN,
    GROUPS,
    POOL,
    TRAINER,
    VALIDATORS,
    Court,
    ReportingEngine,
    Trouble,
    inline,
)
from tests.cheats.seats import Choosy, LookingTurncoat, Unserving

LIAR, *HONEST = (key.address for key in VALIDATORS)
FILES, PAUSE = 12, 3.0
Serves = Callable[[Address, Address], bool]
"""Whether somebody serves somebody else."""


class Shelf:
    """The blobs of one node. others: all shelves by node; serves: who serves whom."""

    holding = nullcontext

    def __init__(self, own: Address, folder: Path, others: "dict[Address, Shelf]", serves: Serves) -> None:
        self.own, self.folder, self.others, self.serves = own, folder, others, serves
        self.held = set[bytes]()
        self.fetched = 0
        others[own] = self

    async def add(self, source: Path | bytes) -> BlobInfo:
        await trio.lowlevel.checkpoint()
        data = source if isinstance(source, bytes) else source.read_bytes()
        info = describe(data)
        (self.folder / info.root.hex()).write_bytes(data)
        self.held.add(info.root)
        if self.serves(self.own, TRAINER.address):
            self.others[TRAINER.address].held.add(info.root)  # who fetches every report
        return info

    async def fetch(self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, **_: Any) -> Path:
        if max_size > 1000 and root not in self.held:  # a report; the files themselves are no matter here
            holders = [one for one in sources if root in self.others[one].held and self.serves(one, self.own)]
            if not holders:
                await trio.sleep(timeout)
                raise Trouble("no such blob", "nobody serves it", "wait")
            self.fetched += 1
            self.held.add(root)
        await trio.lowlevel.checkpoint()
        return self.folder / root.hex()


class Spiked(ReportingEngine):
    """Says log-probabilities of the right mean, all of them on one token."""

    def report(self, order: Inspect, groups: Sequence[int]) -> ValidatorReport:
        true = super().report(order, groups)
        rows = [msgspec.structs.replace(row, logprobs=[sum(row.logprobs) - 8.0, 8.0]) for row in true.rows]
        return ValidatorReport(true.header, tuple(rows))


class OneInFour(Choosy):
    """Shows the verdicts on every fourth file alone."""

    seen = 0

    def shows(self, id: bytes) -> bool:
        self.seen += 1
        return self.seen % 4 == 0


class Sealer(Validator):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._pronouncing = OneInFour(self._context, self.own_lots.is_calm)


class Noisy(ReportingEngine):
    """The control of these: other hardware, that differs in the last digits."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given, noise=0.01)


class Play:
    """A court of three, of which the first may lie."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        kind: type[Validator] = Validator,
        engine: type[ReportingEngine] = ReportingEngine,
        serves: Serves = lambda server, asker: True,
    ) -> None:
        monkeypatch.setattr(trio.to_thread, "run_sync", inline)

        def made(number: int, bad: Any) -> ReportingEngine:
            return (engine if number == 0 else ReportingEngine)(bad)

        self.court = court = Court([kind, Validator, Validator], engine=made, scratch=folder, window=6)
        self.shelves: dict[Address, Shelf] = {}
        for seat in (court.trainer, *court.workers, *court.seats):
            seat.context.blobs = Shelf(seat.key.address, folder, self.shelves, serves)  # type: ignore[assignment]
            seat.context.time = PoolTime(window=60, wall=trio.current_time)
        self.works: list[bytes] = []

    async def run(self) -> dict[Address, int]:
        """For how many of the files each validator is paid."""
        court = self.court
        async with trio.open_nursery() as nursery:
            await court.open(nursery)
            for certifying in court.certifying:
                nursery.start_soon(certifying.run)
            await self.commit()
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
        return {key.address: self.paid(key.address) for key in VALIDATORS}

    async def commit(self) -> None:
        for index in range(FILES):
            if index % 8 == 7:
                await self.court.announce(index // 8 + 1)
            self.works.append(await self.court.commit(step=index // 8, index=index % 8))
            await trio.sleep(PAUSE)

    def paid(self, validator: Address) -> int:
        return sum(self.certified(id, validator) >= self.court.quorum for id in self.works)

    def certified(self, id: bytes, validator: Address) -> int:
        """By how many a validator's verdict is certified."""
        said = self.court.trainer.jury.state.vote_set.verdict_of(id, validator)
        if said is None:
            return 0
        checked = len(unpack_groups(said.message.checked, GROUPS) or ())
        work = of_judgement(self.court.run, validator, said.message.verdict, checked, GROUPS).work
        kept = [(one._journal, one._own) for one in self.court.certifying]
        return sum(journal.pay.leaf(own, POOL, work) is not None for journal, own in kept)


@pytest.mark.parametrize(
    ("kind", "engine", "most"),
    [
        (Unserving, ReportingEngine, 0),
        (Validator, Spiked, 0),
        (LookingTurncoat, ReportingEngine, 0),
        (Sealer, ReportingEngine, 0),
        (Validator, Noisy, FILES),
    ],
    ids=["unserving", "spiked", "looking turncoat", "sealer", "honest"],
)
async def test_who_lies_without_harm_is_not_paid_and_the_others_are(
    autojump_clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, engine: Any, most: int
) -> None:
    play = Play(tmp_path, monkeypatch, kind, engine)
    paid = await play.run()
    assert [paid[one] for one in HONEST] == [FILES, FILES], paid
    assert paid[LIAR] == FILES if most == FILES else paid[LIAR] <= most, paid
    assert play.court.slashed() == [] and not set(HONEST) & set().union(*play.court.quarantined())


async def test_a_report_that_only_the_trainer_was_served_is_had_from_there(
    autojump_clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has shown what it found. Who serves nobody at all is in the table above."""

    def only(server: Address, asker: Address) -> bool:
        return server != LIAR or asker == TRAINER.address

    paid = await Play(tmp_path, monkeypatch, engine=Noisy, serves=only).run()
    assert set(paid.values()) == {FILES}


@pytest.mark.parametrize("believed", [True, False])
async def test_a_second_look_that_denies_the_own_verdict_waits_for_the_dispute_that_asked_it(
    autojump_clock: Any, believed: bool
) -> None:
    """Messages overtake each other: an honest validator may have looked again for a dispute that is told here later,
    also about a verdict of somebody who is not believed here any more."""
    court = Court([Validator] * 3)
    async with trio.open_nursery() as nursery:
        await court.open(nursery, absent=[0])
        id = await court.commit()
        await trio.sleep(20)
        jury, (accuser, asked, _) = court.trainer.jury, court.seats
        word = jury.state.vote_set.verdict_of(id, HONEST[0])
        assert word is not None
        denied = msgspec.structs.replace(word.message.verdict, outcome=int(VerdictOutcome.SLASH), reason=5)
        again = VerdictRechecked(pool=POOL, verdict=Rechecked(*msgspec.structs.astuple(denied)), signature=b"")
        await asked.board.post(signed(again, asked.key, DOMAIN))
        await trio.sleep(0.2)
        assert jury.state.seals.turned(HONEST[0]) == {0} and jury.state.seals.turned(HONEST[1]) == set()
        if not believed:
            jury.state.disputes.quarantine(LIAR, "it lied elsewhere", ())
        accusing = signed(msgspec.structs.replace(word.message, verdict=denied), accuser.key, DOMAIN)
        raised = DisputeRaised(pool=POOL, first=word.raw, second=accuser.board.sealed(accusing))
        await court.seats[2].board.post(raised)
        await trio.sleep(0.2)
        assert jury.state.seals.turned(HONEST[0]) == set()
        nursery.cancel_scope.cancel()
