"""The program as a user meets it: help, errors in three lines, exit codes."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from cli.errors import CommandError, describe, exit_code, unwrap
from cli.main import app, main
from node.chain.errors import WrongChain
from node.errors import ConfigError, EvictedError, RunFileError, StateError
from node.network.errors import PortInUse
from node.services.judging.self_audit import audit_file
from protocol.errors import IntellectError

ROOT = Path(__file__).resolve().parents[2]


def commands(group: Any, before: str = "") -> Iterator[str]:
    """Every command that there is."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


COMMANDS = sorted(commands(typer.main.get_command(app)))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with nothing of ours on this machine."""
    for name in [name for name in os.environ if name.startswith("INTELLECT_NODE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "home"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example" in shown
    assert f"intellect-node {command.split()[0]}" in shown


def test_help_shows_sections_of_files_and_examples_as_a_shell_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--help"])
    shown = capsys.readouterr().out
    assert "run file with [pretraining]" in shown
    main(["run", "size", "--help"])
    assert "[trainer]" in capsys.readouterr().out
    main(["run", "warm-start", "--help"])
    shown = capsys.readouterr().out
    assert "run file: [warm_start] model" in shown and "\\\\" not in shown and "\\[" not in shown


def test_help_shows_no_value_for_a_switch_and_none_by_its_python_type(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("contract faucet", "join", "weights merge"):
        assert main([*words.split(), "--help"]) == 0
        said = capsys.readouterr().out
        assert "<" not in said.replace("<=", "") and "4294967295" not in said, words
        assert "TEXT" in said and "PATH" in said, "the control: values are named"


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "7 evicted or slashed" in capsys.readouterr().out


def test_help_answers_without_loading_the_heavy_parts() -> None:
    source = "import sys, cli.main; cli.main.main(['--help']); sys.exit(any(m in sys.modules for m in "
    source += "('torch', 'web3', 'libp2p', 'trio', 'pyarrow', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_the_module_is_the_same_program() -> None:
    result = subprocess.run([sys.executable, "-m", "cli", "--version"], cwd=ROOT, capture_output=True, check=False)
    assert result.stdout.startswith(b"intellect-node ")


def test_a_usage_error_has_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["join", "--role", "king"]) == 2
    assert main(["demo", "--workers", "0"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["status"], 5, "no daemon runs on this machine"),
        (["status", "--state-dir", "nowhere"], 5, "no daemon runs there"),
        (["devnet", "status"], 4, "the local chain does not run"),
        (["contract", "events", "--network", "mars"], 4, "there is no network 'mars'"),
        (["contract", "show", "0x12", "--network", "local"], 2, "'0x12' is no address"),
        (["contract", "stake", "5"], 4, "there is no local chain"),
        (["contract", "stake", "5", "--network", "base-sepolia", "--yes"], 4, "the contracts are not on base-sepolia"),
        (["contract", "stake", "0.1234567890123456789"], 2, "is no amount of tokens"),
        (["contract", "stake", "1e99"], 2, "is no amount of tokens"),
        (["contract", "pool", "set-run", "1", "abc"], 2, "is no hash"),
        (["contract", "deploy", "--network", "base", "--unbonding", "soon"], 2, "is no length of time"),
        (["contract", "deploy", "--network", "base"], 2, "nobody can be asked"),
        (["contract", "deploy", "--network", "base", "--yes"], 4, "no key to sign with"),
        (["contract", "deploy", "--network", "base", "--yes", "--key", "me"], 3, "no key at"),
        (["contract", "deploy", "--network", "base", "--yes", "--key", "a b"], 2, "is no name for a key"),
        (["keys", "show", "{tmp}/absent.json"], 3, "no key at"),
        (["keys", "new"], 2, "which key?"),
        (["keys", "new", "{tmp}/provider.json"], 3, "no password for provider.json"),
        (["demo", "--resume", "--dir", "{tmp}/demo", "--no-cheat"], 3, "there is no demo to go on with"),
        (["demo", "--run", "{tmp}/absent.toml", "--dir", "{tmp}/demo", "--resume"], 2, "contradict"),
    ],
)
def test_a_mistake_ends_with_three_lines_and_its_code(
    arguments: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.format(tmp=tmp_path) for argument in arguments]) == code
    error = capsys.readouterr().err
    assert says in error
    assert "why:" in error
    assert "do:" in error
    assert "Traceback" not in error


def test_joining_without_a_chain_ends_with_three_lines_and_leaves_no_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cli", "join", "--network", "local", "--state-dir", str(tmp_path / "node")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 4
    assert "error: there is no local chain" in result.stderr
    assert "start: importing" in result.stderr.splitlines()[0], "silent while it imports"
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "node" / "lock").exists()


def test_a_wrong_setting_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_LOG_LEVEL", "loud")
    assert main(["join", "--state-dir", str(tmp_path / "node")]) == 3
    assert "the setting log_level cannot be used" in capsys.readouterr().err


def test_keys_can_be_made_and_shown_again_and_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = str(tmp_path / "node")
    assert main(["keys", "new", "--state-dir", state, "--json"]) == 0
    made = capsys.readouterr().out
    assert main(["keys", "show", "--state-dir", state, "--json"]) == 0
    assert capsys.readouterr().out == made
    assert main(["keys", "new", "--state-dir", state]) == 3
    assert "will not overwrite" in capsys.readouterr().err
    assert (tmp_path / "node" / "node-key.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IntellectError("a", "b", "c"), 3),
        (ConfigError("a", "b", "c"), 3),
        (StateError("a", "b", "c"), 3),
        (RunFileError("a", "b", "c"), 6),
        (EvictedError("a", "b", "c"), 7),
        (PortInUse("/ip4/127.0.0.1/tcp/1"), 3),
        (WrongChain("http://localhost", 1, 2), 4),
        (CommandError("a", "b", "c", 2), 2),
        (OSError(errno.ENOSPC, "No space left on device"), 3),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError(), 1),
    ],
)
def test_errors_have_their_documented_codes(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_of_a_group_of_errors_the_expected_one_is_told() -> None:
    expected = ConfigError("what", "why", "remedy")
    group = BaseExceptionGroup("x", [KeyboardInterrupt(), ExceptionGroup("y", [ValueError("z"), expected])])
    assert unwrap(group) is expected
    assert describe(group).remedy == "remedy"


def test_a_bug_keeps_its_traceback_in_a_file_and_shows_none() -> None:
    try:
        raise ZeroDivisionError("oh")
    except ZeroDivisionError as error:
        told = describe(error)
    assert "ZeroDivisionError: oh" in told.why
    path = Path(next(word for word in told.remedy.split() if word.endswith(".txt:")).rstrip(":"))
    assert "raise ZeroDivisionError" in path.read_text()
    path.unlink()


def test_a_full_disk_is_named() -> None:
    told = describe(OSError(errno.ENOSPC, "No space left on device", "journal.sqlite"))
    assert told.what == "the disk is full"
    assert "journal.sqlite" in told.why
    assert "--resume" in told.remedy, "run again alone is refused where a training had begun"


def test_a_file_that_is_not_there_is_told_as_that(tmp_path: Path, capfd) -> None:
    """`audit` of a missing file said that the operating system refused."""
    run = SimpleNamespace(rollout=None)
    for path, words in ((tmp_path / "absent.arrow", "there is no such file"), (tmp_path, "a directory and not a file")):
        with pytest.raises(OSError) as caught:
            audit_file(path, run, tmp_path, tmp_path)  # type: ignore[arg-type]
        told = describe(caught.value)
        assert words in told.what and str(path) in told.why
