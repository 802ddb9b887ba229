"""Where a run at a desk keeps what its batches are made of: nobody commits to files there, they go by their place."""

from pathlib import Path

from node.recipe.manifest import Blobs, checked, materialise
from node.training.batch import Batch
from node.training.length import without_length
from protocol.blobs import describe
from protocol.manifest import MAX_MANIFEST_BYTES, ComposedBatch, decode_composed
from protocol.run import RunSpec


def desk_root(run: RunSpec) -> bytes:
    """What the batches of a run at a desk name it by: the same after it was made longer."""
    return describe(without_length(run)).root


def desk_paths(rollouts: Path, policy: int, index: int) -> tuple[Path, Path]:
    """A file that was made at this desk, and its report."""
    stem = f"{policy:06d}-{index:06d}"
    return rollouts / f"{stem}.rollout", rollouts / f"{stem}.report"


def desk_blobs(rollouts: Path, composed: ComposedBatch) -> tuple[Blobs, Blobs]:
    """The files and the reports of a batch that was made at this desk, by their roots. Raise OSError."""
    paths = {work.file_root: desk_paths(rollouts, work.policy_step, work.index) for work in composed.works}
    of_report = {one.root: paths[work.file_root][1] for work in composed.works for one in work.reports}
    return lambda root: paths[root][0].read_bytes(), lambda root: of_report[root].read_bytes()


def desk_batch(run: RunSpec, rollouts: Path, composed: ComposedBatch) -> Batch:
    """The batch again, for whoever does not trust what lies there. Raises ProtocolError, OSError."""
    files, reports = desk_blobs(rollouts, composed)
    return materialise(run, composed, checked(files), checked(reports))


def read_composed(path: Path) -> ComposedBatch:
    """What a batch was made of, as the spool has it. Raises MalformedManifest, OSError."""
    with path.open("rb") as file:
        return decode_composed(file.read(MAX_MANIFEST_BYTES + 1))
