"""A trainer must not outlive its launcher: torchrun gives its workers sessions of their own.

Imports nothing heavy, so that the watch begins before torch is loaded.
"""

import os
import threading
import time

LAUNCHER_PID = "INTELLECT_LAUNCHER_PID"
LOOK_EVERY = 0.2


def die_with_launcher() -> None:
    """End this process at once when the process named by INTELLECT_LAUNCHER_PID is no longer its parent."""
    launcher = int(os.environ.get(LAUNCHER_PID, os.getppid()))

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(LOOK_EVERY)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
