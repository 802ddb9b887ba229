"""A step as its manifest says: fetched, made into the batch that the leader learnt from, and compared afterwards."""

from pathlib import Path

import msgspec
import structlog
import trio

from node.recent import Recent
from node.recipe.batch_log import Entry
from node.services.station import Station, manifest_of
from node.services.training.stating import FETCH_TIMEOUT, make, metrics_of
from node.state.files import write_whole
from node.swarm.facts import PolicyFollowed
from node.training.batch import Batch
from node.training.spool import Spool
from protocol.audit import window_of
from protocol.earnings import of_standing, standing_units
from protocol.errors import ProtocolError
from protocol.lots import unpack_groups
from protocol.manifest import BatchManifest, ComposedBatch, replay_key
from protocol.messages import PolicyAnnounced, StepReplayed

log = structlog.get_logger()


async def stated_manifest(station: Station, signed: PolicyFollowed) -> BatchManifest:
    """Of the step that led to an announced policy. Raises IntellectError where it cannot be had, is not what was
    signed, or breaks a rule of the run."""
    message = signed.message
    manifest = await manifest_of(station, signed.author, message, FETCH_TIMEOUT)
    if (manifest.parent, manifest.term) != (message.parent, message.term):
        raise ProtocolError("unusable manifest", "its parent or term is not that of the statement which names it")
    return manifest


async def batch_of(station: Station, signed: PolicyFollowed, manifest: BatchManifest) -> Batch:
    """What that step learnt from; where standbys are paid, with the key of this one's proof. Raises as above."""
    batch = await make(station, manifest.batch, (signed.author,))
    statement = signed.message.statement
    if statement is None or not standing_units(station.run.spec):
        return batch
    key = replay_key(statement.struct_hash, station.key.address).hex()
    return Batch(msgspec.structs.replace(batch.header, replay_key=key), batch.rows)


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
    """A step that was replayed here beside what its leader stated. differs: in words, empty where it is equal; proof:
    of the state, empty where none was asked for."""

    step: int
    differs: str = ""
    proof: bytes = b""


async def compare(spool: Spool, signed: PolicyFollowed) -> Compared:
    """With the policy that this node's learner made. A policy 0 without a statement has its root alone."""
    message, step = signed.message, signed.message.step
    own = await trio.to_thread.run_sync(metrics_of, spool, step)
    said = {"policy_root": message.policy_root, "state_root": message.state_root}
    apart = [name for name, root in said.items() if root and own.get(name) != root.hex()]
    found = Compared(step, " and ".join(apart), bytes.fromhex(str(own.get("replay_proof", ""))))
    level = log.warning if apart else log.info
    level("step.replayed", step=step, leader=signed.author, equal=not apart, differs=found.differs)
    return found


class Told:
    """What this standby tells of its replays, and what was certified of it. told: proofs; windows: of policies in which
    it told any; certified: of these, those for which a quorum found it to be paid."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._windows: Recent[int, None] = Recent(1024)
        self._certified: Recent[int, None] = Recent(1024)
        self._told = 0

    @property
    def counts(self) -> dict[str, int]:
        return {"told": self._told, "windows": len(self._windows), "certified": len(self._certified)}

    async def object(self, message: PolicyAnnounced) -> None:
        """Another state came out here: validators are asked to look, wherever their lots fell."""
        await self._post(message, b"")

    async def _post(self, message: PolicyAnnounced, proof: bytes) -> None:
        pool, board = self._station.pool, self._station.board
        await board.post(StepReplayed(pool=pool, term=message.term, step=message.step, proof=proof))

    async def tell(self, message: PolicyAnnounced, proof: bytes) -> None:
        """Of the state that an announced policy is the image of, which came out here."""
        station, spec = self._station, self._station.run.spec
        await self._post(message, proof)
        self._told += 1
        self._windows[window_of(message.step, spec.audit)] = None
        # The epoch is that of a policy some steps later.
        for epoch in (message.epoch - 1, message.epoch):
            held = await station.journal.do(station.journal.certificates, station.key.address, epoch)
            quorate = {work for (work, _), by in held.items() if len(by) >= station.membership.quorum}
            for window in self._windows.keys() - self._certified.keys() if quorate else ():
                if of_standing(spec, station.pool, station.key.address, window, epoch).work in quorate:
                    self._certified[window] = None


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
