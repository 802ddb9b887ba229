"""The supervisor of the engine child, with a child that misbehaves on demand."""

import sys
from pathlib import Path

import psutil
import pytest
import trio

from node.inference.client import EngineProcess
from node.inference.errors import EngineCrashed, EngineError
from node.inference.wire import Loaded, LoadPolicy, Produce, Produced
from protocol.cuts import Cuts
from protocol.run import VerificationSpec

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
        assert child.restarts == 1 and child.pid != first
        nursery.cancel_scope.cancel()


async def test_a_request_repeated_at_once_finds_its_policy_in_the_new_child() -> None:
    policy = load("well")

    def order(path: str) -> Produce:
        return Produce(policy_root=policy.policy_root, node="0x" + "11" * 20, pool=0, index=0, out_path=path)

    child = engine()
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        with pytest.raises(EngineCrashed):
            await child.ask(order("die"), timeout=20, policy=policy)
        assert isinstance(await child.ask(order("well"), timeout=20, policy=policy), Produced)
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


RULES = VerificationSpec(
    engines=("*/*/*",),
    pairs={f"here/{kind}/sdpa>here/{kind}/sdpa": Cuts() for kind in ("float32", "bfloat16")},
)


@pytest.mark.parametrize(
    ("computes", "why"),
    [
        ("here/bfloat16/sdpa", ""),
        ("elsewhere/float32/sdpa", ""),
        ("elsewhere/bfloat16/sdpa", "the run was not calibrated for it"),
        ("here/float32/own", "the run was not calibrated for it"),
        ("", "it does not say"),
    ],
)
async def test_a_worker_whose_files_would_be_malformed_does_not_start(tmp_path: Path, computes: str, why: str) -> None:
    (tmp_path / "class").write_text(computes)
    child = engine(str(tmp_path))
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        if not why:
            child.check_permitted(RULES)
        else:
            with pytest.raises(EngineError) as caught:
                child.check_permitted(RULES)
            assert why in caught.value.why and "admitted: */float32/sdpa, here/bfloat16/sdpa" in caught.value.why
            assert "float32" in caught.value.remedy and "calibrate" in caught.value.remedy
        nursery.cancel_scope.cancel()


async def test_a_new_child_that_computes_in_another_way_makes_nothing(tmp_path: Path) -> None:
    """A GPU that is gone after a crash must not cost its owner the stake."""
    told = tmp_path / "class"
    told.write_text("here/bfloat16/sdpa")
    child = engine(str(tmp_path))
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        child.check_permitted(RULES)
        told.write_text("elsewhere/bfloat16/sdpa")
        with pytest.raises(EngineCrashed):
            await child.ask(load("die"), timeout=20)
        with pytest.raises(EngineCrashed):
            await child.ask(load("well"), timeout=3)
        told.write_text("here/bfloat16/sdpa")
        assert isinstance(await child.ask(load("well"), timeout=30), Loaded)
        nursery.cancel_scope.cancel()
