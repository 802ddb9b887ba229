"""`trainer rank` and the flags of `train` for several machines."""

import json
import socket
from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.main import main
from cli.trainer import how_the_others_come, words_of
from node.training.settings import TrainerSettings


def test_machines_need_a_place_to_meet(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert words_of(None, None) == [] and words_of(1, None) == ["nodes=1"]
    assert words_of(2, "gpu0:29500") == ["nodes=2", "rendezvous=gpu0:29500"]
    with pytest.raises(CommandError, match="needs --rdzv-endpoint"):
        words_of(2, None)
    assert main(["trainer", "rank", "--dir", str(tmp_path)]) == 2
    assert main(["trainer", "rank", "--rdzv-endpoint", "gpu0", "--dir", str(tmp_path)]) == 6
    assert "rendezvous must be HOST:PORT" in " ".join(capfd.readouterr().err.split())
    assert list(tmp_path.iterdir()) == [], "nothing was made for it"


def test_machine_0_says_how_the_others_come() -> None:
    said = how_the_others_come(TrainerSettings(nodes=3, rendezvous="gpu0:29500"))
    assert "N is 1 to 2" in said and "rank --nnodes 3 --node-rank N --rdzv-endpoint gpu0:29500" in said


def test_a_machine_that_finds_nobody_says_so_and_ends(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen
        there = f"127.0.0.1:{held.getsockname()[1]}"
        words = ["--rdzv-endpoint", there, "--dir", str(tmp_path / "guest"), "--trainer", "rendezvous_seconds=1"]
        assert main(["trainer", "rank", *words, "--json"]) == 6
    said = capfd.readouterr()
    assert f"machine 0 cannot be reached at {there}" in " ".join(said.err.split())
    assert json.loads(said.out.splitlines()[0])["event"] == "started"
    assert "looks for machine 0" in (tmp_path / "guest" / "logs" / "processes.log").read_text()
