"""`intellect-node verifiers`, with a pip and a server that do nothing."""

import json
import sys
from pathlib import Path

import pytest

from cli.main import main
from node.environments.verifiers import environment


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment that is there already, whose python writes down what it is asked."""
    monkeypatch.setattr(environment, "own_place", lambda: tmp_path)
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho progress\ncase "$*" in *nothing*) exit 1;; esac\n'
    )
    program.chmod(0o755)
    return program


def test_packages_are_installed_beside_a_pinned_verifiers(
    interpreter: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["verifiers", "install", "./mine", "other==1", "--json"]) == 0
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == [f"-m pip install verifiers=={environment.VERSION} ./mine other==1", "-c import verifiers.v1"]
    out, err = capfd.readouterr()
    assert json.loads(out)["python"] == str(interpreter) and "progress" in err
    assert sys.executable not in "".join(asked)


def test_what_pip_cannot_install_is_named(interpreter: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verifiers", "install", "nothing"]) == 6
    assert "nothing" in capfd.readouterr().err


SERVER = """#!{python}
import json, sys
asked = json.loads(sys.stdin.readline())
row = {{"problem_id": "mine-0", "prompt": asked["config"]["say"], "reset": {{"task": 0}}}}
told = {{"url": "ws://h/ws", "tasks": 1, "rows": [row]}}
print(json.dumps({{"wrong": "no such package"}} if asked["taskset"] == "gone" else told), flush=True)
"""


def test_a_package_is_served_and_its_rows_are_written(
    interpreter: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    interpreter.write_text(SERVER.format(python=sys.executable))
    words = ["verifiers", "serve", "mine", "--rows", str(tmp_path / "rows.jsonl"), "--config", '{"say": "x"}', "--json"]
    assert main(words) == 0
    assert json.loads(capfd.readouterr().out)["url"] == "ws://h/ws"
    assert json.loads((tmp_path / "rows.jsonl").read_text())["prompt"] == "x"
    assert main(["verifiers", "serve", "gone", "--config", '{"say": ""}']) == 6
    assert "no such package" in capfd.readouterr().err
    assert main(["verifiers", "serve", "mine", "--config", "[]"]) == 2
