"""`status` against a socket that answers like a daemon."""

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import main
from node.config import api_socket_path

STATUS = {
    "schema_version": 1,
    "node": {
        "address": "0x" + "ab" * 20,
        "role": "worker",
        "state": "working",
        "pid": 7,
        "uptime_seconds": 61.0,
        "contacts": ["/ip4/127.0.0.1/tcp/1/p2p/16Uiu2"],
        "engine": "torch",
        "state_dir": "/s",
    },
    "network": {"name": "local", "chain_id": 31337, "pool": 1, "block": 9, "rpc_ok": True},
    "run": {"name": "[bold]x\u001b[31m", "run_root": "aa", "step": 3, "steps_total": 150, "policies_held": 2},
    "stake": {"bonded_wei": str(100 * 10**18), "slashed_wei": "0"},
    "audit": {
        "window": 2,
        "power": 0.41,
        "power_wanted": 0.95,
        "checked_share": 0.03,
        "quarantined": [{"address": "x"}],
    },
    "swarm": [{"address": "0x" + "cd" * 20, "role": "trainer", "state": "healthy", "step": 3, "connected": True}],
    "work": {"files_committed": 5, "files_accepted": 4, "files_rejected": 1, "tokens_per_second": 1234.5, "units": 99},
    "training": None,
    "verdicts": {"accepted": 0, "rejected": 0, "by_reason": {}, "recent": []},
    "slashed": [],
    "processes": [{"name": "engine", "pid": 8, "restarts": 3}],
    "last_error": None,
}


class _Daemon(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(STATUS).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return

    def address_string(self) -> str:
        return ""


@pytest.fixture
def daemon(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state directory of something that answers /status."""
    monkeypatch.setenv("COLUMNS", "200")
    socket = api_socket_path(tmp_path / "node")
    socket.parent.mkdir(parents=True)
    (socket.parent / "dead.sock").touch()
    with _Daemon(str(socket), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield tmp_path / "node"
        server.shutdown()
        thread.join()


def test_daemons_are_found_without_being_told_where(daemon: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "power 0.410" in shown and "below the run's 0.95" in shown
    for expected in (
        "worker",
        "step 3/150",
        "100 bonded",
        "4 accepted",
        "1,234",
        "0xcdcd..cdcd",
        "up 1 min 01 s",
        "power 0.410",
        "below",
        "was started again 3 times",
    ):
        assert expected in shown, expected


def test_what_strangers_wrote_neither_styles_nor_steers_the_terminal(
    daemon: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--state-dir", str(daemon)]) == 0
    shown = capsys.readouterr().out
    assert "[bold]x?[31m" in shown
    assert "\x1b[31m" not in shown


def test_json_is_one_object_with_a_schema_version(daemon: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema_version"] == 1
    assert [one["node"]["role"] for one in answer["daemons"]] == ["worker"]


def test_an_alarm_that_rings_is_shown(
    daemon: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alarm = {"name": "reward_collapse", "step": 7, "value": 0.1, "limit": 0.3, "text": "mean reward 0.1"}
    training = {"step": 9, "alarms": [alarm], "latest": {"step": 9}, "ended_by": "budget.hours = 2 is used up"}
    monkeypatch.setitem(STATUS, "training", training)
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "reward_collapse since step 7: mean reward 0.1" in shown and "budget.hours = 2" in shown


def test_a_finished_run_says_what_came_of_it_and_what_to_do_now(
    daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status"]) == 0
    assert "the run is over" not in capsys.readouterr().out
    monkeypatch.setitem(STATUS, "run", {**STATUS["run"], "over": True, "final_reward": 0.701})
    monkeypatch.setitem(STATUS, "pay", {"provider": "0x", "earned_wei": str(3 * 10**18), "due_wei": str(2 * 10**18)})
    assert main(["status"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "the run is over; final reward 0.701" in shown
    assert "intellect-node weights fetch --network local --pool 1 --out model" in shown
    assert "you may leave" in shown and "2 tokens still owed" in shown
