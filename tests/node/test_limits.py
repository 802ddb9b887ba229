"""What a container leaves of its machine is what the node thinks it has."""

import logging
from pathlib import Path

import pytest

from node import limits
from node.logs import Sparing

V2 = "0::/kubepods/pod1/box\n"
V1 = "12:memory:/docker/abc\n5:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n"
GIB = 2**30


def write(place: Path, **files: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(text)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    control, own = tmp_path / "cgroup", tmp_path / "own"
    control.mkdir()
    own.write_text("")
    monkeypatch.setattr(limits, "CONTROL", control)
    monkeypatch.setattr(limits, "OWN_GROUPS", own)
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda _: set(range(8)))
    return tmp_path


def test_a_machine_without_groups_has_what_it_has(groups: Path) -> None:
    assert limits.cores() == 8 and limits.memory().total > 0
    (groups / "own").unlink()
    assert limits.cores() == 8, "and one without such files"


def test_the_least_limit_of_all_groups_above_counts(groups: Path) -> None:
    (groups / "own").write_text(V2)
    box = groups / "cgroup" / "kubepods" / "pod1" / "box"
    write(
        box,
        memory__max="max\n",
        memory__current=f"{GIB // 2}",
        memory__stat="anon 5\ninactive_file 0\n",
        cpu__max="max 100000",
    )
    write(
        box.parent,
        memory__max=f"{GIB}",
        memory__current=f"{3 * GIB // 4}",
        memory__stat=f"inactive_file {GIB // 4}\n",
        cpu__max="150000 100000",
    )
    write(box.parent.parent, memory__max=f"{64 * GIB}", cpu__max="50000000 100000")
    assert limits.memory() == (GIB, GIB // 2), "files that can be dropped are free"
    assert limits.cores() == 2, "one and a half are two that are not always there"


def test_a_container_whose_path_is_hidden_reads_what_is_mounted(groups: Path) -> None:
    (groups / "own").write_text(V1)
    write(groups / "cgroup" / "memory", memory__limit_in_bytes=f"{GIB}", memory__usage_in_bytes="0")
    write(groups / "cgroup" / "cpu,cpuacct", **{"cpu__cfs_quota_us": "50000", "cpu__cfs_period_us": "100000"})
    assert limits.memory().total == GIB and limits.cores() == 1


@pytest.mark.parametrize("nonsense", ["", "max", "-1", "0", "1e9", "\xff\xfe", "9223372036854771712"])
def test_what_is_no_limit_limits_nothing(groups: Path, nonsense: str) -> None:
    (groups / "own").write_text(V1 + V2 + "rubbish\n::::\n")
    before = limits.memory().total
    write(groups / "cgroup", cpu__max=f"{nonsense} 100000", memory__max="9223372036854771712")
    write(groups / "cgroup" / "cpu", **{"cpu__cfs_quota_us": nonsense, "cpu__cfs_period_us": "0"})
    assert limits.cores() == 8 and limits.memory().total == before


def test_a_daemon_may_open_as_many_files_as_the_system_lets_it_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    for bounds, wanted in (((1024, 4096), 4096), ((1024, 10**6), 16_384), ((10**5, 10**6), 10**5)):
        monkeypatch.setattr("resource.getrlimit", lambda _, bounds=bounds: bounds)
        monkeypatch.setattr("resource.setrlimit", lambda _, pair: set_to.append(pair))
        assert limits.allow_open_files() == wanted
    assert set_to == [(4096, 4096), (16_384, 10**6)]


def test_a_loop_that_fails_ten_times_a_second_is_told_of_once_a_minute() -> None:
    """As one that accepts connections where no more files may be open."""
    sparing, told = Sparing(), []
    for tenth in range(1300):
        record = logging.LogRecord("trio.serve_listeners", logging.ERROR, __file__, 1, "x", (), (OSError, None, None))
        record.created = 1000 + tenth / 10
        if sparing.filter(record):
            told.append(record)
    assert [record.created for record in told] == [1000, 1060, 1120]
    assert all(record.exc_info is None for record in told)
