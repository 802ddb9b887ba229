"""`python -m node.training.launch --spool DIR`: the trainer, tied to the daemon by stdin.

Of several processes, on one machine or on several (node.training.rendezvous), torchrun runs inside this one; a trainer
of one process is this one: it starts seconds sooner. When stdin ends, all are terminated: a killed daemon leaves no
trainer behind.
"""

import os
import runpy
import sys

from node.training import rendezvous
from node.training.errors import TrainingError
from node.training.orphan import LAUNCHER_PID, stop_with_stdin
from node.training.program import give_up, settings_of, spool_named_on_the_command_line, tell
from node.training.settings import TrainerSettings

PROGRAM = "node.training.trainer"


def _told(what: str) -> None:
    tell({"event": "training.rendezvous", "machine": what})


def main() -> None:
    spool = spool_named_on_the_command_line(str(__doc__))
    try:
        settings = settings_of(spool)
    except (OSError, TrainingError):
        settings = TrainerSettings()  # one worker is enough to say what is wrong with them
    stop_with_stdin()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if settings.world_size == settings.nodes == 1:
        runpy.run_module(PROGRAM, run_name="__main__")
        return
    if settings.nodes > 1:
        try:
            # Before torchrun: it hands this environment on to its workers.
            os.environ.update(rendezvous.prepare(settings, _told))
        except TrainingError as error:
            give_up(error, spool.error_path, {"event": "training.failed"})
            sys.exit(1)
    os.environ[LAUNCHER_PID] = str(os.getpid())
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException

    try:
        run.main([*rendezvous.arguments(settings), "--module", PROGRAM, "--spool", str(spool.root)])
    except SignalException as stopped:  # as it was asked to: torchrun's traceback would look like a failure
        sys.exit(128 + int(stopped.sigval))


if __name__ == "__main__":
    main()
