"""The trainer between verdicts and its spool: doubles for the swarm, the real journal, pool, ledger and spool."""

import json
import os
import sys
import threading
from collections import Counter, deque
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from node.clock import Clock
from node.metrics.observer import Observer
from node.progress import ProgressRecord
from node.recipe import manifest as manifests
from node.recipe.batch_log import BatchLog
from node.recipe.manifest import materialise
from node.recipe.pool import Selection
from node.services.context import Context
from node.services.leader_lease import LeadFrom
from node.services.training import feeding, ingest
from node.services.training import trainer as trainer_module
from node.services.training.feeding import Feeding
from node.services.training.groups import Groups
from node.services.training.record import StepMetrics
from node.services.training.trainer import TrainerService
from node.state.files import write_whole
from node.state.journal import Journal
from node.swarm.facts import WorkTouched
from node.swarm.register import Register
from node.swarm.task_table import TaskTable
from node.swarm.terms import LeaderTerms
from node.swarm.vote_set import FileState
from node.training.batch import decode_batch, encode_batch
from node.training.spool import Spool
from node.training.watch import SpoolWatch
from node.weights.publish import StepWord
from protocol.blobs import BlobInfo, describe
from protocol.errors import IntellectError, ProtocolError
from protocol.identity import Address, NodeKey, address_from_bytes
from protocol.lots import pack_groups
from protocol.manifest import Arithmetic, PolicyStatement, decode_composed, decode_manifest, lot_of
from protocol.messages import RolloutCommitted, Signed, VerdictIssued
from protocol.policy import encode_image
from protocol.rollout import (
    ReportHeader,
    ReportRow,
    RolloutBatch,
    RolloutHeader,
    SampleRow,
    ValidatorReport,
    encode,
    encode_report,
)
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec, encode_run
from protocol.sections import Filters
from protocol.statements import Domain, Verdict, VerdictOutcome, WorkCommitment, signer_of, work_id
from protocol.values import mean_logprobs, reward_tags
from tests.words import announced as policy_announced
from tests.words import policies as policies_of

WORKER = address_from_bytes(b"\x05" * 20)
VALIDATOR = address_from_bytes(b"\x06" * 20)
KEY = NodeKey(b"\1" * 32)
ARITHMETIC = Arithmetic("x86_64-AVX2", "float32", 1, False, 1 << 14, True, 1 << 26, True, False, "fused", "torch 2", "")
RUN = RunSpec(
    name="t",
    environment=EnvironmentSpec(name="sort"),
    rollout=RolloutSpec(group_size=2, prompts_per_step=2, prompts_per_file=3),
    recipe=Recipe(steps=5, max_staleness=2),
)


def policy(step: int) -> bytes:
    return bytes([step + 1]) * 32


def state(step: int) -> bytes:
    return bytes([step + 101]) * 32


class Swarm:
    """Board, blobs and jury: what was said, and who hears it. Every file here is accepted by one validator."""

    holding = nullcontext

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._said: list[Signed] = []
        self._announced: list[int] = []
        self.names: dict[str, str] = {}
        self.fetched: list[bytes] = []
        self._votes: dict[bytes, VerdictIssued] = {}
        self._watchers: list[trio.MemorySendChannel[bytes]] = []
        self.distrust = False
        self.policies = policies_of(WORKER, trio.current_time)
        self.register: Register

    @property
    def vote_set(self) -> "Swarm":
        return self

    def state(self, root: bytes) -> FileState:
        return FileState.ACCEPTED if root in self._votes else FileState.OPEN

    def accepting(self, root: bytes) -> dict[Address, VerdictIssued]:
        return {VALIDATOR: self._votes[root]} if root in self._votes else {}

    @property
    def facts(self) -> "Swarm":
        return self

    def subscribe(self, *kinds: type):
        send, receive = trio.open_memory_channel(100)
        self._watchers.append(send)
        return receive

    def start_again(self, run: RunSpec) -> None:
        """The trainer starts: what was said is told again, its own announcements among it."""
        self.policies = policies_of(WORKER, trio.current_time)
        tasks = TaskTable(lambda node: False, trio.current_time, lambda node: True)
        self.register = Register(run, self.policies, trio.current_time, tasks)
        for step in self._announced:
            self.announce(step)
        for signed in self._said:
            self.register.commit(signed)

    def announce(self, step: int) -> None:
        if step not in self._announced:
            self._announced.append(step)
        self.policies.announce(Signed(WORKER, policy_announced(step, policy(step)), b""))
        self.register.look_again()
        self._tell()

    def say(self, signed: Signed[RolloutCommitted]) -> None:
        self._said.append(signed)
        self.register.commit(signed)

    def _tell(self) -> None:
        for channel in self._watchers:
            for id in self._votes:
                channel.send_nowait(WorkTouched(VALIDATOR, id))

    async def add(self, data: bytes) -> BlobInfo:
        info = describe(data)
        (self._folder / info.root.hex()).write_bytes(data)
        return info

    async def fetch(self, root: bytes, sources, *, max_size: int, timeout: float, priority: int = 0) -> Path:
        self.fetched.append(root)
        return self._folder / root.hex()

    def submit(self, step: int, index: int, rewards: list[tuple[float, float]], nan: bool = False) -> bytes:
        """A worker's file by policy `step` that a validator has accepted; returns its root."""
        root = bytes([100 + step, index]) * 16
        rows = tuple(
            SampleRow(group, sample, f"sort-{group}", [3], [4, 1], True, b"")
            for group in range(3)
            for sample in range(2)
        )
        values = tuple(
            ReportRow(row.group, row.sample, rewards[row.group][row.sample], [-0.5, float("nan") if nan else -0.1])
            for row in rows
        )
        file = encode(RolloutBatch(RolloutHeader(1, WORKER, policy(step).hex(), index), rows))
        report = encode_report(ValidatorReport(ReportHeader(root.hex(), policy(step).hex()), values))
        report_root = describe(report).root
        (self._folder / root.hex()).write_bytes(file)
        (self._folder / report_root.hex()).write_bytes(report)
        promise = WorkCommitment(1, WORKER, policy(step), index, root, 12)
        verdict = Verdict(1, WORKER, policy(step), index, root, promise.units, int(VerdictOutcome.ACCEPT), 0)
        self.say(Signed(WORKER, RolloutCommitted(pool=1, commitment=promise, signature=b"", size=len(file)), b""))
        id = work_id(promise)
        self.names[id.hex()] = f"{step}{index}"
        by_group = {g: [np.array(row.logprobs, np.float32) for row in values if row.group == g] for g in range(3)}
        self._votes[id] = VerdictIssued(
            pool=1,
            verdict=verdict,
            signature=b"",
            report_root=report_root,
            report_size=len(report),
            checked=pack_groups(range(3), 3),
            rewards=reward_tags([row.reward for row in values], 2, ()),
            logprobs=mean_logprobs(by_group),
        )
        self._tell()
        return root


class Learner:
    """Completes a step as soon as its batch is there, up to `last`."""

    name, pid, restarts, memory = "learner", None, 0, ""

    def __init__(self, spool: Spool, last: int) -> None:
        self._spool, self.last = spool, last

    def finish(self) -> None:
        """It stops with the test."""

    async def run(self) -> None:
        for step in range(self._spool.newest_step() + 1, self.last + 1):
            while step > 0 and not self._spool.batch_path(step - 1).exists():
                await trio.sleep(0.005)
            write_whole(self._spool.policy_path(step), encode_image({"w": np.full((1, 1), step, dtype=np.uint16)}))
            metrics = {
                "step": step,
                "policy_root": policy(step).hex(),
                "seconds": {},
                "state_before": state(step - 1).hex(),
                "state_root": state(step).hex(),
                "arithmetic": msgspec.structs.asdict(ARITHMETIC),
            }
            write_whole(self._spool.metrics_path(step), json.dumps(metrics).encode())
        await trio.sleep_forever()


class Examiner:
    """Evaluates the policies below `until` as soon as they are out."""

    name, pid, restarts = "evaluator", None, 0

    def __init__(self, spool: Spool, until: int) -> None:
        self._spool, self._until = spool, until

    def finish(self) -> None:
        """It stops with the test."""

    async def run(self) -> None:
        for step in range(self._until):
            while not self._spool.is_complete(step):
                await trio.sleep(0.005)
            write_whole(self._spool.evaluation_path(step), b'{"eval_reward": 0.5}')
        await trio.sleep_forever()


class House:
    """One state directory; every `open` is another life of the node."""

    def __init__(self, folder: Path, run: RunSpec) -> None:
        self.folder, self.run = folder, run
        self.words: dict[int, StepWord] = {}
        (folder / "blobs").mkdir(parents=True)
        self.swarm = Swarm(folder / "blobs")
        self.swarm.start_again(run)
        self.spool = Spool(folder / "spool")
        self.spool.prepare(encode_run(run), folder)

    def open(self, last: int, examined: int = 100) -> tuple[TrainerService, Journal]:
        journal = Journal(self.folder / "journal.sqlite")
        self.spool = Spool(self.folder / "spool")
        self.swarm.start_again(self.run)
        context = SimpleNamespace(
            time=SimpleNamespace(epoch=lambda: 0),
            run=SimpleNamespace(spec=self.run, root=bytes(32)),
            key=KEY,
            domain=Domain(31337, KEY.address),
            pool=1,
            board=self.swarm,
            blobs=self.swarm,
            journal=journal,
            policy_cache=SimpleNamespace(put=lambda held: None),
            progress=ProgressRecord(),
            quorum=1,
            jury=self.swarm,
            state=self.swarm,
            facts=self.swarm.facts,
            membership=SimpleNamespace(terms=LeaderTerms(KEY.address, trio.current_time), validators=(VALIDATOR,)),
            clock=Clock(),
        )
        context.handle = partial(Context.handle, context)
        publisher = SimpleNamespace(publish=self._publish)
        observer = Observer(self.run, self.folder)
        children = Learner(self.spool, last), Examiner(self.spool, examined)
        watch = SpoolWatch(self.spool, 0.005)
        groups = Groups(context, self.spool.next_batch, watch.tell)  # type: ignore[arg-type]
        trainer = TrainerService(context, *children, self.spool, watch, groups, publisher, observer)  # type: ignore[arg-type]
        return trainer, journal

    async def _publish(self, step: int, image: Path, word: StepWord) -> SimpleNamespace:
        image.stat()
        self.words[step] = word
        self.swarm.announce(step)
        return SimpleNamespace(step=step, root=policy(step))

    def groups(self, step: int) -> list[str]:
        """'<policy step><index>:<group>' of a batch."""
        names = decode_batch(self.spool.batch_path(step).read_bytes()).header.files
        return [f"{self.swarm.names[name[:64]]}:{name[65:]}" for name in names]

    async def live(self, until: int, last: int, *, published: int = -1) -> TrainerService:
        """Run until the batch of `until` stands, step `last` is on record and policy `published` is out, then die."""
        trainer, journal = self.open(last)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trainer.run)
                while not (self.spool.batch_path(until).exists() and trainer.record.latest.get("step") == last) or (
                    trainer.record.step < published
                ):
                    await trio.sleep(0.005)
                nursery.cancel_scope.cancel()
        journal.close()
        return trainer


async def test_what_trained_a_step_is_known_while_it_is_fresh_and_no_longer(tmp_path: Path) -> None:
    """A run has as many names as groups; a group that is too old for the next batch cannot come again."""
    staleness, steps = RUN.recipe.max_staleness, 40
    house = House(tmp_path / "house", RUN)
    trainer, journal = house.open(0)
    for step in range(steps):
        await trainer.groups.settle([(bytes([step]) * 32, group) for group in range(3)], step)
    known = [step for step in range(steps) if (bytes([step]) * 32, 0) in trainer.groups.used]
    journal.close()
    assert known == [*range(steps - 1 - staleness, steps)]


VARIED = [(0.0, 1.0), (1.0, 0.0), (0.0, 1.0)]
MIXED = [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)]


def by_lot(*indices: int) -> list[str]:
    """Names of files of policy 0, in the order in which a batch takes them."""
    return [f"0{index}" for index in sorted(indices, key=lambda index: lot_of(1, policy(0), WORKER, index))]


async def test_surplus_groups_wait_for_the_next_batch_through_a_restart(tmp_path: Path) -> None:
    house = House(tmp_path / "house", RUN)
    house.swarm.submit(0, 0, VARIED)
    await house.live(until=0, last=0)
    assert house.groups(0) == ["00:0", "00:1"]
    house.swarm.submit(0, 1, VARIED)
    trainer = await house.live(until=2, last=1)  # it prepares one batch ahead
    waiting = [f"{one}:{group}" for one in by_lot(0, 1) for group in range(3) if one == "01" or group == 2]
    assert (house.groups(1), house.groups(2)) == (waiting[:2], waiting[2:])
    assert trainer.record.staleness == {0: 4, 1: 4, 2: 4}, "the batch before the restart counts too"
    assert trainer.groups.ready.rollouts == 0


async def test_from_what_a_trainer_states_anybody_makes_the_batch_that_it_learnt_from(tmp_path: Path) -> None:
    house = House(tmp_path / "house", RUN)
    house.swarm.submit(0, 0, VARIED)
    house.swarm.submit(0, 1, VARIED)
    await house.live(until=2, last=2)

    def blob(root: bytes) -> bytes:
        return (house.folder / "blobs" / root.hex()).read_bytes()

    assert house.words[0].statement == PolicyStatement(1, 0, 0, 0, bytes(32), policy(0), bytes(32), state(0))
    for step in range(2):
        statement, signature = house.words[step + 1].statement, house.words[step + 1].signature
        assert (statement.step, statement.parent, statement.policy_root) == (step + 1, policy(step), policy(step + 1))
        assert signer_of(Domain(31337, KEY.address), statement.commitment(KEY.address), signature) == KEY.address
        manifest = decode_manifest(house.words[step + 1].batch)
        assert describe(house.words[step + 1].batch).root == statement.batch_root
        manifest.check(bytes(32), 1, step, RUN.recipe.max_staleness)
        assert (manifest.state, manifest.arithmetic, statement.state_root) == (state(step), ARITHMETIC, state(step + 1))
        batch = materialise(RUN, manifest.batch, blob, blob)
        assert encode_batch(batch) == house.spool.batch_path(step).read_bytes()
        with pytest.raises(ProtocolError, match="bad batch manifest"):
            fewer = msgspec.structs.replace(manifest.batch, works=manifest.batch.works[1:])
            materialise(RUN, fewer, blob, blob)


async def test_a_policy_is_published_before_it_is_evaluated_and_on_record_after(tmp_path: Path) -> None:
    house = House(tmp_path / "house", RUN)
    house.swarm.submit(0, 0, VARIED)
    house.swarm.submit(0, 1, VARIED)
    trainer, journal = house.open(last=2, examined=1)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trainer.run)
            while trainer.record.step < 2 or trainer.record.latest.get("step") != 0:
                await trio.sleep(0.005)
            assert not trainer.record.done and trainer.record.reward == 0.5
            nursery.cancel_scope.cancel()
    journal.close()
    later = await house.live(until=1, last=2)
    assert [one.step for one in later.record.metrics] == [0, 1, 2], "what was not on record yet comes to it"


async def test_a_death_between_journal_and_batch_frees_the_groups(tmp_path: Path) -> None:
    house = House(tmp_path / "house", RUN)
    house.swarm.submit(0, 0, VARIED)
    await house.live(until=0, last=0)
    before = house.spool.batch_path(0).read_bytes()
    house.spool.batch_path(0).unlink()
    await house.live(until=0, last=0)
    assert house.spool.batch_path(0).read_bytes() == before


async def test_a_store_that_fails_at_once_does_not_use_up_all_groups(tmp_path: Path, monkeypatch: Any) -> None:
    tried: list[int] = []

    async def fails(_: object, selection: Selection) -> None:
        await trio.lowlevel.checkpoint()
        tried.append(selection.step)
        raise IntellectError("no batch", "the disk is full", "free space there")

    monkeypatch.setattr(feeding, "make_batch", fails)
    for pause, batches in ((0.0, 4), (60.0, 1)):  # the first is the control
        monkeypatch.setattr(trainer_module, "Feeding", partial(Feeding, again=(pause, pause)))
        tried.clear()
        house = House(tmp_path / f"{batches}", RUN)
        for index in range(3):
            house.swarm.submit(0, index, VARIED)
        trainer, journal = house.open(0)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trainer.run)
                while len(tried) < batches:
                    await trio.sleep(0.005)
                await trio.sleep(0.2)
                nursery.cancel_scope.cancel()
        journal.close()
        assert len(tried) == batches


async def test_the_online_filter_settles_groups_without_signal_for_good(tmp_path: Path) -> None:
    house = House(tmp_path / "house", msgspec.structs.replace(RUN, filters=Filters(online=True)))
    house.swarm.submit(0, 0, MIXED)
    house.swarm.submit(0, 1, MIXED)
    await house.live(until=0, last=0)
    assert house.groups(0) == [f"{one}:1" for one in by_lot(0, 1)]
    seen = BatchLog(house.spool.root).read(0)
    assert seen is not None and seen.metrics["groups_seen"] == 5 and seen.metrics["reward_mean"] == 0.4
    house.swarm.submit(0, 2, VARIED)
    await house.live(until=1, last=1)
    # What had come after the first batch was full has no signal.
    assert house.groups(1) == ["02:0", "02:1"]


FLAT = [(1.0, 1.0)] * 3


async def test_a_batch_without_signal_makes_no_policy_and_the_next_one_names_it_as_used_up(tmp_path: Path) -> None:
    house = House(tmp_path / "house", RUN)
    for index in range(2):
        house.swarm.submit(0, index, FLAT)
    trainer, journal = house.open(1)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trainer.run)
            while "3 batches had no signal" not in trainer.activity():
                await trio.sleep(0.005)
            assert not house.spool.batch_path(0).exists() and list(house.words) == [0]
            house.swarm.submit(0, 2, VARIED)
            while not house.spool.batch_path(0).exists():
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
    journal.close()
    assert {name[:2] for name in house.groups(0)} == {"02"}
    composed = decode_composed(house.spool.works_path(0).read_bytes())
    works = composed.works
    assert sorted((any(work.used), int.from_bytes(work.flat).bit_count()) for work in works) == [(0, 3), (0, 3), (1, 0)]
    seen = BatchLog(house.spool.root).read(0)
    assert seen is not None and seen.metrics["barren_batches"] == 3 and seen.metrics["groups_seen"] == 8

    def blob(root: bytes) -> bytes:
        return (house.folder / "blobs" / root.hex()).read_bytes()

    barren = next(work for work in works if not any(work.used))
    other = {"used": (0b011).to_bytes(len(barren.flat), "little"), "flat": (0b100).to_bytes(len(barren.flat), "little")}
    lie = msgspec.structs.replace(composed, works=(msgspec.structs.replace(barren, **other),))
    assert len(materialise(RUN, composed, blob, blob).rows) == 4  # a control
    with pytest.raises(ProtocolError, match="no group of it has a signal"):
        materialise(RUN, lie, blob, blob)


async def test_a_run_in_which_nothing_ever_has_a_signal_rings_and_ends(tmp_path: Path) -> None:
    house = House(tmp_path / "house", RUN)
    for index in range(7):
        house.swarm.submit(0, index, FLAT)
    trainer, journal = house.open(1)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trainer.run)
            while not trainer.record.done:
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
    journal.close()
    assert trainer.record.step == 0 and list(house.words) == [0]
    assert "the last 10 batches had a signal" in str(trainer.record.ended_by)
    assert [alarm["name"] for alarm in trainer.status()["training"]["alarms"]] == ["no_signal"]


async def test_files_that_are_too_old_are_not_even_fetched(tmp_path: Path) -> None:
    house = House(tmp_path / "house", RUN)
    for index in range(3):
        house.swarm.submit(0, index, VARIED)
    await house.live(until=2, last=3)
    late = house.swarm.submit(0, 9, VARIED)
    fresh = house.swarm.submit(3, 0, VARIED)
    trainer = await house.live(until=3, last=3)
    assert late not in house.swarm.fetched and fresh in house.swarm.fetched
    assert house.groups(3) == ["30:0", "30:1"] and trainer.status()["training"]["staleness"]["dropped"] >= 1


async def test_a_report_with_nan_is_refused_and_the_next_file_is_used(tmp_path: Path) -> None:
    house = House(tmp_path / "house", RUN)
    house.swarm.submit(0, 0, VARIED, nan=True)
    house.swarm.submit(0, 1, VARIED)
    trainer = await house.live(until=0, last=0)
    assert house.groups(0) == ["01:0", "01:1"] and trainer.status()["training"]["staleness"]["dropped"] == 1


async def test_steps_are_on_record_with_what_their_batches_were_made_of(tmp_path: Path) -> None:
    house = House(tmp_path / "house", RUN)
    house.swarm.submit(0, 0, VARIED)
    house.swarm.submit(0, 1, VARIED)
    await house.live(until=1, last=1)
    await house.live(until=1, last=2)
    records = [json.loads(line) for line in (tmp_path / "house" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 1, 2]
    assert records[1]["staleness"] == {"0": 4} and records[2]["staleness"] == {"1": 4}
    assert records[2]["pass_rate"] == 0.5 and "elapsed" in records[2]
    assert all(record["seconds"]["announce"] >= 0 for record in records)
    assert set(records[1]["file_seconds"]) == {"commit", "verify", "fetch", "queue"}, "by the trainer's own clock"


class OfTheLoop(deque[StepMetrics]):
    """What changes while nothing else runs."""

    def append(self, one: StepMetrics) -> None:
        assert threading.current_thread() is threading.main_thread()
        super().append(one)


async def test_the_status_never_reads_the_steps_while_a_thread_adds_to_them(tmp_path: Path) -> None:
    trainer, journal = House(tmp_path / "house", RUN).open(0)
    trainer.record.metrics = OfTheLoop()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trainer.run)
            while not trainer.record.metrics:
                await trio.sleep(0.005)
            nursery.cancel_scope.cancel()
    journal.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch one file after the other, so that their order is known."""
    monkeypatch.setattr("node.services.training.ingest.FETCHERS", 1)


async def test_what_lies_beyond_anothers_term_is_dropped_once_and_groups_are_free_again(tmp_path: Path) -> None:
    """Killed as the leader at policy 3; meanwhile another trainer took the chair from policy 2 on."""
    house = House(tmp_path / "house", RUN)
    for step in range(3):
        house.swarm.submit(0, step, VARIED)
    await house.live(until=2, last=2)
    trainer, journal = house.open(last=2)
    terms = trainer._context.membership.terms
    assert house.spool.newest_step() == 2 and house.spool.batch_path(1).exists()
    terms.take(1, WORKER, 2, policy(1), 10**10)
    assert trainer.leading.lost_from() == 2
    await trainer.leading.handle()
    assert house.spool.newest_step() == 1 and house.spool.next_batch() == 1
    assert trainer.leading.lost_from() is None and trainer.record.step <= 1
    again, _ = house.open(last=2)
    again._context.membership.terms.take(1, WORKER, 2, policy(1), 10**10)
    await again.leading.handle()
    assert house.spool.newest_step() == 1
    journal.close()


async def test_a_leader_that_was_cut_off_goes_on_although_its_older_images_made_way_for_those_that_were_taken_back(
    tmp_path: Path,
) -> None:
    house = House(tmp_path / "house", RUN)
    for step in range(5):
        house.swarm.submit(step, 0, VARIED)
    await house.live(until=3, last=4)
    house.spool.cut(3)
    assert house.spool.newest_step() == 2 and not house.spool.policy_path(0).exists(), "policy 4 took its place"
    house.words.clear()
    trainer = await house.live(until=4, last=4, published=4)
    assert trainer.record.step == 4 and sorted(house.words) == [1, 2, 3, 4]


async def test_a_trainer_could_lead_only_from_a_state_that_is_whole(tmp_path: Path) -> None:
    """While a batch is under way, or an announced policy is not brought out here, it could not."""
    house = House(tmp_path / "house", RUN)
    house.swarm.submit(0, 0, VARIED)
    await house.live(until=0, last=1)
    trainer, journal = house.open(last=1)
    assert trainer.leading.ready() is None  # policy 1 is announced, and this life has not brought it out yet
    trainer.record.step = 1
    assert trainer.leading.ready() == LeadFrom(2, policy(1))
    house.spool.write_batch(1, b"under way")
    assert trainer.leading.ready() is None
    journal.close()


class Counted:
    """What the trainer does with disks, threads and files, and not what its doubles do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fsyncs = self.on_loop = 0
        self.read, self.jobs = Counter[bytes](), Counter[str]()
        self._loop, self._doubles = threading.get_ident(), False
        fsync, to_thread, write, decode = os.fsync, trio.to_thread.run_sync, write_whole, ingest.decode

        def counted(descriptor: int) -> None:
            here = threading.get_ident() == self._loop
            if not (here and self._doubles):
                self.fsyncs += 1
                self.on_loop += here
            fsync(descriptor)

        async def in_thread(function: Any, *args: Any, **named: Any) -> Any:
            self.jobs[getattr(function, "__qualname__", "?")] += 1
            return await to_thread(function, *args, **named)

        def of_double(path: Path, data: bytes) -> None:
            self._doubles = True
            try:
                write(path, data)
            finally:
                self._doubles = False

        def decoded(data: bytes, *args: Any) -> RolloutBatch:
            self.read[data] += 1
            return decode(data, *args)

        monkeypatch.setattr(os, "fsync", counted)
        monkeypatch.setattr(trio.to_thread, "run_sync", in_thread)
        monkeypatch.setattr(sys.modules[__name__], "write_whole", of_double)
        for module in (ingest, manifests):
            monkeypatch.setattr(module, "decode", decoded)


async def test_a_step_costs_as_many_syncs_jobs_and_readings_however_loaded_the_machine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time would be the machine's. Looks at the spool, and what they lead to, are as many as there is time for."""
    house, steps = House(tmp_path / "house", RUN), 2
    for index in range(2):
        house.swarm.submit(0, index, VARIED)
    counted = Counted(monkeypatch)
    await house.live(until=steps, last=steps, published=steps)
    assert set(counted.read.values()) == {1} and len(counted.read) == 2, "each file is read and joined once"
    assert counted.on_loop == 0
    assert counted.fsyncs <= 8 * (steps + 1), "log, names and batch with their directories, and the record"
    looks = ("_look", "next_batch", "run.<locals>.<lambda>")
    jobs = {name: many for name, many in counted.jobs.items() if not name.endswith(looks)}
    of_steps = ("_made", "made", "_write", "_observe", "waiting", "_make.<locals>.<lambda>")
    for name, many in jobs.items():
        assert many <= steps + 1 or not name.endswith(of_steps), jobs
    assert sum(jobs.values()) <= 43, "the journal's among them"
