"""The bank: no wrong answer is paid, 98 % of the right ones are, and rows that nobody could be paid for are refused."""

from collections import Counter

import pytest

from benchmarks.scores import RIGHT_SHARE, bank, judged
from node.environments.programs import ProgramRunner
from node.sandbox import SandboxLimits
from tests.node.environments.sandboxes import OpenSandbox


def test_the_bank_is_large_and_every_row_has_a_right_and_a_wrong_answer() -> None:
    rows = bank()
    assert len(rows) >= 300 and all(one["source"] for one in rows)
    assert all("refused" in one or (one["right"] and one["wrong"]) for one in rows)
    assert min(Counter(one["kind"] for one in rows).values()) >= 3


def test_no_wrong_answer_of_the_bank_is_paid_and_right_ones_are() -> None:
    pytest.importorskip("latex2sympy2_extended")
    runner = ProgramRunner(OpenSandbox, SandboxLimits())
    kinds = judged(bank(), runner)
    runner.close()
    assert [case for kind in kinds.values() for case in kind.wrong_paid] == []
    assert [case for kind in kinds.values() for case in kind.taken] == []
    right = sum(kind.right for kind in kinds.values())
    unpaid = [case for kind in kinds.values() for case in kind.unpaid]
    assert right - len(unpaid) >= RIGHT_SHARE * right, unpaid
