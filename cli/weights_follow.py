"""`weights fetch --follow`: the newest policy again and again, behind a name that always leads to a whole model.

OUT holds a directory for each of the newest policies, and the link OUT/newest. Knows files and patience; how a policy
is fetched is told to it.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from node.weights.records import RECORD_NAME
from protocol.errors import IntellectError

NEWEST = "newest"
KEPT = 2
"""Models that stay: who opened the one before may still be reading it."""
PAUSE = 15.0
"""Seconds between two looks for a newer policy."""


class Fetched(msgspec.Struct, frozen=True):
    """step: of the newest policy that there is; last: whether the run has no later one."""

    step: int
    last: bool


Place = Callable[[int], Path | None]
"""Where to write the model of a step; None: it is there already."""


def follow(
    out: Path,
    fetch: Callable[[Place], Fetched],
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Fetch until the run's last policy is there. Raises IntellectError if not even a first policy can be had; later on
    a swarm that does not answer is asked again."""
    out.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            found = fetch(lambda step: None if model_of(out, step).exists() else model_of(out, step))
        except IntellectError as error:
            if not models(out):
                raise
            say(f"{error.what}: {error.why}; asking again")
        else:
            point_to(out, found.step)
            if found.last:
                return
        sleep(PAUSE)


def model_of(out: Path, step: int) -> Path:
    """The model directory of a step."""
    return out / f"step-{step:08d}"


def models(out: Path) -> list[Path]:
    """The model directories that an export has written here, oldest first; directories of others are left alone."""
    return sorted(path for path in out.glob("step-[0-9]*") if (path / RECORD_NAME).is_file())


def point_to(out: Path, step: int) -> None:
    """Let OUT/newest lead to the model of `step`, in one move, and forget the oldest ones."""
    link = out / f".{NEWEST}.partial"
    link.unlink(missing_ok=True)
    link.symlink_to(model_of(out, step).name)
    os.replace(link, out / NEWEST)
    for old in models(out)[:-KEPT]:
        if old != model_of(out, step):
            shutil.rmtree(old)
