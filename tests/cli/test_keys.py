"""Keys on the command line: made, taken in, listed, handed out; never shown by accident."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from eth_account import Account

from cli.main import main
from node.state.keystore import load_key
from protocol.identity import NodeKey

SECRET = "4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with nothing of ours on this machine, and keys that open fast (the format is the same)."""
    for name in [name for name in os.environ if name.startswith("INTELLECT_NODE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    full = Account.encrypt
    monkeypatch.setattr(Account, "encrypt", lambda secret, password, **_: full(secret, password, iterations=2))
    return tmp_path / "home"


@pytest.fixture
def password(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("right\n")
    path.chmod(0o600)
    return path


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_a_key_with_a_name_lies_in_the_key_directory_and_is_listed(
    home: Path, password: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "new", "provider", "--password-file", str(password), "--json"]) == 0
    made = told(capsys)
    assert made["file"] == str(home / "keys" / "provider.json")
    assert (home / "keys").stat().st_mode & 0o777 == 0o700
    assert main(["keys", "new", "--state-dir", str(home / "nodes" / "local" / "worker")]) == 0
    capsys.readouterr()
    assert main(["keys", "list", "--json"]) == 0
    listed = {entry["name"]: entry for entry in told(capsys)["keys"]}
    assert listed["provider"]["address"] == made["address"] and listed["provider"]["problem"] is None
    assert listed["worker"]["kind"] == "node"


def test_an_exposed_key_is_listed_with_the_remedy(
    home: Path, password: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["keys", "new", "provider", "--password-file", str(password)])
    (home / "keys" / "provider.json").chmod(0o640)
    capsys.readouterr()
    assert main(["keys", "list"]) == 0
    assert "chmod 600" in capsys.readouterr().out
    assert main(["keys", "show", "provider", "--password-file", str(password)]) == 3
    assert "chmod 600" in capsys.readouterr().err


def test_a_secret_is_taken_from_standard_input_and_never_from_the_command_line(
    home: Path, password: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"0x{SECRET}\n"))
    assert main(["keys", "import", "old", "--password-file", str(password), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["address"] == NodeKey(bytes.fromhex(SECRET)).address
    assert SECRET not in shown.out + shown.err
    assert load_key(home / "keys" / "old.json", "right").secret.hex() == SECRET
    assert main(["keys", "import", "other", SECRET]) == 2


@pytest.mark.parametrize("secret", ["", "12", "zz" * 32, "00" * 32, "ff" * 32])
def test_what_is_no_secret_is_refused(
    secret: str, password: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(secret))
    assert main(["keys", "import", "old", "--password-file", str(password)]) == 2
    assert "this is no private key" in capsys.readouterr().err


def test_another_programs_keystore_is_taken_in_under_a_new_password(
    home: Path, tmp_path: Path, password: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "UTC--geth.json"
    foreign.write_text(json.dumps(Account.encrypt(bytes.fromhex(SECRET), "theirs")))
    foreign.chmod(0o600)
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    theirs.chmod(0o600)
    passwords = ["--password-file", str(theirs), "--new-password-file", str(password)]
    assert main(["keys", "import", "mine", "--keystore", str(foreign), *passwords]) == 0
    assert load_key(home / "keys" / "mine.json", "right").secret.hex() == SECRET


def test_a_keystore_that_asks_for_all_the_memory_is_refused_unopened(
    tmp_path: Path, password: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Account.encrypt(bytes.fromhex(SECRET), "right")
    data["crypto"]["kdfparams"]["n"] = 2**30  # type: ignore[index]
    path = tmp_path / "bomb.json"
    path.write_text(json.dumps(data))
    path.chmod(0o600)
    assert main(["keys", "import", "mine", "--keystore", str(path), "--password-file", str(password)]) == 3
    assert "MiB of memory" in capsys.readouterr().err


def test_a_key_is_handed_out_only_when_it_is_said_twice(
    tmp_path: Path, password: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(SECRET))
    main(["keys", "import", "mine", "--password-file", str(password)])
    capsys.readouterr()
    export = ["keys", "export", "mine", "--password-file", str(password)]
    assert main(export) == 2
    assert main([*export, "--reveal"]) == 2
    assert SECRET not in (shown := capsys.readouterr()).out + shown.err
    assert main([*export, "--reveal", "--yes"]) == 0
    assert capsys.readouterr().out == f"{SECRET}\n"
    copy = tmp_path / "copy.json"
    assert main([*export, "--to", str(copy), "--new-password-file", str(password), "--yes"]) == 0
    assert copy.stat().st_mode & 0o777 == 0o600
    assert load_key(copy, "right").secret.hex() == SECRET
    assert main([*export, "--to", str(copy), "--yes"]) == 3


def test_a_node_gets_an_imported_key_that_its_daemon_can_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(SECRET))
    state = tmp_path / "node"
    assert main(["keys", "import", "--state-dir", str(state)]) == 0
    assert main(["keys", "show", "--state-dir", str(state), "--json"]) == 0
    assert NodeKey(bytes.fromhex(SECRET)).address in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../escape", "a b", "x" * 65])
def test_a_name_cannot_lead_out_of_the_key_directory(
    name: str, home: Path, password: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    main(["keys", "new", name, "--password-file", str(password)])
    assert not list(home.rglob("*.json"))


def test_a_nodes_password_opens_no_key_of_a_person(
    home: Path, password: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["keys", "new", "provider", "--password-file", str(password)])
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setenv("INTELLECT_NODE_PASSWORD", "wrong here")
    assert main(["keys", "show", "provider", "--json"]) != 0
    assert "INTELLECT_KEY_PASSWORD" in capsys.readouterr().err
    monkeypatch.setenv("INTELLECT_KEY_PASSWORD", "right")
    assert main(["keys", "show", "provider", "--json"]) == 0


@pytest.mark.parametrize("words", ["import a", "new a"])
def test_a_question_that_is_interrupted_ends_as_interrupted_and_writes_nothing(
    words: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def interrupted(question: str, **options: object) -> str:
        asked.append(question)
        raise typer.Abort

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", interrupted)
    assert main(["keys", *words.split()]) == 130
    assert asked and "nothing was done" in capsys.readouterr().err
    assert not list(home.rglob("*.json"))
