"""A reviewer's report on a proposed environment package: what `env check` finds, in words that are the same everywhere.

Which rows are played and what garbage they are told follow from (task, package): who wrote the package could not
know. Only the sandbox that runs use is asked, under both settings of its compiler: what another way of running code
finds depends on the machine, and reports are compared byte by byte. Blocking; the package's code runs in child
processes.
"""

from pathlib import Path
from typing import Any

import msgspec

from node.environments.errors import PackageError
from node.environments.package.archive import unpack
from node.environments.package.check import PackageReport, PlayWay, check_package
from node.environments.programs import opener_for
from node.sandbox import SandboxError
from protocol.blobs import describe
from protocol.tasks import TaskId

PACKAGE = "package.tar"
"""The path of the reviewed package among a review task's assets."""


class NoReview(PackageError):
    """This machine cannot review packages."""


def review_package(files: Path, task: TaskId) -> bytes:
    """The report on the archive among a task's files, canonical JSON. Raises NoReview where the package or the
    interpreter is missing, or a play was not decided: another machine may tell."""
    try:
        archive = (files / PACKAGE).read_bytes()
    # Whoever asked for the task named its files, and may have named no package.
    except OSError as error:
        why = f"{PACKAGE}: {error.strerror}"
        raise NoReview("the package cannot be reviewed here", why, "offer the task with its package") from None
    told: dict[str, Any] = {"package": describe(archive).root.hex(), "good": False, "findings": []}
    rows = 64
    try:
        seed = task + describe(archive).root
        report = check_package(unpack(archive), _ways(files), rows, seed=seed)
    except PackageError as error:
        told["findings"] = [_finding(-1, error.what, error.why)]
    except SandboxError as error:
        # What the package does wrong is found everywhere. What the sandbox lacks is this machine's own.
        raise NoReview("the package cannot be reviewed here", error.why, error.remedy) from error
    else:
        if report.undecided:
            why = f"{report.undecided} plays were not decided in time"
            raise NoReview("the package was not decided here", why, "review it on a quieter machine")
        told |= _told(report)
    return msgspec.json.encode(told, order="sorted")


def _told(report: PackageReport) -> dict[str, Any]:
    return {
        "good": report.good,
        "name": report.manifest.name,
        "rows": report.rows,
        "checked": report.checked,
        "swept": report.swept,
        "warnings": [_finding(one.row, one.what, one.remedy) for one in report.warnings],
        "findings": [_finding(one.row, one.what, one.remedy) for one in report.findings],
    }


def _finding(row: int, what: str, why: str) -> dict[str, Any]:
    """Bounded: at most 50 of them fit a report many times over."""
    text = 500
    return {"row": row, "what": what[:text], "why": why[:text]}


def _ways(files: Path) -> list[PlayWay]:
    other = opener_for(files, optimised=False)
    return [PlayWay("WASI", "wasi", opener_for(files)), PlayWay("WASI, other settings", "wasi", other)]
