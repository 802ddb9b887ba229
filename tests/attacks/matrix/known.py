"""What the matrix has found: each attack with the cell and the probe that showed it.

They are mended, and their cells stay tests. Whoever finds another one that is not mended at once writes it down in
`OPEN`, with the cells and the probes that show it; its test is expected to fail, and strict about it. What is there is
no excuse for anything else: a finding of another cell, or in another probe, fails.

- C2: a policy of a step far ahead, by whoever is or was a trainer: validators told the secrets of their lots.
- H1: statements that nobody follows were counted: validators ended an honest term, or forgot that a leader drops a
  worker.
- H1b: such statements pushed verdicts on followed steps out; an invented checkpoint was audited from.
- H4: a trainer whose term was over, or that was thrown out, offered tasks, and they were the pool's.
- H5: the leader said a policy again, of another epoch, and was paid twice.
- F2: the leader stated a step far ahead, and every clock followed: fresh files were no work.
- F3: any trainer of now or before told newcomers that the run is over.
- F5 (found by this matrix): of a stated step 2^40 every validator's event loop stood still for good.
- F7 (found by this matrix): a leader that announced policies which nobody can have kept its term for ever.
- F8 (found by this matrix, once one validator was slower than the others): a validator that showed its verdict as soon
  as the quorum had sealed took the pay of each that was a moment slower.
- F6 (found by this matrix): a leader that said a smaller size of its batch's manifest than that has was never seen to
  drop a worker. Nobody says that size any more.
"""

from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.attacks.matrix.cells import Finding

OPEN: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {}
"""Attacks that work today."""


def attack_of(finding: Finding) -> str | None:
    """The attack that a finding is known as; None for a new one."""
    for name, (patterns, probes) in OPEN.items():
        if any(fnmatchcase(finding.cell, one) for one in patterns) and (finding.probe in probes or "*" in probes):
            return name
    return None


class Shown(NamedTuple):
    """A cell that shows an attack, and the probe. works: whether it does in the product as it is."""

    cell: str
    probe: str
    works: bool = False


SHOWN_BY = {
    "C2": Shown("standby/PolicyAnnounced/statement.step=2^40 fresh/once/apart/all/honest", "told"),
    "H1, an honest term ends": Shown("dismissed/PolicyAnnounced/forged batch/once/before/all/honest", "dropped"),
    "H1, a drop is forgotten": Shown("standby/PolicyAnnounced/statement.term+1/every/before/all/drops", "dropped"),
    "H1b, statements": Shown("dismissed/PolicyAnnounced/many/once/apart/all/honest", "step_book"),
    "H1b, checkpoints": Shown("standby/CheckpointOffered/root other/every/after/all/honest", "audits"),
    "H4": Shown("dismissed/TaskOffered/another task/once/apart/all/honest", "tasks"),
    "H5": Shown("leader/PolicyAnnounced/statement.epoch+1/once/apart/all/honest", "overpaid"),
    "F2": Shown("leader/PolicyAnnounced/statement.step+999 fresh/once/apart/all/honest", "policies"),
    "F5": Shown("leader/PolicyAnnounced/statement.step=2^40 fresh/once/apart/all/honest", "stopped"),
    "F7": Shown("leader/PolicyAnnounced/fresh/every/instead/all/honest", "unled"),
    "F8": Shown("validator 4/ValidatorBatch/unchanged/every/before/all/honest", "leaves"),
    "F3": Shown("standby/Heartbeat/finished flipped/every/before/all/honest", "over"),
}
