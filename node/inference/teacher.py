"""What a run's teacher says of a rollout file. The teacher is a second engine of torch's, whatever the own one is: it
computes on the same device in the same type, and is made when it is first asked."""

import time
from pathlib import Path

from node.inference.engine import FinishedSequence
from node.inference.errors import EngineError
from node.inference.session import EngineSession
from node.inference.wire import Taught, Teach
from node.state.files import write_whole
from protocol.blobs import describe
from protocol.rollout import MAX_FILE_BYTES, RolloutBatch, decode
from protocol.teaching import encode_taught


def teach(session: EngineSession, order: Teach) -> Taught:
    """Raises EngineError, and MalformedRollout for a file that is none."""
    started = time.monotonic()
    batch = _read(session, order)
    found: list[list[float]] = []
    at_once = 64  # rows of one turn on the engine: others get theirs between
    for start in range(0, len(batch.rows), at_once):
        rows = batch.rows[start : start + at_once]
        # Experts on record are the policy's, not the teacher's.
        sequences = [FinishedSequence(row.prompt, row.output, row.segments) for row in rows]
        found += [one.logprobs.tolist() for one in session.ask_teacher(sequences)]
    data = encode_taught(order.file_root, order.task, batch.rows, found)
    write_whole(Path(order.out_path), data)
    return Taught(id=order.id, path=order.out_path, tokens=batch.units, seconds=time.monotonic() - started)


def _read(session: EngineSession, order: Teach) -> RolloutBatch:
    with open(order.path, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    # What is found is bound to this root: of other bytes it would be a result that no validator comes to.
    if describe(data).root != order.file_root:
        raise EngineError("a file cannot be taught about", "its bytes are not those that are named", "fetch it again")
    return decode(data, session.run.rollout.samples_per_file)
