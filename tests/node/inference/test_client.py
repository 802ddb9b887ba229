"""The supervisor of the engine child, with a child that misbehaves on demand."""

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import psutil
import pytest
import trio
import trio.testing

from node.inference.client import EngineProcess
from node.inference.errors import EngineCrashed, EngineError, EngineTimeout
from node.inference.link import ChildLink
from node.inference.wire import MOST_REQUESTS, EngineReady, Loaded, LoadPolicy, Produce, Produced, RequestProgress
from protocol.run import VerificationSpec
from protocol.thresholds import Thresholds

PRETENDER = [sys.executable, str(Path(__file__).with_name("pretender.py"))]


def engine(
    assets: str = "fine",
    command: list[str] = PRETENDER,
    *,
    repeats: int = 0,
    first_pause: float = 0.01,
    cancel_grace: float = 120.0,
    silent: float = 0.5,
) -> EngineProcess:
    """Impatient, and asks for nothing again unless told otherwise."""
    link = partial(ChildLink, silent=silent, ping_every=0.2, cancel_grace=cancel_grace)
    return EngineProcess(command, b"{}", Path(assets), link=link, first_pause=first_pause, repeats=repeats)


def load(path: str) -> LoadPolicy:
    return LoadPolicy(policy_root=bytes(32), step=0, path=path)


def order(path: str) -> Produce:
    return Produce(policy_root=POLICY.policy_root, node="0x" + "11" * 20, pool=0, index=0, out_path=path)


POLICY = load("well")


@pytest.mark.parametrize(("deed", "why"), [("die", "exit status 9"), ("babble", "announced"), ("hang", "says nothing")])
async def test_a_child_that_breaks_is_replaced_with_all_it_started(deed: str, why: str, tmp_path: Path) -> None:
    child = engine()
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        first = child.pid
        with pytest.raises(EngineCrashed, match=why):
            await child.ask(load(f"{deed} {tmp_path / 'pid'}"), timeout=60)
        assert isinstance(await child.ask(load("well"), timeout=20), Loaded)
        assert child.restarts == 1 and child.pid != first
        if deed == "hang":
            nurse = int((tmp_path / "pid").read_text())
            assert not psutil.pid_exists(nurse) or psutil.Process(nurse).status() == psutil.STATUS_ZOMBIE
        last = child.pid
        nursery.cancel_scope.cancel()
    assert last is not None and not psutil.pid_exists(last)


async def test_a_request_that_kills_its_child_is_asked_again_so_often() -> None:
    child = engine(repeats=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        with pytest.raises(EngineCrashed):
            await child.ask(load("die"), timeout=60)
        await child.ask(load("well"), timeout=20)
        assert child.restarts == 2
        nursery.cancel_scope.cancel()


async def test_what_was_in_flight_when_a_child_died_is_done_by_the_next_which_gets_its_policy(tmp_path: Path) -> None:
    child, made = engine(repeats=1), []

    async def ask(path: str) -> None:
        made.append(await child.ask(order(path), timeout=30, policy=POLICY))

    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        async with trio.open_nursery() as asking:
            for path in ("after", f"die-once {tmp_path / 'died'}", "well"):
                asking.start_soon(ask, path)
            while len(made) < 3:  # `after` may be the last to be repeated
                await child.ask(order("well"), timeout=30, policy=POLICY)
        nursery.cancel_scope.cancel()
    assert len(made) == 3 and all(isinstance(one, Produced) for one in made) and child.restarts == 1


async def test_a_request_that_takes_its_child_along_takes_no_other_request_along() -> None:
    """The child says which it was at. Who asked for that one hears what the child said."""
    child, done = engine(), trio.Event()

    async def ask() -> None:
        await child.ask(order("after"), timeout=30, policy=POLICY)
        done.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        nursery.start_soon(ask)
        for _ in range(2):
            with pytest.raises(EngineCrashed, match="fell off the bus"):
                await child.ask(order("end"), timeout=30, policy=POLICY)
        while not done.is_set():
            await child.ask(order("well"), timeout=30, policy=POLICY)
        assert child.restarts == 2
        nursery.cancel_scope.cancel()


async def test_a_policy_that_the_child_has_let_go_meanwhile_is_given_to_it_again() -> None:
    """Which ones it keeps follows from what its jobs are at, which only it knows."""
    child = engine()
    first, second = (LoadPolicy(policy_root=bytes([n]) * 32, step=n, path="alone") for n in (1, 2))
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        for policy in (first, second, first):
            asked = Produce(policy_root=policy.policy_root, node="0x" + "11" * 20, pool=0, index=0, out_path="well")
            assert isinstance(await child.ask(asked, timeout=30, policy=policy), Produced)
        nursery.cancel_scope.cancel()


async def test_replies_come_in_any_order_and_progress_before_them() -> None:
    child, begun, told, ended = engine(), trio.Event(), [], []

    def hear(one: RequestProgress) -> None:
        told.append((one.done, one.of))
        begun.set()

    async def ask(path: str) -> None:
        await child.ask(order(path), timeout=20, policy=POLICY, on_progress=hear)
        ended.append(path)

    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        async with trio.open_nursery() as asking:
            asking.start_soon(ask, "after")
            await begun.wait()
            asking.start_soon(ask, "well")
        nursery.cancel_scope.cancel()
    assert ended == ["well", "after"] and told == [(1, 2)]


async def test_a_request_over_its_time_is_given_up_and_the_child_goes_on() -> None:
    child = engine()
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        with pytest.raises(EngineTimeout):
            await child.ask(order("never"), timeout=0.5, policy=POLICY)
        assert isinstance(await child.ask(order("well"), timeout=20, policy=POLICY), Produced)
        assert child.restarts == 0
        nursery.cancel_scope.cancel()


async def test_a_child_that_does_not_let_go_of_what_was_cancelled_is_replaced() -> None:
    child = engine(cancel_grace=0.2)
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        with pytest.raises(EngineTimeout):
            await child.ask(order("keep"), timeout=0.5, policy=POLICY)
        while not child.restarts:
            await trio.sleep(0.05)
        nursery.cancel_scope.cancel()


async def test_more_requests_than_a_child_takes_are_refused() -> None:
    child, refused = engine(), []
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)

        async def ask() -> None:
            try:
                await child.ask(order("never"), timeout=0.5, policy=POLICY)
            except EngineTimeout:
                pass
            except EngineError as error:
                refused.append(error.what)

        async with trio.open_nursery() as asking:
            for _ in range(MOST_REQUESTS + 3):
                asking.start_soon(ask)
        nursery.cancel_scope.cancel()
    assert refused == ["the engine is busy"] * 3


async def test_an_engine_that_cannot_prepare_the_run_ends_the_service() -> None:
    for hopeless in (engine("broken"), engine(command=["/no/such/program"])):
        with pytest.raises(ExceptionGroup) as caught:
            async with trio.open_nursery() as nursery:
                await nursery.start(hopeless.run)
        assert caught.group_contains(EngineError)


RULES = VerificationSpec(
    engines=("*/*/*",),
    pairs={f"here/{kind}/sdpa>here/{kind}/sdpa": Thresholds() for kind in ("float32", "bfloat16")},
)


@pytest.mark.parametrize(
    ("computes", "why"),
    [
        ("here/bfloat16/sdpa", ""),
        ("elsewhere/float32/sdpa", "the run was not calibrated for it"),
        ("here/float32/own", "the run was not calibrated for it"),
        ("", "it does not say"),
    ],
)
def test_a_worker_whose_files_would_be_malformed_does_not_start(computes: str, why: str) -> None:
    child = engine()
    child.ready = EngineReady(device="cpu", dtype="any", engine="pretender", parameters=0, engine_class=computes)
    if not why:
        child.check_permitted(RULES)
        return
    with pytest.raises(EngineError) as caught:
        child.check_permitted(RULES)
    assert why in caught.value.why and "admitted: here/bfloat16/sdpa, here/float32/sdpa" in caught.value.why
    assert "intellect-node calibrate export" in caught.value.remedy


@pytest.mark.parametrize(("computes", "sees"), [("here/float32/eager", True), ("elsewhere/float32/sdpa", False)])
def test_a_validator_needs_arithmetic_in_which_work_was_seen(computes: str, sees: bool) -> None:
    child = engine()
    child.ready = EngineReady(device="cpu", dtype="any", engine="pretender", parameters=0, engine_class=computes)
    if sees:
        child.check_permitted(RULES, "validator")
        return
    with pytest.raises(EngineError, match="does not admit"):
        child.check_permitted(RULES, "validator")


async def test_a_new_child_that_computes_in_another_way_makes_nothing(tmp_path: Path) -> None:
    """A GPU that is gone after a crash must not cost its owner the stake."""
    told = tmp_path / "class"
    told.write_text("here/bfloat16/sdpa")
    child = engine(str(tmp_path), first_pause=0.5)
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        child.check_permitted(RULES)
        told.write_text("elsewhere/bfloat16/sdpa")
        with pytest.raises(EngineCrashed):
            await child.ask(load("die"), timeout=20)
        with pytest.raises(EngineTimeout):
            await child.ask(load("well"), timeout=1)
        told.write_text("here/bfloat16/sdpa")
        assert isinstance(await child.ask(load("well"), timeout=30), Loaded)
        nursery.cancel_scope.cancel()


async def test_an_engine_that_is_put_away_leaves_no_process_and_comes_back_when_it_is_woken() -> None:
    child = engine(silent=60.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        first = child.pid
        assert first is not None
        child.sleep()
        with trio.fail_after(20):
            while psutil.pid_exists(first):
                await trio.sleep(0.02)
        with pytest.raises(EngineError, match="put away"):
            await child.ask(load("well"), timeout=1)
        child.wake()
        assert isinstance(await child.ask(load("well"), timeout=30), Loaded)
        assert child.pid not in (None, first) and child.restarts == 0
        nursery.cancel_scope.cancel()


async def test_one_that_is_woken_while_its_child_still_ends_has_not_crashed() -> None:
    child = engine(silent=60.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(child.run)
        first = child.pid
        child.sleep()
        await trio.testing.wait_all_tasks_blocked()  # it waits for the end of its child
        child.wake()
        assert isinstance(await child.ask(load("well"), timeout=30), Loaded)
        assert child.pid != first and child.restarts == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("admitted", [True, False])
async def test_an_engine_of_a_node_that_starts_paused_is_loaded_and_looked_at_when_it_is_woken(
    admitted: bool, tmp_path: Path
) -> None:
    (tmp_path / "class").write_text("here/bfloat16/sdpa" if admitted else "elsewhere/bfloat16/sdpa")
    child = engine(str(tmp_path))
    child.sleep()
    with pytest.RaisesGroup(EngineError, allow_unwrapped=True) if not admitted else nullcontext():
        async with trio.open_nursery() as nursery:
            await nursery.start(child.run)
            child.check_permitted(RULES)
            assert child.pid is None and child.ready is None
            child.wake()
            if admitted:
                assert isinstance(await child.ask(load("well"), timeout=30), Loaded)
                nursery.cancel_scope.cancel()
            else:
                with trio.fail_after(30):
                    await trio.sleep_forever()
