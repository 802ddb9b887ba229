"""What the matrix finds in the product as it is: attacks that work, each with the cells and the probes that show it.

Whoever mends one writes `works=False` in `SHOWN_BY`, since its test then passes and is strict about it, and takes its
row out of `OPEN`. What is here is no excuse for anything else: a finding of another cell, or in another probe, fails.

- C2: a policy of a step far ahead, by whoever is or was a trainer: validators tell the secrets of their lots.
- H1: statements that nobody follows are counted: validators end an honest term, or forget that a leader drops a worker.
- H1b: such statements push verdicts on followed steps out; an invented checkpoint is audited from.
- H4: a trainer whose term is over, or that was thrown out, offers tasks, and they are the pool's.
- H5: the leader says a policy again, of another epoch, and is paid twice.
- F2: the leader states a step far ahead, and every clock follows: fresh files are no work.
- F3: any trainer of now or before tells newcomers that the run is over.
- F5 (found by this matrix): of a stated step 2^40 **every validator's event loop stands still for good**. The book of
  standbys (`StandbyBook.draw`) walks all windows up to it, one after the other.
- F6 (found by this matrix): a leader that says a smaller `batch_size` than its manifest has is never seen to drop a
  worker. Tracing fetches no more bytes than the leader says (`manifest_of`), and audits fetch as many as a manifest may
  have: so its steps hold, and nobody counts what it leaves out. One that shows no manifest is not told on, either.
"""

from fnmatch import fnmatchcase
from typing import NamedTuple

from tests.attacks.matrix.cells import Finding

OPEN: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "C2": (
        ("standby/PolicyAnnounced/*", "dismissed/PolicyAnnounced/*", "evicted/PolicyAnnounced/*"),
        frozenset({"told", "pledges", "audits", "step_book", "certificates", "works", "states", "due"}),
    ),
    "H1": (
        ("standby/PolicyAnnounced/*", "dismissed/PolicyAnnounced/*", "evicted/PolicyAnnounced/*"),
        frozenset({"dropped", "forks", "policies", "chair"}),
    ),
    "H1b": (
        ("*/PolicyAnnounced/many/*", "standby/CheckpointOffered/*", "dismissed/CheckpointOffered/*", "evicted/Check*"),
        frozenset({"step_book", "checkpoints", "audits", "certificates"}),
    ),
    "H4": (("dismissed/TaskOffered/*", "evicted/TaskOffered/*"), frozenset({"tasks"})),
    "H5": (("leader/PolicyAnnounced/epoch*",), frozenset({"certificates", "overpaid"})),
    "F2": (("leader/PolicyAnnounced/step*", "leader/PolicyAnnounced/many/*"), frozenset({"*"})),
    "F6": (
        tuple(f"leader/PolicyAnnounced/{what}/every/instead/all/drops" for what in ("batch_*", "*fresh")),
        frozenset({"dropped"}),
    ),
    "F3": (("standby/Heartbeat/*", "dismissed/Heartbeat/*"), frozenset({"over"})),
}


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
    works: bool = True


SHOWN_BY = {
    "C2": Shown("standby/PolicyAnnounced/step=2^40 fresh/once/apart/all/honest", "told"),
    "H1, an honest term ends": Shown("dismissed/PolicyAnnounced/forged batch/once/before/all/honest", "dropped"),
    "H1, a drop is forgotten": Shown("standby/PolicyAnnounced/term+1/every/before/all/drops", "dropped"),
    "H1b, statements": Shown("dismissed/PolicyAnnounced/many/once/apart/all/honest", "step_book"),
    "H1b, checkpoints": Shown("standby/CheckpointOffered/root other/every/after/all/honest", "audits"),
    "H4": Shown("dismissed/TaskOffered/another task/once/apart/all/honest", "tasks"),
    "H5": Shown("leader/PolicyAnnounced/epoch+1/once/apart/all/honest", "overpaid"),
    "F2": Shown("leader/PolicyAnnounced/step+999 fresh/once/apart/all/honest", "policies"),
    "F5": Shown("leader/PolicyAnnounced/step=2^40 fresh/once/apart/all/honest", "stopped"),
    "F6": Shown("leader/PolicyAnnounced/batch_size-1/every/instead/all/drops", "dropped"),
    "F3": Shown("standby/Heartbeat/finished flipped/every/before/all/honest", "over"),
}
