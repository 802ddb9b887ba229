import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

START = "from node.training import launch; launch.PROGRAM = 'tests.node.training.waits'; launch.main()"


@pytest.mark.parametrize(("world_size", "status"), [(1, -signal.SIGTERM), (2, 128 + signal.SIGTERM)])
def test_a_learner_that_is_told_to_stop_ends_without_a_traceback(tmp_path: Path, world_size: int, status: int) -> None:
    """A run whose goal is reached stops its learner: 45 lines of torchrun's traceback looked like a failure."""
    pytest.importorskip("torch")
    (tmp_path / "trainer.json").write_text(f'{{"world_size": {world_size}}}')
    root = str(Path(__file__).resolve().parents[3])
    launcher = subprocess.Popen(
        [sys.executable, "-c", START, "--spool", str(tmp_path)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    try:
        while not (tmp_path / "begun").exists():
            assert launcher.poll() is None, launcher.communicate()[1]
            time.sleep(0.05)
        _, said = launcher.communicate()  # closes its standard input
    finally:
        launcher.kill()
    assert "Traceback" not in said
    assert launcher.returncode == status
