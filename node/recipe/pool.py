"""The pool of verified groups: what is fresh, what teaches something, and which of it makes the next batch.

Pure: no clock, no file, no network. A group is all samples of one problem in one file; batches are made of whole
groups, so that advantages are complete. Staleness is counted from the policy that produced a group's tokens to the
step that would train on it, and nothing staler than the run allows leaves the pool.
"""

import math
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from node.training.advantages import group_advantages, overlong_penalty
from protocol.identity import address_bytes
from protocol.manifest import JudgedTask, batch_order
from protocol.own_code import is_import_path
from protocol.recipe import ALIKE
from protocol.run import RunSpec
from protocol.statements import WorkCommitment

Key = tuple[bytes, int]
"""(the work's id, at a desk the root of its file; number of the group in it). The id, because the same file in another
place is another work: what is used up or taken back there must not touch this one."""


class PoolSample(msgspec.Struct, frozen=True):
    """A completion as metrics see it. task: the reward before length shaping; target: of its length, None without."""

    length: int
    reward: float
    task: float
    finished: bool
    target: int | None = None


class Origin(msgspec.Struct, frozen=True):
    """Where a group's tokens and values come from. commitment, size: of its file; author, report_root, report_size: of
    the report whose values count; judged: the task in which judges gave its rewards, if they did."""

    commitment: WorkCommitment
    size: int
    author: bytes
    report_root: bytes
    report_size: int
    judged: tuple[JudgedTask, ...] = ()

    @property
    def node(self) -> bytes:
        return address_bytes(self.commitment.node)


class Group(msgspec.Struct, frozen=True):
    """rows: what the learner is given (node.training.batch.BatchRow), one per sample; label: of its environment;
    order: (policy step, lot of its file), for a stable sequence; origin: None where nobody can name it."""

    key: Key
    policy_step: int
    rows: tuple[Any, ...]
    samples: tuple[PoolSample, ...]
    label: str = ""
    order: tuple[int, int] = (0, 0)
    origin: Origin | None = None

    @property
    def informative(self) -> bool:
        """Whether its rewards differ: equal ones have no advantage. A group of one has none either."""
        rewards = [sample.reward for sample in self.samples]
        return len(rewards) > 1 and max(rewards) - min(rewards) > ALIKE


class Selection(msgspec.Struct, frozen=True):
    """A batch and what was left out for it. flat: looked at, without signal, set aside by the online filter or as a
    batch in which nothing had any; idle: without signal too, and not even looked at, as the batch was full before;
    barren: how many whole batches without signal came before this one."""

    step: int
    groups: tuple[Group, ...]
    flat: tuple[Group, ...] = ()
    idle: tuple[Group, ...] = ()
    barren: int = 0

    @property
    def settled(self) -> tuple[Group, ...]:
        """All groups that this batch has used up, those without signal included: none of them may be used again."""
        return (*self.groups, *self.flat, *self.idle)


def teaches(run: RunSpec, group: Group) -> bool:
    """Whether the learner would make an update of a group alone. Not of equal rewards; nor where all advantages are
    zero, as those of `max_rl` below a mean of zero, or where no answer counts. A teacher speaks of every answer, and
    what a function of the run's own sees in one only the learner finds out."""
    objective = run.recipe.objective()
    if run.distill is not None or is_import_path(objective.advantage):
        return True
    if not group.informative:
        return False
    lengths = np.array([sample.length for sample in group.samples], dtype=np.int64)
    rewards = np.array([sample.reward for sample in group.samples], dtype=np.float32)
    rewards += overlong_penalty(lengths, run.rollout.max_output_tokens, objective.overlong_share)
    found = group_advantages(np.zeros(len(lengths), dtype=np.int64), rewards, lengths, objective.advantage) != 0
    counted = [sample.finished or not objective.mask_truncated for sample in group.samples]
    return bool((found & counted).any())


class RolloutPool:
    """Groups between verification and a batch. `barren`: whole batches without signal since the last one that had
    some. They are set aside: no policy is made of them."""

    def __init__(self, run: RunSpec) -> None:
        self._run, self._wanted = run, run.rollout.prompts_per_step
        self._filters = run.filters
        self._max_staleness = run.recipe.max_staleness
        self._groups: dict[Key, Group] = {}
        self._aside: dict[Key, Group] = {}
        self.barren = 0
        self.stale_rollouts = 0

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def rollouts(self) -> int:
        """Samples that wait."""
        return sum(len(group.rows) for group in self._groups.values())

    def recall(self, stale_rollouts: int) -> None:
        """So many were counted before a restart."""
        self.stale_rollouts = stale_rollouts

    def add(self, groups: Iterable[Group]) -> None:
        """A group that is there already stays as it is."""
        for group in groups:
            # The first report counts: a second one of the same group must not change what a manifest already names.
            if group.key not in self._aside:
                self._groups.setdefault(group.key, group)

    def forget(self, name: bytes) -> None:
        """Remove the groups of a work that wait."""
        self.settle([key for key in (*self._groups, *self._aside) if key[0] == name])

    def dealt(self, replicas: int, replica_id: Callable[[bytes], int]) -> "list[RolloutPool]":
        """A pool for each of several replicas with what of this one is its share, by work; this one stays as it is."""
        pools = [RolloutPool(self._run) for _ in range(replicas)]
        for group in self._groups.values():
            pools[replica_id(group.key[0])].add([group])
        return pools

    def settle(self, keys: Iterable[Key]) -> None:
        """Remove groups, such as another pool's batch has used up."""
        for key in keys:
            self._groups.pop(key, None)
            self._aside.pop(key, None)

    def forget_made_with(self, gone: Callable[[bytes], bool]) -> None:
        """Remove the groups that policies made which are none any more, by their roots."""
        groups = [*self._groups.items(), *self._aside.items()]
        self.settle(key for key, one in groups if one.origin and gone(one.origin.commitment.policy_root))

    def drop_stale(self, step: int) -> None:
        """Remove and count what may not train `step` any more."""
        late = [group for group in self._aside.values() if step - group.policy_step > self._max_staleness]
        self.settle([group.key for group in late])
        old = [group for group in self._groups.values() if step - group.policy_step > self._max_staleness]
        self.settle(group.key for group in old)
        self.stale_rollouts += sum(len(group.rows) for group in old)

    def missing(self, step: int) -> int:
        """How many groups more the batch of `step` needs; 0: `take` will give one. With the online filter only
        groups with signal count, until as many were looked at as `filters.refill` allows."""
        fresh = [group for group in self._groups.values() if step - group.policy_step <= self._max_staleness]
        if not self._filters.online:
            return max(0, self._wanted - len(fresh))
        # A model that solves nearly everything, or nothing, makes few groups with signal. Then the step is made of what
        # there is.
        if len(fresh) >= math.floor(self._filters.refill * self._wanted):
            return 0
        return max(0, self._wanted - sum(group.informative for group in fresh))

    def take(self, step: int, fed: Container[bytes] | None = None) -> Selection | None:
        """The batch of `step`: the freshest policies first; None while groups are missing, or none of them has a
        signal. fed: workers of whom the last batches named something (`manifest.batch_order`), None where that does
        not count.

        Where more is made than can be learnt from, this keeps learning close to the policy; where less is, everything
        is used anyway. Oldest first, a swarm's queue slid to the greatest age and stayed there, and a third of the
        work went stale all the same.

        With the online filter, groups without signal are settled together with the batch, and if the refill's limit
        came first, some of them fill it up. Batches in which nothing has a signal are set aside, and the next one is
        made in their place.
        """
        self.drop_stale(step)
        while self.missing(step) == 0:
            selection = self._taken(step, fed)
            if selection is not None:
                return selection
        return None

    def _taken(self, step: int, fed: Container[bytes] | None) -> Selection | None:
        """The same of what waits, of which there is enough; None where it was set aside."""
        # What is thrown away with each batch cannot be missed by anybody.
        turns = fed if self._filters.keep_surplus else None
        waiting = _in_turn(sorted(self._groups.values(), key=freshness), turns)
        looked_at = waiting if self._filters.online else waiting[: self._wanted]
        if not any(teaches(self._run, group) for group in looked_at):
            self._set_aside(looked_at)
            return None
        found = self._filtered(step, waiting) if self._filters.online else Selection(step, tuple(looked_at))
        aside = tuple(sorted(self._aside.values(), key=freshness))
        selection = msgspec.structs.replace(found, flat=(*aside, *found.flat), barren=self.barren)
        self.barren = 0
        if not self._filters.keep_surplus:
            # What is over is of a policy that is one step old by then: the run's owner may prefer to learn from the
            # newest only.
            self._groups.clear()
        self.settle(group.key for group in selection.settled)
        return selection

    def _set_aside(self, groups: Sequence[Group]) -> None:
        self.settle([group.key for group in groups])
        self._aside |= {group.key: group for group in groups}
        self.barren += len(groups) // self._wanted
        # The oldest are forgotten: what nothing can be learnt from is named while it costs little.
        # Batches without signal that are named together with the next one that has some: who replays it fetches them
        # all.
        for key in list(self._aside)[: -8 * self._wanted]:
            del self._aside[key]

    def _filtered(self, step: int, waiting: Sequence[Group]) -> Selection:
        """Groups with signal that stand behind the last chosen one are surplus."""
        informative = [group for group in waiting if group.informative][: self._wanted]
        flat = [group for group in waiting if not group.informative]
        if len(informative) == self._wanted:
            seen = waiting[: waiting.index(informative[-1])]
            looked_at = [group for group in seen if not group.informative]
            return Selection(step, tuple(informative), tuple(looked_at), tuple(flat[len(looked_at) :]))
        fill = self._wanted - len(informative)
        return Selection(step, tuple(sorted([*informative, *flat[:fill]], key=freshness)), tuple(flat[fill:]))


def origin_of(group: Group) -> Origin:
    """Of a group that somebody took in, who names it."""
    assert group.origin is not None, f"group {group_id(group)} came from nowhere"  # the caller's
    return group.origin


def freshness(group: Group) -> tuple[int, int, Key]:
    """Newest policy first, then by lot."""
    return -group.policy_step, group.order[1], group.key


def _in_turn(groups: Sequence[Group], fed: Container[bytes] | None) -> list[Group]:
    """With the first work of each starving worker before the others. groups: by `freshness`."""
    first: dict[bytes, bytes] = {}
    if fed is None:
        return list(groups)
    for group in groups:
        if group.origin is not None and group.origin.node not in fed:
            first.setdefault(group.origin.node, group.key[0])
    chosen = set(first.values())
    return sorted(groups, key=lambda group: batch_order(group.key[0] in chosen, (*freshness(group)[:2], group.key[0])))


def group_id(group: Group) -> str:
    """root:group, as a batch's header names what it holds."""
    return f"{group.key[0].hex()}:{group.key[1]}"


def key_of(name: str) -> Key | None:
    """The other way round; None for what names no group."""
    root, _, number = name.partition(":")
    try:
        # int() takes other scripts' digits too, and each group must have one name.
        return (bytes.fromhex(root), int(number)) if len(root) == 64 and number.isascii() else None
    except ValueError:
        return None
