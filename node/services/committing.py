"""From a file that the engine made to a promise that everybody hears: stored, signed, journaled, posted."""

from pathlib import Path

from node.services.station import Station
from protocol.messages import RolloutCommitted
from protocol.statements import WorkCommitment, sign, work_id


def slot_name(root: bytes, index: int) -> bytes:
    """What the journal calls a commitment's place. root: of the policy, or the id of the task."""
    return root + index.to_bytes(8, "big")


async def commit(
    station: Station, root: bytes, index: int, path: Path, units: int, step: int | None = None
) -> WorkCommitment:
    """Commit to a file under (root, index). units: of work in it; step: of the policy; None for a task's. Raises
    StateError where the journal holds another promise for this place."""
    # In the store first: whoever hears of the commitment asks for the file at once.
    info = await station.blobs.add(path)
    path.unlink(missing_ok=True)  # noqa: ASYNC240 - one small local file
    epoch = station.time.epoch()
    commitment = WorkCommitment(station.pool, station.key.address, root, index, info.root, units, epoch)
    signature = sign(station.key, station.domain, commitment)
    message = RolloutCommitted(pool=station.pool, commitment=commitment, signature=signature, size=info.size)
    raw = station.board.sealed(message)
    place, file = (slot_name(root, index), raw), (info.root, root, index, units, station.clock.wall())
    of = (station.run.root, step, epoch, work_id(commitment))
    # Before it is said: a second promise for the same place would cost the stake.
    await station.journal.do(station.journal.commit_file, *place, *file, *of)
    await station.board.post_raw(raw)
    return commitment
