"""From a file that the engine made to a promise that everybody hears: stored, signed, journaled, posted."""

from pathlib import Path

from node.inference.wire import Produced
from node.services.station import Station
from protocol.messages import RolloutCommitted
from protocol.statements import WorkCommitment, sign


def slot_name(root: bytes, index: int) -> bytes:
    """What the journal calls a commitment's place. root: of the policy, or the id of the task."""
    return root + index.to_bytes(8, "big")


async def commit(
    station: Station, root: bytes, index: int, produced: Produced, step: int | None = None
) -> WorkCommitment:
    """Commit to a file under (root, index). step: of the policy; None for a task's. Raises StateError where the journal
    holds another promise for this place."""
    path = Path(produced.path)
    info = await station.blobs.add(path)
    path.unlink(missing_ok=True)  # noqa: ASYNC240 - one small local file
    commitment = WorkCommitment(station.pool, station.key.address, root, index, info.root, produced.units)
    signature = sign(station.key, station.domain, commitment)
    message = RolloutCommitted(pool=station.pool, commitment=commitment, signature=signature, size=info.size)
    raw = station.board.sealed(message)
    place, made = (slot_name(root, index), raw), (info.root, root, index, produced.units, station.clock.wall())
    await station.journal.do(station.journal.commit_file, *place, *made, station.run.root, step)
    await station.board.post_raw(raw)
    return commitment
