"""What is read from a disk, and what is not."""

import os
from pathlib import Path

import pytest

from node.environments.errors import PackageError
from node.environments.package import archive
from node.environments.package.archive import pack, read_source


def test_a_module_a_directory_and_an_archive_are_read_alike(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    for name in ("environment.py", "data/words.txt", ".git/config", "__pycache__/environment.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x = 1\n")
    files = {"environment.py": b"x = 1\n", "data/words.txt": b"x = 1\n"}
    assert read_source(folder) == files
    (tmp_path / "any.py").write_bytes(b"x = 1\n")
    assert read_source(tmp_path / "any.py") == {"environment.py": b"x = 1\n"}
    (tmp_path / "packed.tar").write_bytes(pack(files))
    assert read_source(tmp_path / "packed.tar") == files


def test_links_devices_and_pipes_are_refused_wherever_they_lie(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("")
    for make in (
        lambda path: path.symlink_to(tmp_path / "secret.py"),
        lambda path: path.symlink_to(tmp_path),
        os.mkfifo,
    ):
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        make(folder / "environment.py")
        for path in (folder, folder / "environment.py"):
            if not path.is_dir() or path == folder:
                with pytest.raises(PackageError, match="link|regular file"):
                    read_source(path)
        (folder / "environment.py").unlink()


def test_the_bounds_hold_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("environment.py", "a.py", "b.py"):
        (tmp_path / name).write_bytes(b"#" * 10)
    monkeypatch.setattr(archive, "MAX_BYTES", 25)
    with pytest.raises(PackageError, match="at most 25 bytes"):
        read_source(tmp_path)
    monkeypatch.setattr(archive, "MAX_FILES", 2)
    with pytest.raises(PackageError, match="more than 2 files"):
        read_source(tmp_path)


@pytest.mark.parametrize("name", ["none.py", "none", "text.txt"])
def test_what_is_no_package_is_said_to_be_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "text.txt").touch()
    with pytest.raises(PackageError) as caught:
        read_source(tmp_path / name)
    assert name in caught.value.why and caught.value.remedy
