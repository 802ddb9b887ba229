"""A child that works on a spool: alone under its lock, and heard where it gives up."""

import argparse
import fcntl
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from node.state.files import write_whole
from node.training.bells import hung
from node.training.settings import TrainerSettings, decode_settings
from node.training.spool import Spool
from protocol.errors import IntellectError


def spool_named_on_the_command_line(description: str) -> Spool:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--spool", type=Path, required=True)
    return Spool(parser.parse_args().spool)


def settings_of(spool: Spool) -> TrainerSettings:
    """Those of this start. Raises TrainingError."""
    return decode_settings(spool.settings_path.read_bytes()) if spool.settings_path.exists() else TrainerSettings()


def alone(name: str, spool: Spool, work: Callable[[], None], error_path: Path, said: Mapping[str, str]) -> int:
    """Do the work when no other process of this name does; the exit status.

    Where it raises an IntellectError, that is told.
    """
    with (spool.root / f"{name}.lock").open("w") as lock:
        # The child of a killed daemon may end later than it does: its successor waits here until it has.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with hung(spool.root) as spool.bell:
                work()
        except IntellectError as error:
            give_up(error, error_path, said)
            return 1
    return 0


def give_up(error: IntellectError, error_path: Path, said: Mapping[str, str]) -> None:
    """The reason goes to the log, with `said`, and to error_path, unless one is there."""
    reason = {"what": error.what, "why": error.why, "remedy": error.remedy}
    tell({**said, **reason})
    if not error_path.exists():
        write_whole(error_path, msgspec.json.encode(reason))


def tell(event: Mapping[str, Any]) -> None:
    """A line of the log, which is read from standard error."""
    print(json.dumps(event), file=sys.stderr, flush=True)
