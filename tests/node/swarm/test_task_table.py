"""Offers, claims and results as one node hears them, in whatever order."""

import pytest

from node.swarm.task_table import MOST_TASKS, TaskTable, describe_task
from protocol.checks import Reason
from protocol.identity import Address, NodeKey
from protocol.lots import pack_groups
from protocol.messages import Signed, TaskClaimed, TaskOffered
from protocol.tasks import TaskSpec, encode_task, task_id

EARLY = 64
BACKLOG_SECONDS = 20.0

OWNER, A, B = (NodeKey(bytes([n]) * 32).address for n in (1, 2, 3))
SPEC = TaskSpec(kind="filter", policy="ab" * 32, last=32, shard_size=8)
ENCODED = encode_task(SPEC)
ID = task_id(ENCODED)


class Heard:
    """A book, and what is said to it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.silent: set[Address] = set()
        self.book = TaskTable(lambda node: node in self.silent, lambda: self.now, lambda node: True)
        self.now += BACKLOG_SECONDS

    def offer(
        self,
        sequence: int = 1,
        encoded: bytes = ENCODED,
        done: bytes = b"",
        is_open: bool = True,
        by: Address = OWNER,
    ) -> object:
        message = TaskOffered(pool=1, sequence=sequence, spec=encoded, done=done, open=is_open)
        return self.book.offered(Signed(by, message, b""))

    def claim(self, node: Address, shard: int) -> bool:
        message = TaskClaimed(pool=1, task=ID, shard=shard, sequence=1)
        return self.book.claimed(Signed(node, message, b""))


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_an_offer_is_new_once_and_what_is_done_is_believed(heard: Heard) -> None:
    assert heard.offer() is not None and heard.offer(2) is None
    task = heard.book.find(ID)
    assert task and task.open and describe_task(task, heard.now)["done"] == 0
    heard.offer(4, done=pack_groups([0, 2], 4), is_open=False)
    assert task.leases.done == {0, 2} and not task.open
    heard.offer(3)  # an old word, late
    assert not task.open
    heard.offer(5, done=b"\xff\xff")  # no bitmap of four shards
    assert task.leases.done == {0, 2}


def test_another_trainers_word_ends_nothing_that_the_owner_waits_for_and_a_new_leader_may_ask_for_the_same(
    heard: Heard,
) -> None:
    heard.offer()
    task = heard.book.find(ID)
    assert task is not None
    heard.offer(9, done=pack_groups(range(4), 4), is_open=False, by=B)
    heard.offer(10, done=pack_groups(range(4), 4), by=B)
    assert task.open and task.owner == OWNER and not task.gathered and not task.leases.done
    heard.offer(2, done=pack_groups([1], 4))
    assert task.gathered == {1} and task.leases.done == {1}
    heard.offer(3, is_open=False)
    assert task.open, "the other one waits for results of its own"
    heard.offer(11, is_open=False, by=B)
    assert not task.open
    heard.offer(12)
    heard.silent.add(OWNER)
    heard.offer(13, is_open=False, by=B)
    assert not task.open, "nobody lives who waits"
    heard.offer(14)
    assert task.open, "it is back"


def test_a_claim_may_come_before_its_offer(heard: Heard) -> None:
    assert not heard.claim(A, 1)
    heard.offer()
    task = heard.book.find(ID)
    assert task and task.leases.holder(1, heard.now) == A
    for shard in range(2 * EARLY):
        heard.book.claimed(Signed(B, TaskClaimed(pool=1, task=bytes(32), shard=shard, sequence=1), b""))
    assert len(heard.book._early[B]) == EARLY


def test_what_makes_no_sense_is_refused_and_old_tasks_are_forgotten(heard: Heard) -> None:
    assert heard.offer(encoded=b"{}") is None and heard.book.refused == 1
    for number in range(MOST_TASKS + 1):
        heard.offer(encoded=encode_task(TaskSpec(kind="filter", policy="ab" * 32, last=1, nonce=str(number))))
    assert len(heard.book.tasks()) == MOST_TASKS


def test_a_result_without_a_lease_is_at_fault_by_hearsay_and_never_of_a_newcomers_book(heard: Heard) -> None:
    heard.offer()
    task = heard.book.find(ID)
    assert task is not None
    heard.claim(A, 0)
    task.leases.commit(0, A, b"a" * 32)
    task.leases.commit(1, B, b"b" * 32)
    assert heard.book.fault(task, b"a" * 32) is None
    fault = heard.book.fault(task, b"b" * 32)
    assert fault and fault.reason is Reason.NOT_LEASED and "never claimed" in fault.detail
    newcomer = Heard()
    newcomer.now -= BACKLOG_SECONDS
    newcomer.offer()
    late = newcomer.book.find(ID)
    assert late and newcomer.book.fault(late, b"b" * 32) is None


def test_a_silent_holders_shard_may_be_claimed(heard: Heard) -> None:
    heard.offer()
    heard.claim(A, 0)
    heard.now += 10
    assert not heard.claim(B, 0)
    heard.silent.add(A)
    assert heard.claim(B, 0)
