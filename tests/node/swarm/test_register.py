"""Work is known by everything that was signed; ages and gaps are counted from what was heard; a newcomer holds nothing
against anybody."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.swarm.counts import Admission
from node.swarm.facts import Equivocation
from node.swarm.policies import GRACE_SECONDS, MAX_AHEAD, PolicyIndex
from node.swarm.pool_state import lacks
from node.swarm.register import BACKLOG_SECONDS, CLOSED_AFTER, Register, RegisteredWork
from node.swarm.task_table import MOST_TASKS, TaskTable
from node.swarm.terms import LeaderTerms
from protocol.checks import Reason
from protocol.earnings import most_files
from protocol.identity import Address, NodeKey
from protocol.messages import PolicyAnnounced, RolloutCommitted, Signed, TaskOffered
from protocol.run import EnvironmentSpec, Recipe, RunSpec
from protocol.statements import WorkCommitment, work_id
from protocol.tasks import TaskSpec, encode_task, task_id
from tests.words import announced as policy_announced
from tests.words import policies as policies_of

EARLY = 16
EARLY_SECONDS = 60.0
CLOSED_SECONDS = 300.0
RESULTS = 1024
CLOSED_AT_ONCE = 256

NODE, OTHER, TRAINER = (NodeKey(bytes([n]) * 32).address for n in (5, 6, 7))
RUN = RunSpec(name="t", environment=EnvironmentSpec(name="sort"), recipe=Recipe(max_staleness=2))
FILE = b"\x42" * 32


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def policy(step: int) -> bytes:
    return step.to_bytes(32)


def announced(step: int, root: bytes | None = None) -> Signed[PolicyAnnounced]:
    root = root or policy(step)
    message = policy_announced(step, root)
    return Signed(TRAINER, message, b"announced %d " % step + root)


def committed(
    step: int, index: int = 0, node=NODE, root: bytes | None = None, units: int = 5, size: int = 9
) -> Signed[RolloutCommitted]:
    file_root = root or bytes([step % 256, index % 256]) * 16
    commitment = WorkCommitment(1, node, policy(step), index, file_root, units)
    return Signed(node, RolloutCommitted(pool=1, commitment=commitment, signature=b"", size=size), b"raw")


class Heard:
    """A register that has listened for long and has heard of `steps` policies since."""

    def __init__(self, steps: int, listened: float = BACKLOG_SECONDS + 1, run: RunSpec = RUN) -> None:
        self.clock = Clock()
        self.policies = policies_of(TRAINER, self.clock)
        self.tasks = TaskTable(lambda node: False, self.clock, lambda node: True)
        self.register = Register(run, self.policies, self.clock, self.tasks)
        self.clock.now += listened
        for step in range(steps):
            self.announce(step)

    def announce(self, step: int) -> None:
        self.policies.announce(announced(step))
        self.register.look_again()

    def commit(self, *args, **named) -> RegisteredWork:
        work = self.register.commit(committed(*args, **named))
        assert work is not None
        return work

    def reason(self, work: RegisteredWork) -> Reason | None:
        fault = self.register.fault(work)
        return fault.reason if fault else None


# what is work


def test_the_same_file_in_another_nodes_slot_is_another_work_and_overwrites_nothing() -> None:
    heard = Heard(2)
    honest = heard.commit(0, root=FILE)
    copies = [heard.commit(0, node=OTHER, root=FILE), heard.commit(1, node=OTHER, root=FILE, size=1)]
    assert len({honest.id, *(copy.id for copy in copies)}) == 3
    assert heard.register.get(honest.id) is honest and honest.signed.message.size == 9
    assert [heard.register.get(copy.id) for copy in copies] == copies


def test_a_policy_that_nobody_announced_makes_no_work_until_somebody_does() -> None:
    heard = Heard(1)
    told: list[RegisteredWork] = []
    heard.register.follow(told.append)
    assert heard.register.commit(committed(7)) is None and heard.register.ignored == 1
    assert told == [] and heard.register.get(work_id(committed(7).message.commitment)) is None
    heard_at = heard.clock.now
    heard.clock.now += 5
    heard.announce(7)
    assert [(work.step, work.at) for work in told] == [(7, heard_at)], "its age is that of the commitment"


def test_what_waits_for_its_policy_is_bounded_per_node_and_in_time() -> None:
    heard = Heard(1)
    for index in range(4 * EARLY):
        heard.register.commit(committed(9, index, node=OTHER))
    heard.register.commit(committed(9, 0))
    heard.announce(9)
    assert len([work for work in heard.register._works.values() if work.node == OTHER]) == EARLY
    assert heard.register.get(work_id(committed(9).message.commitment)), "nobody else's was crowded out"
    heard.register.commit(committed(11, 0))
    heard.clock.now += EARLY_SECONDS + 1
    heard.register.close()
    heard.announce(11)
    assert heard.register.get(work_id(committed(11).message.commitment)) is None


def test_nobody_may_commit_to_more_than_a_policy_can_use() -> None:
    heard = Heard(1)
    assert heard.register.commit(committed(0, most_files(RUN))) is None
    assert heard.register.commit(committed(0, 10**18)) is None
    assert heard.register.commit(committed(0, most_files(RUN) - 1)) is not None


def test_old_commitments_that_anybody_says_again_are_no_work_and_make_no_gap_in_what_their_worker_does_now() -> None:
    heard, said = Heard(0), list[Signed[RolloutCommitted]]()
    for step in range(3 * CLOSED_AFTER):
        heard.announce(step)
        said += [committed(step, index) for index in range(most_files(RUN))]
        for one in said[-most_files(RUN) :]:
            heard.register.commit(one)
        heard.clock.now += CLOSED_SECONDS / CLOSED_AFTER
        for _ in range(2):
            heard.register.close()
    told: list[RegisteredWork] = []
    heard.register.follow(told.append)
    assert len(told) == CLOSED_AFTER * most_files(RUN), "all of the policies that are open, and nothing else"
    told.clear()
    for old in said:
        heard.register.commit(old)
    assert told == [], "they were judged in their time"
    heard.announce(3 * CLOSED_AFTER)
    heard.commit(3 * CLOSED_AFTER, 0)
    assert heard.register.gap(heard.commit(3 * CLOSED_AFTER, 1)) is None


def test_a_newcomer_takes_no_old_commitment_of_before_for_one_that_is_late_now() -> None:
    heard = Heard(5, listened=0.0)
    heard.clock.now += BACKLOG_SECONDS + 1
    for step in range(5, 9):
        heard.announce(step)
        heard.clock.now += GRACE_SECONDS
    assert heard.register.commit(committed(4)) is None, "its time was before this node's, and it may have been judged"
    assert heard.reason(heard.commit(5)) is Reason.STALE, "of a policy that this node saw come"
    assert heard.reason(heard.commit(6)) is None


# rivals


def test_two_commitments_for_one_slot_that_differ_in_anything_are_rivals() -> None:
    for other in (committed(0, root=b"\x77" * 32), committed(0, units=6)):
        heard = Heard(1)
        seen: list[tuple[RegisteredWork, RegisteredWork]] = []
        heard.register.follow_rivals(lambda *pair, seen=seen: seen.append(pair))
        first = heard.commit(0)
        assert not heard.register.is_contested(first)
        assert heard.register.commit(committed(0)) is None, "a repetition is nothing"
        assert heard.register.commit(other) is None, "the slot is taken"
        rival = heard.register.get(work_id(other.message.commitment))
        assert rival is not None and seen == [(first, rival)] and heard.register.is_contested(first)
        again: list[tuple[RegisteredWork, RegisteredWork]] = []
        heard.register.follow_rivals(lambda *pair, again=again: again.append(pair))
        assert again == seen, "who comes later hears of it, too"


def test_two_rivals_are_evidence_enough() -> None:
    heard = Heard(1)
    for units in range(5, 50):
        heard.register.commit(committed(0, units=units))
    assert len(heard.register._works) == 2


# ages and gaps


def test_age_is_counted_from_when_a_file_was_heard_of() -> None:
    heard = Heard(3)
    noted = heard.commit(0)
    for step in range(3, 9):
        heard.announce(step)
    heard.clock.now += GRACE_SECONDS
    assert heard.reason(noted) is None  # it lay in a queue meanwhile
    assert heard.reason(heard.commit(1)) is Reason.STALE


def test_a_policy_makes_nothing_stale_before_its_news_could_have_reached_the_worker() -> None:
    heard = Heard(3)
    heard.announce(3)
    heard.clock.now += GRACE_SECONDS - 1
    assert heard.reason(heard.commit(0)) is None
    heard.clock.now += 1
    assert heard.reason(heard.commit(0, index=1)) is Reason.STALE


def test_a_newcomer_calls_nothing_stale_and_sees_no_gaps() -> None:
    heard = Heard(9, listened=0.0)
    work = heard.commit(0, index=3)
    assert work.backlog and heard.reason(work) is None and heard.register.gap(work) is None


def test_a_gap_is_a_missing_index_before_this_one() -> None:
    heard = Heard(1)
    work = heard.commit(0, index=1)
    fault = heard.register.gap(work)
    assert fault is not None and fault.reason is Reason.GAP
    heard.commit(0, index=0, node=OTHER)
    assert heard.register.gap(work) is not None
    heard.commit(0, index=0)
    assert heard.register.gap(work) is None


def test_a_flood_to_made_up_policies_makes_no_gap() -> None:
    heard = Heard(1)
    heard.commit(0, index=0)
    for number in range(5_000):
        heard.register.commit(committed(1000 + number, node=OTHER))
        heard.register.commit(committed(1000 + number, index=number))
    assert heard.register.gap(heard.commit(0, index=1)) is None


def test_a_copy_is_told_by_the_header_and_not_by_who_came_first() -> None:
    heard = Heard(1)
    copy, original = heard.commit(0, node=OTHER, root=FILE), heard.commit(0, root=FILE)
    heard.register.was_read(original)
    fault = heard.register.copied(copy)
    assert fault is not None and fault.reason is Reason.DUPLICATE
    assert heard.register.copied(original) is None


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([NODE, OTHER]), st.integers(0, 5), st.integers(0, 60), st.integers(1, 3), st.booleans()
        ),
        max_size=80,
    )
)
def test_whatever_is_committed_the_tables_agree_and_the_first_entry_stays(events) -> None:
    heard = Heard(1)
    first: dict[bytes, RegisteredWork] = {}
    for node, step, index, units, announce in events:
        if announce:
            heard.announce(step)
        heard.register.commit(committed(step, index, node, units=units))
        for id, work in first.items():
            assert heard.register.get(id) is work
        first = dict(heard.register._works)
    register = heard.register
    by_slot = [work for works in register._slots.values() for work in works]
    by_node = [work for works in register._nodes.values() for work in works.values()]
    assert {one.id for one in by_slot} == {one.id for one in by_node} == set(register._works)
    assert all(len(works) <= 2 and not works[0].rival for works in register._slots.values())
    assert all(work.commitment.index < most_files(RUN) for work in by_slot)


# the policy index


def test_unchanged_weights_at_another_step_are_another_policy_and_no_lie() -> None:
    policies = policies_of(TRAINER, Clock())
    assert policies.announce(announced(1)) and policies.announce(announced(2))
    assert not policies.announce(announced(1)), "a repetition"
    assert policies.equivocation is None and policies.newest_step == 2


def test_two_policies_for_a_step_or_two_steps_for_a_policy_are_a_lie_that_is_shown_by_both_envelopes() -> None:
    for lie in (announced(3, policy(99)), announced(4, policy(3))):
        policies = policies_of(TRAINER, Clock())
        policies.announce(announced(3))
        assert isinstance(policies.announce(lie), Equivocation)
        assert policies.equivocation is not None and policies.equivocation.evidence == (announced(3).raw, lie.raw)
        assert not policies.announce(announced(5)) and policies.newest_step == 3, "it is trusted no more"
        known = policies.find(policy(3))
        assert known is not None and known.step == 3


def test_one_policy_is_counted_in_one_epoch_a_second_one_is_a_lie() -> None:
    policies = policies_of(TRAINER, Clock())
    policies.announce(announced(3))
    again = Signed(TRAINER, policy_announced(3, policy(3), epoch=1), b"again")
    assert isinstance(policies.announce(again), Equivocation) and policies.newest_step == 3


class Far:
    """A clock whose validators hold `reached`, and a trainer that says what it likes."""

    def __init__(self, reached: int = -1) -> None:
        self.reached, self.clock = reached, Clock()
        self.held: dict[str, tuple[int, float]] = {}
        terms = LeaderTerms(TRAINER, self.clock)
        self.policies = PolicyIndex(self.clock, terms, lambda _: self.reached, lacks=self.lacks)

    def lacks(self, trainer: Address, step: int, since: float) -> bool:
        """As four validators tell, of whom three must agree."""
        beats = {
            who: SimpleNamespace(beat=SimpleNamespace(policy_step=held), seen_at=at)
            for who, (held, at) in self.held.items()
        }
        hands = SimpleNamespace(is_party=lambda one, of: False)
        members: Any = SimpleNamespace(validators=tuple(beats), table=beats, hands=hands, quorum=3)
        return lacks(members, (), trainer, step, since)

    def say(self, step: int, *, by: Address = TRAINER, parent: int = 0) -> bool:
        message = policy_announced(step, policy(step), parent=policy(parent or step - 1) if step else bytes(32))
        return self.policies.announce(Signed(by, message, b"far")) is not None


@pytest.mark.parametrize("step", [2, 7, 2**40, 2**63 - 1])
def test_nobody_alone_moves_the_clock_by_more_than_one_step(step: int) -> None:
    far = Far()
    assert far.say(0) and not far.say(step) and far.policies.newest_step == 0
    assert far.policies.admits(TRAINER, policy_announced(step, policy(step))) is Admission.HELD
    assert far.say(1) and far.policies.newest_step == 1
    if step > 2:
        far.reached = step
        assert far.say(step) and far.policies.newest_step == step, "a quorum of the validators holds it"


@pytest.mark.parametrize(
    "held",
    [
        {"a": 3, "b": 3, "c": 3, "d": 40},
        {"a": 3, "b": 3, "d": 3},
    ],
    ids=["one lies that it holds them", "one is away"],
)
def test_a_leader_announces_no_more_than_so_many_policies_that_validators_say_they_do_not_hold(held: Any) -> None:
    far = Far()
    assert all(far.say(step) for step in range(4 + MAX_AHEAD))
    far.clock.now += 10.0
    far.held = {who: (step, far.clock.now) for who, step in held.items()}
    assert not far.say(4 + MAX_AHEAD) and far.policies.newest_step == 3 + MAX_AHEAD
    late = policy_announced(4 + MAX_AHEAD, policy(4 + MAX_AHEAD), parent=policy(3 + MAX_AHEAD))
    assert far.policies.admits(TRAINER, late) is Admission.HELD, "it counts once they hold one"
    far.held |= dict.fromkeys(("a", "b"), (4, far.clock.now))
    assert far.say(4 + MAX_AHEAD)


@pytest.mark.parametrize("held", [{}, {"a": 0, "b": 0}, {"a": 9, "b": 9, "c": 9}], ids=["nobody", "two", "before"])
def test_whom_validators_do_not_hear_or_who_lie_alone_holds_no_policy_back(held: Any) -> None:
    """The control. before: they spoke before there was anything to hold, and are away since."""
    far = Far()
    far.held = {who: (step, far.clock()) for who, step in held.items()}
    far.clock.now += 10.0
    if len(held) == 2:
        far.held = {who: (step, far.clock.now + 1.0) for who, step in held.items()}
    assert all(far.say(step) for step in range(3 * MAX_AHEAD))


def test_who_follows_nothing_and_hears_no_validator_begins_with_the_longest_row_that_its_leader_tells() -> None:
    far, row = Far(), (2**40, 70, 71, 72)
    said = [policy_announced(step, policy(step), parent=policy(step - 1)) for step in row]
    held = [(far.clock.now, TRAINER, one) for one in said]
    held += [(far.clock.now, OTHER, policy_announced(step, policy(step))) for step in range(90, 99)]
    assert far.policies.anchor(held) is None, "it waits for them"
    far.clock.now += 5.0
    assert far.policies.anchor(held) == 70
    first = Signed(TRAINER, said[1], b"first")
    assert far.policies.announce(first, anchored=True) and far.say(71) and not far.say(2**40)
    assert far.policies.anchor(held) is None, "it has begun"


# closing


def test_what_hangs_on_a_policy_is_closed_sixteen_policies_later_and_nodes_go_with_their_last_work() -> None:
    heard, closed = Heard(steps=1), list[RegisteredWork]()
    old, rival = heard.commit(0), committed(0, units=6)
    heard.register.commit(rival)
    heard.register.was_read(old)
    heard.register.follow_closed(closed.append)
    heard.clock.now += CLOSED_SECONDS
    for step in range(1, CLOSED_AFTER):
        heard.announce(step)
        heard.commit(step, node=OTHER)
    heard.register.close()
    assert heard.register.get(old.id) is old and not heard.register.is_closed(policy(0)), "fifteen later"
    heard.announce(CLOSED_AFTER)
    heard.register.close()
    assert [work.id for work in closed] == [old.id, work_id(rival.message.commitment)]
    assert heard.register.is_closed(policy(0)) and heard.register.get(old.id) is None
    assert heard.register._nodes.keys() == {OTHER} and not heard.register._read
    assert not any(node == NODE for node, _, _ in heard.register._slots)
    assert heard.register.commit(committed(0)) is None, "nor is it work when it is said again"


def test_policies_that_come_fast_close_nothing_before_disputes_had_their_time() -> None:
    heard = Heard(steps=1)
    old = heard.commit(0)
    for step in range(1, 3 * CLOSED_AFTER):
        heard.announce(step)
    heard.clock.now += CLOSED_SECONDS - 1
    heard.register.close()
    assert heard.register.get(old.id) is old
    heard.clock.now += 1
    heard.register.close()
    assert heard.register.get(old.id) is None
    newest = heard.commit(3 * CLOSED_AFTER - 1)
    heard.clock.now += 10**6
    heard.register.close()
    assert heard.register.get(newest.id) is newest, "a pool that stands still has closed nothing more"


def test_a_run_that_allows_more_staleness_closes_later() -> None:
    run = msgspec.structs.replace(RUN, recipe=Recipe(max_staleness=CLOSED_AFTER))
    heard = Heard(steps=1, run=run)
    heard.clock.now += CLOSED_SECONDS
    for step in range(1, 2 * CLOSED_AFTER):
        heard.announce(step)
    assert not heard.register.is_closed(policy(0))
    heard.announce(2 * CLOSED_AFTER)
    assert heard.register.is_closed(policy(0))


def test_of_results_of_tasks_the_newest_of_each_node_stay_and_all_go_with_their_task() -> None:
    heard = Heard(1)
    spec = encode_task(TaskSpec(kind="filter", policy="ab" * 32, last=2 * RESULTS, shard_size=1))
    heard.tasks.offered(Signed(TRAINER, TaskOffered(pool=1, sequence=1, spec=spec), b""))
    of = [WorkCommitment(1, node, task_id(spec), index, FILE, 5) for node in (NODE, OTHER) for index in range(9)]
    of += [WorkCommitment(1, OTHER, task_id(spec), index, FILE, 5) for index in range(9, RESULTS + 5)]
    for one in of:
        said = RolloutCommitted(pool=1, commitment=one, signature=b"", size=9)
        heard.register.commit(Signed(one.node, said, b"raw"))
    assert len(heard.register.of(NODE)) == 9 and len(heard.register.of(OTHER)) == RESULTS
    for sequence in range(2, MOST_TASKS + 2):
        other = encode_task(TaskSpec(kind="filter", policy="ab" * 32, last=8, shard_size=1, nonce=str(sequence)))
        heard.tasks.offered(Signed(TRAINER, TaskOffered(pool=1, sequence=sequence, spec=other), b""))
    for _ in range(-(-(RESULTS + 9) // CLOSED_AT_ONCE)):
        heard.register.close()
    assert not heard.register._works and not heard.register._nodes and not heard.register._slots
    assert not heard.register._results
