"""A light client's policies: when they end, and when it gives up instead of waiting for ever."""

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest
import trio

from node.light_client import LightClient, Waits
from node.weights.errors import PolicyUnknown
from protocol.blobs import describe
from protocol.policy import encode_manifest
from tests.node.weights.little_swarm import Peer
from tests.node.weights.test_weights import announce


class Guest(LightClient):
    """Everything of a client but the chain and the network: its follower is a peer's of the little swarm."""

    def __init__(self, peer: Peer, steps: int, heard: float = 60.0) -> None:
        self._pool, self.peer, self._steps, self._directory = 7, peer, steps, peer.directory / "weights"
        self._waits = Waits(look=0.01, silence=0.05, heard=heard)
        self.meanwhile: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        """What happens while a model's files are fetched."""

    @asynccontextmanager
    async def _connected(self, *, newest: bool):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.peer.follower.run)
            run = SimpleNamespace(recipe=SimpleNamespace(steps=self._steps))
            blob_service, leads = SimpleNamespace(store=self.peer.store), SimpleNamespace(trainer=self.peer.key.address)
            member = SimpleNamespace(blob_service=blob_service, membership=leads)
            yield member, run, self.peer.follower, self.peer.policy_cache
            nursery.cancel_scope.cancel()

    async def _assets(self, member, run):
        await self.meanwhile()
        return {}


async def test_policies_end_after_the_last_step_of_the_run(run, origin, peer) -> None:
    trainer = origin()
    async with Guest(peer("guest", trainer.key.address), steps=2).following() as snapshots:
        told = []
        for step in range(3):
            held = await trainer.publish(step, run.step())
            told.append((await snapshots.receive()).policy)
            assert told[-1].root == held.root
        with trio.fail_after(5), pytest.raises(trio.EndOfChannel):
            await snapshots.receive()
    assert [policy.step for policy in told] == [0, 1, 2]


async def test_nothing_is_waited_for_that_comes_after_the_last_step(origin, peer) -> None:
    with trio.fail_after(5):
        async with Guest(peer("guest", origin().key.address), steps=2).following(after=2) as snapshots:
            assert [snapshot async for snapshot in snapshots] == []


async def test_a_trainer_that_contradicts_itself_ends_a_visit(run, origin, peer, wire) -> None:
    trainer = origin()
    guest = Guest(peer("guest", trainer.key.address), steps=9)
    # A group, as trio's nurseries raise one; the interface for programs takes the one error out of it.
    with trio.fail_after(5), pytest.RaisesGroup(pytest.RaisesExc(PolicyUnknown), flatten_subgroups=True) as raised:
        async with guest.following() as snapshots:
            held = await trainer.publish(0, run.step())
            await snapshots.receive()
            wire.say(announce(trainer.key, msgspec.structs.replace(held.manifest, policy_root=b"?" * 32), b"x" * 32))
            await snapshots.receive()
    found = raised.value
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert found.what == "the trainer contradicted itself" and "two policies" in found.why


@pytest.mark.parametrize("wanted", ["the newest", "a step", "what comes"])
async def test_a_contradiction_that_comes_while_a_policy_is_fetched_is_told_and_not_the_policy(
    run, origin, peer, wire, wanted: str
) -> None:
    """The control first: the same snapshot, in which nobody says anything meanwhile."""
    trainer = origin()
    guest = Guest(peer("guest", trainer.key.address), steps=9)
    held = await trainer.publish(0, run.step())

    async def snapshot():
        if wanted != "what comes":
            return await guest.fetch(None if wanted == "the newest" else 0)
        async with guest.following() as snapshots:
            return await snapshots.receive()

    async def contradict() -> None:
        wire.say(announce(trainer.key, msgspec.structs.replace(held.manifest, policy_root=b"?" * 32), b"x" * 32))
        while guest.peer.follower.equivocation is None:
            await trio.sleep(0.01)

    with trio.fail_after(5):
        assert (await snapshot()).policy.root == held.root
    guest.meanwhile = contradict
    refused = pytest.RaisesExc(PolicyUnknown, match="contradict")
    with trio.fail_after(5), pytest.RaisesGroup(refused, flatten_subgroups=True):
        await snapshot()


async def test_what_a_liar_published_is_not_fetched(run, origin, peer, wire) -> None:
    trainer = origin()
    guest = Guest(peer("guest", trainer.key.address), steps=9)
    held = await trainer.publish(0, run.step())
    wire.say(announce(trainer.key, msgspec.structs.replace(held.manifest, policy_root=b"?" * 32), b"x" * 32))
    with trio.fail_after(5), pytest.RaisesGroup(pytest.RaisesExc(PolicyUnknown, match="contradict")):
        await guest.fetch()


async def test_a_newest_policy_that_cannot_be_one_is_not_waited_for(run, origin, peer, wire) -> None:
    trainer = origin()
    guest = Guest(peer("guest", trainer.key.address), steps=9)
    trainer.board.muted = True
    held = await trainer.publish(3, run.step())
    elsewhere = msgspec.structs.replace(held.manifest, run_root=b"?" * 32)
    wire.say(announce(trainer.key, elsewhere, describe(encode_manifest(elsewhere)).root))
    with trio.fail_after(5), pytest.RaisesGroup(pytest.RaisesExc(PolicyUnknown, match="of step 3")):
        await guest.fetch()


async def test_a_pool_that_says_nothing_is_told(origin, peer) -> None:
    guest = Guest(peer("guest", origin().key.address), steps=9, heard=0.1)
    silence = pytest.RaisesExc(PolicyUnknown, match="no policy")
    with trio.fail_after(5), pytest.RaisesGroup(silence, flatten_subgroups=True):
        async with guest.following() as snapshots:
            await snapshots.receive()
    with trio.fail_after(5), pytest.RaisesGroup(silence):
        await guest.fetch()
