"""`python leash.py PARENT COMMAND...` becomes COMMAND, and ends when PARENT does, however PARENT ends.

Linux only (prctl); elsewhere it just becomes COMMAND. Run as a file of its own, in a fresh interpreter with
one thread, so that nothing happens between fork and exec in the demo's process.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    if sys.platform.startswith("linux"):
        # The kernel keeps it over the exec below, but no fork inherits it.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != int(parent):  # it went away before we could ask
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - becomes the given program


if __name__ == "__main__":
    main()
