import errno
import os
from pathlib import Path

import pytest

from node.state.files import own_directory, read_if_there, whole_file, write_whole


def test_a_file_appears_whole_and_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_whole(path, b"old")
    with whole_file(path) as file:
        file.write(b"ne")
        assert path.read_bytes() == b"old"
        file.write(b"w")
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["file"]


def test_bytes_reach_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    for name in ("fsync", "replace", "link"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, real=real: (said.append(name), real(*given))[1])
    write_whole(tmp_path / "file", b"x")
    write_whole(tmp_path / "other", b"x", replace=False)
    assert said == ["fsync", "replace", "fsync", "fsync", "link", "fsync"]
    said.clear()
    write_whole(tmp_path / "file", b"y", synced=False)
    assert said == ["replace"], "what can be had again"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_block_that_fails_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), whole_file(tmp_path / "file") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_a_secret_is_its_owners_alone_and_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_whole(path, b"secret", mode=0o600, replace=False)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_whole(path, b"another", mode=0o600, replace=False)
    assert path.read_bytes() == b"secret" and os.listdir(tmp_path) == ["key"]


def test_a_directory_that_somebody_else_made_is_none_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    own_directory(tmp_path / "a" / "b")
    monkeypatch.setattr(os, "getuid", lambda: (tmp_path / "a").stat().st_uid + 1)
    with pytest.raises(PermissionError, match="b belongs to somebody else"):
        own_directory(tmp_path / "a" / "b")


def test_what_is_not_there_is_nothing_and_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"1")
    assert (read_if_there(tmp_path / "there"), read_if_there(tmp_path / "absent")) == (b"1", None)
    with pytest.raises(OSError):
        read_if_there(tmp_path)
