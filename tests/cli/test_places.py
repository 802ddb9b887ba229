"""Which node a command is about, where nobody says."""

from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.places import chosen_directory


def used(home: Path, name: str) -> Path:
    """A state directory that a daemon has used."""
    directory = home / "nodes" / "net" / name
    directory.mkdir(parents=True)
    (directory / "journal.sqlite").touch()
    return directory


def test_the_only_node_is_meant_and_of_several_the_command_asks_which(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path))
    with pytest.raises(CommandError, match="no node is known"):
        chosen_directory(None)
    first = used(tmp_path, "worker")
    assert chosen_directory(None) == first
    second = used(tmp_path, "validator")
    with pytest.raises(CommandError, match="which node") as asked:
        chosen_directory(None)
    assert str(first) in asked.value.why and str(second) in asked.value.why
    assert chosen_directory(second) == second
