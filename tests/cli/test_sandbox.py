"""`intellect-node sandbox`: what it shows, and the exit codes that scripts count on."""

import json
from pathlib import Path

import pytest

from cli.main import main
from node.sandbox import RuntimeMissing, attacks, find_runtime
from node.sandbox.confined import walls


@pytest.fixture
def program(tmp_path: Path) -> Path:
    try:
        find_runtime()
    except RuntimeMissing as missing:
        pytest.skip(f"{missing}; {missing.remedy}")
    file = tmp_path / "answer.py"
    file.write_text("import sys\nprint(int(input()) * 2)\nsys.stderr.write('\\x1b[31mred')")
    return file


def test_a_program_is_run_and_what_it_printed_is_shown(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("21\n")
    assert main(["sandbox", "run", str(program), "--input", str(tmp_path / "in.txt")]) == 0
    shown = capsys.readouterr()
    assert shown.out == "42\n"
    assert "\x1b" not in shown.err and "(ok; " in shown.err


def test_a_program_that_fails_has_exit_code_6_and_one_object(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sandbox", "run", str(program), "--json"]) == 6
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["status"], said["error"]) == ("raised", "EOFError: EOF when reading a line")


def test_a_limit_that_is_none_is_a_usage_error(program: Path) -> None:
    assert main(["sandbox", "run", str(program), "--memory", "99999"]) == 2


def test_an_interpreter_that_is_another_one_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTELLECT_NODE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "python.wasm").write_bytes(b"another one")
    assert main(["sandbox", "install", "--file", str(tmp_path / "python.wasm")]) == 6
    assert not (tmp_path / "cache").exists()


def test_a_breach_is_shown_and_has_exit_code_6(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if walls.missing():
        pytest.skip(str(walls.missing()))
    monkeypatch.setattr(attacks, "ATTACKS", {"tcp": "", "read_secrets": ""})
    assert main(["sandbox", "check", "--native", "--json"]) == 0
    monkeypatch.setattr(attacks, "breach", lambda outcome: "got in")
    assert main(["sandbox", "check", "--native", "--json"]) == 6
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["attacks"], said["breaches"]) == (2, ["tcp", "read_secrets"])
