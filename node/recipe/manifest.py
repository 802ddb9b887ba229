"""From groups to the manifest of a batch, and from a manifest to the batch: the only way to the learner.

The trainer composes a manifest of what its pool has chosen. Whoever replays the step has the manifest alone:
`materialise` reads files and reports and makes the rows. The trainer has read and joined them when they were accepted,
by the same function, and does not do it twice. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from node.recipe.join import join
from node.recipe.judged import Blobs, scores_of
from node.recipe.label_queue import LabelRequest, with_scores, without_rewards
from node.recipe.pool import Group, Key, Selection, freshness, group_id, origin_of, teaches
from node.recipe.teacher_queue import asks_for_teachers, taught_in, with_teacher
from node.state.files import as_named
from node.training.batch import Batch, BatchHeader
from protocol.lots import pack_groups, unpack_groups
from protocol.manifest import ComposedBatch, MalformedManifest, UsedReport, UsedWork, work_order
from protocol.rollout import ReportHeader, ReportRow, ValidatorReport, decode, decode_report
from protocol.run import RunSpec


def compose(run: RunSpec, run_root: bytes, pool: int, selection: Selection) -> ComposedBatch:
    """By name what a selection holds. Every group of it knows its origin."""
    by_work: dict[bytes, list[Group]] = {}
    # Groups without signal are named, too: they are used up, and whoever replays sees that they have none.
    for group in selection.settled:
        by_work.setdefault(group.key[0], []).append(group)
    used = {group.key for group in selection.groups}
    works = (_used_work(run, members, used) for members in by_work.values())
    in_order = sorted(works, key=lambda work: work_order(pool, work))
    return ComposedBatch(run_root, pool, selection.step, tuple(in_order))


def _used_work(run: RunSpec, members: Sequence[Group], used: set[tuple[bytes, int]]) -> UsedWork:
    by_report: dict[tuple[bytes, bytes], list[Group]] = {}
    for group in members:
        by_report.setdefault((origin_of(group).author, origin_of(group).report_root), []).append(group)

    def bitmap(groups: Sequence[Group]) -> bytes:
        return pack_groups((group.key[1] for group in groups), run.rollout.prompts_per_file)

    origin, commitment = origin_of(members[0]), origin_of(members[0]).commitment
    return UsedWork(
        node=origin.node,
        policy_root=commitment.policy_root,
        policy_step=members[0].policy_step,
        index=commitment.index,
        file_root=commitment.file_root,
        units=commitment.units,
        epoch=commitment.epoch,
        size=origin.size,
        reports=tuple(
            UsedReport(author, root, origin_of(groups[0]).report_size, bitmap(groups))
            for (author, root), groups in sorted(by_report.items())
        ),
        used=bitmap([group for group in members if group.key in used]),
        flat=bitmap([group for group in members if group.key not in used]),
        # Each task once: the groups of a file share it.
        judged=tuple({one.task: one for group in members for one in origin_of(group).judged}.values()),
    )


def materialise(
    run: RunSpec, manifest: ComposedBatch, files: Blobs, reports: Blobs, joined: Mapping[Key, Group] = {}
) -> Batch:
    """The batch whose parts these are. reports: what judges were asked and said is among them; joined: groups that this
    node has made of these files and values before. Raises ProtocolError where it breaks a rule of the run; what `files`
    and `reports` raise for what cannot be had goes through."""
    chosen: list[Group] = []
    for work in manifest.works:
        given = _at_hand(run, manifest.pool, work, joined)
        chosen += _used(run, work, given or _groups(run, manifest.pool, work, files(work.file_root), reports))
    wanted = run.rollout.prompts_per_step
    if len(chosen) != wanted:
        raise MalformedManifest("bad batch manifest", f"it uses {len(chosen)} groups, a batch has {wanted}")
    # A pool publishes nothing without a reason, so that nobody fetches and audits for nothing.
    if not any(teaches(run, group) for group in chosen):
        raise MalformedManifest("bad batch manifest", "no group of it has a signal, so no policy follows from it")
    # Whoever replays the step needs the same rows in the same order: sums of floats depend on it.
    chosen.sort(key=freshness)
    rows = tuple(row for group in chosen for row in group.rows)
    return Batch(BatchHeader(manifest.step, files=tuple(group_id(group) for group in chosen)), rows)


def _used(run: RunSpec, work: UsedWork, given: Mapping[int, Group]) -> Iterator[Group]:
    """Raises MalformedManifest where a group that teaches something was set aside, or one is not in the reports."""
    for group in unpack_groups(work.flat, run.rollout.prompts_per_file) or ():
        # Otherwise a trainer could set aside whatever it does not like, as if it taught nothing.
        if group in given and given[group].informative and teaches(run, given[group]):
            raise MalformedManifest("bad batch manifest", f"group {group} was set aside, but it has a signal")
    for group in unpack_groups(work.used, run.rollout.prompts_per_file) or ():
        if group not in given:
            raise MalformedManifest("bad batch manifest", f"the reports lack group {group}, which it uses")
        yield given[group]


def _at_hand(run: RunSpec, pool: int, work: UsedWork, joined: Mapping[Key, Group]) -> dict[int, Group] | None:
    """All groups that are named of a file, where they were joined before. What judges and teachers said is read."""
    if work.judged or (pool and asks_for_teachers(run)):
        return None
    name = work.name(pool)
    most = run.rollout.prompts_per_file
    named = [group for bitmap in (work.used, work.flat) for group in unpack_groups(bitmap, most) or ()]
    found = {group: joined[name, group] for group in named if (name, group) in joined}
    return found if len(found) == len(named) else None


def _groups(run: RunSpec, pool: int, work: UsedWork, data: bytes, reports: Blobs) -> dict[int, Group]:
    """Those of one file whose values the manifest takes from its reports."""
    batch = decode(data, run.rollout.samples_per_file)
    header = batch.header
    # The header is the file's own word. It must be that of the commitment which the manifest names.
    told = (header.pool, header.node, header.policy_root, header.index)
    if told != (pool, work.author, work.policy_root.hex(), work.index):
        raise MalformedManifest("bad batch manifest", f"file {work.file_root.hex()[:16]} is another commitment's")
    rows = tuple(row for one in work.reports for row in _rows(run, work, one, reports(one.root)))
    name, waiting = work.name(pool), without_rewards(rows)
    known = tuple(row for row in rows if row.group not in waiting)
    report = ValidatorReport(ReportHeader(work.file_root.hex(), header.policy_root), known)
    found = join(run, work.file_root, work.policy_step, batch, report, name=name)
    if waiting:
        rest = msgspec.structs.replace(batch, rows=tuple(row for row in batch.rows if row.group in waiting))
        lacking = tuple(row for row in rows if row.group in waiting)
        file = LabelRequest(name, work.file_root, work.policy_step, rest, lacking)
        found += with_scores(run, file, scores_of(work, name, batch, reports))
    # Pool 0 is a desk, where the learner has the teacher by itself.
    if pool and asks_for_teachers(run):
        taught = taught_in(run, work, reports)
        found = [with_teacher(group, taught) for group in found]
    return {group.key[1]: group for group in found}


def _rows(run: RunSpec, work: UsedWork, one: UsedReport, data: bytes) -> list[ReportRow]:
    report = decode_report(data, run.rollout.samples_per_file)
    if report.header.file_root != work.file_root.hex():
        raise MalformedManifest("bad batch manifest", "a report is about another file")
    chosen = set(unpack_groups(one.groups, run.rollout.prompts_per_file) or ())
    return [row for row in report.rows if row.group in chosen]


def checked(blobs: Blobs) -> Blobs:
    """Bytes that nobody has compared with their root since they came. Raises OwnFailure for others."""
    return lambda root: as_named(blobs(root), root, f"blob {root.hex()[:16]}")
