"""Groups whose rewards are a matter of opinion, between an accepted file and what its judges agree on.

Everything but the reward is known of them (it is NaN in the validators' report), so nothing is recomputed once the
judges have spoken. They go stale like any others: batches that waited for judges would let three slow nodes stop a run.
Pure; who asks the judges is somebody else.
"""

import math
from collections.abc import Callable, Mapping, Sequence

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


class LabelQueue:
    """fresh: whether groups of a policy's step may still be trained on; taken_in: is given groups with rewards."""

    def __init__(self, run: RunSpec, fresh: Callable[[int], bool], taken_in: Callable[[list[Group]], object]) -> None:
        self._run, self.fresh, self._taken_in = run, fresh, taken_in
        self._files: dict[bytes, LabelRequest] = {}
        self.counts = {"judged": 0, "apart": 0, "too_late": 0}
        """Groups: with rewards that judges agreed on, without, and those that were stale before there were any."""

    def __len__(self) -> int:
        return len(self._files)

    @property
    def files(self) -> list[LabelRequest]:
        """Those that wait, the freshest policy first."""
        # The freshest first: the others may be stale before their judges have spoken.
        return sorted(self._files.values(), key=lambda file: -file.step)

    def put(self, file: LabelRequest) -> None:
        """One more, if the run has judges; the stalest gives way where there are too many."""
        # Otherwise a validator that leaves open what it could score would spend the pool's money.
        if not self._run.audit.judges:
            return
        self._files[file.name] = file
        # Files that wait. Their groups go stale in a few steps, so a longer queue would be thrown away.
        while len(self._files) > 64:
            self.give_up(self.files[-1])

    def forget(self, name: bytes) -> None:
        """A work is rejected after all."""
        self._files.pop(name, None)

    def give_up(self, file: LabelRequest) -> None:
        """Nobody waits for its judges any more."""
        self.forget(file.name)
        self.counts["too_late"] += len(groups_of(file))

    def settle(self, file: LabelRequest, scores: Mapping[tuple[int, int], float], judged: JudgedTask) -> None:
        """The judges of a file have spoken, in the task `judged`. scores: (group, sample) -> 0 to 1; groups that lack
        one are dropped."""
        self.forget(file.name)
        groups = [_judged(group, file, judged) for group in with_scores(self._run, file, scores)]
        self.counts["judged"] += len(groups)
        self.counts["apart"] += len(groups_of(file)) - len(groups)
        if groups:
            self._taken_in(groups)


def _judged(group: Group, file: LabelRequest, judged: JudgedTask) -> Group:
    origin = file.origins.get(group.key[1])
    if origin is None:
        return group
    return msgspec.structs.replace(group, origin=msgspec.structs.replace(origin, judged=(judged,)))


def groups_of(file: LabelRequest) -> set[int]:
    return {row.group for row in file.rows}


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
