"""Daemons in the background: real processes that answer on the socket, or fail in their own words."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cli.errors import INTERRUPTED, CommandError
from cli.join import start_detached
from cli.main import main
from node.config import api_socket_path
from node.looked import looked
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


STARTS = """
import os, signal, sys, time
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""
"""A daemon that is under way for long. deaf: it does not end when it is told to."""
ASKS = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background has it ignored
import cli.join
from cli.errors import describe, exit_code
cli.join.own_command = lambda: [sys.executable, "-c", *sys.argv[2:]]
try:
    cli.join.start_detached([], Path(sys.argv[1]), print, patience=float(sys.argv[-1]))
except BaseException as error:
    told = describe(error)
    print(told.what, told.why, told.remedy, sep="|", file=sys.stderr)
    sys.exit(exit_code(error))
"""


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


@pytest.mark.parametrize("deaf", [False, True])
def test_who_breaks_a_start_off_has_no_daemon_or_hears_how_to_stop_it(
    tmp_path: Path, runtime: Path, deaf: bool
) -> None:
    begun, state = tmp_path / "begun", tmp_path / "a state"
    daemon = [STARTS, str(begun), "deaf" if deaf else "hears", "0.5" if deaf else "60"]
    asking = subprocess.Popen([sys.executable, "-c", ASKS, str(state), *daemon], stderr=subprocess.PIPE, text=True)
    try:
        assert looked(begun.exists, 0.05, 60.0)
        asking.send_signal(signal.SIGINT)
        _, told = asking.communicate(timeout=60.0)
    finally:
        asking.kill()
        asking.communicate()
        pid = int(begun.read_text())
        lives = looked(lambda: not psutil.pid_exists(pid), 0.05, 0.0 if deaf else 10.0) is False
        if lives:
            os.kill(pid, signal.SIGKILL)
    assert asking.returncode == INTERRUPTED and lives is deaf, told
    if deaf:
        assert f"process {pid} was told to end and has not yet" in told
        assert f"intellect-node stop --state-dir '{state}'" in told
    else:
        assert "interrupted|Ctrl-C or SIGINT; the daemon that was starting has been stopped" in told
