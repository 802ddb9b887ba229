"""What a daemon has its auditing child do: a step by name, and where everything that it takes lies. Without torch.

In the child's spool stand run.json and assets; order and result (msgpack, which knows all floats) appear whole.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from node.audit.findings import Audit, AuditFinding, Says, StepClaim
from protocol.checks import Reason
from protocol.errors import UNREADABLE
from protocol.messages import MAX_DETAIL
from protocol.statements import VerdictOutcome

ORDER, RESULT = "order.msgpack", "result.msgpack"


class StepOrder(msgspec.Struct, frozen=True):
    """claims: of the steps from `base` to `step`, and on to the checkpoint `beyond` it, if that is not 0; manifests: by
    step, with their roots; policies: announced roots, by step; blobs: files and reports, by root (hex); checkpoints:
    (card, tensors of each rank), by step; memory: bytes that the child may have, 0 for no bound. Paths: of files whose
    bytes nobody has looked at beyond their root."""

    run_root: bytes
    pool: int
    step: int
    base: int
    claims: Mapping[int, StepClaim]
    policies: Mapping[int, bytes]
    manifests: Mapping[int, tuple[str, bytes]]
    blobs: Mapping[str, str]
    checkpoints: Mapping[int, tuple[str, tuple[str, ...]]]
    memory: int = 0
    beyond: int = 0


class AuditRuling(msgspec.Struct, frozen=True):
    """What an audit means for a verdict. None in its place: undecided, which accuses nobody."""

    outcome: VerdictOutcome
    reason: Reason
    detail: str


def ruling(audit: Audit) -> AuditRuling | None:
    """What a verdict says. A broken manifest, AdamW's equations and another state in the same class are proof; what is
    measured against calibrated limits in another class, or some steps later, costs no stake."""
    broken = {one.test: one for one in audit.broken}
    if "replay" in broken and not audit.differences and not _is_far(broken["replay"]):
        del broken["replay"]
        if not broken:
            return None
    if not broken:
        return None if audit.says is Says.UNDECIDED else AuditRuling(VerdictOutcome.ACCEPT, Reason.NONE, "")
    # One test is told, and the outcome follows from it: what is proof comes before what is measured.
    test = next(name for name in ("manifest", "identity", "replay", "direction") if name in broken)
    measured = test == "replay" and (audit.differences or "steps" in broken[test].figures)
    proven = test != "direction" and not measured
    reason = Reason.RULE if test == "manifest" else Reason.STATE if proven else Reason.DISTANCE
    return AuditRuling(
        VerdictOutcome.SLASH if proven else VerdictOutcome.REJECT, reason, f"{test}: {broken[test].text}"[:MAX_DETAIL]
    )


def lacks_a_state(audit: Audit) -> bool:
    """Whether the same class came to other bits and had no later checkpoint to say how far they are apart."""
    other = next((one for one in audit.broken if one.test == "replay"), None)
    return other is not None and not audit.differences and "distance" not in other.figures


def _is_far(replay: AuditFinding) -> bool:
    """Whether two results of one class are further apart than rounding: two processors of one name may round
    differently, so that other bits alone accuse nobody."""
    return replay.figures.get("distance", 0.0) > replay.figures.get("limit", float("inf"))


def memory_for(parameters: int, groups: int) -> int:
    """Bytes that an audit takes at the most: libraries; learner, gradients and copies of three states; the groups'
    gradients that direction keeps."""
    # MOST_CELLS of `direction`, which imports torch.
    kept = min(parameters * groups, 1 << 27)
    return (1 << 30) + 72 * parameters + 20 * kept


def read_result(spool: Path) -> Audit | None:
    """What the child said, None if it said nothing that can be read."""
    try:
        with (spool / RESULT).open("rb") as file:
            return msgspec.msgpack.decode(file.read(1 << 20), type=Audit)
    # A child that was killed leaves nothing, or a part: that accuses nobody, and the step may be audited again.
    except (OSError, *UNREADABLE):
        return None
