"""What `join` shows, what a report holds, and settings that do not exist."""

import io
import json
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from cli.config import build_config
from cli.doctor import redacted, write_bundle
from cli.errors import CommandError
from cli.joinview import JoinScreen, JoinView, line_of
from cli.main import main
from node.progress import Event, ProgressRecord

SECRETS = "hunter2 s3cr3tpath u5er:pa55 deadbeef0123 0xfeedface"


def shown(progress: ProgressRecord, *, live: bool) -> str:
    stream = io.StringIO()
    view = JoinView(JoinScreen(stream, live=live), live=live)
    view.look(progress)
    progress.contributed("accepted", "file 1 for policy 3 was accepted: 100 units, worth 0.1 tokens")
    view.look(progress)
    progress.tell("accepted", "file 2")
    view.look(progress)
    view._screen.close()
    return stream.getvalue()


@pytest.mark.parametrize("live", [False, True])
def test_phases_are_shown_until_the_first_contribution_which_is_announced_once(live: bool) -> None:
    progress = ProgressRecord()
    progress.enter("stake", "waits for 20 tokens")
    progress.enter("first-contribution", "its share is made")
    text = shown(progress, live=live)
    assert text.count("This node contributes") == 1
    assert text.index("first-contribution") < text.index("This node contributes") and "worth 0.1 tokens" in text


def test_what_others_wrote_cannot_command_the_terminal() -> None:
    assert "\x1b" not in line_of(Event(0.0, "refused", "\x1b[2Jbad\nworse")).plain


def test_a_command_stands_alone_on_its_line() -> None:
    command = "intellect-node contract node register --node-state /s --network base --key provider " + "x" * 200
    assert line_of(Event(0.0, "do", command)).plain.strip() == command


class Stalled(io.StringIO):
    """A terminal that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.go.wait()
        return super().write(text)


def test_a_stalled_terminal_holds_up_nobody_and_costs_lines_only() -> None:
    stream = Stalled()
    screen = JoinScreen(stream, live=True)
    for number in range(5000):
        screen.line(Text(f"line {number}"))
        screen.status(Text("status"))
    assert screen.dropped > 4000
    stream.go.set()
    screen.close()
    assert "line 0" in stream.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        'INTELLECT_NODE_PASSWORD=hunter2 and password = "hunter2"',
        '{"password": "hunter2", "provider_api_key": "deadbeef0123"}',
        "https://u5er:pa55@rpc.example.org:8545/v3/s3cr3tpath?key=hunter2 answered 401",
        "Authorization: Bearer deadbeef0123",
        '{"crypto": {"ciphertext": "deadbeef0123", "mac": "deadbeef0123"}}',
        "secret: '0xfeedface'",
    ],
)
def test_credentials_do_not_leave_in_a_report(text: str) -> None:
    clean = redacted(text)
    assert not [word for word in (*SECRETS.split(), "u5er", "pa55") if word in clean], clean


def test_what_a_report_is_for_stays() -> None:
    text = "2026-11-22 policy.held root=ab12cd34 from https://rpc.example.org/v3/x and /ip4/8.8.8.8/tcp/4001"
    assert redacted(text) == text.replace("/v3/x", "/…")


def test_a_report_holds_no_keystore_and_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path))
    monkeypatch.setenv("INTELLECT_NODE_PASSWORD", "hunter2")
    state = tmp_path / "state"
    (state / "logs").mkdir(parents=True)
    (state / "node-key.json").write_text('{"ciphertext": "deadbeef0123"}')
    (state / "password").write_text("hunter2")
    (state / "logs" / "daemon.jsonl").write_text('{"event": "x", "password": "hunter2"}\n')
    file = write_bundle(tmp_path / "report.tar.gz", build_config(state_dir=state), [{"name": "clock"}])
    with tarfile.open(file) as archive:
        names = {name.rpartition("/")[2] for name in archive.getnames()}
        members: list[Any] = [archive.extractfile(name) for name in archive.getnames()]
        text = "".join(member.read().decode() for member in members)
    assert names == {"findings.json", "settings.json", "status.txt", "daemon.jsonl"}
    assert "hunter2" not in text and "deadbeef0123" not in text and '"event": "x"' in text
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(CommandError):
        write_bundle(file, build_config(state_dir=state), [])


def test_a_setting_of_another_version_is_named_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text("store_quotas = 5\n")
    with pytest.raises(CommandError) as caught:
        build_config()
    assert caught.value.what == "there is no setting store_quotas" and "store_quota?" in caught.value.remedy


def test_settings_are_shown_with_where_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path))
    monkeypatch.setenv("INTELLECT_NODE_PASSWORD", "hunter2")
    monkeypatch.setenv("INTELLECT_NODE_ROLE", "worker")
    (tmp_path / "config.toml").write_text('role = "trainer"\nunits = 3\n')
    assert main(["config", "show", "--json"]) == 0
    text = capsys.readouterr().out
    rows = json.loads(text)["settings"]
    assert rows["role"] == {"value": "worker", "from": "environment"}
    assert rows["units"] == {"value": 3, "from": "config.toml"} and rows["pool"]["from"] == "default"
    assert rows["password"]["value"] == "(set)" and "hunter2" not in text


def test_a_setting_is_written_beside_what_stands_there_and_a_bad_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path))
    file = tmp_path / "config.toml"
    file.write_text('role = "trainer"  # this machine has the GPU\n')
    assert main(["config", "set", "units", "3"]) == 0
    assert main(["config", "set", "trainer.world_size", "2"]) == 0
    assert main(["config", "set", "trainer.seed", "5"]) == 0 and main(["config", "show"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "trainer.seed = 5 " in told and "trainer.world_size 2 config.toml trainer.seed 5 config.toml" in told
    assert main(["config", "set", "trainer.seed", "--unset"]) == 0
    assert build_config().units == 3 and build_config().trainer == {"world_size": 2}
    text = file.read_text()
    assert "# this machine has the GPU" in text
    assert main(["config", "set", "units", "many"]) != 0 and main(["config", "set", "unit", "3"]) != 0
    assert main(["config", "set", "role"]) == 2
    assert "names it, and version" not in capsys.readouterr().err, "no file names what was typed"
    assert file.read_text() == text
    assert main(["config", "set", "units", "--unset"]) == 0
    assert build_config().units == 1
    file.write_bytes(b'role = "\xff"\n')
    assert main(["config", "set", "units", "3"]) == 3 and "UTF-8" in capsys.readouterr().err
