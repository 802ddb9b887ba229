"""`sdk.follow` in plain programs, under asyncio and trio, with the little swarm in whichever loop the client has."""

import asyncio
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
import trio

from node import light_client, sdk
from node.chain.profile import load_profile
from node.weights.errors import PolicyUnknown
from tests.node.weights.test_light_client import Guest

STEPS = 2


class Scene(Guest):
    """A light client whose trainer publishes in its own loop: the next policy once the last one was taken."""

    def __init__(self, origin, peer, run, silent: int, heard: float) -> None:
        self._trainer, self._policies, self._silent = origin(), run, silent
        self._taken = trio.Event()
        super().__init__(peer("guest", self._trainer.key.address), STEPS, heard)

    @asynccontextmanager
    async def _connected(self, *, newest: bool):
        try:
            async with super()._connected(newest=newest) as parts, trio.open_nursery() as nursery:
                nursery.start_soon(self._publish)
                yield parts
                nursery.cancel_scope.cancel()
        finally:
            LEFT.append(threading.current_thread())

    async def _publish(self) -> None:
        for step in range(self._silent):
            self._taken = trio.Event()
            await self._trainer.publish(step, self._policies.step())
            await self._taken.wait()

    async def _assets(self, member, run):
        self._taken.set()
        run.name = "little"
        return await super()._assets(member, run)


LEFT: list[threading.Thread] = []
"""In which a client ended."""
OPENING = threading.Event()


@pytest.fixture
def scene(origin, peer, run, monkeypatch):
    """silent: the first step that the trainer does not publish."""
    LEFT.clear()

    def profile(name: str, **options: Path) -> object:
        OPENING.set()
        return SimpleNamespace(pool=7) if name == "little" else load_profile(name, **options)

    def stage(silent: int = STEPS + 1, heard: float = 60.0) -> None:
        OPENING.clear()
        monkeypatch.setattr("node.chain.profile.load_profile", profile)
        monkeypatch.setattr(light_client, "LightClient", lambda *_, **__: Scene(origin, peer, run, silent, heard))

    return stage


def follow(tmp_path: Path):
    return sdk.follow("little", directory=tmp_path / "cache")


@pytest.mark.parametrize("start", [asyncio.run, lambda program: trio.run(lambda: program)], ids=["asyncio", "trio"])
def test_each_policy_is_told_until_the_runs_last(start, scene, tmp_path: Path) -> None:
    scene()

    async def program() -> list[sdk.Policy]:
        async with follow(tmp_path) as policies:
            return [policy async for policy in policies]

    told = start(program())
    assert [policy.step for policy in told] == [0, 1, 2] and all(policy.path.is_file() for policy in told)
    assert len(LEFT) == 1


@pytest.mark.parametrize("start", [asyncio.run, lambda program: trio.run(lambda: program)], ids=["asyncio", "trio"])
def test_whoever_stops_waiting_for_a_policy_loses_none(start, scene, tmp_path: Path) -> None:
    scene()

    async def program() -> list[int]:
        told = []
        async with follow(tmp_path) as policies:
            while len(told) < STEPS + 1:
                with anyio.move_on_after(0.002):
                    told.append((await anext(policies)).step)
        return told

    assert start(program()) == [0, 1, 2]


async def never_ending(tmp_path: Path, heard: asyncio.Event) -> None:
    async with follow(tmp_path) as policies:
        async for _ in policies:
            heard.set()


def test_a_task_that_is_cancelled_ends_the_client_and_its_thread(scene, tmp_path: Path) -> None:
    scene(silent=1)

    async def program() -> None:
        heard = asyncio.Event()
        task = asyncio.create_task(never_ending(tmp_path, heard))
        await heard.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(LEFT) == 1 and LEFT[0] is not threading.main_thread()
        await asyncio.to_thread(LEFT[0].join, 5)
        assert not LEFT[0].is_alive()

    asyncio.run(program())


def test_a_task_that_is_cancelled_while_it_opens_leaves_nothing_behind(scene, tmp_path: Path) -> None:
    scene()

    async def program() -> None:
        task = asyncio.create_task(never_ending(tmp_path, asyncio.Event()))
        await asyncio.to_thread(OPENING.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(program())
    ours = [one for one in threading.enumerate() if one.name.startswith("intellect-node")]
    for one in ours:
        one.join(5)
    assert not any(one.is_alive() for one in ours)


def test_what_ends_a_client_is_raised_in_the_program(scene, tmp_path: Path) -> None:
    scene(silent=0, heard=0.1)

    async def asks() -> None:
        async with follow(tmp_path) as policies:
            await anext(policies)

    async def asks_nothing() -> None:
        async with follow(tmp_path):
            await asyncio.sleep(0.5)

    async def opens() -> None:
        async with sdk.follow("nowhere", pool=7, directory=tmp_path):
            pytest.fail("it followed nobody")

    for program in (asks, asks_nothing):
        with pytest.raises(PolicyUnknown, match="no policy was announced"):
            asyncio.run(program())
    with pytest.raises(sdk.IntellectError, match="there is no network"):
        asyncio.run(opens())
