"""Ages and gaps are counted from what was heard, and a newcomer holds neither against anybody."""

from node.services.judging.commitments import BACKLOG_SECONDS, GRACE_SECONDS, Docket

from protocol.checks import Reason
from protocol.identity import NodeKey
from protocol.messages import RolloutCommitted, Signed
from protocol.run import EnvironmentSpec, Recipe, RunSpec
from protocol.statements import WorkCommitment

NODE, OTHER = NodeKey(b"\x05" * 32).address, NodeKey(b"\x06" * 32).address
RUN = RunSpec(name="t", environment=EnvironmentSpec(name="sort"), recipe=Recipe(max_staleness=2))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def policy(step: int) -> bytes:
    return bytes([step]) * 32


def committed(step: int, index: int = 0, node=NODE, root: bytes | None = None) -> Signed:
    file_root = root or bytes([step, index]) * 16
    commitment = WorkCommitment(1, node, policy(step), index, file_root, 5)
    return Signed(node, RolloutCommitted(pool=1, commitment=commitment, signature=b"", size=9), b"raw")


def settled(steps: int) -> tuple[Docket, Clock]:
    """A docket that has listened for long and has heard of `steps` policies since."""
    clock = Clock()
    docket = Docket(RUN, clock)
    clock.now += BACKLOG_SECONDS + 1
    for step in range(steps):
        docket.policy(policy(step), step)
    return docket, clock


def test_age_is_counted_from_when_a_file_was_heard_of() -> None:
    docket, clock = settled(3)
    heard = docket.hear(committed(0))
    assert heard is not None
    for step in range(3, 9):
        docket.policy(policy(step), step)
    clock.now += GRACE_SECONDS
    assert docket.fault(heard) is None  # it lay in a queue meanwhile
    late = docket.hear(committed(1))
    assert late is not None
    fault = docket.fault(late)
    assert fault is not None and fault.reason is Reason.STALE


def test_a_policy_makes_nothing_stale_before_its_news_could_have_reached_the_worker() -> None:
    docket, clock = settled(3)
    docket.policy(policy(3), 3)
    clock.now += GRACE_SECONDS - 1
    overtaken = docket.hear(committed(0))
    assert overtaken is not None and docket.fault(overtaken) is None
    clock.now += 1
    late = docket.hear(committed(0, index=1))
    assert late is not None
    fault = docket.fault(late)
    assert fault is not None and fault.reason is Reason.STALE


def test_a_policy_that_nobody_announced_is_stale() -> None:
    docket, _ = settled(1)
    heard = docket.hear(committed(7))
    assert heard is not None
    fault = docket.fault(heard)
    assert fault is not None and fault.reason is Reason.STALE


def test_a_newcomer_calls_nothing_stale_and_sees_no_gaps() -> None:
    clock = Clock()
    docket = Docket(RUN, clock)
    for step in range(9):
        docket.policy(policy(step), step)
    heard = docket.hear(committed(0, index=3))
    assert heard is not None
    assert heard.backlog
    assert docket.fault(heard) is None
    assert docket.gap(heard.message.commitment) is None


def test_a_gap_is_a_missing_index_before_this_one() -> None:
    docket, _ = settled(1)
    heard = docket.hear(committed(0, index=1))
    assert heard is not None
    fault = docket.gap(heard.message.commitment)
    assert fault is not None and fault.reason is Reason.GAP
    docket.hear(committed(0, index=0, node=OTHER))
    assert docket.gap(heard.message.commitment) is not None
    docket.hear(committed(0, index=0))
    assert docket.gap(heard.message.commitment) is None


def test_two_files_for_one_submission_are_rivals_and_a_repetition_is_nothing() -> None:
    docket, _ = settled(1)
    first, second = committed(0), committed(0, root=b"\x77" * 32)
    assert docket.hear(first) is not None
    assert docket.hear(first) is None
    assert docket.rival(first.message) is None
    assert docket.rival(second.message) == first.message
    assert docket.find(b"\x77" * 32) is None


def test_a_copy_is_told_by_the_header_and_not_by_who_came_first() -> None:
    docket, _ = settled(1)
    copy, original = committed(0, node=OTHER, root=b"\x42" * 32), committed(0, root=b"\x42" * 32)
    docket.hear(copy)
    docket.hear(original)
    docket.owned_by(b"\x42" * 32, (NODE, policy(0), 0))
    fault = docket.duplicate(copy.message.commitment)
    assert fault is not None and fault.reason is Reason.DUPLICATE
    assert docket.duplicate(original.message.commitment) is None
