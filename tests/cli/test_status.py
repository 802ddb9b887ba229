"""`status` against a socket that answers like a daemon."""

import http.server
import json
import os
import socketserver
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from rich.cells import cell_len

from cli.main import main
from node import sdk
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
        "state_dir": "/",
    },
    "network": {"name": "local", "chain_id": 31337, "pool": 1, "block": 9, "rpc_ok": True},
    "run": {"name": "[bold]x\u001b[31m", "run_root": "aa", "step": 3, "steps_total": 150, "policies_held": 2},
    "stake": {"bonded_wei": str(100 * 10**18), "slashed_wei": "0"},
    "validator_audits": {
        "window": 2,
        "power": 0.41,
        "power_wanted": 0.95,
        "checked_share": 0.03,
        "quarantined": [{"address": "x"}],
    },
    "leader": {"step_verdicts": {"last_step": 127, "last_by": "0xab", "last_says": "held", "held": 8, "steps": 9}},
    "uses": {"workers": {"0x" + "12" * 20: {"accepted": 9, "used": 7, "left_out": 2}}},
    "swarm": [{"address": "0x" + "cd" * 20, "role": "trainer", "state": "healthy", "step": 3, "connected": True}],
    "pay": {
        "provider": "0x" + "ef" * 20,
        "earned_wei": "1500000000000000000",
        "paid_wei": "1000000000000000000",
        "due_wei": "500000000000000000",
    },
    "work": {
        "files_committed": 5,
        "files_accepted": 4,
        "files_rejected": 1,
        "rejected_by_reason": {"late": 1},
        "tokens_per_second": 1234.5,
        "units": 99,
    },
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
    for expected in (
        f"worker 0x{'ab' * 20} working up 1 min 01 s",
        "yes, in pool 1 as worker",
        "100 tokens bonded",
        "1 of 1 other members heard, 1 directly",
        "step 3 of 150, 1,234 tokens/s",
        "4 of 5 files accepted, 1 refused (late 1)",
        f"goes to 0x{'ef' * 20}",
        "1.5 tokens: 1 claimed, 0.5 in the table",
        "power 0.410",
        f"the trainer left out 2 files of 1 workers, most of 0x{'12' * 20}",
        "trainer: last audited step 127 by 0xab: held; held 8 of 9",
        "the audit's power is below the run's 0.95",
        "was started again 3 times",
    ):
        assert expected in shown, expected


def test_the_five_questions_are_answered_in_their_order(daemon: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    firsts = [line[:11].strip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [word for word in firsts if word] == ["am I in", "doing", "accepted", "earned", "wrong"]


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


HOSTILE = "\u202e\x1b[2J[red]" + "wide\u5bbd" * 90
PHASE = {"name": "first-contribution", "text": "generating file 3 for policy 7", "since_seconds": 12.0, "progress": 0.5}
ROLES: dict[str, dict[str, object]] = {
    "a newcomer": {"node": {**STATUS["node"], "state": "starting", "phase": {**PHASE, "name": "chain"}}, "run": None},
    "a worker": {"node": {**STATUS["node"], "phase": PHASE}},
    "a validator": {
        "node": {**STATUS["node"], "role": "validator"},
        "work": None,
        "verdicts": {"accepted": 1234567, "rejected": 7654321},
    },
    "a trainer": {
        "node": {**STATUS["node"], "role": "trainer"},
        "training": {
            "step": 9,
            "reward_eval": [[9, 0.5]],
            "ended_by": "budget.hours = 2 is used up",
            "plan": "1 of 8 cards learns (H100, the fewest that hold it): passes of 16,384 tokens, recomputation",
            "memory": "memory ran out in the backward pass of step 3: passes of at most 4,096 tokens since",
        },
        "run": {**STATUS["run"], "over": True, "final_reward": 0.7},
    },
    "strangers' words": {
        "node": {
            **STATUS["node"],
            "role": HOSTILE,
            "state": HOSTILE,
            "address": HOSTILE,
            "contacts": [HOSTILE, "/ip4/1.2.3.4/tcp/9/p2p/" + HOSTILE],
            "phase": {**PHASE, "text": HOSTILE},
        },
        "run": {**STATUS["run"], "name": HOSTILE},
        "pay": {"provider": HOSTILE, "warnings": [HOSTILE] * 3, "earned_wei": str(10**40)},
        "work": {**STATUS["work"], "rejected_by_reason": {HOSTILE: 9}, "waiting": HOSTILE},
        "last_error": {"what": HOSTILE, "why": HOSTILE, "remedy": HOSTILE},
        "events": [{"at": 1e300, "name": "trouble", "text": HOSTILE}],
        "swarm": [{"address": HOSTILE, "role": HOSTILE, "state": HOSTILE, "step": 10**18, "contact": HOSTILE}],
    },
}


@pytest.mark.parametrize("command", ["status", "peers"])
@pytest.mark.parametrize("role", ROLES)
def test_everything_fits_into_80_columns(
    role: str, command: str, daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, value in ROLES[role].items():
        monkeypatch.setitem(STATUS, name, value)
    assert main([command, "--state-dir", str(daemon)]) == 0
    shown = capsys.readouterr().out
    assert shown and max(cell_len(line) for line in shown.splitlines()) <= 80
    assert "\x1b" not in shown and "\u202e" not in shown
    if (role, command) == ("a trainer", "status"):
        words = " ".join(shown.split())
        assert "weights fetch --network local --pool 1 --out model" in words, "wrapped, not cut"
        assert "plan: 1 of 8 cards learns" in words and "memory ran out in the backward pass of step 3" in words


def test_a_node_that_is_not_in_yet_says_what_it_waits_for(
    daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in ROLES["a newcomer"].items():
        monkeypatch.setitem(STATUS, name, value)
    assert main(["status"]) == 0
    shown = capsys.readouterr().out
    assert "not yet" in shown and "generating file 3 for policy 7 (50%), for 12 s" in shown


def test_a_state_directory_that_was_moved_under_its_daemon_is_noticed(
    daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(STATUS, "node", {**STATUS["node"], "state_dir": str(daemon / "moved")})
    assert main(["status"]) == 0
    assert "was moved or deleted under the daemon" in " ".join(capsys.readouterr().out.split())


def test_peers_are_told_in_full_where_that_is_asked_for(daemon: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peers", "--state-dir", str(daemon)]) == 0
    assert "0xcdcd..cdcd" in capsys.readouterr().out
    assert main(["peers", "--state-dir", str(daemon), "--full"]) == 0
    assert "0x" + "cd" * 20 in capsys.readouterr().out
    assert main(["peers", "--state-dir", str(daemon), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peers"][0]["role"] == "trainer"


def test_a_daemon_of_before_the_program_was_changed_is_told(
    daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status"]) == 0 and "is installed" not in capsys.readouterr().out
    monkeypatch.setitem(STATUS, "node", {**STATUS["node"], "version": "0.0.1"})
    assert main(["status"]) == 0
    assert "it runs 0.0.1" in " ".join(capsys.readouterr().out.split())


def test_a_daemon_of_the_machine_s_service_manager_is_found_by_its_state_directory(
    daemon: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(runtime))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(daemon.parent / "another"))
    assert main(["status", "--state-dir", str(daemon)]) == 0
    assert trio.run(sdk.Node(daemon).status).node.state_dir
    (runtime / f"intellect-node-{os.getuid()}").rename(runtime / f"intellect-node-{1 << 20}")
    monkeypatch.setattr(os, "getuid", lambda: 1 << 20)
    assert main(["status", "--state-dir", str(daemon)]) == 5, "somebody else may have put it there"


def test_members_of_a_version_that_this_one_does_not_understand_are_told(
    daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(version: str) -> str:
        monkeypatch.setitem(STATUS, "node", {**STATUS["node"], "version": "0.2.0"})
        monkeypatch.setitem(STATUS, "swarm", [{**STATUS["swarm"][0], "version": version}])
        assert main(["status"]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "a member runs" not in shown("0.3.1")
    assert "a member runs 0.4.1, more than one minor version from this node's 0.2.0" in shown("0.4.1")
    assert main(["peers", "--state-dir", str(daemon), "--full"]) == 0
    assert "version 0.4.1" in capsys.readouterr().out
