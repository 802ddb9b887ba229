"""Rounds of a swarm in memory: no leader, a peer that dies, one that joins, one that is slow; replicas stay equal.

Boards, juries, judges, lists, replicas and outer steps are the real ones, and so is what the learners compute;
processes, threads and the chain are doubles. Time jumps.
"""

import errno
import os
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from node.blobs.errors import BlobUnavailable, StoreFull
from node.member import BlobService, Participant
from node.run.assets import Run
from node.run.file import CompiledRun
from node.services.base import ServiceManager
from node.services.certifier import Certifier
from node.services.context import make_context
from node.services.heartbeat import HeartbeatSender
from node.services.rounds.applying import Rounds
from node.services.rounds.judging import ContributionJudge, ContributionValidator
from node.services.rounds.round_closer import RoundCloser
from node.services.rounds.round_worker import RoundWorker
from node.state import files
from node.state.pen import Pen
from node.swarm.membership import Membership
from node.training.contributing import blob_root
from node.training.errors import TrainingError
from node.training.jobs import Check, Job, JobFailure, Train
from node.training.outer import OuterStateFile
from node.training.peer import TextPeer
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.world import World
from protocol.blobs import describe
from protocol.checks import Reason
from protocol.contribution import encode_contribution
from protocol.errors import OwnFailure
from protocol.identity import Address, NodeKey
from protocol.messages import Envelope, RoundVote, Signed, VerdictIssued
from tests.attacks.validators.court import DOMAIN, POOL, TRAINER, VALIDATORS, InlineJournal, RecordingJudge, Trouble
from tests.memory_network import MemoryHub, MemoryNetwork
from tests.node.services.tasking.town import Files, at_once
from tests.node.training.texts import compiled, spool_of

STARTS = count(1)
"""Every start has a higher generation than all before it."""
ROUND, GRACE = 12.0, 4.0
HOW = 'exchange = "int8"\ninner_state = "reset"\nround_seconds = 12\ngrace_seconds = 4'
Bend = Callable[["Lab", Job, dict[str, Any]], Awaitable[None]]


class Lab:
    """One node's learner: does jobs with a peer that all share, in its own spool. seconds: that a training takes."""

    def __init__(self, town: "Town", spool: Spool, seconds: float, bend: Bend | None) -> None:
        self.town, self.spool, self.seconds, self.bend = town, spool, seconds, bend

    async def run(self) -> None:
        await trio.sleep_forever()

    def prepare(self) -> None:
        (self.spool.root / "rounds").mkdir(parents=True, exist_ok=True)

    async def ask(self, name: str, job: Job) -> dict[str, Any]:
        until = job.until if isinstance(job, Train) else 0.0
        if isinstance(job, Train):
            left = until - self.town.wall()
            slow = self.seconds > left
            await trio.sleep(max(min(self.seconds, left), 0.1))
            job = msgspec.structs.replace(job, until=0.0 if slow else 4e9)  # in time for one step, or for all
        else:
            await trio.sleep(0.2 if isinstance(job, Check) else 0.0)
        self.town.hand_over(self)
        answer = self.town.answer(job)
        if answer.what:
            raise TrainingError(answer.what, answer.why, answer.remedy)
        if self.bend is not None:
            await self.bend(self, job, answer.found)
        return answer.found


class Process:
    name, pid, restarts = "learner", 0, 0
    asleep = False

    def sleep(self) -> None:
        self.asleep = True

    def wake(self) -> None:
        self.asleep = False

    async def run(self) -> None:
        await trio.sleep_forever()


class Pins(set[bytes]):
    """A store's."""

    def pin(self, root: bytes) -> None:
        self.add(root)

    def unpin(self, root: bytes) -> None:
        self.discard(root)


class Node:
    """One member with the services of its role."""

    def __init__(
        self,
        town: "Town",
        key: NodeKey,
        role: str,
        seconds: float = 2.0,
        bend: Bend | None = None,
        journal: InlineJournal | None = None,
    ) -> None:
        """journal: what is left of a node that ended, like its spool."""
        self.town, self.key, self.role = town, key, role
        self.network = MemoryNetwork(key, town.hub)
        self.membership = Membership(
            key.address,
            self.network,
            TRAINER.address,
            tuple(one.address for one in town.judges),
            quorum=len(town.judges) // 2 + 1,
        )
        none: Any = None
        self.pins: Any = Pins()
        # The town's wall clock for its board, too: words from the future of it are not heard.
        blob_service = BlobService(town.blobs, self.pins, none)
        member = Participant(key, DOMAIN, POOL, self.network, self.membership, blob_service, wall=town.wall)
        run = Run(town.run.spec, town.run.root, town.run.encoded, town.assets)
        clock: Any = SimpleNamespace(monotonic=trio.current_time, wall=town.wall)
        self.member = member
        self.context = make_context(member, run, journal or InlineJournal(), clock=clock)
        spool = Spool(town.folder / f"node-{key.address[:8]}" / "spool")
        process: Any = Process()
        lab: Any = Lab(town, spool, seconds, bend)
        self.rounds = Rounds(self.context, process, spool, lab, fetch_seconds=town.fetch_seconds)
        self.manager, self.court, self.alive = ServiceManager(), RecordingJudge(), trio.CancelScope()
        self.roots: dict[int, bytes] = {}

    def services(self) -> list[Any]:
        if self.role == "worker":
            return [RoundWorker(self.context, self.rounds, self.pins)]
        if self.role == "trainer":
            return []
        looks = ContributionJudge(self.context, self.rounds)
        certifying = Certifier(self.context)
        given = self.context, self.rounds, looks, self.court, self.town.folder
        judge = ContributionValidator(*given, certifier=certifying)
        return [judge, RoundCloser(self.context, self.rounds), certifying]

    async def live(self) -> None:
        """Until it is killed."""
        with self.alive:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.network.run)
                self.town.introduce(self)
                nursery.start_soon(self.member.listen)
                nursery.start_soon(self.context.jury.run)
                pen = Pen(generation=next(STARTS))
                beating = HeartbeatSender(self.context, self.manager, self.role, self.network.contacts, 2.0, pen)
                nursery.start_soon(beating.run)
                await self.manager.start(self.rounds, nursery)
                for service in self.services():
                    await self.manager.start(service, nursery)
                await self._watch()
                nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        round_ = -1
        while not self.rounds.over:
            outer = await self.rounds.newer_than(round_)
            round_, self.roots[outer.round] = outer.round, outer.root
        await trio.sleep(15)  # for the last verdicts

    def counts(self) -> dict[str, int]:
        return next(one for one in self.manager.services if isinstance(one, RoundWorker)).works.done.counts


class Town:
    kind: type[Node] = Node
    fetch_seconds = 60.0

    def __init__(self, folder: Path, validators: int = 3, steps: int = 4, how: str = HOW, inner: int = 2) -> None:
        self.open(folder, compiled(folder, rounds=how, steps=steps, inner=inner), folder / "assets", validators)
        self.peer: Any = TextPeer(spool_of(self.run, folder), self.run.spec, TrainerSettings(), World())

    def open(self, folder: Path, run: CompiledRun, assets: Path, validators: int) -> None:
        self.folder, self.hub, self.judges = folder, MemoryHub(delay=0.05), VALIDATORS[:validators]
        self.run, self.assets = run, assets
        (folder / "blobs").mkdir()
        self.blobs: Any = Files(folder / "blobs")
        self.looks: dict[tuple[bytes, Check], JobFailure] = {}
        self.nodes: list[Any] = []

    def hand_over(self, lab: Lab) -> None:
        """The learner is this one's now."""
        self.peer._spool = lab.spool

    def answer(self, job: Job) -> JobFailure:
        """What several validators look at alike, from the same state, is computed for the first of them."""
        if not isinstance(job, Check):
            return self.peer.answer(job)
        try:
            look = self.peer._begun(job.round).root, job
        except TrainingError:
            return self.peer.answer(job)
        if (answer := self.looks.get(look)) is None:
            answer = self.peer.answer(job)
            if not answer.what:
                self.looks[look] = answer
        return answer

    def wall(self) -> float:
        return 1_800_000_000 + trio.current_time()

    def add(self, number: int, role: str = "worker", **how: Any) -> Any:
        node = self.kind(self, NodeKey(bytes([number]) * 32), role, **how)
        self.nodes.append(node)
        return node

    def introduce(self, newcomer: Node) -> None:
        for one in self.nodes:
            for other in self.nodes:
                if newcomer in (one, other):
                    one.membership.joined(other.key.address, next(iter(other.network.contacts()), ""))

    async def play(self, story: Callable[[trio.Nursery], Any], seconds: float = 3000.0) -> None:
        """Until every node has ended; `story` happens beside."""
        for key in self.judges:
            node = self.kind(self, key, "validator")
            self.nodes.append(node)
        with trio.fail_after(seconds):
            async with trio.open_nursery() as nursery:
                for node in list(self.nodes):
                    nursery.start_soon(node.live)
                await story(nursery)

    def roots(self) -> dict[int, set[bytes]]:
        """Round -> outer roots that any node had."""
        found: dict[int, set[bytes]] = {}
        for node in self.nodes:
            for round_, root in node.roots.items():
                found.setdefault(round_, set()).add(root)
        return found


@pytest.fixture(autouse=True)
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)


async def nothing(nursery: trio.Nursery) -> None:
    await trio.lowlevel.checkpoint()


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await trio.sleep(0.25)


async def until_beats_say(node: Node, round_: int) -> None:
    """A newcomer goes by the validators' heartbeats, and those of the moment before still say the round before."""
    get, judges = node.context.membership.table.get, [key.address for key in node.town.judges]
    await until(lambda: all((at := get(one)) and at.beat and at.beat.policy_step >= round_ for one in judges))


async def test_replicas_stay_equal_while_peers_die_join_lag_and_rest(tmp_path: Path, autojump_clock: Any) -> None:
    town = Town(tmp_path, validators=2, steps=4)
    owner, victim, guest, slow = (
        town.add(1, "trainer"), town.add(2, seconds=4.0), town.add(3), town.add(4, seconds=1000.0)
    )  # fmt: skip
    late: list[Node] = []

    async def story(nursery: trio.Nursery) -> None:
        await until(lambda: victim.rounds.outer is not None and victim.rounds.outer.round == 1)
        await trio.sleep(1.0)
        victim.alive.cancel()  # in mid-round
        await until(lambda: owner.rounds.outer is not None and owner.rounds.outer.round == 2)
        late.append(town.add(5))
        nursery.start_soon(late[0].live)
        learning = guest.manager.services[-1]
        await until(lambda: learning._training == 2)
        learning._rest.say("owner", "paused", 0.0)  # in mid-round, with no time to end its steps
        await trio.sleep(5.0)
        assert (learning.replica_id, learning._training, guest.rounds.process.asleep) == (-1, -1, True)
        await until(lambda: guest.rounds.newest == 3)  # it follows without its learner
        learning._rest.say("owner", "")
        assert not guest.rounds.process.asleep

    await town.play(story)
    roots = town.roots()
    assert set(roots) == set(range(5)) and all(len(each) == 1 for each in roots.values()), roots
    figures = owner.rounds.figures
    assert all(one.seconds <= ROUND + GRACE + 5 for one in figures.values()), figures  # and the words' own seconds
    assert all(one.contributions >= 2 for one in figures.values())
    assert any(one.tokens % 128 == 64 for one in figures.values())  # of the slow one, who had time for one step
    counts = guest.counts()
    assert 2 <= counts["accepted"] <= 3 and set(counts) == {"accepted"}, counts  # not of the round in which it rested
    assert slow.counts().get("accepted", 0) >= 2 and not slow.counts().get("rejected")
    assert late[0].counts()["accepted"] >= 1 and late[0].roots[3] == owner.roots[3]  # it caught up, and took part
    status = owner.rounds.status()["pretraining"]
    assert status["outer_states"]["equal"] == status["outer_states"]["of"] > 4 and status["loss"] < 5.5
    one, other = (each for each in town.nodes if each.role == "validator")
    journal = one.context.journal
    assert await journal.do(journal.pay.certified_units, other.key.address, 1), (
        "judging is paid, though it names no report"
    )


async def test_who_comes_late_jumps_and_a_stopped_peer_or_a_full_disk_costs_no_more_than_its_round(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = Town(tmp_path, validators=2, steps=7)
    steady, stopped = town.add(2), town.add(3, bend=stopped_over_rounds)
    late: list[Node] = []
    told: list[str] = []
    monkeypatch.setattr(steady.context.progress, "trouble", told.append)

    async def story(nursery: trio.Nursery) -> None:
        await until(lambda: steady.rounds.outer is not None and steady.rounds.outer.round == 4)
        monkeypatch.setattr(files.os, "fsync", full_disk)  # everybody's: neither steps nor states can be written
        await trio.sleep(ROUND)
        monkeypatch.undo()
        monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
        late.append(town.add(5))
        nursery.start_soon(late[0].live)

    await town.play(story)
    roots = town.roots()
    assert set(roots) == set(range(8)) and all(len(each) == 1 for each in roots.values()), roots
    assert any("No space left on device" in text and "round 4" in text for text in told), told
    assert steady.counts() == {"accepted": 7}  # the full disk's round, too: it was made again
    assert 1 not in late[0].roots and 2 not in late[0].roots and late[0].counts()["accepted"] >= 1  # it jumped
    counts = stopped.counts()
    assert counts["accepted"] >= 4 and set(counts) <= {"accepted", "committed"}, counts  # late by two rounds: unpaid
    assert not [one for node in town.nodes for one in node.court.slashed]


async def test_what_no_member_hands_over_is_asked_for_again_and_a_lost_state_gives_way_to_a_newer_one(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    town = Town(tmp_path, validators=2, steps=8)
    town.fetch_seconds = 12.0
    steady, _, told, asked, late = town.add(2), town.add(3), list[str](), list[bytes](), list[Node]()
    fetch = steady.rounds.adding._fetch

    async def away(root: bytes, *found: Any) -> None:
        asked.append(root)
        if len(asked) > 4:  # two contributions have nobody who hands them over, for a while
            await fetch(root, *found)

    monkeypatch.setattr(steady.rounds.adding, "_fetch", away)
    monkeypatch.setattr(steady.context.progress, "trouble", told.append)

    async def story(nursery: trio.Nursery) -> None:
        await until(lambda: steady.rounds.newest >= 3)
        assert steady.rounds.before and steady.rounds.outer
        town.blobs.missing |= {steady.rounds.before.state, steady.rounds.outer.state}
        await until_beats_say(steady, 3)
        late.append(town.add(5))
        monkeypatch.setattr(late[0].context.progress, "trouble", told.append)
        nursery.start_soon(late[0].live)

    await town.play(story)
    roots = town.roots()
    assert set(roots) == set(range(9)) and all(len(each) == 1 for each in roots.values()), roots
    assert any("2 contributions of the round cannot be had" in text for text in told), told
    assert any("no such blob: nobody has it" in text for text in told), told
    assert len(set(asked[:6])) == 2 and not {1, 2, 3} & set(late[0].roots)
    # While the state was not to be had, the round that the newcomer began with was history, and it knew.
    works = steady.context.state.register.of(late[0].key.address)
    assert steady.roots[0] not in [work.commitment.policy_root for work in works]


@pytest.mark.parametrize("own", [StoreFull("no room"), OSError(5, "Input/output error")], ids=["full", "broken"])
async def test_contributions_that_this_machine_cannot_take_in_are_no_fault_of_the_members(
    own: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = dict[bytes, Exception]()

    async def fetch(root: bytes, sources: Any, **how: Any) -> Path:
        await trio.lowlevel.checkpoint()
        if root in fails:
            raise fails[root]
        return Path(root.decode())

    node = Town(tmp_path, validators=2).add(2)
    adding = node.rounds.adding
    monkeypatch.setattr(node.context.blobs, "fetch", fetch)
    assert await adding.fetch([b"b", b"a"]) == {b"b": Path("b"), b"a": Path("a")}
    fails |= {b"a": BlobUnavailable(b"a", "nobody has it"), b"b": own}
    with pytest.raises(OwnFailure, match="no room|Input/output error"):
        await adding.fetch([b"a", b"b"])
    del fails[b"b"]
    with pytest.raises(TrainingError, match="no member hands them over"):
        await adding.fetch([b"a", b"b"])


async def test_a_contribution_that_this_disk_changed_is_not_left_out_as_one_that_everybody_leaves_out(
    tmp_path: Path,
) -> None:
    adding = Town(tmp_path, validators=2).add(2).rounds.adding
    file = tmp_path / "contribution"
    file.write_bytes(b"nothing that can be decoded")
    assert adding.named_in(0, {describe(file.read_bytes()).root: file}) == ()
    with pytest.raises(OwnFailure, match="damaged on this machine"):
        adding.named_in(0, {bytes(32): file})


async def stopped_over_rounds(lab: Lab, job: Job, found: dict[str, Any]) -> None:
    """SIGSTOP after the steps of round 1, SIGCONT two rounds later."""
    if isinstance(job, Train) and job.round == 1:
        await until(lambda: lab.town.nodes[0].rounds.newest >= 3)


def full_disk(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def noisy_copy(lab: Lab, job: Job, found: dict[str, Any]) -> None:
    """Another node's contribution with 5 % of noise, under its own replica."""
    await trio.lowlevel.checkpoint()
    if not isinstance(job, Train):
        return
    peer = lab.town.peer
    outer = OuterStateFile(peer._outer_path(job.round))
    peer._contribute(job.round, (job.replica_id + 1) % 4)
    other = peer._decoded(peer._contribution_path(job.round, (job.replica_id + 1) % 4), outer)
    source = np.random.default_rng(1)
    tensors = {name: other.tensor(name) for name in other.shapes}
    for name, values in tensors.items():
        tensors[name] = values + np.float32(0.05 * values.std()) * source.normal(size=values.size).astype(np.float32)
    header = msgspec.structs.replace(other.header, replica_id=job.replica_id)
    Path(found["path"]).write_bytes(b"".join(encode_contribution(header, tensors, other.form)))


async def test_who_sends_what_it_did_not_compute_is_out_of_the_round_and_loses_its_stake(
    tmp_path: Path, autojump_clock: Any
) -> None:
    town = Town(tmp_path, validators=2, steps=2)
    honest, cheat = town.add(2), town.add(3, bend=noisy_copy)
    await town.play(nothing)
    validator = next(one for one in town.nodes if one.role == "validator")
    assert all(len(each) == 1 for each in town.roots().values())
    assert [one.contributions for one in validator.rounds.figures.values()] == [1, 1]
    assert honest.counts() == {"accepted": 2} and "accepted" not in cheat.counts()
    slashed = [one for node in town.nodes for one in node.court.slashed]
    assert slashed and {(who, why) for who, why, _ in slashed} == {(cheat.key.address, Reason.NOT_REPRODUCED)}
    works = [work.id for work in validator.context.state.register.of(cheat.key.address)]
    journal = validator.context.journal
    assert works and not any(journal.pay.leaf(validator.key.address, POOL, one) for one in works)
    paid = [work.id for work in validator.context.state.register.of(honest.key.address)]
    assert all(journal.pay.leaf(validator.key.address, POOL, one) for one in paid)  # the control


async def withheld(lab: Lab, job: Job, found: dict[str, Any]) -> None:
    """Nobody gets the moments that its steps end with."""
    await trio.lowlevel.checkpoint()
    if isinstance(job, Train):
        lab.town.blobs.missing.add(blob_root(Path(found["own"])))


async def with_anothers_moments(lab: Lab, job: Job, found: dict[str, Any]) -> None:
    """From the second round on: real steps from what another replica's steps had left, which everybody can fetch."""
    await trio.lowlevel.checkpoint()
    if isinstance(job, Train) and job.round:
        lab.town.hand_over(lab)
        peer = lab.town.peer
        own = [peer._own_path(job.round - 1, replica_id) for replica_id in (job.replica_id, (job.replica_id + 1) % 4)]
        peer._contribute(job.round - 1, (job.replica_id + 1) % 4)
        own[0].write_bytes(own[1].read_bytes())
        Path(found["path"]).unlink()
        peer._contribute(job.round, job.replica_id)


async def test_moments_outlive_a_round_and_who_withholds_or_swaps_them_is_out_without_losing_its_stake(
    tmp_path: Path, autojump_clock: Any
) -> None:
    how = HOW.replace("reset", "kept").replace("12", "60")  # so long that what is withheld is judged in its round
    town = Town(tmp_path, validators=2, steps=3, how=how)
    honest, silent, thief = town.add(2), town.add(3, bend=withheld), town.add(4, bend=with_anothers_moments)
    await town.play(nothing)
    validator = next(one for one in town.nodes if one.role == "validator")
    assert all(len(each) == 1 for each in town.roots().values())
    assert honest.counts() == {"accepted": 3}  # two of them began with moments, which both validators fetched
    learning = next(one for one in honest.manager.services if isinstance(one, RoundWorker))
    assert len(learning._served) == 3
    assert silent.counts() == {"accepted": 2, "rejected": 1}  # it began anew in the third, which needs no state
    assert thief.counts() == {"accepted": 1, "rejected": 2}
    verdicts = [one.message.verdict for one in validator.context.board.messages(VerdictIssued)]
    reasons = {one.reason for one in verdicts if one.node in (silent.key.address, thief.key.address)}
    assert reasons == {Reason.NONE, Reason.INNER_STATE}
    assert not [one for node in town.nodes for one in node.court.slashed]


async def test_a_round_in_which_nobody_is_accepted_ends_and_changes_nothing(
    tmp_path: Path, autojump_clock: Any
) -> None:
    town = Town(tmp_path, validators=1, steps=1)
    cheat = town.add(3, bend=noisy_copy)
    await town.play(nothing)
    first, second = (OuterStateFile(cheat.rounds.files.path(number)) for number in (0, 1))
    assert all((first.tensor(name) == second.tensor(name)).all() for name in first.shapes)
    assert cheat.rounds.figures[0].contributions == 0
    said = [one.message.verdict for one in cheat.context.board.messages(VerdictIssued)]
    assert {one.reason for one in said} == {Reason.NOT_REPRODUCED}


async def test_one_validator_is_enough_for_an_honest_peer(tmp_path: Path, autojump_clock: Any) -> None:
    town = Town(tmp_path, validators=1, steps=1)
    honest = town.add(3)
    await town.play(nothing)
    said = [one.message.detail for one in honest.context.board.messages(VerdictIssued)]
    assert honest.counts() == {"accepted": 1}, said


async def test_a_validator_that_signs_two_cuts_is_believed_no_more(tmp_path: Path, autojump_clock: Any) -> None:
    town = Town(tmp_path, steps=2)
    worker = town.add(2)

    async def story(nursery: trio.Nursery) -> None:
        liar = town.nodes[-1]
        await until(lambda: bool(liar.rounds.outer))
        for size in (1, 2):
            vote = RoundVote(
                pool=POOL, round=1, ballot=0, closed=False, outer=bytes(32), state=bytes(32), size=size, files=()
            )
            await liar.context.board.post(vote)

    await town.play(story)
    assert set(worker.context.state.disputes.quarantined) == {town.nodes[-1].key.address}
    assert all(len(each) == 1 for each in town.roots().values()) and len(town.roots()) == 3


async def test_a_validator_that_leaves_office_signs_no_more_cuts_and_follows_the_rounds(
    tmp_path: Path, autojump_clock: Any
) -> None:
    town = Town(tmp_path, steps=3)
    worker = town.add(2)

    async def story(nursery: trio.Nursery) -> None:
        await until(lambda: worker.rounds.newest >= 1)
        for node in town.nodes:
            node.membership.appoint([key.address for key in town.judges[:2]], 2)

    await town.play(story)
    assert 3 in town.nodes[-1].roots and all(len(each) == 1 for each in town.roots().values())


def says(rounds: Rounds, author: Address, round_: int, *, closed: bool = False) -> None:
    vote = RoundVote(
        pool=POOL, round=round_, ballot=0, closed=closed, outer=bytes(32), state=bytes(32), size=1, files=()
    )
    rounds.votes.note(Signed(author, vote, msgspec.msgpack.encode(Envelope(b"", b""))))


async def test_a_round_is_decided_by_a_quorum_of_those_who_are_in_office_by_then(tmp_path: Path) -> None:
    town = Town(tmp_path, steps=9)
    node, judges = town.add(2), [key.address for key in town.judges]
    new = [NodeKey(bytes([40 + number]) * 32).address for number in range(4)]
    for author in judges[:1]:
        says(node.rounds, author, 7, closed=True)
        says(node.rounds, author, 8, closed=True)
    node.membership.appoint([*judges, *new], 4)
    for author in (*judges, new[0]):
        says(node.rounds, author, 7, closed=True)
        assert node.rounds.votes.book.of(7).decided is None, "the quorum of the bench before has no say"
    says(node.rounds, new[1], 7, closed=True)
    assert node.rounds.votes.book.of(7).decided is not None
    node.membership.appoint(new[:1], 1)
    says(node.rounds, judges[1], 8, closed=True)
    assert node.rounds.votes.book.of(8).decided is None, "it left office"
    says(node.rounds, new[0], 8, closed=True)
    assert node.rounds.votes.book.of(8).decided is not None and node.rounds.votes.book.of(7).decided is not None
    node.membership.appoint(judges, 2)
    says(node.rounds, judges[0], 6, closed=True)
    node.membership.appoint(judges[:1], 1)
    assert node.rounds.votes.book.of(6).decided is not None, "the word that it waited for is the only one now"


@pytest.mark.parametrize(("more", "inner"), [("", 2), ("\nfragments = 4", 8)], ids=["whole", "fragments"])
async def test_a_node_that_starts_again_in_mid_round_goes_on_with_what_it_kept_and_nothing_of_it_is_refused(
    tmp_path: Path, autojump_clock: Any, more: str, inner: int
) -> None:
    how = HOW.replace("reset", "kept") + more
    town, began = Town(tmp_path, validators=2, steps=6, how=how, inner=inner), list[tuple[int, bool]]()

    async def watched(lab: Lab, job: Job, found: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(job, Train):
            began.append((len(lives), found["began"]))

    steady, lives = town.add(2), [town.add(3, seconds=4.0, bend=watched)]

    def committed(node: Node, round_: int) -> bool:
        return any(work.round == round_ for work in node.context.state.register.of(node.key.address))

    async def story(nursery: trio.Nursery) -> None:
        for at, in_its_steps in ((2, True), (3, False)):
            node = lives[-1]
            await until(lambda: node.rounds.newest == at and (in_its_steps or committed(node, at)))  # noqa: B023 - awaited here
            await trio.sleep(1.0 if in_its_steps else 0.0)
            node.alive.cancel()
            await trio.sleep(1.0)
            journal: Any = node.context.journal
            lives.append(town.add(3, seconds=4.0, bend=watched, journal=journal))
            nursery.start_soon(lives[-1].live)

    await town.play(story)
    roots = town.roots()
    assert set(roots) == set(range(7)) and all(len(each) == 1 for each in roots.values()), roots
    assert steady.counts() == {"accepted": 6}
    counts = lives[-1].counts()
    assert counts["accepted"] >= 4 and "rejected" not in counts, counts
    assert {life for life, kept in began if kept} == {1, 2, 3}, began  # each went on with moments, sooner or later
    assert not [one for node in town.nodes for one in node.court.slashed]


class Door:
    """One node's door to everybody's blobs: what comes of a choosy node comes to those that it serves, and from there
    to all."""

    holding = nullcontext

    def __init__(self, town: Town, own: str, holders: dict[bytes, set[str]], served: dict[str, set[str]]) -> None:
        self._town, self._own, self._holders, self._served = town, own, holders, served

    async def add(self, source: Path | bytes) -> Any:
        info = await self._town.blobs.add(source)
        self._holders.setdefault(info.root, set()).add(self._own)
        return info

    async def fetch(self, root: bytes, sources: Any, *, max_size: int, timeout: float, priority: int = 0) -> Path:
        holders = self._holders.setdefault(root, set())

        def is_had() -> bool:
            able = (one for one in sources if one in holders and self._own in self._served.get(one, {self._own}))
            return self._own in holders or any(able)

        with trio.move_on_after(timeout):
            await until(is_had)
        if not is_had():
            raise Trouble("no such blob", "nobody hands it over", "wait")
        holders.add(self._own)
        return await self._town.blobs.fetch(root, sources, max_size=max_size, timeout=timeout)


@pytest.mark.parametrize("to", ["one validator", "one peer"])
async def test_a_contribution_that_is_served_to_some_only_splits_nothing_and_is_in_or_out_for_everybody(
    tmp_path: Path, autojump_clock: Any, to: str
) -> None:
    town = Town(tmp_path, validators=3, steps=2)
    holders, served = dict[bytes, set[str]](), dict[str, set[str]]()
    plain = town.introduce

    def introduce(newcomer: Node) -> None:
        newcomer.context.blobs = Door(town, newcomer.key.address, holders, served)
        plain(newcomer)

    town.introduce = introduce  # type: ignore[method-assign]
    steady, other, choosy = town.add(2), town.add(4), town.add(3)
    validators = [key.address for key in town.judges]
    served[choosy.key.address] = {validators[0] if to == "one validator" else other.key.address}
    await town.play(nothing)
    roots = town.roots()
    assert set(roots) == {0, 1, 2} and all(len(each) == 1 for each in roots.values()), roots
    assert steady.counts() == other.counts() == {"accepted": 2}
    figures, accepted = list(steady.rounds.figures.values()), choosy.counts().get("accepted", 0)
    assert max(one.contributions for one in figures) == (3 if to == "one validator" else 2), figures
    assert all(one.seconds <= ROUND + GRACE + 5 for one in figures), figures
    assert accepted >= 1 if to == "one validator" else not accepted, choosy.counts()
    assert not [one for node in town.nodes for one in node.court.slashed]
