"""Pay that arrives by itself: a week of epochs on a simulated clock, with everything that goes wrong in a week."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from contracts.bindings import (
    CaseInfo,
    CaseState,
    EpochInvalidated,
    PoolInfo,
    Settled,
    Slashed,
    SlashOverturned,
    WorkCommitted,
    WorkInfo,
    WorkInvalidated,
    WorkReleased,
    WorkToppedUp,
)
from node.chain.client import Block
from node.chain.errors import ChainError, Reverted, TransactionUnconfirmed
from node.chain.ledger import Ledger
from node.progress import ProgressRecord
from node.services.clearing import Clearing
from node.services.settling import SENDING, Settling
from protocol.identity import NodeKey
from tests.attacks.validators.court import InlineJournal

OWN, PROVIDER, OTHER = (NodeKey(bytes([n]) * 32) for n in (1, 2, 3))
POOL, RATE, EPOCH, WINDOW, APPEAL = 7, 10**15 + 7, 3600, 24 * 3600, 12 * 3600
EPOCHS = 5 * 24


class Chain:
    """The contract's sums in a few lines: commitments, escrow, maturity; events go into the ledger as a follower tells
    them, `lag` seconds later. The clock is trio's."""

    def __init__(self, escrow: int = 10**9) -> None:
        self.free = escrow
        self.work_of: dict[tuple[str, int], list[int]] = {}
        self.voided_before: dict[str, int] = {}
        self.balance = 0
        self.settles: list[tuple[int, ...]] = []
        self.top_ups: list[int] = []
        self.sweeps: list[int] = []
        self.waiting: dict[tuple[int, ...], bool] = {}
        self.trouble = 0.0
        self.unconfirmed = False
        self.stake = SimpleNamespace(frozen=0)
        self.cases: dict[int, CaseInfo] = {}
        self.told: list[Any] = []
        self.random = random.Random(5)
        fields = dict.fromkeys(PoolInfo.__struct_fields__, 0) | {"id": POOL, "proposed": (), "validators": ()}
        times = {"epoch_seconds": EPOCH, "window": WINDOW, "reward_per_unit": RATE}
        self.info = PoolInfo(**{**fields, **times})  # type: ignore[arg-type]

    def now(self) -> int:
        return int(trio.current_time())

    def tell(self, kind: type, **fields: Any) -> None:
        known = {"block": self.now(), "transaction": "0x", "log_index": len(self.told), "pool": POOL}
        given = known | fields
        self.told.append(kind(**{name: given.get(name, 0) for name in kind.__struct_fields__}))

    async def _answer(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.random.random() < self.trouble:
            raise ChainError("no answer", "the endpoint is down", "wait")

    # what a service asks

    async def pool(self, pool: int) -> PoolInfo:
        await self._answer()
        return msgspec.structs.replace(self.info, escrow=self.free * RATE)

    async def block(self) -> Block:
        await self._answer()
        return Block(self.now(), b"", self.now())

    async def work(self, pool: int, node: str, epoch: int) -> WorkInfo:
        await self._answer()
        units, reserved = self.work_of.get((node, epoch), (0, 0))
        root = b"\x01" * 20 if (node, epoch) in self.work_of else bytes(20)
        maturity = self.info.maturity(epoch)
        voided = any(root) and maturity > self.voided_before.get(node, 1 << 60)
        return WorkInfo(root, units, reserved, reserved * RATE, maturity, voided)

    async def node_info(self, node: str) -> Any:
        await self._answer()
        return SimpleNamespace(owner=PROVIDER.address)

    async def stake_of(self, provider: str) -> Any:
        await self._answer()
        return self.stake

    async def case(self, case: int) -> CaseInfo:
        await self._answer()
        return self.cases[case]

    async def settle(self, pool: int, node: str, epochs: Sequence[int]) -> None:
        """One that is not confirmed waits under its epochs, as in an outbox: the equal call takes it up."""
        await self._answer()
        key = tuple(epochs)
        if key not in self.waiting:
            await self._require_due(node, epochs)
            assert not any(epoch in sent for sent in self.waiting for epoch in epochs), "sent twice"
            self.settles.append(key)
            self.waiting[key] = False
        if self.unconfirmed:
            raise TransactionUnconfirmed("settle", "0x", 120)
        del self.waiting[key]
        await self._require_due(node, epochs)
        for epoch in epochs:
            self.pay(node, epoch)

    async def _require_due(self, node: str, epochs: Sequence[int]) -> None:
        trouble, self.trouble = self.trouble, 0.0
        for epoch in epochs:
            work = await self.work(POOL, node, epoch)
            if not work.reserved or self.now() < work.matures_at or work.voided:
                self.trouble = trouble
                raise Reverted("settle", "WorkIsVoided" if work.voided else "NothingCommitted", {"epoch": epoch})
        self.trouble = trouble

    def pay(self, node: str, epoch: int) -> None:
        units, reserved = self.work_of.pop((node, epoch))
        self.balance += reserved * RATE
        self.tell(Settled, node=node, epoch=epoch, provider=PROVIDER.address, units=units, amount=reserved * RATE)

    async def top_up(self, pool: int, node: str, epoch: int) -> None:
        await self._answer()
        if (node, epoch) not in self.work_of:
            raise Reverted("top up", "NothingCommitted", {"epoch": epoch})
        if not self.reserve_more(epoch, node):
            raise Reverted("top up", "ZeroAmount", {})
        self.top_ups.append(epoch)

    async def appeal_seconds(self) -> int:
        await self._answer()
        return APPEAL

    async def sweep(self, pool: int) -> None:
        await self._answer()
        over = self.info.maturity(self.info.epoch_at(self.info.stopped_at))
        assert self.info.ended and self.now() >= over
        bond = self.info.bond if self.now() >= over + 2 * APPEAL else 0
        if not self.free and not bond:
            raise Reverted("sweep", "ZeroAmount", {})
        self.sweeps.append(self.free * RATE + bond)
        self.free, self.info = 0, msgspec.structs.replace(self.info, bond=self.info.bond - bond)

    async def finalize(self, case: int) -> None:
        await self._answer()
        self.cases[case] = msgspec.structs.replace(self.cases[case], state=CaseState.FINAL)

    async def release(self, pool: int, node: str, epoch: int) -> None:
        await self._answer()
        units, reserved = self.work_of.pop((node, epoch))
        self.free += reserved
        self.tell(WorkReleased, node=node, epoch=epoch, units=reserved)

    # what others do

    def commit(self, epoch: int, units: int, node: str = OWN.address) -> None:
        reserved = min(units, self.free)
        self.free -= reserved
        self.work_of[node, epoch] = [units, reserved]
        root = bytes([epoch % 256]) * 32
        self.tell(WorkCommitted, node=node, epoch=epoch, root=root, units=units, reserved_units=reserved)

    def reserve_more(self, epoch: int, node: str = OWN.address) -> int:
        units, reserved = self.work_of[node, epoch]
        more = min(units - reserved, self.free)
        if more:
            self.free -= more
            self.work_of[node, epoch] = [units, reserved + more]
            self.tell(WorkToppedUp, node=node, epoch=epoch, units=more)
        return more

    def take(self, epoch: int, units: int | None, node: str = OWN.address) -> None:
        """Some units of an epoch, or (None) all of it."""
        work = self.work_of[node, epoch]
        left = 0 if units is None else max(work[0] - units, 0)
        reserved = min(work[1], left)
        self.free += work[1] - reserved
        self.work_of[node, epoch] = [left, reserved]
        kind = EpochInvalidated if units is None else WorkInvalidated
        self.tell(kind, node=node, epoch=epoch, units=units or 0)

    def slash(self, node: str, case: int = 0) -> None:
        self.voided_before[node] = self.now()
        self.tell(Slashed, node=node, provider=PROVIDER.address, case_id=case)

    def overturn(self, node: str) -> None:
        del self.voided_before[node]
        self.tell(SlashOverturned, node=node)


class Worker:
    """A worker's books over several lives: the journal stays, the rest begins anew."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.journal = InlineJournal()
        self.progress = ProgressRecord()
        self.settling: Any = None

    @asynccontextmanager
    async def life(self, gather: float | None = 0.0) -> AsyncIterator[Settling]:
        station: Any = SimpleNamespace(pool=POOL, key=OWN, journal=self.journal, progress=self.progress)
        ledger = Ledger(OWN.address)
        self.settling = Settling(station, self.chain, ledger, gather)  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow, ledger)
            nursery.start_soon(self.settling.run)
            yield self.settling
            nursery.cancel_scope.cancel()

    async def _follow(self, ledger: Ledger) -> None:
        """From the beginning of the chain, as the follower does, some seconds late."""
        read = 0
        while True:
            while read < len(self.chain.told):
                ledger.apply(self.chain.told[read])
                read += 1
            await trio.sleep(67)


def pay_of(settling: Settling) -> dict[str, Any]:
    return settling.status()["pay"]


async def test_days_of_epochs_are_paid_to_the_wei_whatever_happens(autojump_clock: Any) -> None:
    """Restarts at any moment, an endpoint that fails a third of all questions, transactions that nobody confirms, a
    stranger who settles, leaves and epochs that are taken, an escrow that runs dry for a while."""
    chain, dice = Chain(escrow=60_000), random.Random(3)
    worker, dry = Worker(chain), 0
    chain.trouble = 0.33
    epoch = 0
    while epoch < EPOCHS:
        async with worker.life():
            for _ in range(dice.randrange(1, 14)):
                if epoch < EPOCHS:
                    units = dice.randrange(500, 1500)
                    dry += not chain.free
                    chain.commit(epoch, units)
                    epoch += 1
                chain.unconfirmed = dice.random() < 0.1
                if epoch > 4 and dice.random() < 0.1:
                    taken = dice.randrange(epoch - 4, epoch)
                    chain.take(taken, None if dice.random() < 0.3 else 200)
                due = [e for (_, e), work in chain.work_of.items() if work[1] and chain.now() >= chain.info.maturity(e)]
                if due and dice.random() < 0.2:
                    chain.pay(OWN.address, due[0])
                if epoch == 100:
                    chain.free += 10**6  # somebody funds the pool
                await trio.sleep(EPOCH)
    chain.unconfirmed, chain.trouble = False, 0.0
    async with worker.life():
        await trio.sleep(WINDOW + 3 * EPOCH)
        told = pay_of(worker.settling)
    assert chain.balance == (60_000 + 10**6 - chain.free) * RATE == int(told["paid_wei"]) == int(told["earned_wei"])
    assert all(work == [0, 0] for work in chain.work_of.values()), "only what was taken is left"
    assert (told["due_wei"], told["waiting_wei"], told["waiting_until"]) == ("0", "0", 0)
    assert told["provider"] == PROVIDER.address and told["unfunded_units"] > 0
    assert len(chain.settles) > 25 and dry > 10 and len(set(chain.top_ups)) > 20


async def test_what_was_being_sent_before_a_crash_is_taken_up_and_not_sent_with_more_beside_it(
    autojump_clock: Any,
) -> None:
    chain = Chain()
    worker = Worker(chain)
    chain.commit(0, 10)
    chain.commit(1, 10)
    chain.unconfirmed = True
    async with worker.life():
        await trio.sleep(EPOCH + WINDOW + EPOCH // 2)
        assert chain.settles == [(0,)]
    await trio.sleep(EPOCH)  # the second is mature now, the first still waits for a block
    chain.unconfirmed = False
    async with worker.life():
        await trio.sleep(60)
    assert chain.settles == [(0,), (1,)] and chain.balance == 20 * RATE
    assert worker.journal.recall(SENDING) == b""


async def test_pay_waits_for_more_to_come_but_not_for_ever(autojump_clock: Any) -> None:
    chain = Chain()
    for epoch in range(20):
        chain.commit(epoch, 5)
    async with Worker(chain).life(gather=None):
        await trio.sleep(WINDOW + 40 * EPOCH)
    assert [len(epochs) for epochs in chain.settles] == [7, 7, 6] and chain.balance == 100 * RATE


async def test_voided_work_is_not_settled_and_is_once_its_slash_is_overturned(autojump_clock: Any) -> None:
    chain = Chain()
    chain.commit(0, 10)
    async with Worker(chain).life() as settling:
        await trio.sleep(EPOCH)
        assert pay_of(settling)["waiting_until"] == chain.info.maturity(0)
        chain.slash(OWN.address, case=3)
        chain.cases[3] = CaseInfo(3, PROVIDER.address, 9 * EPOCH, CaseState.FROZEN, False, 50 * 10**18, 0)
        chain.stake.frozen = 50 * 10**18
        await trio.sleep(EPOCH)
        told = pay_of(settling)
        assert (told["voided_wei"], told["earned_wei"]) == (str(10 * RATE), "0")
        [warning] = [text for text in told["warnings"] if "case" in text]
        assert "50 tokens" in warning and "appeals until 1970-01-01 09:00 UTC: contract case appeal 3" in warning
        await trio.sleep(WINDOW + EPOCH)
        assert chain.settles == [] and pay_of(settling)["voided_wei"] == str(10 * RATE)
        chain.overturn(OWN.address)
        chain.stake.frozen = 0
        await trio.sleep(EPOCH)
        assert chain.balance == 10 * RATE == int(pay_of(settling)["paid_wei"])
        assert not any("case" in text for text in pay_of(settling)["warnings"])


async def test_what_costs_money_unless_somebody_acts_is_told(autojump_clock: Any) -> None:
    chain = Chain(escrow=15)
    chain.commit(0, 10)
    chain.commit(1, 10)
    chain.commit(2, 10)
    chain.info = msgspec.structs.replace(chain.info, validators_from=7200, proposed=(OTHER.address,))
    async with Worker(chain).life() as settling:
        await trio.sleep(EPOCH)
        told = pay_of(settling)
        await trio.sleep(WINDOW + 4 * EPOCH)
        later = pay_of(settling)
    assert told["unfunded_units"] == 15
    assert told["warnings"] == [
        "epoch 1: nothing is reserved for 5 of its 10 units, they wait for money in the pool",
        "epoch 2: nothing is reserved for 10 of its 10 units, they wait for money in the pool",
        "the pool's escrow does not pay for another epoch like the last one: contract pool fund",
        f"other validators may take office from 1970-01-01 02:00 UTC: {OTHER.address}",
    ]
    assert [text[:7] for text in later["warnings"]] == ["the poo", "other v"], "what nobody can change is told once"
    assert chain.balance == 15 * RATE and chain.settles == [(0,), (1,)]


@pytest.mark.parametrize("case", [0, 4])
async def test_voided_work_goes_back_to_the_pool_once_the_slash_is_final(autojump_clock: Any, case: int) -> None:
    chain, ledger = Chain(escrow=100), Ledger(OWN.address)
    chain.commit(0, 60, OTHER.address)
    chain.commit(0, 10)
    chain.cases[4] = CaseInfo(4, PROVIDER.address, 2 * EPOCH, CaseState.FROZEN, False, 1, 0)
    await trio.sleep(10)
    chain.slash(OTHER.address, case)
    for event in chain.told:
        ledger.apply(event)
    async with trio.open_nursery() as nursery:
        clearing = Clearing(POOL, chain, ledger)  # type: ignore[arg-type]
        nursery.start_soon(clearing.run)
        await trio.sleep(EPOCH)
        assert clearing.released == (0 if case else 1)
        await trio.sleep(2 * EPOCH)
        nursery.cancel_scope.cancel()
    assert clearing.released == 1 and chain.free == 90 and (OWN.address, 0) in chain.work_of
    assert chain.cases[4].state is (CaseState.FINAL if case else CaseState.FROZEN)


async def test_work_without_a_reserve_is_topped_up_once_the_pool_has_money_and_paid(autojump_clock: Any) -> None:
    """An invalidation refills the escrow a little, a funder fills it after the work is mature; one epoch is void."""
    chain = Chain(escrow=15)
    for epoch in range(3):
        chain.commit(epoch, 10)
    chain.commit(0, 10, OTHER.address)
    async with Worker(chain).life() as settling:
        await trio.sleep(2 * EPOCH)
        assert chain.top_ups == [] and pay_of(settling)["unfunded_units"] == 15
        chain.take(0, 3)
        await trio.sleep(EPOCH)
        assert chain.top_ups == [1] and chain.free == 0
        assert pay_of(settling)["waiting_wei"] == str(15 * RATE)
        chain.take(1, 10)
        chain.free = 0  # somebody else's work was faster
        await trio.sleep(WINDOW + 4 * EPOCH)
        assert chain.balance == 7 * RATE
        chain.free = 100
        await trio.sleep(2 * EPOCH)
        assert pay_of(settling)["unfunded_units"] == 0
    assert chain.top_ups == [1, 2] and chain.balance == 17 * RATE and chain.free == 90
    assert chain.work_of[OTHER.address, 0] == [10, 0], "others look after their own"


async def test_a_voided_epoch_and_a_pool_without_pay_are_not_topped_up(autojump_clock: Any) -> None:
    chain = Chain(escrow=5)
    chain.commit(0, 10)
    chain.slash(OWN.address)
    chain.free = 100
    async with Worker(chain).life():
        await trio.sleep(EPOCH)
    free = Chain(escrow=0)
    free.commit(0, 10)
    free.info = msgspec.structs.replace(free.info, reward_per_unit=0)
    async with Worker(free).life():
        await trio.sleep(EPOCH)
    assert (chain.top_ups, free.top_ups) == ([], [])


@pytest.mark.parametrize("short", [False, True])
async def test_what_is_left_of_a_pool_that_is_over_goes_to_its_manager_and_its_bond_later(
    autojump_clock: Any, short: bool
) -> None:
    """Where work still lacks pay, the escrow waits for it as long as the bond does."""
    chain, ledger = Chain(escrow=10), Ledger(OWN.address)
    chain.info = msgspec.structs.replace(chain.info, ended=True, stopped_at=EPOCH // 2, bond=5)
    chain.commit(0, 12 if short else 10, OTHER.address)
    ledger.apply(chain.told[0])
    async with trio.open_nursery() as nursery:
        clearing = Clearing(POOL, chain, ledger)  # type: ignore[arg-type]
        nursery.start_soon(clearing.run)
        await trio.sleep(EPOCH)
        chain.free = 3
        await trio.sleep(WINDOW - 120)
        assert chain.sweeps == []
        await trio.sleep(240)
        assert chain.sweeps == ([] if short else [3 * RATE])
        await trio.sleep(2 * APPEAL)
        nursery.cancel_scope.cancel()
    assert chain.sweeps == ([3 * RATE + 5] if short else [3 * RATE, 5])


# ---- the books


def test_the_books_follow_the_chain_back_and_forth() -> None:
    chain: Any = Chain(escrow=15)
    chain.now = lambda: 5
    chain.commit(0, 10)
    chain.take(0, 4)
    chain.commit(1, 10)
    chain.pay(OWN.address, 0)
    chain.take(1, None)
    ledger, seen = Ledger(OWN.address), []
    for event in chain.told:
        seen.append([ledger.entry(OWN.address, 0), ledger.entry(OWN.address, 1)])
        ledger.apply(event)
    first, second = ledger.of(OWN.address)
    assert (first.claimed, first.units, first.reserved, first.paid, first.closed) == (10, 6, 6, 6 * RATE, True)
    assert (second.claimed, second.units, second.reserved, second.paid, second.closed) == (10, 0, 0, None, True)
    for event, before in zip(reversed(chain.told), reversed(seen), strict=True):
        ledger.undo(event)
        assert [ledger.entry(OWN.address, 0), ledger.entry(OWN.address, 1)] == before


def test_what_was_topped_up_is_due_again_until_that_is_taken_back() -> None:
    chain: Any = Chain(escrow=0)
    chain.now = lambda: 5
    ledger = Ledger(OWN.address)

    def told() -> tuple[int, int, bool, bool]:
        ledger.apply(chain.told[-1])
        (entry,) = ledger.of(OWN.address)
        return entry.units, entry.reserved, entry.is_short, entry.closed

    chain.commit(0, 10)
    assert told() == (10, 0, True, True)
    chain.free = 4
    chain.reserve_more(0)
    assert told() == (10, 4, True, False)
    chain.free = 100
    chain.reserve_more(0)
    assert told() == (10, 10, False, False)
    chain.take(0, 3)
    assert told() == (7, 7, False, False)
    for event in reversed(chain.told[1:]):
        ledger.undo(event)
    (entry,) = ledger.of(OWN.address)
    assert (entry.reserved, entry.closed) == (0, True)


def test_others_epochs_are_forgotten_before_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.chain.ledger.MOST_OF_OTHERS", 3)
    chain: Any = Chain()
    chain.now = lambda: 5
    chain.commit(0, 10)
    for epoch in range(9):
        chain.commit(epoch, 1, OTHER.address)
    ledger = Ledger(OWN.address)
    for event in chain.told:
        ledger.apply(event)
    assert [entry.epoch for entry in ledger.of(OTHER.address)] == [6, 7, 8]
    assert ledger.entry(OWN.address, 0) is not None and len(ledger.since(7)) == 2


async def test_the_status_says_where_the_pay_of_each_epoch_is(autojump_clock: Any) -> None:
    ledger, chain = Ledger(OWN.address), Chain()
    station: Any = SimpleNamespace(pool=POOL, key=OWN, journal=InlineJournal(), progress=ProgressRecord())
    settling = Settling(station, chain, ledger)
    own = {"node": OWN.address, "block": 0, "transaction": "0x", "log_index": 0, "pool": POOL, "root": b"\x01" * 20}

    def tell(kind: type, **fields: Any) -> None:
        given = own | fields
        ledger.apply(kind(**{name: given.get(name, 0) for name in kind.__struct_fields__}))

    for epoch in range(5):
        tell(WorkCommitted, epoch=epoch, units=10, reserved_units=0 if epoch == 3 else 10)
    tell(Settled, epoch=0, amount=10 * RATE)
    tell(EpochInvalidated, epoch=1)
    await trio.sleep(chain.info.maturity(2) + 1)
    settling._gather = 10.0**9  # due pay waits
    await settling.look(await chain.pool(POOL))
    told = {row["epoch"]: (row["state"], int(row["wei"])) for row in settling.status()["pay"]["epochs"]}
    worth = 10 * RATE
    assert told == {
        0: ("paid", worth),
        1: ("invalidated", 0),
        2: ("due", worth),
        3: ("unfunded", 0),
        4: ("waiting", worth),
    }
