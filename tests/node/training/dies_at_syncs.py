"""A trainer that is killed: `python dies_at_syncs.py SPOOL N...` starts it once per N, on the same spool.

Each life ends with SIGKILL right before the N-th call that makes something lasting (fsync, rename), in whatever thread
that is; 0 stands for a life that nobody ends. Prints how each ended. Forks, so that torch is imported once.
"""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.trainer import Trainer


def live(root: Path, end: int) -> None:
    calls = itertools.count(1)

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(calls) == end:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    for name in ("fsync", "replace"):
        setattr(os, name, deadly(getattr(os, name)))
    Trainer(Spool(root), TrainerSettings(checkpoint_every=2)).train()


def main() -> None:
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    for end in map(int, sys.argv[2:]):
        child = os.fork()
        if child == 0:
            try:
                live(root, end)
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
