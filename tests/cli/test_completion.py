"""What the shell completes: every command, and the nodes and networks that there are."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.main import app, main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with one node that a daemon has run, and one network."""
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path))
    (tmp_path / "nodes" / "mine" / "worker").mkdir(parents=True)
    (tmp_path / "nodes" / "mine" / "worker" / "journal.sqlite").touch()
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / "mine.toml").touch()
    return tmp_path


def options(command: Any, context: Any = None) -> Iterator[tuple[str, Any, Any]]:
    """(command's path, option, context) of every option of every command."""
    here = type(command).context_class(command, info_name=command.name, parent=context)
    for parameter in command.params:
        yield here.command_path, parameter, here
    for below in getattr(command, "commands", {}).values():
        yield from options(below, here)


def test_every_state_directory_and_every_network_is_completed_from_what_there_is(home: Path) -> None:
    known = {"--state-dir": [str(home / "nodes" / "mine" / "worker")], "--network": ["mine"]}
    found = 0
    for path, option, context in options(typer.main.get_command(app)):
        for name in set(known) & set(option.opts):
            values = [item.value for item in option.shell_complete(context, "")]
            assert set(known[name]) <= set(values), f"{path} {name}"
            found += 1
    assert found > 40


def test_bash_is_told_of_commands_and_of_values(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def completed(words: str, number: int) -> list[str]:
        monkeypatch.setenv("_INTELLECT_NODE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(number))
        assert main([]) == 0
        return capsys.readouterr().out.split()

    assert completed("intellect-node statu", 1) == ["status"]
    assert completed("intellect-node service un", 2) == ["uninstall"]
    assert completed("intellect-node logs --state-dir ", 3) == [str(home / "nodes" / "mine" / "worker")]


def test_the_completion_s_script_can_be_shown_in_a_shell() -> None:
    command = f"{sys.executable} -m cli --show-completion; exit $?"  # the shell stays: it is who asks
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "_intellect_node_completion" in done.stdout
