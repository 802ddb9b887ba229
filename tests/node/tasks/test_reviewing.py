"""A report on a package says the same wherever it is written."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.environments.errors import PackageError
from node.environments.package.archive import pack
from node.environments.package.check import PackageFinding, PackageReport
from node.environments.package.templates import template
from node.sandbox import SandboxError
from node.tasks import reviewing
from node.tasks.reviewing import PACKAGE, NoReview, review_package
from protocol.blobs import describe

ARCHIVE = pack({"environment.py": template("single", "capitals").encode()})

TASK = bytes(32)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / PACKAGE).write_bytes(ARCHIVE)
    return tmp_path


def test_bytes_that_are_no_package_get_a_report_that_says_so(tmp_path: Path) -> None:
    (tmp_path / PACKAGE).write_bytes(b"no archive")
    told = msgspec.json.decode(review_package(tmp_path, TASK))
    assert not told["good"] and "plain relative path" in told["findings"][0]["why"]
    assert told["package"] == describe(b"no archive").root.hex()


def test_a_task_without_a_package_gets_no_report(tmp_path: Path) -> None:
    with pytest.raises(NoReview, match="cannot be reviewed"):
        review_package(tmp_path, TASK)


def test_a_report_holds_what_was_found_and_what_could_not_be_told_is_none(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest: Any = type("Manifest", (), {"name": "capitals"})
    found = PackageReport(manifest, 32, 8, ("WASI",), [PackageFinding(3, "w" * 900, "mend it")])
    monkeypatch.setattr(reviewing, "check_package", lambda *_, **__: found)
    told = msgspec.json.decode(review_package(archive, TASK))
    assert (told["rows"], told["checked"], told["good"]) == (32, 8, False)
    assert told["findings"] == [{"row": 3, "what": "w" * 500, "why": "mend it"}]
    found.undecided = 1
    with pytest.raises(NoReview, match="not decided"):
        review_package(archive, TASK)


@pytest.mark.parametrize(
    ("error", "reports"), [(PackageError("p", "w", "r"), True), (SandboxError("no interpreter", "w", "r"), False)]
)
def test_a_bad_package_is_a_finding_and_a_missing_interpreter_is_none(
    archive: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reports: bool
) -> None:
    def fail(*_: object, **__: object) -> PackageReport:
        raise error

    monkeypatch.setattr(reviewing, "check_package", fail)
    if reports:
        assert msgspec.json.decode(review_package(archive, TASK))["findings"][0]["what"] == "p"
    else:
        with pytest.raises(NoReview):
            review_package(archive, TASK)


def test_the_rows_of_a_review_follow_from_the_task_and_the_package(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[bytes] = []
    manifest: Any = type("Manifest", (), {"name": "capitals"})

    def seen(*_: object, seed: bytes) -> PackageReport:
        seeds.append(seed)
        return PackageReport(manifest, 9, 9, ("WASI",))

    monkeypatch.setattr(reviewing, "check_package", seen)
    for task in (b"a" * 32, b"a" * 32, b"b" * 32):
        review_package(archive, task)
    (archive / PACKAGE).write_bytes(pack({"environment.py": template("single", "others").encode()}))
    review_package(archive, b"a" * 32)
    assert seeds[0] == seeds[1] and len(set(seeds)) == 3
