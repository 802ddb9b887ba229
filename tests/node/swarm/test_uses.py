"""What became of accepted works, as everybody counts it: an honest trainer leaves nothing out, and one that drops a
worker is seen by everybody."""

from typing import Any

import msgspec
import pytest

from node.swarm.policies import PolicyClock
from node.swarm.register import Register, Work
from node.swarm.taskbook import TaskBook
from node.swarm.uses import UseBook
from protocol.identity import Address, address_bytes
from protocol.manifest import ComposedBatch, UsedReport, UsedWork, work_order
from tests.node.swarm.test_register import NODE, OTHER, RUN, Clock, announced, committed

USED, FLAT = (b"\1", b"\0"), (b"\0", b"\1")


class Bench:
    """Two workers, each with one file a policy; a trainer that says what it used."""

    def __init__(self, keep_surplus: bool = False, max_staleness: int = 2) -> None:
        self.clock = Clock()
        self.policies = PolicyClock(self.clock)
        self.register = Register(RUN, self.policies, self.clock, TaskBook(lambda node: False, self.clock))
        members = (NODE, OTHER)
        self.book = UseBook(self.policies, max_staleness, self.clock, members.__contains__, keep_surplus=keep_surplus)
        self.works: dict[tuple[int, Address], Work] = {}

    def step(self, step: int) -> None:
        """A policy, and soon after it both workers' files, which are accepted."""
        self.policies.announce(announced(step))
        self.register.look_again()
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
    bench.book = UseBook(bench.policies, 2, bench.clock, (NODE, OTHER).__contains__, keep_surplus=False)
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
