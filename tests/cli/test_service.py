"""Services: the unit that is written, what is refused, and what systemd is asked, through a systemctl that notes it."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from eth_account import Account

from cli.errors import CONFIGURATION, CommandError
from cli.main import main
from cli.service.unit import Unit, config_of, environment_line, state_directory_of
from node.state.keystore import write_private
from node.state.locks import FileLock

SYSTEMCTL = """#!/bin/sh
echo "$*" >> "$NOTED"
case "$*" in *show*) printf 'ActiveState=active\\nNRestarts=2\\nMainPID=7\\nUnitFileState=enabled\\n';; esac
"""
NO_SYSTEMD = '#!/bin/sh\necho "Failed to connect to bus: No medium found" >&2\nexit 1\n'


@pytest.fixture
def machine(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's machine with systemd: programs first in PATH, a home of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path / "home"))
    program(tmp_path, "systemctl", SYSTEMCTL)
    program(tmp_path, "loginctl", "#!/bin/sh\necho no\n")
    return tmp_path


def program(machine: Path, name: str, text: str) -> None:
    path = machine / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def unit_file(machine: Path, name: str = "intellect-node") -> Path:
    return machine / "config" / "systemd" / "user" / f"{name}.service"


def install(machine: Path, state: str = "a", *words: str) -> int:
    return main(["service", "install", *words, "--", "--role", "worker", "--state-dir", str(machine / state)])


def test_a_service_is_written_enabled_and_tells_how_it_outlives_the_session(
    machine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_PASSWORD", 'a "secret" $x')
    assert install(machine) == 0
    text, shown = unit_file(machine).read_text(), capsys.readouterr().out
    for line in ("Type=notify", "WatchdogSec=60", "Restart=on-failure", f"AssertPathIsDirectory={machine / 'a'}"):
        assert line in text.splitlines()
    assert f" join --role worker --state-dir {machine / 'a'}\n" in text and "secret" not in text
    secrets = machine / "a" / "service.env"
    assert secrets.read_text() == 'INTELLECT_NODE_PASSWORD="a \\"secret\\" $x"\n'
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    noted = (machine / "noted").read_text().splitlines()
    assert noted == ["--user daemon-reload", "--user enable --now intellect-node.service"]
    assert "loginctl enable-linger" in shown


def test_a_password_that_does_not_open_the_nodes_key_takes_no_other_ones_place(
    machine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keystore = Account.encrypt(bytes([1]) * 32, "right", kdf="pbkdf2", iterations=2)
    write_private(machine / "a" / "node-key.json", json.dumps(dict(keystore)))
    monkeypatch.setenv("INTELLECT_NODE_PASSWORD", "right")
    assert install(machine) == 0
    monkeypatch.setenv("INTELLECT_NODE_PASSWORD", "wrong")
    assert install(machine) == CONFIGURATION and "the password is wrong" in capsys.readouterr().err
    assert (machine / "a" / "service.env").read_text() == 'INTELLECT_NODE_PASSWORD="right"\n'


def test_a_second_service_or_daemon_in_one_state_directory_is_refused(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(machine) == 0
    assert install(machine) == 0, "the same once more is an update"
    assert install(machine, "a", "--name", "b") == 3
    assert "uses" in capsys.readouterr().err
    assert install(machine, "other") == 3
    assert "there is a service intellect-node already" in capsys.readouterr().err
    (machine / "c").mkdir()
    lock = FileLock(machine / "c" / "lock")
    assert lock.acquire()
    assert install(machine, "c", "--name", "c") == 3
    assert "a daemon runs in" in capsys.readouterr().err
    lock.release()
    assert not unit_file(machine, "intellect-node-b").exists() and not unit_file(machine, "intellect-node-c").exists()


def test_without_systemd_the_unit_is_written_and_the_way_out_is_said(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(machine, "systemctl", NO_SYSTEMD)
    assert install(machine) == 3
    shown = " ".join(capsys.readouterr().err.split())
    assert "is written, but not started: systemd does not run here" in shown and "join --detach" in shown
    assert unit_file(machine).exists()
    assert install(machine, "a", "--no-start") == 0
    assert main(["service", "uninstall", "--json"]) == 0 and not unit_file(machine).exists()


def test_a_state_directory_that_was_moved_is_noticed(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install(machine) == 0
    capsys.readouterr()
    assert main(["service", "status", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["services"][0]
    assert (row["active"], row["restarts"], row["pid"]) == ("active", 2, 7) and "problem" not in row
    (machine / "a").rename(machine / "moved")
    assert main(["service", "status", "--json"]) == 0
    assert "was moved or deleted" in json.loads(capsys.readouterr().out)["services"][0]["problem"]


@pytest.mark.parametrize(
    "words",
    [
        ["--role", "wizard"],
        ["--no-such-flag"],
        ["--listen"],
        ["--pool", "-1"],
        ["--detach"],
        ["stray"],
    ],
)
def test_flags_that_join_would_refuse_are_refused_before_anything_is_written(machine: Path, words: list[str]) -> None:
    assert main(["service", "install", "--", *words]) == 2
    assert not unit_file(machine).exists()


def test_the_flags_become_the_settings_that_join_would_have(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(machine)
    words = ["--role", "trainer", "--run", "my.toml", "--state-dir", "n", "--http-source", "https://h:1#sha256=aa"]
    config = config_of(words)
    assert (config.role, str(config.run_file), config.state_dir) == ("trainer", "my.toml", machine / "n")
    assert config.http_sources == ("https://h:1#sha256=aa",)


def test_what_a_shell_would_not_say_reaches_the_daemon_as_it_was_given(tmp_path: Path) -> None:
    words = ["prog", "a b", "50%", "$HOME", 'say "x"', "back\\slash", ""]
    text = Unit("n", words, tmp_path / "st ate%", tmp_path, tmp_path / "env").render()
    expected = 'ExecStart=prog "a b" 50%% $$HOME "say \\"x\\"" "back\\\\slash" ""'
    assert expected in text.splitlines()
    assert state_directory_of(text) == tmp_path / "st ate%"
    with pytest.raises(CommandError, match="cannot stand in a unit"):
        Unit("n", ["a\nExecStart=/bin/evil"], tmp_path, tmp_path, tmp_path).render()
    with pytest.raises(CommandError):
        environment_line("PASSWORD", "a\nLD_PRELOAD=x")


def test_a_system_unit_names_its_user_and_may_write_less_of_the_machine(tmp_path: Path) -> None:
    text = Unit("n", ["p"], tmp_path, tmp_path, tmp_path, user="me").render()
    assert "User=me" in text and "ProtectSystem=full" in text and "WantedBy=multi-user.target" in text
    assert "MemoryDenyWriteExecute" not in text and "PrivateDevices" not in text, "torch would not run"


def test_strange_names_and_units_of_others_are_left_alone(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install(machine, "a", "--name", "../../evil") == 2
    unit_file(machine).parent.mkdir(parents=True)
    unit_file(machine).write_text("[Service]\nExecStart=/bin/true\n")
    assert main(["service", "uninstall"]) == 3 and unit_file(machine).exists()
    assert "there is no service" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("user", [None, "root"])
def test_systemd_itself_has_nothing_to_say_against_the_unit(
    user: str | None, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = machine / "intellect-node.service"
    path.write_text(Unit("n", [sys.executable, "-m", "a b%"], machine, machine, machine / "e", user=user).render())
    scope = [] if user else ["--user"]
    said = subprocess.run(["systemd-analyze", *scope, "verify", str(path)], capture_output=True, text=True, check=False)
    assert "intellect-node.service" not in said.stderr
