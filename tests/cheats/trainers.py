"""Trainers that cheat: each in the place of `Trainer`, with the honest daemon around it.

`python -m tests.cheats.trainers NAME join ...` is a drop-in for `python -m cli join ...`. Once such a trainer leads no
more it stands by as any other.
"""

import sys

import structlog
import trio

from cli.main import main as run_program
from node import daemon
from node.recipe.pool import Group
from node.services.training.trainer import POLL, Trainer
from node.weights.keeper import HeldPolicy

log = structlog.get_logger("node.attack")


class Censor(Trainer):
    """Uses nothing of one worker, the first whose file it is given."""

    victim = b""

    def _take_in(self, groups: list[Group]) -> None:
        for group in groups:
            if group.origin is not None and not self.victim:
                self.victim = group.origin.node
                log.info("attack.drops", node="0x" + self.victim.hex())
        super()._take_in([group for group in groups if group.origin is None or group.origin.node != self.victim])


class Stalled(Trainer):
    """Speaks, and publishes nothing after its first policies while it leads."""

    LAST = 5

    async def _bring_out(self, step: int) -> HeldPolicy | None:
        if step == self.LAST + 1 and self.leads(step):
            log.info("attack.stalls", step=step)
        while step > self.LAST and self.leads(step):  # noqa: ASYNC110 - the chain says it
            await trio.sleep(POLL)
        return await super()._bring_out(step)


LEADERS: dict[str, type[Trainer]] = {
    "censor": Censor,
    "stalled": Stalled,
}


def main() -> None:
    """Be the trainer that the first argument names; what follows is the program's own command line."""
    if len(sys.argv) < 2 or sys.argv[1] not in LEADERS:
        sys.exit(f"which trainer? one of: {', '.join(LEADERS)}")
    cheat = LEADERS[sys.argv.pop(1)]
    services = daemon.ROLES["trainer"]
    daemon.ROLES["trainer"] = tuple(cheat if one is Trainer else one for one in services)
    sys.exit(run_program(sys.argv[1:]))


if __name__ == "__main__":
    main()
