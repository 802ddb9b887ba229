"""`python -m node.training.launch --spool DIR`: the trainer under torchrun, tied to the daemon by stdin.

torchrun runs inside this process. When stdin ends, it and its worker are terminated: a killed daemon leaves
no trainer behind.
"""

import argparse
import os
import signal
import threading
import time

from node.training.orphan import LAUNCHER_PID

GRACE_SECONDS = 10.0


def _stop_with_stdin() -> None:
    def watch() -> None:
        while os.read(0, 4096):
            continue
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spool", required=True)
    spool = parser.parse_args().spool
    _stop_with_stdin()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ[LAUNCHER_PID] = str(os.getpid())
    from torch.distributed import run

    run.main(["--standalone", "--nproc-per-node=1", "--module", "node.training.trainer", "--spool", spool])


if __name__ == "__main__":
    main()
