"""Whoever follows a pool by HTTP alone: a real chain, real gateways, and such that lie."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import trio

from contracts.bindings import PoolParams
from contracts.deploy import TOKEN
from node import light_client, sdk
from node.blobs.http.server import Gateway, ServedPolicy
from node.blobs.http.sources import parse_source
from node.blobs.store import BlobStore
from node.light_client import LightClient, Waits
from node.network.host import Libp2pNetwork
from node.services.gateway import served
from node.state.journal import Journal
from node.swarm import pool_state
from node.swarm.policies import PolicyIndex
from node.web.host import bind
from node.web.listener import HttpListener
from node.weights.errors import PolicyUnknown
from node.weights.policy_cache import PolicyCache
from node.weights.publish import Publisher
from protocol.blobs import describe
from protocol.identity import NodeKey
from protocol.messages import Message, seal
from protocol.policy import encode_image
from protocol.run import encode_run
from protocol.statements import Domain
from tests.attacks.validators.court import court_run
from tests.node.chain.conftest import anvil_cache, chain_rpc, connect, deployed, people, profile, settled
from tests.node.weights.little_swarm import bytes_of, word_of

__all__ = ["anvil_cache", "chain_rpc", "connect", "deployed", "people", "profile", "settled"]
RUN = msgspec.structs.replace(court_run(), recipe=msgspec.structs.replace(court_run().recipe, steps=2))
Lie = Callable[[Sequence[ServedPolicy]], Sequence[ServedPolicy]]


class Trainer:
    """Publishes for a pool into a store of its own; all that gossip would say is dropped."""

    def __init__(self, directory: Path, key: NodeKey, domain: Domain, pool: int, steps: int = 3) -> None:
        directory.mkdir()
        self.key, self.domain, self.pool = key, domain, pool
        self.store = BlobStore(directory / "blobs", 10**8)
        self.policy_cache = PolicyCache(4, self.store)
        self._directory, self._steps = directory, steps

    def sealed(self, message: Message) -> bytes:
        return seal(self.key, self.domain, message)

    async def post_raw(self, raw: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def publish(self, seed: int = 0) -> None:
        """Each step of the run, the next one from the policy before it."""
        journal, room = Journal(self._directory / "journal.sqlite"), self._directory / "room"
        await self.store.add(encode_run(RUN))
        publisher = Publisher(
            self.store,
            self,
            journal,
            describe(encode_run(RUN)).root,
            self.pool,
            workshop=room,
            policy_cache=self.policy_cache,
        )  # type: ignore[arg-type] - the two methods that publishing needs
        try:
            parent = bytes(32)
            for step in range(self._steps):
                tensors = {"w": np.full((64, 64), seed + step, "<u2")}
                word = word_of(self.key, step, tensors, self.domain, self.pool, parent=parent)
                image = self._directory / f"image-{step}"  # the store links it
                image.write_bytes(encode_image(tensors))
                held = await publisher.publish(step, image, word)
                self.policy_cache.put(held)
                parent = held.root
        finally:
            journal.close()


@pytest.fixture
async def pool(people, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery):
    """A pool whose manager leads, a profile of its chain, and gateways of whatever list."""
    monkeypatch.setattr(pool_state, "PolicyIndex", partial(PolicyIndex, anchor_seconds=0.1))
    waits = Waits(listing=0.05, look=0.02, heard=1.0)
    monkeypatch.setattr(light_client, "LightClient", partial(LightClient, waits=waits))
    called: list[object] = []
    monkeypatch.setattr(Libp2pNetwork, "set_contact", lambda *told: called.append(told))
    leader = NodeKey.generate()
    params = PoolParams(
        manager=leader.address,
        run_root=describe(encode_run(RUN)).root,
        reward_per_unit=10**15,
        window=60,
        epoch_seconds=10,
        slash_amount=50 * TOKEN,
        validators=(people.validator.address,),
    )
    number = await people.client.create_pool(params, key=people.manager)
    monkeypatch.setattr("node.chain.profile.load_profile", lambda *_, **__: people.client.profile)

    async def serve(trainer: Trainer, lie: Lie = lambda told: told) -> str:
        listener = HttpListener(bind("127.0.0.1:0", "the gateway", "--gateway"))
        gateway = Gateway(listener, trainer.store, lambda: lie(served(trainer.policy_cache)))
        await nursery.start(listener.run)
        return gateway.source()

    def trainer(name: str, key: NodeKey = leader, pool: int = number) -> Trainer:
        return Trainer(tmp_path / name, key, people.client.domain, pool)

    cache, profile = tmp_path / "cache", people.client.profile
    yield SimpleNamespace(
        profile=profile, number=number, serve=serve, trainer=trainer, directory=cache, called=called, waits=waits
    )


def follow(pool, *gateways: str, after: int = -1):
    return sdk.follow("test", pool=pool.number, directory=pool.directory, gateways=gateways, after=after)


async def told(pool, *gateways: str, after: int = -1) -> list[sdk.Policy]:
    with trio.fail_after(30):
        async with follow(pool, *gateways, after=after) as policies:
            return [policy async for policy in policies]


async def test_a_gateway_and_the_chain_are_enough(pool) -> None:
    trainer = pool.trainer("honest")
    await trainer.publish()
    found = await told(pool, await pool.serve(trainer))
    # Older ones may have come first.
    assert (found[-1].step, found[-1].root) == (2, trainer.policy_cache.newest.root)
    assert found[-1].path.read_bytes() == bytes_of(trainer.policy_cache.newest) and not pool.called


async def test_a_program_of_asyncio_follows_by_http(pool) -> None:
    trainer = pool.trainer("honest")
    await trainer.publish()
    gateway = await pool.serve(trainer)

    async def program() -> list[int]:
        async with follow(pool, gateway) as policies:
            return [policy.step async for policy in policies]

    assert (await trio.to_thread.run_sync(asyncio.run, program()))[-1] == 2


@pytest.mark.parametrize("step", [None, 1])
async def test_one_policy_is_fetched_by_http(pool, step: int | None) -> None:
    trainer = pool.trainer("honest")
    await trainer.publish()
    source = parse_source(await pool.serve(trainer), private=True)
    guest = LightClient(
        pool.profile, pool.number, pool.directory, quota=10**8, sources=[source], alone=True, waits=pool.waits
    )
    with trio.fail_after(30):
        snapshot = await guest.fetch(step)
    assert snapshot.policy.step == (2 if step is None else step) and snapshot.trainer == trainer.key.address
    assert snapshot.policy.announcement and not pool.called


def altered(**fields: object) -> Lie:
    return lambda told: [msgspec.structs.replace(one, **fields) for one in told]


def aged(told: Sequence[ServedPolicy]) -> Sequence[ServedPolicy]:
    """The oldest announcement again, as if it were of the newest step."""
    return [msgspec.structs.replace(told[-1], announcement=told[0].announcement)]


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        ("none", altered(announcement=b"")),
        ("no envelope", altered(announcement=b"\x92\xc4\x00\xc4\x00")),
        ("another author", None),
        ("another pool", None),
    ],
)
async def test_a_gateway_that_shows_no_word_of_who_leads_is_not_believed(pool, name: str, lie: Lie | None) -> None:
    author = {"key": NodeKey.generate()} if name == "another author" else {}
    elsewhere = {"pool": pool.number + 1} if name == "another pool" else {}
    liar = pool.trainer("liar", **author, **elsewhere)
    await liar.publish()
    gateway = await pool.serve(liar, lie or (lambda told: told))
    with pytest.raises(PolicyUnknown, match="no policy was announced") as refused:
        await told(pool, gateway)
    assert gateway in refused.value.why and "ask other gateways" in refused.value.remedy
    # The control: beside an honest one it changes nothing.
    trainer = pool.trainer("honest")
    await trainer.publish(seed=7)
    found = {one.root for one in await told(pool, gateway, await pool.serve(trainer))}
    assert trainer.policy_cache.newest.root in found <= {one.root for one in trainer.policy_cache.held}


async def test_an_old_announcement_is_the_policy_that_it_names_and_never_a_newer_one(pool) -> None:
    trainer = pool.trainer("honest")
    await trainer.publish()
    oldest = trainer.policy_cache.held[0]
    gateway = await pool.serve(trainer, aged)
    with trio.fail_after(30):
        async with follow(pool, gateway) as policies:
            first = await anext(policies)
            assert (first.step, first.root) == (0, oldest.root)
            with trio.move_on_after(0.5):
                pytest.fail(f"and then {await anext(policies)}")
    # Whoever knows a newer one is told nothing of it.
    with trio.move_on_after(1.5):
        async with follow(pool, gateway, after=1) as policies:
            pytest.fail(f"it went back to {await anext(policies)}")


async def test_a_leader_that_announces_two_policies_of_a_step_is_found_out_by_two_gateways(
    pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a list takes more than a second.
    waits = Waits(listing=0.05, look=0.02, heard=20.0)
    monkeypatch.setattr(light_client, "LightClient", partial(LightClient, waits=waits))
    one, other = pool.trainer("one"), pool.trainer("other")
    await one.publish()
    await other.publish(seed=7)
    with pytest.raises(PolicyUnknown, match="contradicted itself"):
        await told(pool, await pool.serve(one), await pool.serve(other))
