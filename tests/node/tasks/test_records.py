"""What the owner keeps of tasks is read again after a crash at any line."""

from pathlib import Path

import pytest

from node.errors import StateError
from node.tasks.records import STATE, folder_of, folders


def test_a_task_that_was_half_removed_hides_no_other_one(tmp_path: Path) -> None:
    half, whole = folder_of(tmp_path, bytes(32)), folder_of(tmp_path, bytes([1]) * 32)
    half.create(b"{}")
    whole.create(b"{}")
    (half.path / STATE).unlink()  # killed while it removed the folder
    assert [folder.path for folder in folders(tmp_path)] == [whole.path, half.path]
    with pytest.raises(StateError, match="no task in"):
        half.state()
