"""What a quorum that falls silent leaves: a worker's services on a real chain file it after the pool's end, and redeem
it. The chain, its client, the follower, the outbox, the journal and the services are real; roots come by a gossip in
memory, and the chain's clock is put forward."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from contracts.bindings import PoolParams
from contracts.deploy import TOKEN
from node.chain.client import ChainClient
from node.chain.errors import Reverted
from node.chain.faucet import DevnetFaucet
from node.chain.follower import EventFollower, RolledBack
from node.chain.ledger import Ledger
from node.chain.sender import SendLimits
from node.chain.setup import prepare_participant
from node.chain.simulate import SimulatedStep
from node.clock import Clock
from node.progress import ProgressRecord
from node.services.base import ServiceManager
from node.services.claimer import Claimer
from node.services.context import PoolTime
from node.services.departure import Departure
from node.services.leaf_reader import LeafReader
from node.services.pool_accounting import PoolAccounting
from protocol.earnings import Accepted, leaves_of
from protocol.identity import NodeKey
from protocol.messages import EpochRootSigned, open_envelope, seal
from protocol.statements import EpochRoot, sign
from tests.attacks.validators.court import InlineJournal
from tests.node.chain.chains import Participants
from tests.node.services.earners import Blobs, Board, Gossip, Membership

PRICE, EPOCH, WINDOW, DELAY = 10**15, 10, 60, 20
LIMITS = SendLimits(poll=0.02, bump_after=0.3, give_up=10.0)


class Worker:
    """Its services that bring pay home; a new daemon, with a new client and follower, each time it lives."""

    def __init__(self, people: Participants, pool: int, folder: Path) -> None:
        self.people, self.pool, self.folder = people, pool, folder
        self.journal, self.gossip, self.blobs = InlineJournal(), Gossip(), Blobs(folder)
        self.scope = trio.CancelScope()
        self.claimer: Claimer | None = None
        self.left = False

    async def live(self) -> None:
        people, key = self.people, self.people.node
        client = ChainClient(people.client.profile, key, outbox=self.folder / "outbox.sqlite", limits=LIMITS)
        follower = EventFollower(client, self.pool, self.folder / "chain.sqlite", poll=0.05)
        ledger = Ledger(key.address, lambda: follower.read_until, lambda: follower.now)
        board = self.gossip.boards[key.address] = Board(self.gossip, key)
        board.heard = SimpleNamespace(get=lambda author: trio.current_time())
        info = await client.pool(self.pool)
        nobody: Any = SimpleNamespace(nodes={})
        context: Any = SimpleNamespace(
            key=key,
            domain=client.domain,
            pool=self.pool,
            board=board,
            blobs=self.blobs,
            journal=self.journal,
            membership=Membership(nobody),
            facts=board.facts,
            progress=ProgressRecord(),
            clock=Clock(),
            time=PoolTime(info.started_at, EPOCH, WINDOW),
        )
        books, manager = PoolAccounting(context, client, ledger), ServiceManager()
        self.claimer = Claimer(books)
        self.leaving = Departure(context, self.claimer, manager)
        self.scope = trio.CancelScope()
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(follower.run)
                    nursery.start_soon(self._deliver, follower, ledger)
                    for service in (LeafReader(books), self.claimer, self.leaving):
                        nursery.start_soon(service.run)
                    await manager.left.wait()
                    self.left = True
                    nursery.cancel_scope.cancel()
        finally:
            self.gossip.boards.pop(key.address, None)
            client.close()

    @staticmethod
    async def _deliver(follower: EventFollower, ledger: Ledger) -> None:
        async for told in follower.events:
            for event in told.events if isinstance(told, RolledBack) else [told]:
                (ledger.undo if isinstance(told, RolledBack) else ledger.apply)(event)

    async def root(self, by: NodeKey, epoch: int, works: Sequence[tuple[bytes, int]], number: int) -> None:
        """A validator's root over works of this node, and one of somebody else's."""
        domain, other = self.people.client.domain, NodeKey(bytes([9]) * 32).address
        named = [Accepted(self.pool, self.people.node.address, epoch, work, units) for work, units in works]
        leaves, files = leaves_of([*named, Accepted(self.pool, other, epoch, bytes([99]) * 32, 7)])
        for file in files:
            await self.blobs.add(file)
        info = await self.blobs.add(msgspec.msgpack.encode(leaves))
        total = sum(units for _, units in works) + 7
        said = EpochRoot(self.pool, epoch, number, leaves.root(), total, info.root)
        message = EpochRootSigned(pool=self.pool, statement=said, signature=sign(by, domain, said))
        self.gossip.tell(open_envelope(domain, self.pool, seal(by, domain, message)))


async def until(what: Callable[[], bool], seconds: float = 20) -> None:
    with trio.fail_after(seconds):
        while not what():
            await trio.sleep(0.05)


async def test_what_a_silent_quorum_named_is_filed_and_redeemed_and_the_sweep_leaves_it(
    people: Participants, chain_rpc: Callable[..., Any], tmp_path: Path
) -> None:
    client, second, own = people.client, NodeKey.generate(), people.node.address
    await prepare_participant(client, DevnetFaucet(client), NodeKey.generate(), second, stake=100 * TOKEN)
    params = PoolParams(
        manager=people.manager.address,
        reward_per_unit=PRICE,
        window=WINDOW,
        delay=DELAY,
        epoch_seconds=EPOCH,
        slash_amount=50 * TOKEN,
        validators=(people.validator.address, second.address),
        threshold=2,
    )
    pool = await client.create_pool(params, key=people.manager)
    await DevnetFaucet(client).fund(people.manager.address, token=TOKEN)
    await client.fund_pool(pool, TOKEN, key=people.manager)  # 1,000 units
    await client.join(pool, "x")
    worker = Worker(people, pool, tmp_path)

    def forward(to: int) -> None:
        now = int(chain_rpc("eth_getBlockByNumber", "latest", False)["timestamp"], 16)
        chain_rpc("evm_setNextBlockTimestamp", max(to, now + 1))
        chain_rpc("evm_mine")

    async def on_chain(read: Callable[[Any], Any]) -> Any:
        return await client.ask("read what was filed", read)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.live)
        await until(lambda: bool(worker.claimer and worker.claimer.seen))
        info = await client.pool(pool)
        # An epoch and its late work; the second epoch one of the two knows less of. Then they say nothing any more.
        for number, key in enumerate((people.validator, second), 1):
            await worker.root(key, 0, [(bytes([1]) * 32, 100)], number)
            await worker.root(key, 0, [(bytes([2]) * 32, 20)], 10 + number)
        await worker.root(people.validator, 1, [(bytes([3]) * 32, 50), (bytes([4]) * 32, 50)], 3)
        await worker.root(second, 1, [(bytes([3]) * 32, 50)], 4)
        forward(info.epoch_end(1))
        await client.execute(SimulatedStep("end the pool", client.contracts.end_pool(pool)), people.manager)
        times = (await client.pool(pool)).filing
        with pytest.raises(Reverted, match="may still be tabled, filed or redeemed"):
            forward(times.starts - 1)
            await client.sweep(pool)
        assert await on_chain(lambda c: c.filed_by(pool, own)) == 0
        forward(times.starts)
        await until(lambda: bool(worker.claimer and worker.claimer.account.filed == 170))
        assert await on_chain(lambda c: c.filed_of(pool, own, 0)) == 120
        assert await on_chain(lambda c: c.filed_of(pool, own, 1)) == 50
        # Killed, and started again with what is on its disk: nothing is filed twice.
        worker.scope.cancel()
        sent = chain_rpc("eth_getTransactionCount", own, "latest")
        forward(times.ends)
        with pytest.raises(Reverted, match="may still be tabled, filed or redeemed"):
            await client.sweep(pool)
        forward(times.redeems)
        had = (await client.balances(people.manager.address)).token
        await client.sweep(pool, key=people.validator)
        assert (await client.balances(people.manager.address)).token - had == (1000 - 170) * PRICE
        assert chain_rpc("eth_getTransactionCount", own, "latest") == sent
        nursery.start_soon(worker.live)
        had = (await client.balances(people.provider.address)).token
        await until(lambda: bool(worker.claimer and worker.claimer.account.paid == 170 * PRICE))
        assert (await client.balances(people.provider.address)).token - had == 170 * PRICE
        assert worker.claimer and worker.claimer.filing.filed.over
        assert (await client.pool(pool)).escrow == 0 and await on_chain(lambda c: c.filed_by(pool, own)) == 0
        await worker.leaving.leave()
        await until(lambda: worker.left)
        nursery.cancel_scope.cancel()
