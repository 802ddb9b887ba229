"""What a daemon asks of the learner's process in a swarm that pre-trains, one whole file a job below the spool:

    jobs/train-000012.json         daemon -> learner: a job
    jobs/train-000012.done         learner -> daemon: what came of it; its presence means that the job is over

Either may be killed at any time: a job without an answer is done again.
"""

from pathlib import Path
from typing import Any

import msgspec

from node.state.files import write_whole
from node.training.bells import ring
from node.training.errors import TrainingError
from node.training.spool import Spool
from node.training.watch import SpoolWatch


class _Job(msgspec.Struct, frozen=True, tag=True):
    pass


class StartRound(_Job, frozen=True):
    """Write outer state 0, unless a newer one is there."""


class Train(_Job, frozen=True):
    """A replica's steps of a round, until all are made or `until` (unix seconds) is over, at least one. fresh: without
    the moments that its last round left; steps: at most, 0: the run's."""

    round: int
    replica_id: int
    until: float
    fresh: bool = False
    steps: int = 0


class Check(_Job, frozen=True):
    """Look at a contribution. others: of the same round, which it might be a copy of; replay: make its steps again;
    before, after: its node's own state then, empty where they are not here; batches: files of what its steps learnt
    from, in order, in a run with rollouts."""

    round: int
    path: str
    others: tuple[str, ...] = ()
    replay: bool = False
    before: str = ""
    after: str = ""
    batches: tuple[str, ...] = ()


class Publish(_Job, frozen=True):
    """Evaluate the outer state that a round begins with; write its image and the metrics."""

    round: int
    metrics: dict[str, Any]


Job = StartRound | Train | Check | Publish


class JobFailure(msgspec.Struct, frozen=True):
    """what, why, remedy: of a job that could not be done."""

    found: dict[str, Any] = {}
    what: str = ""
    why: str = ""
    remedy: str = ""


class JobDirectory:
    """The directory of jobs of one spool."""

    def __init__(self, spool: Spool, watch: SpoolWatch | None = None) -> None:
        """watch: of the spool, at the daemon's end."""
        self._directory, self._watch = spool.root / "jobs", watch or SpoolWatch(spool)

    async def run(self) -> None:
        """At the daemon's end: hear of answers until cancelled."""
        await self._watch.run()

    def prepare(self) -> None:
        """Make the directory, empty: what was asked by an earlier daemon nobody waits for."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in self._directory.iterdir():
            path.unlink()

    @property
    def exist(self) -> bool:
        """Whether the spool's learner is to wait for jobs."""
        return self._directory.is_dir()

    # the learner's end

    def next(self) -> tuple[str, Job] | None:
        """The oldest job that has no answer."""
        try:
            left = [path for path in self._directory.glob("*.json") if not self._answer(path.stem).exists()]
            first = min(left, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)
            return (first.stem, msgspec.json.decode(first.read_bytes(), type=Job)) if first else None
        except FileNotFoundError:  # the daemon has just withdrawn one
            return None

    def answer(self, name: str, answer: JobFailure) -> None:
        write_whole(self._answer(name), msgspec.json.encode(answer))
        ring(self._directory.parent)

    # the daemon's end

    async def ask(self, name: str, job: Job) -> dict[str, Any]:
        """What comes of a job. Raises TrainingError if it cannot be done."""
        asked, answered = self._directory / f"{name}.json", self._answer(name)
        try:
            write_whole(asked, msgspec.json.encode(job))
            ring(self._directory.parent)
            await self._watch.until_there(answered.exists)
            answer = msgspec.json.decode(answered.read_bytes(), type=JobFailure)
        except OSError as error:
            why = f"{self._directory}: {error.strerror or error}"
            raise TrainingError("the learner cannot be asked", why, "free space there; it is tried again") from error
        finally:
            # The job first: one that stands there without an answer would be done again.
            asked.unlink(missing_ok=True)
            answered.unlink(missing_ok=True)
        if answer.what:
            raise TrainingError(answer.what, answer.why, answer.remedy)
        return answer.found

    def _answer(self, name: str) -> Path:
        return self._directory / f"{name}.done"
