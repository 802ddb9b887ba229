"""What the results of a task say: its figures, what judges agree on, what reviewers found alike. Blocking.

Reads what the daemon has collected (`records`), in the order of the problems; what is made of it on disk: `exports`.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from node.errors import StateError
from node.inference.opinions import agreed
from node.tasks.measures import Measures, measure
from node.tasks.records import ShardRecord, TaskFolder
from node.tasks.results import TaskAnswer, read_answers, scores_by_problem


def read_task(folder: TaskFolder) -> Iterator[tuple[ShardRecord, list[TaskAnswer]]]:
    """Every shard that is here, in order. Raises StateError for files that were changed."""
    for record, file, report in folder.results():
        try:
            yield record, read_answers(record, file, report)
        except Exception as error:
            # Anybody may have changed these files, and each decoder has errors of its own.
            raise StateError(
                f"shard {record.shard} of the task cannot be read", str(error), f"look at {folder.path}"
            ) from error


# evaluate


def evaluate(folder: TaskFolder) -> Measures:
    """A policy's figures on the problems of the task: pass@k for 1, 2, 4 ... and all samples."""
    spec = folder.spec()
    scores = scores_by_problem(answer for _, answers in read_task(folder) for answer in answers)
    powers = {1 << n for n in range(spec.samples.bit_length())}
    return measure(scores, sorted(powers | {spec.samples}))


# judge


class TaskJudgement(msgspec.Struct, frozen=True):
    """scores: "group/sample" of the judged file -> agreed score; dropped: groups of which the judges are apart or
    silent about an answer; judges: who gave an opinion."""

    file_root: str
    scores: dict[str, float]
    dropped: tuple[int, ...]
    judges: tuple[str, ...]


def judgement(folder: TaskFolder) -> TaskJudgement:
    """What the judges of a file agree on."""
    spec = folder.spec()
    opinions: dict[str, list[float]] = {}
    judges: dict[str, None] = {}
    for record, answers in read_task(folder):
        judges[record.node] = None
        for answer in answers:
            # Below 0 is an opinion that could not be read (`agreed`), which spoils the agreement.
            opinions.setdefault(answer.problem_id, []).append(-1.0 if answer.score is None else answer.score)
    agreements = {name: agreed(found, spec.copies) for name, found in opinions.items()}
    # Whole groups: an advantage is taken against all answers to a problem.
    dropped = {int(name.partition("/")[0]) for name, score in agreements.items() if score is None}
    scores = {name: score for name, score in agreements.items() if score is not None}
    scores = {name: score for name, score in scores.items() if int(name.partition("/")[0]) not in dropped}
    return TaskJudgement(spec.subject, scores, tuple(sorted(dropped)), tuple(judges))


# review


class Review(msgspec.Struct, frozen=True):
    """reports: root of a report -> who gave it; confirmed: the report that most reviewers gave alike, if more than half
    of those asked did."""

    package: str
    reports: dict[str, tuple[str, ...]]
    confirmed: Any | None


def review(folder: TaskFolder) -> Review:
    """What the reviewers of a package agree on."""
    spec = folder.spec()
    given: dict[str, list[str]] = {}
    content: dict[str, bytes] = {}
    for record, report, _ in folder.results():
        given.setdefault(record.file_root, []).append(record.node)
        content[record.file_root] = report
    best = max(given, key=lambda root: len(given[root]), default=None)
    confirmed = best is not None and len(given[best]) * 2 > spec.copies
    agreed_report = msgspec.json.decode(content[best]) if best is not None and confirmed else None
    return Review(spec.subject, {root: tuple(nodes) for root, nodes in given.items()}, agreed_report)
