"""A worker whose answers take their scorers a minute holds up its own files, and nobody else's."""

import math
from functools import partial
from typing import Any

import pytest
import trio

from node.inference.wire import LoadPolicy, Reply, Request
from node.services.judging import judge
from node.services.judging.judge import Validator
from node.services.judging.queue import InspectionQueue
from node.swarm.vote_set import FileState
from tests.attacks.validators.court import OTHER, WORKER, Court, TruthfulEngine

PATIENCE = 10.0

FILES = 3
STALL = 60.0


@pytest.fixture
def stalling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of OTHER take STALL seconds, as long as a run lets scorers take by default."""
    ask = TruthfulEngine.ask

    async def asked(engine: Any, request: Request, *, timeout: float, policy: LoadPolicy | None = None) -> Reply:
        await trio.sleep(STALL if getattr(request, "node", "") == OTHER.address else 0)
        return await ask(engine, request, timeout=timeout, policy=policy)

    monkeypatch.setattr(TruthfulEngine, "ask", asked)


async def accepted_after(seconds: float) -> tuple[int, int]:
    """How many files of an honest worker, and of one that stalls and was first, are decided by then."""
    court = Court([Validator] * 3, verdict_seconds=3600.0)
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        hostile = [await court.commit(index=index, key=OTHER) for index in range(FILES)]
        await trio.sleep(1)
        honest = [await court.commit(index=index, key=WORKER) for index in range(FILES)]
        await trio.sleep(seconds)
        states = [[court.trainer.jury.state.vote_set.state(id) for id in works] for works in (honest, hostile)]
        nursery.cancel_scope.cancel()
    return tuple(of.count(FileState.ACCEPTED) for of in states)  # type: ignore[return-value]


async def test_others_files_are_decided_while_a_stalling_file_is_looked_at(autojump_clock: Any, stalling: None) -> None:
    assert await accepted_after(PATIENCE + 10) == (FILES, 0)


async def test_files_that_stall_are_decided_in_their_turn(autojump_clock: Any, stalling: None) -> None:
    assert await accepted_after(FILES * (STALL + 1) + 10) == (FILES, FILES)


async def test_without_patience_one_worker_would_hold_all_up(
    autojump_clock: Any, stalling: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: looks are waited for to their end."""
    monkeypatch.setattr(judge, "InspectionQueue", partial(InspectionQueue, patience=math.inf))
    assert await accepted_after(PATIENCE + 10) == (0, 0)
