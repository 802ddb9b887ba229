"""The first moments of a daemon: whatever stops it, it leaves its state directory as it found it."""

import os
import signal
from pathlib import Path

import pytest
import trio

from node import daemon
from node.config import NodeConfig
from node.state.journal import Journal


def interrupted_while_opening_the_journal(path: Path) -> Journal:
    os.kill(os.getpid(), signal.SIGTERM)
    return Journal(path)


def test_a_stop_that_comes_before_anything_runs_still_frees_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "Journal", interrupted_while_opening_the_journal)
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody listened to SIGTERM"))
    try:
        trio.run(daemon.Daemon(NodeConfig(state_dir=tmp_path / "state", home=tmp_path)).main)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert not (tmp_path / "state" / "lock").exists()
