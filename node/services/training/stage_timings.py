"""How long the files of a batch took from policy to batch, by the clock of the node that tells it.

A worker could say how long it generated; nobody could check it. What the trainer can say for certain is when it heard
what: its policy was published, a worker committed to a file, the file's verdict stood, its values were here. Times of
before a restart are not known; a stage without any is left out.
"""

from collections.abc import Iterable
from statistics import fmean

import trio

from node.bounded_dict import BoundedDict
from node.clock import Seconds
from node.recipe.pool import Group
from node.swarm.register import WorkId

STAGES = ("commit", "verify", "fetch", "queue")
"""From the policy's publication to the commitment (its way, generation, the promise's way), from there to the verdict,
to the values being here, to the batch."""
REMEMBERED = 8192


class StageTimings:
    """Bounded: the oldest files are forgotten first. clock: monotonic seconds."""

    def __init__(self, clock: Seconds = trio.current_time) -> None:
        self._clock = clock
        self._published: BoundedDict[int, float] = BoundedDict(REMEMBERED)
        self._works: BoundedDict[WorkId, dict[str, float]] = BoundedDict(REMEMBERED)

    def published(self, step: int) -> None:
        self._published[step] = self._clock()

    def reached(self, work: WorkId, stage: str) -> None:
        """A file has come to the end of a stage; only the first time counts."""
        self._works.setdefault(work, {}).setdefault(stage, self._clock())

    def means(self, groups: Iterable[Group]) -> dict[str, float]:
        """Mean seconds of each stage over the files of a batch that is being handed over now."""
        spent: dict[str, list[float]] = {stage: [] for stage in STAGES}
        now = self._clock()
        # By file: one with many groups in the batch counts once.
        for work, step in {group.key[0]: group.policy_step for group in groups}.items():
            at: float | None = self._published.get(step)
            ends = {**self._works.get(work, {}), "queue": now}
            for stage in STAGES:
                end = ends.get(stage)
                if at is not None and end is not None:
                    spent[stage].append(max(end - at, 0.0))
                at = end
        return {stage: round(fmean(values), 4) for stage, values in spent.items() if values}
