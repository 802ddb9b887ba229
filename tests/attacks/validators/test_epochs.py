"""Nodes that put on chain what nobody accepted, and validators that accuse the honest: whole epochs under audit.

Boards, registers, juries, judges, leaves and audits are the real ones; the chain is a table that answers as the
contract does. Beside each attack stands an honest worker, beside each innocence a control that somebody looked.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
import trio

from contracts.bindings import EpochInvalidated, Joined, PoolInfo, Slashed, WorkCommitted, WorkInfo
from node.chain.client import Block
from node.chain.errors import Reverted
from node.chain.ledger import Ledger
from node.services.court.auditing import Auditing
from node.services.duties import Duties
from node.services.judging.judge import Validator
from protocol.checks import Fault, Reason
from protocol.identity import Address, NodeKey
from protocol.messages import EpochJudged, PolicyAnnounced, WorkPublished
from protocol.statements import EpochVerdict, Outcome, Verdict, sign, signer_of
from protocol.work import (
    EpochFault,
    Leaf,
    commitment_of,
    encode_leaves,
    judgement_leaf,
    merkle_root,
    policy_leaf,
    tree_of,
    works_of,
)
from tests.attacks.validators import court as courts
from tests.attacks.validators.court import (
    DOMAIN,
    OTHER,
    POOL,
    TRAINER,
    VALIDATORS,
    WORKER,
    Court,
    policy_root,
    root_of,
)

EPOCH, WINDOW = 20, 160


class Chain:
    """The contract's side of epochs, and every validator's ledger as its follower fills it. Blocks of two seconds."""

    def __init__(self) -> None:
        self.ledgers: list[Ledger] = []
        self.told: list[Any] = []
        self.units: dict[tuple[Address, int], int] = {}
        self.roots: dict[tuple[Address, int], bytes] = {}
        self.slashed: dict[Address, int] = {}
        self.refused: list[tuple[Address, int, EpochFault]] = []
        fields = dict.fromkeys(PoolInfo.__struct_fields__, 0) | {"id": POOL, "epoch_seconds": EPOCH, "window": WINDOW}
        self.info = PoolInfo(**fields)  # type: ignore[arg-type]
        self.on_slash: Callable[[Address], None] = lambda node: None

    def now(self) -> int:
        return 1000 + int(trio.current_time())

    async def pool(self, pool: int) -> PoolInfo:
        await trio.lowlevel.checkpoint()
        return self.info

    async def block(self, number: int | None = None) -> Block:
        await trio.lowlevel.checkpoint()
        number = self.now() // 2 if number is None else number
        return Block(number, b"", 2 * number)

    async def work(self, pool: int, node: Address, epoch: int) -> WorkInfo:
        await trio.lowlevel.checkpoint()
        root, units = self.roots.get((node, epoch), bytes(32))[:20], self.units.get((node, epoch), 0)
        return WorkInfo(root, units, units, units, self.info.maturity(epoch), node in self.slashed)

    async def invalidate_epoch(
        self, pool: int, node: Address, epoch: int, outcome: int, reason: int, verdicts: Sequence[bytes]
    ) -> None:
        await trio.sleep(1)
        verdict = EpochVerdict(pool, node, epoch, self.roots[node, epoch][:20], outcome, reason)
        signers = {signer_of(DOMAIN, verdict, one) for one in verdicts}
        assert len(signers) == len(verdicts) >= 2 and signers <= {key.address for key in VALIDATORS}
        if node in self.slashed:
            raise Reverted("invalidate", "WorkIsVoided", {})
        if self.now() >= self.info.maturity(epoch):
            raise Reverted("invalidate", "AlreadyMature", {})
        self.refused.append((node, epoch, EpochFault(reason)))
        if outcome == Outcome.SLASH:
            self.slashed[node] = self.now()
            self.tell(Slashed, node=node)
            self.on_slash(node)
        else:
            self.units[node, epoch] = 0
            self.tell(EpochInvalidated, node=node, epoch=epoch)

    def tell(self, kind: type, **fields: Any) -> None:
        given = {"block": self.now() // 2, "transaction": "0x", "log_index": len(self.told), "pool": POOL} | fields
        event: Any = kind(**{name: given.get(name, 0) for name in kind.__struct_fields__})
        self.told.append(event)
        for ledger in self.ledgers:
            ledger.apply(event)

    def commit(self, node: Address, epoch: int, root: bytes, units: int) -> None:
        self.roots[node, epoch], self.units[node, epoch] = root, units
        self.tell(WorkCommitted, node=node, epoch=epoch, root=root, units=units, reserved_units=units)

    def paid(self, node: Address) -> int:
        """Units that will be paid once they are mature."""
        return 0 if node in self.slashed else sum(units for (who, _), units in self.units.items() if who == node)


class KeptBlobs(courts.SharedBlobs):
    """Blobs that hold what was put in, unless they are missing."""

    folder: Any = None

    async def fetch(self, root: bytes, *rest: Any, **named: Any) -> Any:
        path = self.folder / root.hex()
        if path.exists() and root not in self.missing:  # noqa: ASYNC240
            await trio.lowlevel.checkpoint()
            return path
        return await super().fetch(root, *rest, **named)

    async def add(self, source: Any) -> Any:
        from protocol.blobs import describe

        if not isinstance(source, bytes):
            return await super().add(source)
        await trio.lowlevel.checkpoint()
        info = describe(source)
        (self.folder / info.root.hex()).write_bytes(source)
        return info


class Town:
    """A court whose validators audit. blind: no auditor says anything."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Any, kinds: Sequence[type[Validator]]) -> None:
        blobs = KeptBlobs()
        blobs.folder = folder
        monkeypatch.setattr(courts, "SharedBlobs", lambda: blobs)
        monkeypatch.setattr(trio.to_thread, "run_sync", _inline)
        self.blobs = blobs
        self.chain = Chain()
        self.court = Court(kinds, window=64)
        self.audits: list[Auditing] = []
        self.alive: list[trio.CancelScope] = []

    async def open(self, nursery: trio.Nursery, *, joined_late: bool = True, start: Sequence[int] = (0, 1, 2)) -> None:
        """joined_late: everybody joins after the validators have begun to look."""
        await self.court.open(nursery)
        if not joined_late:
            self._join()
        for number in start:
            self.audit(number, nursery)
        await trio.sleep(5)
        if joined_late:
            self._join()
        self.chain.on_slash = self._evict

    def _join(self) -> None:
        for key in (WORKER, OTHER):
            self.chain.tell(Joined, node=key.address)

    def _evict(self, node: Address) -> None:
        for seat in (self.court.trainer, *self.court.workers, *self.court.seats):
            seat.membership.evict(node)

    def audit(self, number: int, nursery: trio.Nursery) -> Auditing:
        """A validator's auditing starts."""
        seat, ledger = self.court.seats[number], Ledger(self.court.seats[number].key.address)
        for event in self.chain.told:
            ledger.apply(event)
        self.chain.ledgers.append(ledger)
        leaves = self.court.validators[number].leaves
        duties = Duties(seat.station)
        audit = Auditing(seat.station, self.chain, self.chain, ledger, leaves, duties)
        scope = trio.CancelScope()
        self.audits.append(audit)
        self.alive.append(scope)

        async def live() -> None:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(duties.run)
                    await audit.run()

        nursery.start_soon(live)
        return audit

    def restart(self, nursery: trio.Nursery) -> None:
        """All auditors start anew over their journals."""
        for number, scope in enumerate(list(self.alive)):
            scope.cancel()
            self.court.validators[number].leaves._epochs.clear()
            self.audit(number, nursery)

    async def work(self, count: int, key: NodeKey = WORKER, step: int = 0, first: int = 0) -> list[Leaf]:
        """Honest works that everybody hears of."""
        found: list[Leaf] = []
        for index in range(first, first + count):
            await self.court.commit(step, index, key=key)
            found.append(Leaf(policy_root(step), index, root_of(step, index, None, key), 100))
        return found

    async def put(
        self, leaves: Sequence[Leaf], epoch: int, *, key: NodeKey = WORKER, units: int | None = None, show: bool = True
    ) -> None:
        """A node commits an epoch's work, and shows what stands behind it."""
        root = merkle_root(tree_of(POOL, key.address, leaves))
        self.chain.commit(key.address, epoch, root, sum(leaf.units for leaf in leaves) if units is None else units)
        if show:
            await self.show(leaves, epoch, key)

    async def show(self, leaves: Sequence[Leaf], epoch: int, key: NodeKey = WORKER) -> None:
        info = await self.blobs.add(encode_leaves(list(leaves)))
        root = merkle_root(tree_of(POOL, key.address, leaves))
        everybody = (self.court.trainer, *self.court.workers, *self.court.seats)
        seat = next(seat for seat in everybody if seat.key is key)
        await seat.board.post(
            WorkPublished(pool=POOL, epoch=epoch, root=root, leaves_root=info.root, leaves_size=info.size)
        )

    @property
    def epoch(self) -> int:
        return self.chain.info.epoch_at(self.chain.now())

    def judged(self) -> list[tuple[Address, EpochFault]]:
        """Who said what of an epoch."""
        return [
            (a.author, EpochFault(a.message.verdict.reason)) for a in self.court.trainer.board.messages(EpochJudged)
        ]


async def _inline(work: Any, *args: Any, **_: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return work(*args)


THREE = (Validator, Validator, Validator)
MADE_UP = [Leaf(b"\x99" * 32, number, bytes([number]) * 32, 100) for number in range(3)]


@pytest.fixture
async def town(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Town:
    return Town(monkeypatch, tmp_path, THREE)


def invented(kind: str) -> tuple[list[Leaf], bool]:
    """(leaves, whether they are shown) of a thief that made nothing."""
    if kind == "a root of nothing":
        return MADE_UP, False
    if kind == "made-up policies":
        return MADE_UP, True
    return [Leaf(policy_root(0), number, bytes([number]) * 32, 100) for number in range(3)], True


@pytest.mark.parametrize("kind", ["a root of nothing", "made-up policies", "made-up files"])
async def test_who_puts_invented_work_on_chain_loses_its_stake_and_is_paid_nothing(
    autojump_clock: Any, town: Town, kind: str
) -> None:
    async with trio.open_nursery() as nursery:
        await town.open(nursery)
        honest = await town.work(3)
        await trio.sleep(20)
        leaves, show = invented(kind)
        await town.put(honest, town.epoch)
        await town.put(leaves, town.epoch, key=OTHER, show=show)
        await trio.sleep(WINDOW / 2 - 25)
        assert town.judged() == [], "nobody is accused before half of the time is over"
        await trio.sleep(WINDOW / 2)
        assert [(node, fault) for node, _, fault in town.chain.refused] == [(OTHER.address, EpochFault.INVENTED)]
        assert (town.chain.paid(OTHER.address), town.chain.paid(WORKER.address)) == (0, 300)
        assert sum(audit.carried for audit in town.audits) == 1, "one of the validators pays for the transaction"
        nursery.cancel_scope.cancel()


async def test_more_units_than_the_leaves_have_cost_the_stake(autojump_clock: Any, town: Town) -> None:
    async with trio.open_nursery() as nursery:
        await town.open(nursery)
        mine, others = await town.work(3), await town.work(2, OTHER)
        await trio.sleep(20)
        await town.put(mine, town.epoch, units=299)  # who asks for less than its due harms nobody
        await town.put(others, town.epoch, key=OTHER, units=201)
        await trio.sleep(WINDOW - 20)
        assert [(node, fault) for node, _, fault in town.chain.refused] == [(OTHER.address, EpochFault.UNITS)]
        nursery.cancel_scope.cancel()


async def test_work_that_stands_in_two_epochs_costs_the_stake(autojump_clock: Any, town: Town) -> None:
    """Although the validators start anew between the two: what they saw stands in their journals."""
    async with trio.open_nursery() as nursery:
        await town.open(nursery)
        mine, others = await town.work(4), await town.work(4, OTHER)
        await trio.sleep(20)
        await town.put(mine[:2], town.epoch)
        await town.put(others[:2], town.epoch, key=OTHER)
        await trio.sleep(EPOCH)
        town.restart(nursery)
        await trio.sleep(5)
        await town.put(mine[2:], town.epoch)
        await town.put(others[1:3], town.epoch, key=OTHER)
        await trio.sleep(WINDOW - 20)
        assert {(node, fault) for node, _, fault in town.chain.refused} == {(OTHER.address, EpochFault.TWICE)}
        assert town.chain.paid(WORKER.address) == 400
        nursery.cancel_scope.cancel()


async def test_who_hides_its_leaves_loses_that_epochs_pay_and_nothing_else(autojump_clock: Any, town: Town) -> None:
    async with trio.open_nursery() as nursery:
        await town.open(nursery)
        mine, others = await town.work(4), await town.work(4, OTHER)
        await trio.sleep(20)
        epoch = town.epoch
        await town.put(mine[:2], epoch, show=False)
        await town.put(others[:2], epoch, key=OTHER, show=False)
        await trio.sleep(WINDOW * 0.7)
        await town.show(mine[:2], epoch)  # late, and in time
        await trio.sleep(20)
        await town.put(others[2:], town.epoch, key=OTHER)
        await trio.sleep(WINDOW)
        assert town.chain.refused == [(OTHER.address, epoch, EpochFault.UNDELIVERED)]
        assert not town.chain.slashed
        assert (town.chain.paid(OTHER.address), town.chain.paid(WORKER.address)) == (200, 200)
        nursery.cancel_scope.cancel()


async def test_leaves_of_another_root_are_no_leaves(autojump_clock: Any, town: Town) -> None:
    async with trio.open_nursery() as nursery:
        await town.open(nursery)
        others = await town.work(4, OTHER)
        await trio.sleep(20)
        epoch = town.epoch
        await town.put(others[:2], epoch, key=OTHER, show=False)
        await town.show(others[2:], epoch, OTHER)
        await trio.sleep(WINDOW)
        assert town.chain.refused == [(OTHER.address, epoch, EpochFault.UNDELIVERED)]
        nursery.cancel_scope.cancel()


async def test_votes_that_come_late_are_waited_for_and_work_that_nobody_judges_is_not_paid(
    autojump_clock: Any, town: Town
) -> None:
    async with trio.open_nursery() as nursery:
        await town.open(nursery)
        engines = town.court.engines
        for engine in engines:
            engine.seconds = WINDOW * 0.3  # to load the policy, and to look
        mine = await town.work(1)
        await trio.sleep(1)
        await town.put(mine, town.epoch)
        await trio.sleep(WINDOW * 0.55)
        assert town.chain.refused == [] and town.judged() == []
        await trio.sleep(WINDOW * 0.4)
        assert town.chain.refused == [] and town.chain.paid(WORKER.address) == 100
        for engine in engines:
            engine.seconds = 10 * WINDOW
        others = await town.work(1, OTHER)
        await trio.sleep(1)
        await town.put(others, town.epoch, key=OTHER)
        await trio.sleep(WINDOW)
        assert [(node, fault) for node, _, fault in town.chain.refused] == [(OTHER.address, EpochFault.INVENTED)]
        nursery.cancel_scope.cancel()


async def test_validators_that_were_not_there_say_nothing(autojump_clock: Any, town: Town) -> None:
    """They start after work that they know nothing of; a thief of what they have seen is found all the same."""
    async with trio.open_nursery() as nursery:
        await town.open(nursery, start=())
        mine = [Leaf(policy_root(0), number, bytes([number]) * 32, 100) for number in range(3)]
        for number in range(3):
            town.audit(number, nursery)
        await trio.sleep(5)
        await town.put(mine, town.epoch)
        await town.put(MADE_UP, town.epoch, key=OTHER, show=False)
        await trio.sleep(WINDOW / 4)
        await town.court.announce(1)
        await trio.sleep(25)
        fresh = [Leaf(policy_root(1), number, bytes([number]) * 32, 100) for number in range(3)]
        await town.put(fresh, town.epoch, key=OTHER)
        await trio.sleep(WINDOW)
        assert {(node, fault) for node, _, fault in town.chain.refused} == {
            (OTHER.address, EpochFault.UNDELIVERED),
            (OTHER.address, EpochFault.INVENTED),
        }
        assert town.chain.paid(WORKER.address) == 300
        nursery.cancel_scope.cancel()


class Forger(Auditing):
    """Calls every commitment invented, at once."""

    async def _faults(self, case: Any, pool: PoolInfo, now: int) -> list[tuple[EpochFault, str]]:
        await trio.lowlevel.checkpoint()
        return [(fault, "so I say") for fault in EpochFault if fault not in case.own]


async def test_one_lying_validator_alone_costs_nobody_anything(autojump_clock: Any, town: Town) -> None:
    async with trio.open_nursery() as nursery:
        await town.open(nursery, start=(1, 2))
        seat, ledger = town.court.seats[0], town.chain.ledgers[0]
        given = (ledger, town.court.validators[0].leaves, Duties(seat.station))
        nursery.start_soon(Forger(seat.station, town.chain, town.chain, *given).run)
        mine = await town.work(3)
        await trio.sleep(20)
        await town.put(mine, town.epoch)
        await trio.sleep(20)
        assert {author for author, _ in town.judged()} == {VALIDATORS[0].address}, "the control: it did accuse"
        await trio.sleep(WINDOW)
        assert town.chain.refused == [] and town.chain.paid(WORKER.address) == 300
        nursery.cancel_scope.cancel()


async def test_only_validators_may_judge_epochs_and_only_in_their_own_name(autojump_clock: Any, town: Town) -> None:
    async with trio.open_nursery() as nursery:
        await town.open(nursery, start=())
        verdict = EpochVerdict(POOL, WORKER.address, 3, bytes(20), Outcome.SLASH, EpochFault.INVENTED)
        for seat, signer in (
            (town.court.workers[1], OTHER),
            (town.court.seats[0], VALIDATORS[1]),
            (town.court.seats[1], VALIDATORS[1]),
        ):
            message = EpochJudged(pool=POOL, verdict=verdict, signature=sign(signer, DOMAIN, verdict))
            await seat.board.post(message)
        await trio.sleep(5)
        assert [author for author, _ in town.judged()] == [VALIDATORS[1].address]
        nursery.cancel_scope.cancel()


async def test_what_a_validator_heard_or_found_good_before_a_restart_is_not_invented(
    autojump_clock: Any, town: Town
) -> None:
    async with trio.open_nursery() as nursery:
        await town.open(nursery)
        [leaf] = await town.work(1)
        [id] = works_of(POOL, WORKER.address, [leaf])
        await trio.sleep(20)
        seat, witness = town.court.seats[0], town.audits[0]._witness
        seat.jury.register._works.clear()
        assert await witness.fault_of(WORKER.address, leaf, id, late=True) is None, "it was heard of"
        seat.station.journal.forget_work(1 << 40)
        assert await witness.fault_of(WORKER.address, leaf, id, late=True) is None, "this validator found it good"
        assert await witness.fault_of(WORKER.address, leaf, bytes(32), late=False), "the control"
        nursery.cancel_scope.cancel()


# judging and training


def earned(town: Town, number: int) -> list[Leaf]:
    """What a validator's own journal says that it is owed."""
    return town.court.seats[number].station.journal.unpaid_files(float("inf"))


async def open_with_judges(town: Town, nursery: trio.Nursery) -> None:
    await town.open(nursery)
    for key in (*VALIDATORS, TRAINER):
        town.chain.tell(Joined, node=key.address)


async def test_who_judges_and_who_trains_is_paid_for_what_everybody_heard(autojump_clock: Any, town: Town) -> None:
    async with trio.open_nursery() as nursery:
        await open_with_judges(town, nursery)
        duties = Duties(town.court.trainer.station)
        nursery.start_soon(duties.run)
        town.court.bad[root_of(0, 3)] = Fault(Reason.ACTIVATIONS, "made elsewhere", group=0)
        await town.work(4)
        await town.court.announce(1)
        await trio.sleep(20)
        mine = earned(town, 0)
        trained = town.court.trainer.station.journal.unpaid_files(float("inf"))
        assert [leaf.units for leaf in mine] == [12, 12, 12, 12], "a quarter of half of 100, a refused file included"
        assert trained == [policy_leaf(town.court.run, 1, policy_root(1))] and trained[0].units > 0
        await town.put(mine, town.epoch, key=VALIDATORS[0])
        await town.put(trained, town.epoch, key=TRAINER)
        await town.put(MADE_UP, town.epoch, key=OTHER)
        await trio.sleep(WINDOW)
        assert [(node, fault) for node, _, fault in town.chain.refused] == [(OTHER.address, EpochFault.INVENTED)]
        assert town.chain.paid(VALIDATORS[0].address) == 48
        nursery.cancel_scope.cancel()


class Idler(Validator):
    """Says nothing about any file."""

    async def _judge_file(self, candidate: Any) -> None:
        await trio.lowlevel.checkpoint()


def judgement(town: Town, leaf: Leaf, checked: int = 16) -> Leaf:
    """What a validator is owed for a verdict on a worker's file."""
    commitment = commitment_of(POOL, WORKER.address, leaf)
    verdict = Verdict(*msgspec.structs.astuple(commitment), Outcome.ACCEPT, 0)
    return judgement_leaf(town.court.run, verdict, checked, town.court.run.rollout.prompts_per_file)


@pytest.mark.parametrize("kind", ["verdicts that nobody heard", "more units", "work that nobody did", "hidden"])
async def test_verdicts_that_were_never_given_are_not_paid(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, kind: str
) -> None:
    """Beside another validator's, which are. Only what stands for nothing at all costs the stake."""
    town = Town(monkeypatch, tmp_path, (Validator, Validator, Idler))
    liar = VALIDATORS[2]
    async with trio.open_nursery() as nursery:
        await open_with_judges(town, nursery)
        works = await town.work(3)
        await trio.sleep(20)
        claimed = [judgement(town, leaf) for leaf in works]
        if kind == "more units":
            liar, claimed = VALIDATORS[1], [msgspec.structs.replace(leaf, units=13) for leaf in earned(town, 1)]
        if kind == "work that nobody did":
            claimed = [*claimed, judgement(town, MADE_UP[0])]
        units = 10_000 if kind == "hidden" else None
        await town.put(claimed, town.epoch, key=liar, show=kind != "hidden", units=units)
        await town.put(earned(town, 0), town.epoch, key=VALIDATORS[0])
        await trio.sleep(WINDOW)
        costs_all = kind in ("work that nobody did", "hidden")
        fault = EpochFault.INVENTED if costs_all else EpochFault.UNHEARD
        assert [(node, what) for node, _, what in town.chain.refused] == [(liar.address, fault)]
        assert (liar.address in town.chain.slashed) == costs_all
        assert (town.chain.paid(liar.address), town.chain.paid(VALIDATORS[0].address)) == (0, 36)
        nursery.cancel_scope.cancel()


async def test_policies_that_nobody_worked_for_are_not_paid(autojump_clock: Any, town: Town) -> None:
    async with trio.open_nursery() as nursery:
        await open_with_judges(town, nursery)
        await town.work(1)
        await trio.sleep(20)
        steps = range(1, 16)
        for step in steps:
            await town.court.announce(step)
        await town.put(
            [policy_leaf(town.court.run, step, policy_root(step)) for step in steps], town.epoch, key=TRAINER
        )
        await trio.sleep(WINDOW)
        assert [(node, fault) for node, _, fault in town.chain.refused] == [(TRAINER.address, EpochFault.UNHEARD)]
        nursery.cancel_scope.cancel()


async def test_two_policies_for_one_step_are_not_two_that_are_paid(autojump_clock: Any, town: Town) -> None:
    async with trio.open_nursery() as nursery:
        await open_with_judges(town, nursery)
        await town.court.announce(1)
        another = bytes([9]) * 32
        await town.court.trainer.board.post(
            PolicyAnnounced(pool=POOL, step=1, policy_root=another, manifest_root=bytes(32), manifest_size=1)
        )
        await trio.sleep(20)
        await town.put([policy_leaf(town.court.run, 1, another)], town.epoch, key=TRAINER)
        await trio.sleep(WINDOW)
        assert [(node, fault) for node, _, fault in town.chain.refused] == [(TRAINER.address, EpochFault.INVENTED)]
        nursery.cancel_scope.cancel()
