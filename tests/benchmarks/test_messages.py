"""What a file costs the board is held: a count under a virtual clock, not a time."""

import logging
from pathlib import Path

import pytest
import structlog

from benchmarks.messages import Plan, play

SMALL = Plan(files=16)


@pytest.fixture
def cost(tmp_path: Path):
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield play(SMALL, tmp_path)
    structlog.configure(**before)


def test_a_file_costs_no_more_messages_than_it_did(cost) -> None:
    """Of 4 validators with a quorum of 3, as in the demo. One message each for every file is what their words come to
    together; a message for every word was 9."""
    assert len(cost.accepted) == SMALL.files
    assert cost.sent["RolloutCommitted"] == SMALL.files
    words = sum(cost.sent.get(kind, 0) for kind in ("ValidatorBatch", "VerdictIssued"))
    assert 0 < words / SMALL.files < 5.7
    assert 0 < cost.checks / SMALL.files / cost.nodes < 18  # 25 where nothing that was checked is remembered
