"""A worker's look at its own file before it commits to it: the checks and the reason codes of a validator.

What only the swarm can know (membership, age, gaps, contradictions) is not checked here. Loads a model and computes:
call from a thread, or from a program of its own.
"""

from pathlib import Path

import msgspec

from node.errors import RunFileError
from node.inference.engines import torch_engine
from node.inference.inspect import inspect
from node.inference.session import EngineSession
from node.inference.wire import Inspect
from protocol.blobs import describe
from protocol.checks import Fault, Reason
from protocol.policy import MalformedPolicy, decode_image, describe_tensors, find_step, root_at, weights_root
from protocol.rollout import MAX_FILE_BYTES, MalformedRollout, RolloutBatch, decode
from protocol.run import RunSpec
from protocol.statements import VerdictOutcome

NOT_CHECKED = ("membership", "staleness", "gap", "equivocation", "delivery")


class SelfAudit(msgspec.Struct, frozen=True):
    """outcome, reason: as a validator's verdict would have them; root: the file's, hex; groups: recomputed ones;
    statistics: what the checks measured; reward: mean of the recomputed rewards, None where this machine
    could tell none; not_checked: what only others see."""

    outcome: VerdictOutcome
    reason: Reason
    detail: str
    group: int
    root: str
    node: str
    policy_root: str
    index: int
    units: int
    groups: int
    reward: float | None
    seconds: float
    statistics: dict[str, float]
    not_checked: tuple[str, ...] = NOT_CHECKED

    @property
    def passed(self) -> bool:
        return self.outcome is VerdictOutcome.ACCEPT


def audit_file(file: Path, run: RunSpec, assets: Path, image: Path) -> SelfAudit:
    """Judge `file` as a validator of `run` would. image: the policy that made it.

    Raises RunFileError if the image is not the policy that the file names, OSError if the file cannot be read.
    """
    data = _read(file)
    root = describe(data).root
    try:
        batch = decode(data, run.rollout.samples_per_file)
    except MalformedRollout as error:
        return _refused(Fault(Reason.MALFORMED, error.why[:200]), root.hex())
    named = _check_image(image, batch, run.recipe.steps)
    session = EngineSession(run, assets, torch_engine)
    try:
        session.keep(named, str(image))
        order = Inspect(
            policy_root=named,
            node=batch.header.node,
            pool=batch.header.pool,
            index=batch.header.index,
            units=batch.units,
            path=str(file),
            report_path="",
            file_root=root,
        )
        found = inspect(session.at(order), order)
    finally:
        session.close()
    return SelfAudit(
        outcome=VerdictOutcome(found.outcome),
        reason=Reason(found.reason),
        detail=found.detail,
        group=found.group,
        root=root.hex(),
        node=batch.header.node,
        policy_root=named.hex(),
        index=batch.header.index,
        units=batch.units,
        groups=len(found.checked),
        reward=found.rewards_mean,
        seconds=found.seconds,
        statistics=found.statistics,
    )


def named_policy(file: Path, run: RunSpec) -> str:
    """The root (hex) of the policy that a file's header names; empty if the file cannot be read as one."""
    try:
        return decode(_read(file), run.rollout.samples_per_file).header.policy_root
    except MalformedRollout:
        return ""


def _read(file: Path) -> bytes:
    with file.open("rb") as opened:
        # One byte more than a file may have: a larger one is refused as such, and not cut off.
        return opened.read(MAX_FILE_BYTES + 1)


def _refused(fault: Fault, root: str) -> SelfAudit:
    return SelfAudit(fault.outcome, fault.reason, fault.detail, fault.group, root, "", "", -1, 0, 0, None, 0.0, {})


def _check_image(image: Path, batch: RolloutBatch, last: int) -> bytes:
    """The root of the policy that the file's header names: it must be `image` at a step of the run, `last` at most."""
    named = batch.header.policy_root
    try:
        weights = weights_root(describe_tensors(decode_image(image.read_bytes())))
    except (MalformedPolicy, OSError) as error:
        raise RunFileError(
            f"cannot read the policy {image}", str(error), "name the policy's canonical bf16 image with --policy"
        ) from error
    step = find_step(named, weights, last)
    if step is None:
        raise RunFileError(
            "the file was made by another policy",
            f"it names {named[:16]}…, which {image} is at no step from 0 to {last}",
            "name the policy that the worker had loaded with --policy",
        )
    return root_at(step, weights)
