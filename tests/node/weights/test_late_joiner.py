"""Policies over real boards, stores and exchanges on the memory network, while members come, go and restart."""

from functools import partial
from pathlib import Path

import trio

from node.blobs.exchange import BlobExchange
from node.blobs.store import BlobStore
from node.state.journal import Journal
from node.swarm import board
from node.swarm.board import Board
from node.swarm.catchup import CatchingUp
from node.swarm.membership import Membership
from node.weights.fetch import PolicyFollower
from node.weights.policy_cache import PolicyCache
from node.weights.publish import Publisher
from node.weights.records import PolicyRecords
from protocol.identity import NodeKey
from protocol.messages import PolicyAnnounced
from protocol.policy import encode_image
from protocol.statements import Domain
from tests.memory_network import MemoryHub, MemoryNetwork
from tests.node.weights.little_swarm import POOL, QUOTA, RUN_ROOT, bytes_of, until, word_of
from tests.words import Ear

TRAINER, FIRST, SECOND, LATE = (NodeKey(bytes([n]) * 32) for n in (11, 12, 13, 14))
EVERYBODY = (TRAINER, FIRST, SECOND, LATE)
DOMAIN = Domain(31337, TRAINER.address)


class Node:
    """What a daemon is made of, as far as policies go. It lives as long as `run` does."""

    def __init__(self, hub: MemoryHub, key: NodeKey, directory: Path) -> None:
        self.directory = directory
        self.network = MemoryNetwork(key, hub)
        self.membership = Membership(key.address, self.network, TRAINER.address, ())
        self.board = Board(self.network, key, DOMAIN, POOL, self.membership)
        self.store = BlobStore(directory / "blobs", QUOTA)
        self.exchange = BlobExchange(self.network, self.store)
        self.policy_cache = PolicyCache(4, self.store)
        self.scope = trio.CancelScope()
        self.ear = Ear(TRAINER.address)

    def _follower(self) -> PolicyFollower:
        return PolicyFollower(
            self.ear.facts,
            self.ear.policies,
            self.exchange,
            self.store,
            self.policy_cache,
            RUN_ROOT,
            lambda author: [author, *self.membership.addresses()],
            1 << 24,
            workshop=self.directory / "building",
            records=PolicyRecords(self.directory / "held"),
            repeat=self.board.post_raw,
        )

    async def run(self, *, follow: bool = True, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.network.run)
                for key in EVERYBODY:
                    self.membership.joined(key.address, f"/ip4/127.0.0.1/tcp/1/p2p/{key.peer_id}")
                nursery.start_soon(self.board.run)
                nursery.start_soon(self._listen)
                if follow:
                    nursery.start_soon(self._follower().run)
                task_status.started()

    async def _listen(self) -> None:
        async for signed in self.board.subscribe(PolicyAnnounced):
            self.ear.hear(signed)

    def holds(self, step: int) -> bool:
        return self.policy_cache.newest is not None and self.policy_cache.newest.step == step


async def test_a_newcomer_catches_up_though_the_trainer_is_gone_and_the_others_restarted(
    run, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(board, "CatchingUp", partial(CatchingUp, every=0.1))
    hub = MemoryHub()
    trainer = Node(hub, TRAINER, tmp_path / "trainer")
    followers = [Node(hub, key, tmp_path / name) for key, name in ((FIRST, "first"), (SECOND, "second"))]
    journal = Journal(tmp_path / "journal.sqlite")
    publisher = Publisher(trainer.store, trainer.board, journal, RUN_ROOT, POOL, workshop=tmp_path / "shop")
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: trainer.run(follow=False, task_status=task_status))
        for node in followers:
            await nursery.start(node.run)
        for step in range(4):
            tensors = run.step()
            (tmp_path / "image").write_bytes(encode_image(tensors))
            held = await publisher.publish(step, tmp_path / "image", word_of(TRAINER, step, tensors, DOMAIN, POOL))
            await until(lambda step=step: all(node.holds(step) for node in followers))
        for node in (trainer, *followers):
            node.scope.cancel()

        again = [Node(hub, key, tmp_path / name) for key, name in ((FIRST, "first"), (SECOND, "second"))]
        for node in again:
            await nursery.start(node.run)
        late = Node(hub, LATE, tmp_path / "late")
        await nursery.start(late.run)
        await until(lambda: late.holds(3))
        nursery.cancel_scope.cancel()
    journal.close()
    assert late.policy_cache.newest is not None and bytes_of(late.policy_cache.newest) == bytes_of(held)
    assert [policy.step for policy in again[0].policy_cache.held] == [0, 1, 2, 3]
