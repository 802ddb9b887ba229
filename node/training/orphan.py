"""A child must not outlive who started it. A trainer watches its launcher, since torchrun gives its workers sessions of
their own; a launcher, an evaluator and an audit their standard input, which ends with the daemon.

Imports nothing heavy, so that the watch begins before torch is loaded.
"""

import os
import signal
import threading
import time

from node.looked import looked

LAUNCHER_PID = "INTELLECT_LAUNCHER_PID"


def die_with_launcher() -> None:
    """End this process at once when the process named by INTELLECT_LAUNCHER_PID is no longer its parent."""
    # Told by the launcher, not asked for: the parent that an orphan would find here is another process.
    launcher = int(os.environ.get(LAUNCHER_PID, os.getppid()))

    def watch() -> None:
        looked(lambda: os.getppid() != launcher, 0.2)
        # sys.exit would end this thread only.
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def stop_with_stdin() -> None:
    """End this process when whoever started it does."""

    def watch() -> None:
        while os.read(0, 4096):
            continue
        # torchrun ends its workers on SIGTERM. A launcher that hangs ends all the same, and its workers watch for that.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
