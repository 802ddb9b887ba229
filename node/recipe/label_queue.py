"""Files whose groups wait for somebody's word before they are trained on: for judges here, for a teacher in
`teacher_queue`.

They go stale like any others: batches that waited would let three slow nodes stop a run. Of what judges score
everything but the reward is known (it is NaN in the validators' report), so nothing is recomputed once they have
spoken. Pure; who asks is somebody else.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from node.recipe.join import join
from node.recipe.pool import Group, Origin
from protocol.budgets import draw_targets, shaped
from protocol.manifest import JudgedTask
from protocol.rollout import ReportHeader, ReportRow, RolloutBatch, ValidatorReport
from protocol.run import RunSpec


class LabelRequest(msgspec.Struct, frozen=True):
    """One file. name: of its work (32 bytes); root: of the file (32 bytes); step: of its policy; batch: its samples
    that wait; rows: of them what validators recomputed, without rewards; origins: of its groups."""

    name: bytes
    root: bytes
    step: int
    batch: RolloutBatch
    rows: tuple[ReportRow, ...]
    origins: dict[int, Origin] = {}

    @property
    def groups(self) -> set[int]:
        return {row.group for row in self.rows}


class Waiting(Protocol):
    """A file that waits. name: of its work, 32 bytes; step: of its policy; groups: of it, that wait."""

    @property
    def name(self) -> bytes: ...
    @property
    def step(self) -> int: ...
    @property
    def groups(self) -> Collection[Any]: ...


R = TypeVar("R", bound=Waiting)


class RequestQueue(Generic[R]):
    """Files of which somebody's word is waited for. fresh: whether groups of a policy's step may still be trained on;
    taken_in: is given groups with that word; wanted: whether the run asks anybody; most: files, beyond which the
    stalest gives way; outcomes: what is counted beside `too_late`, of groups."""

    def __init__(
        self,
        fresh: Callable[[int], bool],
        taken_in: Callable[[list[Group]], object],
        outcomes: Sequence[str],
        *,
        wanted: bool,
        most: int,
    ) -> None:
        self.fresh, self._taken_in, self.wanted, self._most = fresh, taken_in, wanted, most
        self._files: dict[bytes, R] = {}
        self.counts = dict.fromkeys((*outcomes, "too_late"), 0)

    def __len__(self) -> int:
        return len(self._files)

    @property
    def files(self) -> list[R]:
        """Those that wait, the freshest policy first: the others may be stale before anybody has spoken."""
        return sorted(self._files.values(), key=lambda file: -file.step)

    def forget(self, name: bytes) -> None:
        """A work is rejected after all, or used up elsewhere."""
        self._files.pop(name, None)

    def give_up(self, file: R, why: str = "too_late") -> None:
        """Nobody waits for it any more."""
        self.forget(file.name)
        self.counts[why] += len(file.groups)

    def _keep(self, file: R) -> None:
        self._files[file.name] = file
        while len(self._files) > self._most:
            self.give_up(self.files[-1])


class LabelQueue(RequestQueue[LabelRequest]):
    """Of groups that judges score. apart: those on which they did not agree."""

    def __init__(self, run: RunSpec, fresh: Callable[[int], bool], taken_in: Callable[[list[Group]], object]) -> None:
        # Their groups go stale in a few steps, so a longer queue would be thrown away.
        super().__init__(fresh, taken_in, ("judged", "apart"), wanted=run.audit.judges, most=64)
        self._run = run

    def put(self, file: LabelRequest) -> None:
        """One more, if the run has judges."""
        # Otherwise a validator that leaves open what it could score would spend the pool's money.
        if self.wanted:
            self._keep(file)

    def settle(self, file: LabelRequest, scores: Mapping[tuple[int, int], float], judged: JudgedTask) -> None:
        """The judges of a file have spoken, in the task `judged`. scores: (group, sample) -> 0 to 1; groups that lack
        one are dropped."""
        self.forget(file.name)
        groups = [_judged(group, file, judged) for group in with_scores(self._run, file, scores)]
        self.counts["judged"] += len(groups)
        self.counts["apart"] += len(file.groups) - len(groups)
        if groups:
            self._taken_in(groups)


def _judged(group: Group, file: LabelRequest, judged: JudgedTask) -> Group:
    origin = file.origins.get(group.key[1])
    if origin is None:
        return group
    return msgspec.structs.replace(group, origin=msgspec.structs.replace(origin, judged=(judged,)))


def without_rewards(rows: Sequence[ReportRow]) -> set[int]:
    """The groups of a report that wait for judges."""
    return {row.group for row in rows if math.isnan(row.reward)}


def with_scores(run: RunSpec, file: LabelRequest, scores: Mapping[tuple[int, int], float]) -> list[Group]:
    """The groups of which every sample has a score. Raises ProtocolError as `join` does."""
    # Whole groups: an advantage is taken against all samples of a problem.
    lacking = {row.group for row in file.rows if (row.group, row.sample) not in scores}
    header = file.batch.header
    targets = draw_targets(run, bytes.fromhex(header.policy_root), header.node, header.index, header.capacity)
    lengths = {(row.group, row.sample): row.units for row in file.batch.rows}
    rows: list[ReportRow] = []
    for row in file.rows:
        if row.group in lacking:
            continue
        place = row.group, row.sample
        score = scores[place]
        reward = shaped(run.length_budget, score, lengths[place], targets[row.group]) if targets else score
        rows.append(msgspec.structs.replace(row, reward=reward))
    report = ValidatorReport(ReportHeader(file.root.hex(), header.policy_root), tuple(rows))
    return join(run, file.root, file.step, file.batch, report, name=file.name)
