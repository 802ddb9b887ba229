"""The supervisor of the engine child, with a child that misbehaves on demand."""

import sys
from pathlib import Path

import psutil
import pytest
import trio

from node.inference.client import EngineProcess
from node.inference.errors import EngineCrashed, EngineError
from node.inference.wire import Loaded, LoadPolicy

PRETENDER = [sys.executable, str(Path(__file__).with_name("pretender.py"))]
REPOSITORY = str(Path(__file__).resolve().parents[3])


def engine(assets: str = "fine", command: list[str] = PRETENDER) -> EngineProcess:
    return EngineProcess(command, b"{}", Path(assets), env={"PYTHONPATH": REPOSITORY})


def load(path: str) -> LoadPolicy:
    return LoadPolicy(policy_root=bytes(32), step=0, path=path)


@pytest.mark.parametrize("deed", ["die", "babble"])
async def test_a_child_that_breaks_is_replaced_and_the_request_fails(deed: str) -> None:
    child = engine()
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        first = child.pid
        assert isinstance(await child.ask(load("well"), timeout=20), Loaded)
        with pytest.raises(EngineCrashed):
            await child.ask(load(deed), timeout=20)
        assert isinstance(await child.ask(load("well"), timeout=20), Loaded)
        assert child.generation == 2 and child.pid != first
        nursery.cancel_scope.cancel()


async def test_a_child_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    child = engine()
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        with pytest.raises(EngineCrashed, match="no answer"):
            await child.ask(load(f"hang {note}"), timeout=3)
        await child.ask(load("well"), timeout=20)
        nurse = int(note.read_text())
        assert not psutil.pid_exists(nurse) or psutil.Process(nurse).status() == psutil.STATUS_ZOMBIE
        last = child.pid
        nursery.cancel_scope.cancel()
    assert last is not None and not psutil.pid_exists(last)


async def test_an_engine_that_cannot_prepare_the_run_ends_the_service() -> None:
    for hopeless in (engine("broken"), engine(command=["/no/such/program"])):
        with pytest.raises(ExceptionGroup) as caught:
            async with trio.open_nursery() as nursery:
                await nursery.start(hopeless.run)
        assert caught.group_contains(EngineError)
