"""Groups that wait for what a teacher says of them, and how they get it: from a task's result, or from a manifest that
names it. They go stale like any others. Pure; who asks for the tasks is somebody else.
"""

from collections.abc import Callable, Iterable

import msgspec

from node.recipe.judged import Blobs
from node.recipe.label_queue import RequestQueue
from node.recipe.pool import Group, origin_of
from protocol.manifest import JudgedTask, MalformedManifest, UsedWork
from protocol.run import RunSpec
from protocol.tasks import decode_task
from protocol.teaching import Taught, decode_taught


class TeacherRequest(msgspec.Struct, frozen=True):
    """One file. name: of its work (32 bytes); groups: of it, that wait."""

    name: bytes
    groups: tuple[Group, ...]

    @property
    def step(self) -> int:
        return self.groups[0].policy_step

    @property
    def root(self) -> bytes:
        """Of the file, 32 bytes."""
        return origin_of(self.groups[0]).commitment.file_root

    @property
    def size(self) -> int:
        return origin_of(self.groups[0]).size

    @property
    def author(self) -> str:
        return origin_of(self.groups[0]).commitment.node

    @property
    def tokens(self) -> int:
        """Sampled ones."""
        return sum(row.length for group in self.groups for row in group.rows)


class TeacherQueue(RequestQueue[TeacherRequest]):
    """Of groups that a teacher speaks about."""

    def __init__(self, run: RunSpec, fresh: Callable[[int], bool], taken_in: Callable[[list[Group]], object]) -> None:
        files_per_step = -(-run.rollout.prompts_per_step // run.rollout.prompts_per_file)
        # As many files wait, or so many steps' if that is more: what is behind them is stale before its turn comes.
        most = max(64, 4 * files_per_step)
        super().__init__(fresh, taken_in, ("taught", "unusable"), wanted=asks_for_teachers(run), most=most)

    def put(self, groups: Iterable[Group]) -> None:
        """More groups, each of which knows its origin."""
        for group in groups:
            name = group.key[0]
            known = self._files[name].groups if name in self._files else ()
            self._keep(TeacherRequest(name, (*(one for one in known if one.key != group.key), group)))

    def settle(self, request: TeacherRequest, taught: Taught, named: JudgedTask) -> None:
        """The result of the task `named` on a file is accepted. Raises MalformedManifest for one that is not about its
        groups."""
        groups = [with_teacher(group, taught) for group in request.groups]
        self.forget(request.name)
        self.counts["taught"] += len(groups)
        self._taken_in([_named(group, named) for group in groups])


def asks_for_teachers(run: RunSpec) -> bool:
    """Whether what the teacher says comes from tasks, in a swarm."""
    return run.distill is not None and run.distill.tasks


def with_teacher(group: Group, taught: Taught) -> Group:
    """The group with what the teacher says of its rows. Raises MalformedManifest where it says nothing of these."""
    said = [row.logprobs for row in taught.get(group.key[1], ())]
    if [len(one) for one in said] != [row.length for row in group.rows]:
        raise MalformedManifest(
            "bad batch manifest", f"the teacher says nothing of group {group.key[1]}, or of another"
        )
    rows = (msgspec.structs.replace(row, teacher_logprobs=one) for row, one in zip(group.rows, said, strict=True))
    return msgspec.structs.replace(group, rows=tuple(rows))


def taught_in(run: RunSpec, work: UsedWork, blobs: Blobs) -> Taught:
    """What the teacher says of a file, by the task that a manifest names. Raises ProtocolError for a broken rule."""
    for task in work.judged:
        spec = decode_task(blobs(task.task))
        for one in task.shards if spec.kind == "teach" else ():
            if one.shard >= spec.shards or spec.assets[one.shard].root != work.file_root.hex():
                raise MalformedManifest("bad batch manifest", "a teacher was asked about another file")
            if one.report_root != one.file_root:
                raise MalformedManifest("bad batch manifest", "a teacher's result is not what its author signed")
            most = run.rollout.samples_per_file
            return decode_taught(blobs(one.file_root), work.file_root, task.task, most)
    return {}


def _named(group: Group, task: JudgedTask) -> Group:
    origin = origin_of(group)
    return msgspec.structs.replace(group, origin=msgspec.structs.replace(origin, judged=(*origin.judged, task)))
