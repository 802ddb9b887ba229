"""Two machines of a trainer in one: `python two_machines.py PORT SPOOL SPOOL N...` starts a pair of ranks once per N.

The second rank ends with SIGKILL right before the N-th call that makes something lasting (fsync, rename); 0 stands for
a life that nobody ends. Prints how both ended. Forks, so that torch is imported once; torchrun is left out.
"""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from node.training import trainer
from node.training.spool import Spool


def live(rank: int, port: str, root: Path, end: int) -> None:
    calls = itertools.count(1)

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if rank == 1 and next(calls) == end:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    for name in ("fsync", "replace"):
        setattr(os, name, deadly(getattr(os, name)))
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update(place, GLOO_SOCKET_IFNAME="lo")
    trainer._train(Spool(root))


def fork(*arguments: Any) -> int:
    child = os.fork()
    if child:
        return child
    try:
        live(*arguments)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def main() -> None:
    torch.set_num_threads(1)
    port, spools = sys.argv[1], [Path(text) for text in sys.argv[2:4]]
    for end in map(int, sys.argv[4:]):
        pair = [fork(rank, port, root, end) for rank, root in enumerate(spools)]
        print(*(os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in pair), flush=True)


if __name__ == "__main__":
    main()
