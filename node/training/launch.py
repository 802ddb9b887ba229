"""`python -m node.training.launch --spool DIR`: the trainer, tied to the daemon by stdin.

Of several processes, on one machine or on several (node.training.rendezvous), torchrun runs inside this one; a trainer
of one process is this one: it starts seconds sooner. When stdin ends, all are terminated: a killed daemon leaves no
trainer behind.
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

from node.training import rendezvous
from node.training.errors import TrainingError
from node.training.orphan import LAUNCHER_PID
from node.training.program import give_up
from node.training.settings import TrainerSettings, decode_settings
from node.training.spool import Spool

GRACE_SECONDS = 10.0
PROGRAM = "node.training.trainer"


def stop_with_stdin() -> None:
    """End this process when whoever started it does."""

    def watch() -> None:
        while os.read(0, 4096):
            continue
        # torchrun ends its workers on SIGTERM. A launcher that hangs ends all the same, and its workers watch for that.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _settings(path: Path) -> TrainerSettings:
    """Where they cannot be used the worker says what is wrong with them; one is enough for that."""
    try:
        return decode_settings(path.read_bytes())
    except (OSError, TrainingError):
        return TrainerSettings()


def _meet_machines(settings: TrainerSettings, spool: Spool) -> bool:
    """Set the environment for several machines; False if that cannot be, which then stands in the spool."""
    try:
        os.environ.update(rendezvous.prepare(settings, _told))
    except TrainingError as error:
        give_up(error, spool.error_path, {"event": "training.failed"})
        return False
    return True


def _told(what: str) -> None:
    print(json.dumps({"event": "training.rendezvous", "machine": what}), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spool", required=True)
    spool = parser.parse_args().spool
    settings = _settings(Path(spool) / "trainer.json")
    stop_with_stdin()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if settings.world_size == settings.nodes == 1:
        runpy.run_module(PROGRAM, run_name="__main__")
        return
    # Before torchrun: it hands this environment on to its workers.
    if settings.nodes > 1 and not _meet_machines(settings, Spool(Path(spool))):
        sys.exit(1)
    os.environ[LAUNCHER_PID] = str(os.getpid())
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException

    try:
        run.main([*rendezvous.arguments(settings), "--module", PROGRAM, "--spool", spool])
    except SignalException as stopped:  # as it was asked to: torchrun's traceback would look like a failure
        sys.exit(128 + int(stopped.sigval))


if __name__ == "__main__":
    main()
