"""What an audit is about, and what its tests say. Numbers only; no tensor is kept."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from protocol.manifest import Arithmetic

IDENTITY_LIMIT = 2e-4
"""Residual of AdamW's equations: honest 2.1e-5 at the most, the learning rate a thousandth off 1.0e-3."""
FLOAT32_LIMIT = 3e-4
"""Distance over the length of one update, float32 on both sides: honest classes 1e-6 to 1e-4, the least cheat 1e-3."""
BFLOAT16_LIMIT = 0.25
"""Of the applied gradient beside the span of the groups' own: honest bfloat16 leaves 0.04."""
SCALE_LIMITS = (3e-3, 5e-2)
"""How far a gradient's length may be from the clipped one: with float32 on both sides, and otherwise."""
DEVIATIONS = 6.0
FLOORS = (1e-3, 2e-2)
"""Least standard deviation of a group's coefficient, likewise: fewer groups than this would show none."""
FEWEST_GROUPS = 4


class Says(StrEnum):
    """What a test says."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNDECIDED = "undecided"


class AuditFinding(msgspec.Struct, frozen=True):
    """test: "manifest", "identity", "direction" or "replay"; figures: what was measured. Of a replay: distance, limit;
    steps: how many after the audited one until the checkpoint that was compared, if that is not the next; first: the
    earlier step that came out otherwise."""

    test: str
    says: Says
    text: str
    figures: dict[str, float] = {}


def checkpoint_beyond(step: int, kept: Iterable[int]) -> int:
    """The checkpoint that tells of a step after which there is none: the next one, 0 where it is too far or not there.
    kept: the steps of those there are."""
    later = min((at for at in kept if at > step), default=0)
    # Steps after an audited one up to a checkpoint that still tells of it: in float32, rounding doubles about every
    # second step, from 2e-6 of an update to 2e-5 after eight.
    return later if step + 1 < later <= step + 1 + 10 else 0


class StepClaim(msgspec.Struct, frozen=True):
    """What a trainer says of the step that turned policy `step` into the next. Roots: 32 bytes."""

    step: int
    parent: bytes
    state_before: bytes
    policy_root: bytes
    state_root: bytes
    arithmetic: Arithmetic


class Audit(msgspec.Struct, frozen=True):
    """own, claimed: names of the classes; differences: between them; seconds: by test, and of the claimed step."""

    step: int
    own: str
    claimed: str
    differences: tuple[str, ...]
    findings: tuple[AuditFinding, ...]
    seconds: dict[str, float]

    @property
    def broken(self) -> tuple[AuditFinding, ...]:
        return tuple(one for one in self.findings if one.says is Says.BROKEN)

    @property
    def says(self) -> Says:
        """Of all tests together: one that is broken is enough, and one that holds."""
        if self.broken:
            return Says.BROKEN
        # That a batch can be made says nothing of what was computed from it.
        held = any(one.says is Says.HOLDS and one.test != "manifest" for one in self.findings)
        return Says.HOLDS if held else Says.UNDECIDED
