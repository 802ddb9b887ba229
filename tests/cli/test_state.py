"""The commands that carry a node from one place to another."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from node.state.directory import StateDir
from node.state.journal import Journal
from node.state.keystore import save_key, write_private
from protocol.identity import NodeKey

KEY = NodeKey(b"\x06" * 32)
PASSWORD = "random-" + "z" * 32


@pytest.fixture
def node(tmp_path: Path) -> Path:
    place = tmp_path / "node"
    write_private(place / "password", PASSWORD)
    save_key(place / "node-key.json", KEY, PASSWORD)
    Journal(place / "journal.sqlite").close()
    write_private(tmp_path / "pw", PASSWORD)
    return place


def run(*words: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, [str(word) for word in words])
    return found.exit_code, found.output + repr(found.exception or "")


def test_a_node_is_moved_and_cannot_be_started_or_exported_where_it_was(node: Path, tmp_path: Path) -> None:
    code, said = run(
        "keys", "move", "--state-dir", node, "--to", tmp_path / "a", "--new-password-file", tmp_path / "pw"
    )
    assert code == 0, said
    assert json.loads((node / "moved.json").read_bytes())["address"] == KEY.address
    there = tmp_path / "there"
    code, said = run("state", "import", tmp_path / "a", "--state-dir", there, "--new-password-file", tmp_path / "pw")
    assert code == 0 and KEY.address in said
    code, said = run("state", "export", "--state-dir", node, "--to", tmp_path / "b")
    assert code != 0 and "moved away" in said


def test_a_node_that_runs_is_not_exported(node: Path, tmp_path: Path) -> None:
    held = StateDir(node)
    code, said = run(
        "state", "export", "--state-dir", node, "--to", tmp_path / "b", "--new-password-file", tmp_path / "pw"
    )
    held.close()
    assert code != 0 and "is in use" in said and not (tmp_path / "b").exists()
