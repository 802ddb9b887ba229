"""A step as its manifest says: fetched, made into the batch that the leader learnt from, and compared afterwards."""

from pathlib import Path

import msgspec
import structlog
import trio

from node.recipe.batch_log import Entry
from node.services.context import Context, manifest_of
from node.services.training.stating import FETCH_TIMEOUT, metrics_of
from node.state.files import write_whole
from node.swarm.facts import PolicyFollowed
from node.training.batch import Batch
from node.training.spool import Spool
from protocol.errors import ProtocolError
from protocol.lots import unpack_groups
from protocol.manifest import BatchManifest, ComposedBatch
from protocol.messages import PolicyAnnounced, StepObjected

log = structlog.get_logger()


async def stated_manifest(context: Context, signed: PolicyFollowed) -> BatchManifest:
    """Of the step that led to an announced policy. Raises IntellectError where it cannot be had, is not what was
    signed, or breaks a rule of the run."""
    message = signed.message
    manifest = await manifest_of(context, signed.author, message, FETCH_TIMEOUT)
    if (manifest.parent, manifest.term) != (message.parent, message.term):
        raise ProtocolError("unusable manifest", "its parent or term is not that of the statement which names it")
    return manifest


def settled_by(run_groups: int, pool: int, composed: ComposedBatch) -> list[tuple[bytes, int]]:
    """The groups that a batch has used up, those without signal included. run_groups: of a file."""
    return [
        (work.name(pool), group)
        for work in composed.works
        for bitmap in (work.used, work.flat)
        for group in unpack_groups(bitmap, run_groups) or ()
    ]


def entry_of(composed: ComposedBatch, batch: Batch) -> Entry:
    """What is put on record of a step that somebody else composed."""
    ages: dict[str, int] = {}
    for row in batch.rows:
        age = str(composed.step - row.policy_step)
        ages[age] = ages.get(age, 0) + 1
    tokens = sum(len(row.output) for row in batch.rows)
    return Entry(composed.step, {"output_tokens": tokens, "staleness": ages}, list(batch.header.files))


class Compared(msgspec.Struct, frozen=True):
    """A step that was replayed here beside what its leader stated. differs: in words, empty where it is equal."""

    step: int
    differs: str = ""


async def compare(spool: Spool, signed: PolicyFollowed) -> Compared:
    """With the policy that this node's learner made. A policy 0 without a statement has its root alone."""
    message, step = signed.message, signed.message.step
    own = await trio.to_thread.run_sync(metrics_of, spool, step)
    said = {"policy_root": message.policy_root, "state_root": message.state_root}
    apart = [name for name, root in said.items() if root and own.get(name) != root.hex()]
    found = Compared(step, " and ".join(apart))
    level = log.warning if apart else log.info
    level("step.replayed", step=step, leader=signed.author, equal=not apart, differs=found.differs)
    return found


async def object_to(context: Context, message: PolicyAnnounced) -> None:
    """Another state came out here: validators are asked to look, wherever their lots fell."""
    await context.board.post(StepObjected(pool=context.pool, term=message.term, step=message.step))


def term_known(spool: Spool) -> int:
    """The newest term whose first policy this spool has heeded."""
    try:
        return int(_term_path(spool).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def remember_term(spool: Spool, term: int) -> None:
    # Whole: an empty file would read as term 0, and what a later term decided long ago would be cut once more.
    write_whole(_term_path(spool), f"{term}\n".encode())


def _term_path(spool: Spool) -> Path:
    return spool.root / "term"
