"""`python -m node.training.launch --spool DIR`: the trainer, tied to the daemon by stdin.

Of several processes torchrun runs inside this one; a trainer of one process is this one: it starts seconds sooner. When
stdin ends, all are terminated: a killed daemon leaves no trainer behind.
"""

import argparse
import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

from node.training.orphan import LAUNCHER_PID

GRACE_SECONDS = 10.0
PROGRAM = "node.training.trainer"


def _stop_with_stdin() -> None:
    def watch() -> None:
        while os.read(0, 4096):
            continue
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _world_size(settings: Path) -> int:
    """The workers check the settings whole and say what is wrong with them; here, one is enough for that."""
    try:
        return max(1, int(json.loads(settings.read_bytes()).get("world_size", 1)))
    except (OSError, ValueError, TypeError, AttributeError):
        return 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spool", required=True)
    spool = parser.parse_args().spool
    ranks = _world_size(Path(spool) / "trainer.json")
    _stop_with_stdin()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if ranks == 1:
        runpy.run_module(PROGRAM, run_name="__main__")
        return
    os.environ[LAUNCHER_PID] = str(os.getpid())
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException

    try:
        run.main(["--standalone", f"--nproc-per-node={ranks}", "--module", PROGRAM, "--spool", spool])
    except SignalException as stopped:  # as it was asked to: torchrun's traceback would look like a failure
        sys.exit(128 + int(stopped.sigval))


if __name__ == "__main__":
    main()
