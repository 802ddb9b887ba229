"""Validators audit a trainer by lot, from public bytes: real boards, juries, lots, blobs and replays, over one hub.

The child is done in a thread here, but for one test; gossip has no network below it.
"""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import trio

from node.audit import fetched
from node.audit.fetched import audit_fetched
from node.audit.findings import Audit, AuditFinding, Says
from node.audit.order import ORDER, RESULT, AuditRuling, StepOrder, ruling
from node.blobs.errors import BlobUnavailable, StoreFull
from node.blobs.store import BlobStore
from node.changes import Changes
from node.run.assets import Run
from node.services.auditing import step_auditor
from node.services.auditing.step_auditor import StepAuditor, _Wanted
from node.services.auditing.step_replay import Overdue, StepReplay, Unavailable, Withheld
from node.services.checkpoint_server import CheckpointServer
from node.services.judging.lots import OwnLots
from node.services.training.stating import word_on
from node.state.files import write_whole
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.warmstart import SORT_ALPHABET, create_model
from node.weights.fetch_history import FetchHistory
from protocol.audit import window_of
from protocol.checks import Reason
from protocol.errors import IntellectError
from protocol.identity import Address, NodeKey
from protocol.lots import draws_step, secret_hash, window_secret
from protocol.manifest import PolicyStatement, decode_manifest, encode_manifest
from protocol.messages import StepObjected, StepVerdict
from protocol.run import RunSpec, encode_run
from protocol.statements import VerdictOutcome, sign, work_id
from tests.attacks.validators.court import POOL, TRAINER, VALIDATORS, Seat
from tests.memory_network import MemoryHub
from tests.node.audit.test_audits import Desk, gradient, hidden
from tests.node.training.forks import Forking
from tests.words import stating

ROOT = bytes(32)
THREAD = trio.CapacityLimiter(1)


class Shared(BlobStore):
    """Everybody's blobs. missing: roots that nobody hands over; failure: what happens there instead."""

    missing: set[bytes] = set()
    failure: IntellectError | None = None

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path:
        await trio.lowlevel.checkpoint()
        path = self.path(root)
        if root in self.missing or path.stat().st_size > max_size:
            raise self.failure or BlobUnavailable(root, "nobody hands it over")
        return path


class InThread:
    """Starts an audit in a thread in place of a process."""

    pid, stdin, stdout = 2**30, None, None  # nobody has this number

    async def start(self, command: Sequence[str], environment: Mapping[str, str], *, heard: bool) -> Any:
        self.spool = Spool(Path(command[-1]))
        return self

    def poll(self) -> int:
        return 0

    async def wait(self) -> int:
        await trio.to_thread.run_sync(self._work, limiter=THREAD)
        return 0

    def _work(self) -> None:
        order = msgspec.msgpack.decode((self.spool.root / ORDER).read_bytes(), type=StepOrder)
        write_whole(self.spool.root / RESULT, msgspec.msgpack.encode(audit_fetched(self.spool, order)))


class Bench:
    """A trainer whose two steps are done, and three validators; quorum 2. shares: of steps that each pledges."""

    def __init__(
        self, desk: Desk, assets: Path, shares: Sequence[float], starter: Any = None, patience: float = 15.0
    ) -> None:
        self.desk, self.tells = desk, False
        self.store = Shared(desk.directory / "blobs", 1 << 28)
        self.made: Any = SimpleNamespace(
            hub=MemoryHub(delay=0.01), validator_keys=VALIDATORS, quorum=2, blobs=self.store, run=desk.run
        )
        self.trainer = Seat(self.made, TRAINER, "trainer")
        self.seats = [Seat(self.made, key, "validator") for key in VALIDATORS]
        for seat in (self.trainer, *self.seats):
            seat.context.run = Run(desk.run, ROOT, encode_run(desk.run), assets)
        self.lots = [self._lots(seat, share) for seat, share in zip(self.seats, shares, strict=True)]
        self.audits = []
        for number, (seat, lots) in enumerate(zip(self.seats, self.lots, strict=True)):
            replaying = StepReplay(seat.context, desk.directory / f"audit-{number}", starter or InThread(), patience)
            self.audits.append(StepAuditor(seat.context, lots, replaying))
        self.showing = CheckpointServer(
            self.trainer.context, self.store, desk.spool, desk.directory / "offering", Changes()
        )

    def _lots(self, seat: Seat, share: float) -> OwnLots:
        lots = OwnLots(seat.context, steps=share)
        seat.pledges = lambda: lots.pledges
        return lots

    async def open(self, nursery: trio.Nursery, upto: int = 2) -> None:
        everybody = [self.trainer, *self.seats]
        for seat in everybody:
            await seat.run(nursery)
        for seat in everybody:
            for other in everybody:
                seat.membership.joined(other.key.address, other.network.contacts()[0])
        for lots, seat in zip(self.lots, self.seats, strict=True):
            await lots.prepare()
            nursery.start_soon(seat.beat)
        for audit in self.audits:
            nursery.start_soon(audit.run)
        await self.until(lambda: all(seat.jury.state.lots.steps_rate(VALIDATORS[2].address) for seat in self.seats))
        for path in sorted((self.desk.directory / "rollouts").iterdir()):
            await self.store.add(path)
        await self.showing.tick()
        for step in range(upto + 1):
            await self.announce(step)

    async def announce(self, step: int) -> None:
        word = await word_on(self.trainer.context, self.desk.spool, step)
        if self.tells:
            await self.state(word.statement, batch=word.batch)
            return
        if step:
            await self.store.add(word.batch)
        await self.state(word.statement)

    async def state(self, statement: PolicyStatement, **along: bytes) -> None:
        domain = self.trainer.context.domain
        await self.trainer.board.post(stating(statement, TRAINER, domain, **along))

    async def until(self, true: Any) -> None:
        with trio.fail_after(120):
            while not true():
                await trio.sleep(0.05)

    def said(self) -> list[tuple[int, VerdictOutcome, int]]:
        """(K, outcome, reason) of all verdicts on steps that the trainer heard."""
        heard = self.trainer.board.messages(StepVerdict)
        return sorted(
            (one.message.statement.step - 1, VerdictOutcome(one.message.outcome), one.message.reason) for one in heard
        )


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer: every step is replayed many times here."""
    made = tmp_path_factory.mktemp("audits")
    create_model(made / "model", SORT_ALPHABET, seed=7, hidden=64, layers=1)
    return made


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory, tiny_run: RunSpec, assets: Path) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk"), tiny_run, assets, pool=POOL, root=ROOT, groups=4)


@pytest.fixture(scope="module")
def honest(untrained: Desk, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    made = untrained.copied(tmp_path_factory.mktemp("honest") / "desk")
    made.train()
    return made


@pytest.fixture
def desk(untrained: Desk, tmp_path: Path) -> Desk:
    """A copy, to train with."""
    return untrained.copied(tmp_path / "desk")


@pytest.fixture
def trained(honest: Desk, tmp_path: Path) -> Desk:
    """A copy of what an honest trainer made."""
    return honest.copied(tmp_path / "desk")


async def test_an_honest_trainer_is_audited_by_lot_and_every_draw_can_be_repeated(trained: Desk, assets: Path) -> None:
    """The third validator would draw all steps, and is in one hand with the trainer: it looks at none."""
    bench = Bench(trained, assets, [1.0, 1e-4, 1.0])
    for seat in (bench.trainer, *bench.seats):
        for node in (TRAINER, VALIDATORS[2]):
            seat.membership.hands.joined(node.address, VALIDATORS[0].address)
    async with trio.open_nursery() as nursery:
        await bench.open(nursery)
        await bench.until(lambda: len(bench.said()) == 2)
        assert bench.said() == [(0, VerdictOutcome.ACCEPT, 0), (1, VerdictOutcome.ACCEPT, 0)]
        told = [one.message for one in bench.trainer.board.messages(StepVerdict)]
        lots, pledge = bench.lots[0], bench.lots[0].pledges[0]
        for one in told:
            window = window_of(one.statement.step, trained.run.audit)
            secret = _secret(lots, window)
            assert secret_hash(secret, VALIDATORS[0].address, POOL, window) == pledge.hash
            assert draws_step(secret, one.statement.struct_hash, one.rate) and one.rate == pledge.steps
            assert one.verdict.work == work_id(one.statement.commitment(TRAINER.address)), "the Court reads it as any"
        await bench.until(lambda: bench.trainer.jury.state.steps.status().steps == 2)  # after the board
        await bench.until(lambda: bench.audits[0].status()["step_audits"].by_outcome["held"] == 2)
        shown = bench.trainer.jury.state.steps.status()
        assert (shown.last_step, shown.held, shown.last_says) == (1, 2, "held")
        assert not bench.audits[2].counts and not bench.audits[2]._begun
        assert not bench.trainer.jury.state.distrust
        nursery.cancel_scope.cancel()


def _secret(lots: OwnLots, window: int) -> bytes:
    return window_secret(lots._master, POOL, window)


async def test_a_cheat_is_seen_by_one_lot_looked_at_by_others_and_believed_no_more_by_anybody(
    desk: Desk, assets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        gradient(hidden)(desk, patch)
        desk.train()
    bench = Bench(desk, assets, [1.0, 1e-4, 1e-4])
    async with trio.open_nursery() as nursery:
        await bench.open(nursery)
        everybody = [bench.trainer, *bench.seats]
        await bench.until(lambda: all(seat.jury.state.distrust for seat in everybody))
        accusing = [one for one in bench.said() if one[1] is not VerdictOutcome.ACCEPT]
        assert accusing[:2] == [(1, VerdictOutcome.SLASH, Reason.STATE)] * 2, "step 0 was honest"
        fork = bench.trainer.jury.state.policies.equivocation
        assert fork is not None and "step 1" in fork.what and len(fork.evidence) >= 2
        assert all(bench.trainer.board.opened(raw, StepVerdict) for raw in fork.evidence)
        nursery.cancel_scope.cancel()


STANDBY = NodeKey(b"\x29" * 32)


async def _stand_by(bench: Bench, nursery: trio.Nursery) -> Seat:
    """A second trainer, whom everybody knows."""
    seat = Seat(bench.made, STANDBY, "trainer")
    await seat.run(nursery)
    for other in (bench.trainer, *bench.seats):
        other.membership.terms.seat((TRAINER.address, STANDBY.address), 60, 60)
        seat.membership.joined(other.key.address, other.network.contacts()[0])
        other.membership.joined(STANDBY.address, seat.network.contacts()[0])
    return seat


async def test_a_standby_that_came_to_another_state_is_enough_for_a_quorum_to_look_wherever_the_lots_fell(
    desk: Desk, assets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        gradient(hidden)(desk, patch)
        desk.train()
    bench = Bench(desk, assets, [1e-4, 1e-4, 1e-4])
    async with trio.open_nursery() as nursery:
        await bench.open(nursery)
        standby = await _stand_by(bench, nursery)
        await bench.until(lambda: all(seat.jury.state.policies.newest_step == 2 for seat in bench.seats))
        await trio.sleep(0.5)
        assert not any(audit._begun for audit in bench.audits), "the control: no lot draws a step here"
        await standby.board.post(StepObjected(pool=POOL, term=0, step=2))
        # Which ends the term.
        await bench.until(lambda: all(seat.jury.state.policies.equivocation for seat in bench.seats))
        assert {one for one in bench.said() if one[0] == 1} == {(1, VerdictOutcome.SLASH, Reason.STATE)}
        nursery.cancel_scope.cancel()


async def test_a_standby_that_objects_to_honest_steps_ends_nothing_and_is_heeded_twice(
    trained: Desk, assets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_auditor, "REFUTED", 1)
    bench = Bench(trained, assets, [1e-4, 1e-4, 1e-4])
    async with trio.open_nursery() as nursery:
        await bench.open(nursery)
        standby = await _stand_by(bench, nursery)
        await bench.until(lambda: all(seat.jury.state.policies.newest_step == 2 for seat in bench.seats))
        stranger = StepObjected(pool=POOL, term=1, step=1)  # of a term that is none
        for said in (stranger, msgspec.structs.replace(stranger, term=0)):
            await standby.board.post(said)
        await bench.until(lambda: [audit._refuted[STANDBY.address] for audit in bench.audits] == [1] * 3)
        await standby.board.post(StepObjected(pool=POOL, term=0, step=2))
        await bench.until(lambda: all(len(seat.board.messages(StepObjected)) == 3 for seat in bench.seats))
        await trio.sleep(0.5)
        assert bench.said() == [(0, VerdictOutcome.ACCEPT, 0)] * 3
        assert not any(seat.jury.state.policies.equivocation for seat in bench.seats)
        nursery.cancel_scope.cancel()


async def test_a_step_that_goes_on_from_another_policy_than_the_one_before_is_looked_at_by_everybody(
    trained: Desk, assets: Path
) -> None:
    """Who puts a model of its own in the place of the run's: its manifest says so, in agreement with its statement."""
    bench = Bench(trained, assets, [1e-4, 1e-4, 1e-4])
    async with trio.open_nursery() as nursery:
        await bench.open(nursery, upto=1)
        await bench.until(lambda: all(seat.jury.state.policies.newest_step == 1 for seat in bench.seats))
        await trio.sleep(0.5)
        assert not bench.said(), "the control: no lot draws a step here"
        word = await word_on(bench.trainer.context, trained.spool, 2)
        manifest = decode_manifest(word.batch)
        severed = msgspec.structs.replace(manifest, parent=b"\x66" * 32, state=b"\x67" * 32)
        added = await bench.store.add(encode_manifest(severed))
        statement = msgspec.structs.replace(word.statement, parent=severed.parent, batch_root=added.root)
        await bench.state(statement)
        await bench.until(lambda: all(seat.jury.state.distrust for seat in bench.seats))
        assert {one for one in bench.said()} == {(1, VerdictOutcome.SLASH, Reason.RULE)}
        nursery.cancel_scope.cancel()


async def test_a_cheat_between_two_checkpoints_is_told_by_the_next_one_and_by_a_lot_on_a_later_step(
    desk: Desk, assets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lot draws step 1, whose step before is the bad one."""
    with monkeypatch.context() as patch:
        gradient(hidden, at=0)(desk, patch)
        desk.train(TrainerSettings(checkpoint_every=2, keep_checkpoints=9))
    bench = Bench(desk, assets, [1e-4, 1e-4, 1e-4], patience=0.2)
    async with trio.open_nursery() as nursery:
        await bench.open(nursery)
        await bench.until(lambda: all(seat.jury.state.policies.newest_step == 2 for seat in bench.seats))
        audit = bench.audits[0]
        audit._want(_Wanted(audit._replaying.statement(2)))
        everybody = [bench.trainer, *bench.seats]
        await bench.until(lambda: all(seat.jury.state.distrust for seat in everybody))
        assert bench.said()[:2] == [(0, VerdictOutcome.REJECT, Reason.DISTANCE)] * 2
        assert audit.counts == {"undecided": 1, "bad": 1}
        nursery.cancel_scope.cancel()


async def test_a_manifest_that_came_with_its_policy_is_audited_though_nobody_serves_it(
    trained: Desk, assets: Path
) -> None:
    bench = Bench(trained, assets, [1.0, 1e-4, 1e-4])
    bench.tells = True
    async with trio.open_nursery() as nursery:
        await bench.open(nursery)
        await bench.until(lambda: len(bench.said()) == 2)
        assert {outcome for _, outcome, _ in bench.said()} == {VerdictOutcome.ACCEPT}
        nursery.cancel_scope.cancel()


async def test_what_is_withheld_accuses_nobody_and_is_said(trained: Desk, assets: Path) -> None:
    bench = Bench(trained, assets, [1.0, 1e-4, 1e-4])
    async with trio.open_nursery() as nursery:
        bench.store.missing = {
            (await bench.store.add(path)).root for path in (trained.directory / "rollouts").glob("*000001.report")
        }
        await bench.open(nursery)
        await bench.until(lambda: bench.audits[0].counts["undecided"] == 1)
        assert "step 1" in bench.audits[0].undecided and "unavailable" not in bench.said()
        await bench.until(lambda: bench.said() == [(0, VerdictOutcome.ACCEPT, 0)])
        assert not bench.trainer.jury.state.distrust
        assert not bench.audits[0].status()["step_audits"].why_not
        bench.seats[0].jury.state.policies.newest_step = 2 + step_auditor.MOST_REPLAYED + 1  # and no checkpoint since
        assert "the newest checkpoint, of step 2, is 65 back" in bench.audits[0].status()["step_audits"].why_not
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("which", ["a report", "the manifest", "neither"])
async def test_what_the_own_disk_damaged_after_it_came_accuses_nobody(trained: Desk, assets: Path, which: str) -> None:
    """Of a manifest and of reports the audit reads what lies on the disk, which is not what came any more."""
    bench = Bench(trained, assets, [1.0, 1e-4, 1e-4])
    audit = bench.audits[0]
    handed = bench.store.fetch

    async def fetch(root: bytes, sources: Sequence[Address], **how: Any) -> Path:
        path = await handed(root, sources, **how)
        stated = audit._context.state.policies
        manifests = [one.message.batch_root for at in (1, 2) if (one := stated.of_step(at)) is not None]
        if root in damaged or (which == "the manifest" and root in manifests):
            whole = path.read_bytes()
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        return path

    async with trio.open_nursery() as nursery:
        reports = (trained.directory / "rollouts").glob("*.report")
        damaged = {(await bench.store.add(path)).root for path in reports} if which == "a report" else set[bytes]()
        bench.store.fetch = fetch  # type: ignore[method-assign]
        await bench.open(nursery)
        if which == "neither":
            await bench.until(lambda: len(bench.said()) == 2)
            assert {outcome for _, outcome, _ in bench.said()} == {VerdictOutcome.ACCEPT}
        else:
            await bench.until(lambda: audit.counts["undecided"] >= 2)
            assert "its bytes are not those that came" in audit.undecided
            assert bench.said() == [] and audit._looks.vain == ()
        nursery.cancel_scope.cancel()


CASES = [
    "withheld",
    "a trickle",
    "an own line that is slow",
    "a validator that has just started",
    "one that hears nobody",
    "an own disk that is full",
    "not drawn",
]


@pytest.mark.parametrize("case", CASES)
async def test_a_drawn_step_of_which_nothing_comes_speaks_against_who_leads(
    trained: Desk, assets: Path, case: str
) -> None:
    bench = Bench(trained, assets, [1e-4 if case == "not drawn" else 1.0, 1e-4, 1e-4])
    audit, pieces = bench.audits[0], itertools.count()
    audit._history = FetchHistory(1 << 20, bench.seats[0].context.clock.monotonic)
    if case in ("a trickle", "an own line that is slow", "a validator that has just started"):
        bench.store.arrived = lambda root: next(pieces)  # type: ignore[method-assign]
        if case != "a validator that has just started":
            audit._history.handed_over(1 << 20, 1.0 if case == "a trickle" else 100.0)
    if case == "one that hears nobody":
        audit._context.state.validators = list  # type: ignore[method-assign]
    if case == "an own disk that is full":
        bench.store.failure = StoreFull("it has no room")
    async with trio.open_nursery() as nursery:
        reports = (trained.directory / "rollouts").glob("*.report")
        bench.store.missing = {(await bench.store.add(path)).root for path in reports}
        await bench.open(nursery)
        await bench.until(lambda: all(seat.jury.state.policies.newest_step == 2 for seat in bench.seats))
        if case == "not drawn":
            audit._look_into(audit._replaying.statement(2), VALIDATORS[1].address)
        await bench.until(lambda: audit.counts["undecided"] >= (1 if case == "not drawn" else 2))
        drawn = {1, 2} if case in ("withheld", "a trickle") else set[int]()
        assert {one.step for one in audit._looks.vain} == drawn
        if drawn:
            await trio.sleep(0.1)
            held: Any = SimpleNamespace(newest=SimpleNamespace(step=2))
            audit._context.policy_cache = held
            audit._context.membership.terms.trainers = (TRAINER.address, VALIDATORS[2].address)
            assert audit.beat() == {"policy_step": 0}, "before the first of them"
            bench.store.missing = set()
            audit._try_again()
            await bench.until(lambda: len(bench.said()) == 2)
            assert audit._looks.vain == () and audit.beat() == {}
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("error", "owed", "counts"),
    [
        (Overdue("a part", 60.0), 61.0, True),
        (Overdue("a part", 60.0), 59.0, False),
        (Withheld("nothing"), 59.0, True),
        (Withheld("nothing"), 2.0, False),
        (Unavailable("another reason"), 61.0, False),
    ],
    ids=["a part, owed long enough", "a part, let go before", "nothing", "nothing was owed", "no look in vain"],
)
async def test_what_came_in_part_counts_where_it_was_owed_as_long_as_the_line_needs(
    trained: Desk, assets: Path, monkeypatch: pytest.MonkeyPatch, error: IntellectError, owed: float, counts: bool
) -> None:
    audit = Bench(trained, assets, [1.0, 1e-4, 1e-4]).audits[0]
    audit._history = FetchHistory(1 << 20, lambda: 0.0)
    audit._history.handed_over(1 << 20, 1.0)
    monkeypatch.setattr(audit, "_is_drawn", lambda statement: True)
    monkeypatch.setattr(step_auditor, "hears_a_quorum", lambda context: True)
    monkeypatch.setattr(step_auditor, "_owed_until", lambda policies, step: 1000.0 + owed)
    statement: Any = SimpleNamespace(step=7)
    assert audit._speaks_against_the_leader(error, statement, 1000.0) is counts


async def test_accusations_keep_no_drawn_step_waiting(trained: Desk, assets: Path) -> None:
    """Of a step that is drawn late its trainer owes nothing any more."""
    audit = Bench(trained, assets, [1.0, 1e-4, 1e-4]).audits[0]
    audit._is_drawn = lambda statement: statement.step >= 30  # type: ignore[method-assign]
    stated = PolicyStatement(POOL, 0, 1, 0, *(bytes(32) for _ in range(4)))

    def want(step: int) -> None:
        audit._want(_Wanted(msgspec.structs.replace(stated, step=step), accuser=VALIDATORS[1].address))

    for step in range(1, 19):
        want(step)
    assert [one.statement.step for one in audit._wanted] == [*range(1, 17)] and audit.counts["skipped"] == 2
    want(30)
    want(31)
    assert [one.statement.step for one in audit._wanted] == [31, 30, *range(1, 15)]
    audit._wanted.clear()
    want(16)
    assert len(audit._wanted) == 1, "what made room may be wanted again"


async def test_one_validator_that_lies_about_a_step_ends_nothing_and_is_heeded_twice(
    trained: Desk, assets: Path
) -> None:
    bench = Bench(trained, assets, [1e-4, 1e-4, 1e-4])
    bench.audits[1]._replaying._starter = Forking()  # a real child, once
    liar = bench.audits[0]
    async with trio.open_nursery() as nursery:
        await bench.open(nursery, upto=1)
        await bench.until(lambda: all(seat.jury.state.policies.newest_step == 1 for seat in bench.seats))
        statement = liar._replaying.statement(1)
        await liar._say(_Wanted(statement), AuditRuling(VerdictOutcome.SLASH, Reason.STATE, "so I say"), "")
        await bench.until(lambda: len(bench.said()) == 3)
        assert bench.said() == [(0, VerdictOutcome.ACCEPT, 0)] * 2 + [(0, VerdictOutcome.SLASH, Reason.STATE)]
        await bench.until(lambda: bench.audits[1]._refuted[VALIDATORS[0].address] == 1)
        assert not any(seat.jury.state.distrust for seat in bench.seats)
        nursery.cancel_scope.cancel()


async def test_what_a_standby_states_and_a_liar_judges_ends_no_term_and_fills_nobodys_book(
    trained: Desk, assets: Path
) -> None:
    bench = Bench(trained, assets, [1e-4, 1e-4, 1e-4])
    liar = bench.audits[0]
    async with trio.open_nursery() as nursery:
        await bench.open(nursery, upto=1)
        await bench.until(lambda: all(seat.jury.state.policies.newest_step == 1 for seat in bench.seats))
        real, key, domain = liar._replaying.statement(1), VALIDATORS[0], bench.seats[0].context.domain
        for seat in (bench.trainer, *bench.seats):  # the liar stands by, too
            seat.membership.terms.seat((TRAINER.address, key.address), 60, 60)
        for number in range(3):
            invented = msgspec.structs.replace(real, batch_root=bytes([number]) * 32)
            word = sign(key, domain, invented.commitment(key.address))
            said = StepVerdict(
                pool=POOL,
                statement=invented,
                trainer=key.address,
                word=word,
                outcome=int(VerdictOutcome.SLASH),
                reason=int(Reason.STATE),
                signature=bytes(65),
            )
            await bench.seats[0].board.post(msgspec.structs.replace(said, signature=sign(key, domain, said.verdict)))
        await bench.until(lambda: len(bench.said()) == 3)
        await liar._say(_Wanted(real), AuditRuling(VerdictOutcome.ACCEPT, Reason.NONE, ""), "")
        await bench.until(
            lambda: bench.trainer.jury.state.steps.status().steps == 1
        )  # the control: of the trainer's own
        assert bench.trainer.jury.state.steps.status().bad == []
        assert [audit.counts["bad"] + audit.counts["undecided"] for audit in bench.audits] == [0, 0, 0]
        nursery.cancel_scope.cancel()


def test_an_audit_stands_back_as_a_session_where_there_are_such_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, niced = tmp_path / "autogroup", list[int]()
    monkeypatch.setattr(os, "nice", niced.append)
    monkeypatch.setattr(fetched, "AUTOGROUP", tmp_path / "none" / "autogroup")
    fetched.stand_back()
    monkeypatch.setattr(fetched, "AUTOGROUP", group)
    fetched.stand_back()
    assert niced == [15] * 2 and group.read_text() == "5"


def audit(says: Mapping[str, Says], differences: tuple[str, ...] = (), **figures: float) -> Audit:
    found = tuple(AuditFinding(test, what, "so", figures) for test, what in says.items())
    return Audit(1, "a", "a", differences, found, {})


HOLDS, BROKEN, UNDECIDED = Says.HOLDS, Says.BROKEN, Says.UNDECIDED


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (audit({"manifest": HOLDS, "replay": HOLDS}), (VerdictOutcome.ACCEPT, Reason.NONE)),
        (audit({"manifest": HOLDS, "replay": UNDECIDED}), None),
        (audit({"manifest": BROKEN}), (VerdictOutcome.SLASH, Reason.RULE)),
        (audit({"identity": BROKEN, "replay": HOLDS}), (VerdictOutcome.SLASH, Reason.STATE)),
        (audit({"direction": BROKEN, "replay": HOLDS}), (VerdictOutcome.REJECT, Reason.DISTANCE)),
        (audit({"identity": HOLDS, "replay": BROKEN}, distance=1e-2, limit=3e-4), (VerdictOutcome.SLASH, Reason.STATE)),
        (
            audit({"replay": BROKEN}, ("dtype: a instead of b",), distance=1e-2),
            (VerdictOutcome.REJECT, Reason.DISTANCE),
        ),
        (audit({"identity": HOLDS, "replay": BROKEN}, distance=2e-6, limit=3e-4), None),
        (audit({"manifest": HOLDS, "replay": BROKEN}), None),
    ],
    ids=["honest", "lacking", "rule", "equations", "another class", "state", "far", "two processors", "no checkpoint"],
)
def test_what_an_audit_means_for_a_verdict(found: Audit, said: tuple[VerdictOutcome, Reason] | None) -> None:
    ruled = ruling(found)
    assert (ruled and (ruled.outcome, ruled.reason)) == said
