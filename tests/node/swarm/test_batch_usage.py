"""What became of accepted works, as everybody counts it: an honest trainer leaves nothing out, and one that drops a
worker is seen by everybody."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from benchmarks.droppers import Swarm
from node.status_schema import LeftOutPart
from node.swarm.batch_usage import BatchUsage, ReplicaUsage
from node.swarm.register import Register, RegisteredWork
from node.swarm.task_table import TaskTable
from protocol.identity import Address, address_bytes
from protocol.manifest import ComposedBatch, UsedReport, UsedWork, work_order
from protocol.messages import AcceptedList
from protocol.replicas import share
from tests.node.swarm.test_register import NODE, OTHER, RUN, TRAINER, Clock, announced, committed
from tests.words import policies as policies_of

JUDGES = (Address("0x" + "a1" * 20), Address("0x" + "a2" * 20))
USED, FLAT = (b"\1", b"\0"), (b"\0", b"\1")


class Bench:
    """Two workers, each with one file a policy; a trainer that says what it used."""

    def __init__(self, keep_surplus: bool = False, max_staleness: int = 2) -> None:
        self.clock = Clock()
        self.policies = policies_of(TRAINER, self.clock)
        self.register = Register(
            RUN, self.policies, self.clock, TaskTable(lambda node: False, self.clock, lambda node: True)
        )
        self.unusable: set[bytes] = set()
        self.validators: tuple[Address, ...] = JUDGES
        self.keep_surplus, self.max_staleness = keep_surplus, max_staleness
        self.book = self.newcomer()
        self.works: dict[tuple[int, Address], RegisteredWork] = {}

    def newcomer(self) -> BatchUsage:
        may_validate, is_member = lambda one: one in self.validators, (NODE, OTHER).__contains__
        members: Any = SimpleNamespace(is_member=is_member, quorum=2, may_validate=may_validate)
        return BatchUsage(
            self.policies,
            members,
            self.max_staleness,
            self.clock,
            lambda id: id not in self.unusable,
            keep_surplus=self.keep_surplus,
        )

    def list(self, step: int, *by: Address) -> None:
        works = self.book.accepted_list(step)
        for one in by:
            self.book.heard(one, AcceptedList(pool=1, step=step, works=works))

    def step(self, step: int) -> None:
        """A policy, and soon after it both workers' files, which are accepted."""
        self.policies.announce(announced(step))
        self.register.look_again()
        self.list(step, *JUDGES)
        self.clock.now += 1
        for index, node in enumerate((NODE, OTHER)):
            signed = committed(step, 0, node, root=bytes([step, index]) * 16)
            work = self.register.commit(signed)
            assert work is not None
            self.works[step, node] = work
            self.book.accepted(work)
        self.clock.now += 1

    def used(self, step: int, node: Address, maps: tuple[bytes, bytes] = USED) -> UsedWork:
        commitment = self.works[step, node].commitment
        report = UsedReport(address_bytes(node), bytes(32), 1, b"\1")
        fields: dict[str, Any] = {"policy_root": commitment.policy_root, "index": commitment.index}
        fields |= {"file_root": commitment.file_root, "units": commitment.units, "epoch": commitment.epoch}
        return UsedWork(
            node=address_bytes(node), policy_step=step, size=9, reports=(report,), used=maps[0], flat=maps[1], **fields
        )

    def train(self, step: int, *works: UsedWork) -> None:
        in_order = tuple(sorted(works, key=lambda work: work_order(1, work)))
        self.book.trained(1, ComposedBatch(bytes(32), 1, step, in_order))

    def counts(self, node: Address) -> dict[str, int]:
        return {name: count for name, count in msgspec.structs.asdict(self.book.workers[node]).items() if count}


def test_an_honest_trainer_that_uses_what_comes_leaves_nothing_out() -> None:
    bench = Bench()
    bench.step(0)
    bench.train(0, bench.used(0, NODE))  # the other file came while the batch was made
    for step in range(1, 10):
        bench.step(step)
        bench.train(step, bench.used(step, NODE), bench.used(step - 1, OTHER, FLAT if step == 3 else USED))
    assert bench.counts(NODE) == {"accepted": 10, "used": 10}
    assert bench.counts(OTHER) == {"accepted": 10, "used": 8, "flat": 1}


def test_a_trainer_that_drops_a_worker_is_counted_by_every_node() -> None:
    bench = Bench()
    for step in range(10):
        bench.step(step)
        if step:
            bench.train(step, bench.used(step - 1, NODE))
    assert bench.counts(NODE) == {"accepted": 10, "used": 9}
    theirs = bench.counts(OTHER)
    assert theirs["accepted"] == 10 and "used" not in theirs
    assert theirs.get("left_out", 0) + theirs.get("surplus", 0) + theirs.get("stale", 0) >= 7


@pytest.mark.parametrize("keep", [True, False])
def test_what_is_due_and_fresher_than_what_was_used_was_left_out_and_what_stands_behind_is_surplus(keep: bool) -> None:
    bench = Bench(keep, max_staleness=4)
    for step in range(5):
        bench.step(step)
    bench.train(4, bench.used(1, NODE), bench.used(4, NODE))
    found = bench.counts(OTHER)
    assert found["left_out"] == 1, "of policy 2: fresher than the used one of policy 1, accepted before policy 3"
    assert found.get("surplus", 0) == (0 if keep else 2), "of policies 0 and 1; those of 3 and 4 came late for step 4"
    bench.step(5)
    bench.train(5, bench.used(5, NODE))
    assert bench.counts(OTHER).get("stale", 0) == (1 if keep else 0)


def test_a_work_of_which_the_trainer_heard_first_is_counted_once() -> None:
    bench = Bench()
    bench.step(0)
    work = bench.works[0, NODE]
    bench.book = bench.newcomer()
    bench.train(0, bench.used(0, NODE))
    bench.book.accepted(work)
    assert bench.counts(NODE) == {"accepted": 1, "used": 1}


def test_a_manifest_that_names_strangers_fills_no_table() -> None:
    bench = Bench()
    bench.step(0)
    strangers = [msgspec.structs.replace(bench.used(0, NODE), node=bytes([n]) * 20) for n in range(1, 50)]
    bench.train(0, bench.used(0, NODE), *strangers)
    assert set(bench.book.workers) == {NODE, OTHER}
    assert bench.counts(NODE) == {"accepted": 1, "used": 1}


OF_A_CUT = ["by both", "by one", "by one and a stranger", "by one and one who left", "by one and whose it is", "late"]


@pytest.mark.parametrize("signed", OF_A_CUT)
def test_only_what_a_quorum_signed_in_time_was_left_out(signed: str) -> None:
    """A worker's file of policy 1, accepted before policy 2; batch 3 uses one of policy 0 instead."""
    bench = Bench(keep_surplus=True, max_staleness=4)
    bench.step(0)
    bench.step(1)
    bench.policies.announce(announced(2))
    bench.clock.now += 1
    if signed == "late":
        bench.book.accepted_list(2)
        late = (bench.works[1, OTHER].id,)
        for one in JUDGES:
            bench.book.heard(one, AcceptedList(pool=1, step=3, works=late))
    else:
        by = {"by both": JUDGES, "by one": JUDGES[:1], "by one and a stranger": (JUDGES[0], NODE)}
        by["by one and whose it is"] = (JUDGES[0], OTHER)
        bench.validators = (*JUDGES, OTHER)
        bench.list(2, *by.get(signed, JUDGES))
    if signed == "by one and one who left":
        bench.validators = JUDGES[:1]
    bench.train(3, bench.used(0, NODE), bench.used(1, NODE))
    found, shown = bench.counts(OTHER), bench.book.status().left_out
    assert found.get("left_out", 0) == len(shown) == (signed == "by both")
    if shown:
        work = bench.works[1, OTHER].id.hex()
        assert shown == [LeftOutPart(work, OTHER, policy_step=1, step=3, due=2, by=[*JUDGES])]


def test_what_was_named_at_a_policy_that_never_was_is_due_for_who_did_not_follow_it() -> None:
    """The block of a term is replaced: one node held the lists of its policies back until it forgot them."""
    bench = Bench()
    bench.step(0)
    stranger = bench.newcomer()
    bench.policies.announce(announced(1))
    bench.clock.now += 1
    phantom = bench.book.accepted_list(1)
    assert phantom and bench.book.accepted_list(2) == ()
    bench.book.undone(1)
    bench.policies.announce(announced(2))
    again = bench.book.accepted_list(2)
    assert again == phantom, "once more, and for those who heard both the first word stands"
    for book, lists in ((bench.book, (1, 2)), (stranger, (2,))):
        for one in JUDGES:
            for step in lists:
                book.heard(one, AcceptedList(pool=1, step=step, works=phantom))
        due = book.due(phantom[0])
        assert due is not None and due[0] == lists[0]
    assert bench.book.accepted_list(3) == ()


def test_a_validators_first_word_on_a_work_counts_and_no_work_is_named_twice() -> None:
    bench = Bench()
    bench.step(0)
    bench.policies.announce(announced(1))
    first = bench.book.accepted_list(1)
    assert first == tuple(sorted(bench.works[0, node].id for node in (NODE, OTHER)))
    assert bench.book.accepted_list(1) == ()
    for step in (1, 0):
        bench.book.heard(JUDGES[0], AcceptedList(pool=1, step=step, works=first))
    assert bench.book.due(first[0]) is None
    bench.book.heard(JUDGES[1], AcceptedList(pool=1, step=0, works=first))
    assert bench.book.due(first[0]) == (1, (JUDGES[1], JUDGES[0]))


def test_what_nobody_may_train_on_any_more_was_not_left_out_and_what_is_used_later_was_late() -> None:
    bench = Bench(keep_surplus=True, max_staleness=9)
    for step in range(3):
        bench.step(step)
    bench.unusable = {bench.works[1, OTHER].id}
    bench.train(2, bench.used(0, NODE))
    assert bench.counts(OTHER) == {"accepted": 3}
    bench.step(3)
    bench.train(3, bench.used(1, NODE))
    assert bench.counts(OTHER) == {"accepted": 4}, "the one of policy 1 nobody may use"
    bench.step(4)
    bench.train(4, bench.used(3, NODE), bench.used(0, OTHER))
    assert bench.counts(OTHER) == {"accepted": 5, "used": 1, "left_out": 1}, "of policy 2"
    bench.train(5, bench.used(2, OTHER))
    assert bench.counts(OTHER) == {"accepted": 5, "used": 2, "left_out": 1}
    shown = [(one.node, one.policy_step) for one in bench.book.status().left_out]
    assert shown == [(NODE, 2), (OTHER, 3)], "the first one's of policy 2 was never used"


@pytest.mark.parametrize("keep", [True, False], ids=["keeps surplus", "throws surplus away"])
@pytest.mark.parametrize("surplus", [1.0, 4.0])
def test_an_honest_trainer_is_not_said_to_drop_anybody_and_one_that_drops_a_worker_is(
    surplus: float, keep: bool
) -> None:
    """Of six workers each third one's files take up to a quarter of a policy's time longer to reach the trainer."""
    swarm = Swarm(1, [0.02, 0.1, 0.25] * 2, surplus, keep)
    for _ in range(60):
        assert not swarm.policy()
    out = swarm.nodes[4]
    found = [swarm.policy([out]) for _ in range(20)]
    assert not any(set(one) - {out} for one in found)
    if keep:
        assert found[-1] == [out], "batch after batch"
        assert not [swarm.policy() for _ in range(4)][-1], "it is used again"


@pytest.mark.parametrize("turns", [True, False], ids=["who starves comes first", "the freshest alone"])
def test_a_slow_worker_whom_the_others_can_replace_is_used_so_a_trainer_that_drops_it_is_seen(turns: bool) -> None:
    """All the others' files are there when a batch is composed, and its are not. The control is an honest trainer that
    takes the freshest alone: it drops the slow one for good."""
    swarm = Swarm(2, [0.02] * 6, 1.25, held=0.4, turns=turns)
    for _ in range(60):
        assert not swarm.policy() or not turns
    slow = swarm.nodes[-1]
    assert (swarm.book.workers[slow].used >= 10) == turns
    if turns:
        found = [swarm.policy([slow]) for _ in range(12)]
        assert found[-1] == [slow] and all(set(one) <= {slow} for one in found)
        swarm.book.begin_term()
        assert not swarm.book.dropped(), "another one leads"


def test_of_several_trainers_each_seat_is_counted_by_itself() -> None:
    bench, book = Bench(), ReplicaUsage(2, max_staleness=2)
    for step in (0, 1):
        bench.step(step)
    older, fresher, others = (bench.works[at] for at in ((0, NODE), (1, OTHER), (1, NODE)))
    for work in (older, fresher, others):
        book.accepted(work)

    def deals(outer: bytes) -> tuple[int, ...]:
        return tuple(share(outer, work.id, 2) for work in (older, fresher, others))

    outers = (bytes([number]) * 32 for number in range(256))
    first = next(outer for outer in outers if deals(outer) == (0, 0, 1))  # the last one is another replica's to use
    book.begun(first)
    book.trained(1, first, [ComposedBatch(bytes(32), 1, 1, (bench.used(0, NODE),))])
    uses = {
        replica_id: {node: msgspec.structs.asdict(one) for node, one in of.items()}
        for replica_id, of in book.replicas.items()
    }
    assert {replica_id: set(of) for replica_id, of in uses.items()} == {0: {NODE, OTHER}}
    assert uses[0][NODE]["used"] == 1 and uses[0][OTHER]["left_out"] == 1
    assert (book.workers[NODE].accepted, book.workers[NODE].left_out) == (2, 0)
    second = next(outer for outer in outers if deals(outer) == (0, 1, 1))  # dealt anew, and nothing older is used
    book.begun(second)
    book.trained(2, second, [ComposedBatch(bytes(32), 1, 2, (bench.used(1, NODE), bench.used(0, NODE)))])
    assert (book.workers[NODE].used, book.workers[OTHER].left_out) == (2, 1)  # a part of a file again counts once
    book.begun(bytes(32))
    book.trained(3, bytes(32), [])
    assert book.workers[OTHER].stale == 1 and book.status().replicas["0"][OTHER]["left_out"] == 1
