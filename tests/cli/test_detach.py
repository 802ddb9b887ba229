"""Daemons in the background: real processes that answer on the socket, or fail in their own words."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.join import start_detached
from cli.main import main
from node.config import api_socket_path
from node.state.locks import FileLock

ANSWERS = """
import http.server, json, os, socketserver, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        node = {"pid": os.getpid(), "state": "working", "role": "worker", "address": "0x12", "state_dir": sys.argv[2]}
        body = json.dumps({"schema_version": 1, "node": node, "words": sys.argv[3:]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def address_string(self):
        return ""
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
assert os.getsid(0) == os.getpid(), "a session of its own"
print("it was told", *sys.argv[3:], file=sys.stderr, flush=True)
socketserver.ThreadingUnixStreamServer(sys.argv[1], Handler).serve_forever()
"""
FAILS = "import sys; print('error: no stake\\n  why: it has none\\n  do:  bond some', file=sys.stderr); sys.exit(4)"


def pretend(monkeypatch: pytest.MonkeyPatch, program: str, *words: str) -> None:
    monkeypatch.setattr("node.preflight.early.refuse_early", lambda config: None)  # tried in test_refusals
    monkeypatch.setattr("cli.join.own_command", lambda: [sys.executable, "-c", program, *words])


def test_it_returns_once_the_daemon_is_in_and_the_daemon_stays(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    pretend(monkeypatch, ANSWERS, str(api_socket_path(state)), str(state))
    assert main(["join", "--role", "worker", "--detach", "--json", "--state-dir", str(state)]) == 0
    facts = json.loads(capsys.readouterr().out)
    try:
        os.kill(facts["pid"], 0)
        assert (facts["address"], facts["role"], facts["state_dir"]) == ("0x12", "worker", str(state))
        assert (
            f"it was told join --role worker --state-dir {state} --json\n"
            == Path(facts["log"]).read_text().splitlines(True)[0]
        )
    finally:
        os.kill(facts["pid"], signal.SIGKILL)
        os.waitpid(facts["pid"], 0)


def test_a_daemon_that_fails_is_heard_in_its_own_words_and_with_its_own_code(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, FAILS)
    assert main(["join", "--detach", "--state-dir", str(tmp_path)]) == 4
    shown = capsys.readouterr().err
    assert "no stake" in shown and "it has none" in shown and "bond some" in shown


def test_a_second_daemon_in_one_directory_is_refused_before_it_starts(
    tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, "raise SystemExit(0)")
    lock = FileLock(tmp_path / "lock")
    assert lock.acquire()
    with pytest.raises(CommandError, match="runs in .* already") as refused:
        start_detached(["join"], tmp_path, print)
    assert str(os.getpid()) in refused.value.why
    lock.release()
