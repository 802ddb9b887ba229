"""The record of how far a node is: its clock is an argument, so nothing here waits."""

import pytest

from node.blobs.headway import BlobProgress, describe, fraction
from node.progress import ProgressRecord

MOST_EVENTS = 100

AGAIN = 600.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def record(clock: Clock) -> ProgressRecord:
    return ProgressRecord(clock, lambda: 1_800_000_000.0 + clock.now)


def test_a_phase_lasts_until_the_next_one_begins(record: ProgressRecord, clock: Clock) -> None:
    clock.now += 2.0
    record.enter("chain", "asking the chain")
    clock.now += 0.5
    assert (record.phase.name, record.phase.text, record.phase.since_seconds) == ("chain", "asking the chain", 0.5)
    assert [(phase.name, phase.seconds) for phase in record.phases] == [("key", 2.0)]


def test_a_phase_that_waits_for_something_else_goes_on(record: ProgressRecord, clock: Clock) -> None:
    record.enter("stake", "looking for a stake")
    clock.now += 60
    record.enter("stake", "waits for 100 tokens")
    assert (record.phase.text, record.phase.since_seconds) == ("waits for 100 tokens", 60.0)
    assert [phase.name for phase in record.phases] == ["key"]


def test_what_changes_while_a_phase_lasts_is_asked_for_each_time(record: ProgressRecord) -> None:
    done = [0.2]
    record.enter("policy", lambda: f"{done[0]:.0%} is here", lambda: done[0])
    assert (record.phase.text, record.phase.progress) == ("20% is here", 0.2)
    done[0] = 1.7
    assert record.phase.progress == 1.0
    record.enter("engine", "starting")
    assert record.phase.progress is None


def test_the_first_contribution_and_no_other_makes_a_node_a_working_one() -> None:
    record = ProgressRecord(activity=lambda: "its share is made")
    record.contributed("accepted", "a file of before the restart")
    assert record.name == "key"
    record.enter("first-contribution", record.activity)
    record.contributed("accepted", "file 1")
    assert (record.phase.name, record.phase.text) == ("working", "its share is made")
    record.enter("draining", "leaving")
    record.contributed("accepted", "file 2")
    assert record.name == "draining"


def test_frequent_events_do_not_push_out_the_rare_ones(record: ProgressRecord) -> None:
    record.tell("joined", "joined pool 1")
    for number in range(3 * MOST_EVENTS):
        record.tell("accepted", f"file {number}")
    assert len(record.events) == MOST_EVENTS
    assert record.events[0].name == "joined" and record.events[-1].text == f"file {3 * MOST_EVENTS - 1}"


def test_a_reader_gets_each_event_once(record: ProgressRecord, clock: Clock) -> None:
    record.tell("joined", "joined pool 1")
    seen = record.told
    clock.now += 5
    for number in range(MOST_EVENTS):
        record.tell("accepted", f"file {number}")
    new = record.since(seen)
    assert [event.text for event in new][-1] == f"file {MOST_EVENTS - 1}" and "joined" not in {e.name for e in new}
    assert new[0].at == 1_800_000_105.0
    assert record.since(record.told) == []


def test_lasting_troubles_are_told_once_in_a_while(record: ProgressRecord, clock: Clock) -> None:
    for text in ("no RPC", "no RPC", "disk full", "no RPC"):
        record.trouble(text)
    assert [event.text for event in record.events] == ["no RPC", "disk full"]
    clock.now += AGAIN
    record.trouble("no RPC")
    assert [event.text for event in record.events] == ["no RPC", "disk full", "no RPC"]


def test_transfers_are_told_in_units_of_their_size() -> None:
    two = [BlobProgress(b"a", 100_000_000, 30_000_000, 1.0, 3), BlobProgress(b"b", 20_000_000, 8_000_000, 1.0, 2)]
    assert describe(two, 7) == "38 of 120 MB from 3 members"
    assert fraction(two) == pytest.approx(38 / 120)
    assert describe([BlobProgress(b"a", 2_500_000_000, 400_000_000, 1.0, 0)], 7) == "0.4 of 2.5 GB from 1 member"


def test_before_anything_arrives_it_is_said_who_is_asked() -> None:
    assert describe([], 1) == "asking 1 member" and describe([], 0) == "asking 0 members"
    assert fraction([]) is None
