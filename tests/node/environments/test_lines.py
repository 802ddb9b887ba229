"""A child that is spoken to in lines: its end."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from node.environments.lines import LineChild


def taken(said: Any) -> None:
    """As the first line that was expected."""


def test_a_child_ends_although_a_child_of_its_own_holds_its_output(tmp_path: Path) -> None:
    told, over = tmp_path / "pid", tmp_path / "over"
    script = f"(sleep 10; touch {over}) & echo $! > {told}; echo 1; read line; exec sleep 60"
    child = LineChild(["sh", "-c", script], {"PATH": os.environ["PATH"]}, 60.0, taken)
    child.start()
    child.close()
    assert not over.exists(), "nobody waited for its end"
    os.kill(int(told.read_text()), signal.SIGKILL)


def test_a_child_that_took_nothing_of_what_it_was_told_ends_without_an_error(tmp_path: Path) -> None:
    script = f"echo 1; exec 0<&-; touch {tmp_path}/deaf; exec sleep 60"
    child = LineChild(["sh", "-c", script], {"PATH": os.environ["PATH"]}, 60.0, taken)
    child.start()
    while not (tmp_path / "deaf").exists():
        time.sleep(0.01)
    child.send("anything")
    assert child.receive(0.0) is None
    child.close()
