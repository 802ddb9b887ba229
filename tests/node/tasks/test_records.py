"""What the owner keeps of tasks is read again after a crash at any line."""

from pathlib import Path

import pytest

from node.errors import StateError
from node.tasks.records import STATE, ShardRecord, folder_of, folders


def test_a_task_that_was_half_removed_hides_no_other_one(tmp_path: Path) -> None:
    half, whole = folder_of(tmp_path, bytes(32)), folder_of(tmp_path, bytes([1]) * 32)
    half.create(b"{}")
    whole.create(b"{}")
    (half.path / STATE).unlink()  # killed while it removed the folder
    assert [folder.path for folder in folders(tmp_path)] == [whole.path, half.path]
    with pytest.raises(StateError, match="no task in"):
        half.state()


@pytest.mark.parametrize("part", ["json", "arrow", "report"])
def test_a_shard_whose_files_were_changed_is_named(tmp_path: Path, part: str) -> None:
    folder, file = folder_of(tmp_path, bytes(32)), tmp_path / "file"
    file.write_bytes(b"file")
    folder.create(b"{}")
    assert folder.add(ShardRecord(3, "node", "work", "root", 1, "", (), 0.0), file, b"report")
    changed = folder.path / "shards" / f"00003.{part}"
    if part == "json":
        changed.write_bytes(b"{")
    else:
        changed.unlink()
    told = r"00003\.json is damaged" if part == "json" else "shard 3 of the task cannot be read"
    with pytest.raises(StateError, match=told):
        list(folder.results())
