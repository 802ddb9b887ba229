"""A machine that lends its processes to a trainer on another one: its directory, and how far it has come.

It decides nothing: run, files, settings and batches come from machine 0, checkpoints of its own shards stay here.
"""

import json
from pathlib import Path

from node.training.spool import Spool

_PARTS = ("in", "out", "eval", "ckpt", "assets")


class MachineSpool(Spool):
    """A spool without batches and policies; a step is done when its checkpoint is here."""

    def newest_step(self) -> int:
        return max(self.checkpoint_steps(), default=-1)

    def set_up(self) -> None:
        """Make what is not there yet."""
        for part in _PARTS:
            (self.root / part).mkdir(parents=True, exist_ok=True)
        # The reason of an earlier start counts only if it happens again.
        self.error_path.unlink(missing_ok=True)

    def run_name(self) -> str | None:
        """Of the run that was handed over; None before."""
        try:
            return str(json.loads(self.run_path.read_bytes())["name"])
        except (OSError, ValueError, KeyError):
            return None


def machine_spool(directory: Path) -> MachineSpool:
    spool = MachineSpool(directory / "spool")
    spool.set_up()
    return spool
