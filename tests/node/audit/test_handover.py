"""How long an audit waits for what a step was made of: as long as the run's rate says, and no longer for a trickle."""

from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from node.blobs.errors import BlobUnavailable, StoreFull
from node.services.auditing.step_replay import Overdue, StepReplay, Withheld
from protocol.errors import OwnFailure
from protocol.sections import ChairRules

ROOT, SIZE, RATE = bytes(32), 300_000_000, 1_000_000


class Line:
    """Somebody who hands a blob over at a rate, in bytes a second. upto: bytes, after which nothing comes any more."""

    holding = staticmethod(lambda roots: nullcontext())

    def __init__(self, rate: float, upto: int = SIZE, failure: OwnFailure | None = None) -> None:
        self._rate, self._upto, self._failure = rate, upto, failure
        self._here = 0.0

    def arrived(self, root: bytes) -> int:
        return int(self._here)

    async def fetch(self, root: bytes, sources: Any, *, max_size: int, timeout: float) -> Path:
        if self._failure is not None:
            raise self._failure
        needed = (SIZE - self._here) / self._rate if self._rate and self._upto == SIZE else float("inf")
        await trio.sleep(min(timeout, needed))
        self._here = min(self._here + timeout * self._rate, self._upto)
        if needed > timeout:
            raise BlobUnavailable(root, "not complete")
        return Path("here")


def asked(line: Line) -> StepReplay:
    membership = SimpleNamespace(trainer="0x1", addresses=list)
    run = SimpleNamespace(spec=SimpleNamespace(chair=ChairRules(bytes_per_second=RATE)))
    context: Any = SimpleNamespace(membership=membership, blobs=line, run=run)
    return StepReplay(context, Path("nowhere"), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "seconds", "came"),
    [
        (Line(RATE), 300, None),
        (Line(0.9 * RATE), 333, None),
        (Line(0.5 * RATE), 360, Overdue),
        (Line(RATE, upto=SIZE - 1), 360, Overdue),
        (Line(10), 360, Overdue),
        (Line(0), 60, Withheld),
        (Line(RATE, failure=StoreFull("no room")), 0, StoreFull),
    ],
    ids=["at the rate", "within its minute", "at half of it", "all but a byte", "a trickle", "nothing", "own disk"],
)
async def test_a_blob_has_the_time_that_the_runs_rate_gives_it(
    autojump_clock: Any, line: Line, seconds: int, came: type[Exception] | None
) -> None:
    replay, began = asked(line), trio.current_time()
    with ExitStack() as held, nullcontext() if came is None else pytest.raises(came):
        await replay._fetch(ROOT, SIZE, held)
    assert int(trio.current_time() - began) == seconds


async def test_of_many_blobs_each_has_the_time_of_all_and_a_look_that_is_late_waits_for_no_other(
    autojump_clock: Any,
) -> None:
    """Eight files share one line. What is late already must not hold up the audits behind it for each of its blobs."""
    replay, began = asked(Line(RATE / 8)), trio.current_time()
    with ExitStack() as held:
        await replay._fetch(ROOT, SIZE, held, beside=8 * SIZE)
    assert trio.current_time() - began == 2400
    replay = asked(Line(10))
    for seconds in (360, 60, 60):
        began = trio.current_time()
        with ExitStack() as held, pytest.raises(Overdue):
            await replay._fetch(ROOT, SIZE, held)
        assert trio.current_time() - began == seconds
