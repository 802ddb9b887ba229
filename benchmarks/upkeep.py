"""What gas does a pool's day cost, as its daemons send it?

    python -m benchmarks.upkeep [--workers 100] [--quick] [--json FILE]

A local EVM with the contracts, under a virtual clock. Lease, settling, bringing, paying, certifying, tabling and the
chair are the product's services: they decide what is sent and when, and each transaction is mined with the time at
which they send it. Boards, blobs and what a jury thinks are doubles. A fifth of the workers is stopped each night.
Epochs are of an hour, the window a day, the delay six hours, a lease as long as by default, the chair's an hour.

In the first week the nodes join, one after the other; then two weeks are counted. The chair is played apart: with a
leader that lives, and with one that falls silent each day for six hours, so that a quorum ends its term and a standby
takes. Everything but the times at which services look (half an hour, for the chair a minute) is as in a daemon. Gas
does not depend on the machine.
"""

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import trio
import trio.testing
from eth_account import Account
from web3 import Web3
from web3.middleware import AttributeDictMiddleware

from benchmarks.command import parser_of, save, silence_logs, tell
from benchmarks.gas import CONTACT, HOUR, WINDOW, Bench
from cli.devnet import cache_directory
from contracts.bindings import (
    ChainEvent,
    Claimed,
    EarningsPosted,
    Joined,
    PoolInfo,
    PoolParams,
    TermEnded,
    TermHeld,
    TermTaken,
    TrainersSeated,
    parse_log,
    raw_log,
)
from contracts.deploy import TOKEN
from node.chain.blocks import Block
from node.chain.errors import translate
from node.chain.rpc import EXPECTED
from node.progress import ProgressRecord
from node.services.context import Context
from node.services.leader_lease import LeaderLease, LeadFrom
from node.services.membership.participant import LeaseRenewal, needs_no_join
from node.swarm.facts import Facts, TermMoved
from node.swarm.message_store import MessageStore
from node.swarm.terms import LeaderTerms
from protocol.identity import Address, NodeKey
from protocol.messages import Signed
from protocol.statements import Domain, Earnings
from protocol.upkeep import DAY, WEEK
from tests.attacks.validators.court import court_run
from tests.node.chain.chains import CHAIN_ID, local_chain
from tests.node.services import earners
from tests.node.services.earners import Node, World, inline

PRICE = 10**12
POOL = 1
TICK = 900
"""Seconds of virtual time between two blocks in which nothing was sent."""
CHAIR_LEASE, CHAIR_GRACE = HOUR, 20
SLOW: dict[str, Any] = {"round_seconds": 1800.0, "pauses": ((1800.0, 1800.0), (300.0, 300.0))}
FILES_EVERY = 6 * HOUR
NIGHT = 8 * HOUR
NIGHTLY = 5
"""Each so many-th worker is off for a night."""
AWAY = 6 * HOUR
BASE_MINIMUM_FEE = 5_000_000
"""Wei per gas on Base, February 2026; without the fee for L1 data."""
BARS = {"without a chair": 3_000_000, "with the chair": 6_000_000}


class Chain:
    """The EVM as the services see it, its time the virtual one. sent: (second of the pool's time, kind, gas)."""

    def __init__(self, bench: Bench, keys: dict[Address, NodeKey], epoch: int) -> None:
        self.bench, self.contracts, self.keys = bench, bench.contracts, keys
        self.start = bench.now() + 10
        self.sent: list[tuple[float, str, int]] = []
        self.told: list[ChainEvent] = []
        self.ledgers: list[Any] = []
        self.listeners: list[Callable[[ChainEvent], object]] = []
        self.epoch, self.window = epoch, WINDOW
        self._last = Block(0, b"", 0)
        self._times: dict[int, int] = {}
        self._known: dict[Any, Any] = {}
        """Answers, until an event or the time at which a table counts; and of each node, until an event of it."""
        self._counts_at = 0
        self._of_nodes: dict[tuple[str, Address], Any] = {}

    # time

    def now(self) -> int:
        return self.start + int(trio.current_time())

    def settle(self, within: int = TICK) -> None:
        """A block that is no older than so many seconds."""
        if self._last.timestamp + within <= self.now():
            (mined,) = self.bench.rpc("evm_mine_detailed", {"timestamp": self.now()})  # one question, not three
            self._mined(mined)

    def _read(self) -> None:
        self._mined(self.bench.rpc("eth_getBlockByNumber", "latest", False))

    def _mined(self, block: dict[str, Any]) -> None:
        self._last = Block(int(block["number"], 16), bytes.fromhex(block["hash"][2:]), int(block["timestamp"], 16))
        if 0 < self._counts_at <= self._last.timestamp:
            self._known.clear()
            self._counts_at = 0

    async def block(self, number: int | None = None) -> Block:
        await trio.lowlevel.checkpoint()
        self.settle()
        if number is None:
            return self._last
        if number not in self._times:
            found: Any = self.bench.web3.eth.get_block(number)
            self._times[number] = int(found["timestamp"])
        return Block(number, b"", self._times[number])

    # reads

    async def _ask(self, name: str, *given: Any) -> Any:
        await trio.lowlevel.checkpoint()
        self.settle()
        if (name, *given) not in self._known:
            self._known[name, *given] = getattr(self.contracts, name)(*given)
        return self._known[name, *given]

    async def _of(self, name: str, node: Address, *given: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if (name, node) not in self._of_nodes:
            self._of_nodes[name, node] = getattr(self.contracts, name)(*given, node)
        return self._of_nodes[name, node]

    async def pool(self, pool: int) -> PoolInfo:
        return await self._ask("pool", pool)

    async def books(self, pool: int, known: Any = None) -> Any:
        return await self._ask("books", pool)

    async def claimed(self, pool: int, node: Address) -> int:
        return await self._of("claimed", node, pool)

    async def standing(self, pool: int, node: Address) -> Any:
        return await self._of("member", node, pool)

    async def node_info(self, node: Address) -> Any:
        return await self._ask("node_info", node)

    async def stake_of(self, provider: Address) -> Any:
        return await self._ask("stake_of", provider)

    async def ask(self, action: str, look: Callable[[Any], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        self.settle()
        key = (action, *sorted(getattr(look, "keywords", {}).items()))
        if len(key) == 1 or key not in self._known:
            self._known[key] = look(self.contracts)
        return self._known[key]

    # writes

    async def send(self, kind: str, call: Any, key: NodeKey) -> tuple[ChainEvent, ...]:
        """As a daemon does: tried first, and mined at this second; what the contracts told. Raises ChainError."""
        await trio.lowlevel.checkpoint()
        self.settle(1)
        web3, sender = self.bench.web3, Web3.to_checksum_address(key.address)
        asked: Any = {**call.fields(), "from": sender}
        self.bench.rpc("evm_setNextBlockTimestamp", self._last.timestamp + 1)
        try:
            web3.eth.call(asked, "pending")  # at that second: a table that counts from it on is another one
        except EXPECTED as error:
            raise translate(error, kind) from error
        fields = {**asked, "nonce": web3.eth.get_transaction_count(sender), "gas": 5_000_000, "chainId": CHAIN_ID}
        fields |= {"maxFeePerGas": 10**10, "maxPriorityFeePerGas": 0}
        del fields["from"]
        raw = Account.sign_transaction(fields, key.secret).raw_transaction
        receipt: Any = web3.eth.wait_for_transaction_receipt(
            web3.eth.send_raw_transaction(raw), timeout=20, poll_latency=0.001
        )
        if receipt["status"] != 1:
            raise RuntimeError(f"{kind} reverted")
        self._read()
        self.sent.append((trio.current_time(), kind, int(receipt["gasUsed"])))
        return self.hear(receipt)

    def hear(self, receipt: Any) -> tuple[ChainEvent, ...]:
        """Everybody follows the events, at once."""
        parsed = [parse_log(raw_log(entry), self.contracts.addresses) for entry in receipt["logs"]]
        events = tuple(one for one in parsed if one is not None)
        for event in events:
            self.told.append(event)
            if isinstance(event, EarningsPosted):
                self._counts_at = event.counts_at
            if not isinstance(event, Joined | TermHeld):
                self._known.clear()
            if isinstance(event, Claimed | Joined):
                self._of_nodes = {key: value for key, value in self._of_nodes.items() if key[1] != event.node}
            for listener in [*(ledger.apply for ledger in self.ledgers), *self.listeners]:
                listener(event)
        return events

    async def post_earnings(self, earnings: Earnings, signatures: list[bytes]) -> None:
        await self.send("table", self.contracts.post_earnings(earnings, signatures), next(iter(self.keys.values())))

    async def claim(self, pool: int, node: Address, units: int, proof: Any, patience: Any = None) -> Any:
        claim = self.contracts.claim(pool, node, units, proof)
        return SimpleNamespace(events=await self.send("claim", claim, self.keys[node]))

    def follow(self, ledger: Any) -> None:
        for event in self.told:
            ledger.apply(event)
        self.ledgers.append(ledger)


class Door:
    """One node's way to the chain."""

    def __init__(self, chain: Chain, key: NodeKey) -> None:
        self._chain, self._key, self._contracts = chain, key, chain.contracts
        self.pool, self.block, self.standing = chain.pool, chain.block, chain.standing

    async def join(self, pool: int, contact: str, patience: Any = None) -> None:
        kind = "lease" if (await self.standing(pool, self._key.address)).joined_block else "first join"
        await self._chain.send(kind, self._contracts.join(pool, contact), self._key)

    async def hold_chair(self, pool: int, step: int, policy_root: bytes) -> None:
        await self._chain.send("hold", self._contracts.hold_chair(pool, step, policy_root), self._key)

    async def take_chair(self, pool: int, term: int, from_step: int, parent: bytes) -> None:
        await self._chain.send("take", self._contracts.take_chair(pool, term, from_step, parent), self._key)

    async def end_term(self, silent: Any, signatures: Any) -> None:
        await self._chain.send("end a term", self._contracts.end_term(silent, signatures), self._key)

    async def end_term_by_verdicts(self, term: int, commitment: Any, verdicts: Any, signatures: Any) -> None:
        call = self._contracts.end_term_by_verdicts(term, commitment, verdicts, signatures)
        await self._chain.send("end a term by verdicts", call, self._key)


# the pool


def keys_of(count: int, first: int) -> tuple[NodeKey, ...]:
    return tuple(NodeKey((first + number).to_bytes(32)) for number in range(count))


def prepare(
    bench: Bench, validators: tuple[NodeKey, ...], trainers: tuple[NodeKey, ...], others: Any, epoch: int
) -> Chain:
    """A pool in which everybody is registered and nobody has joined."""
    contracts, house = bench.contracts, bench.person(10**6 * TOKEN)
    bench.send(contracts.bond(house.address, 10**6 * TOKEN), house)
    everybody = {key.address: key for key in (*validators, *trainers, *others)}
    for key in everybody.values():
        bench.rpc("anvil_setBalance", key.address, hex(10**20))
        bench.register(house, key)
    manager = bench.person(10**6 * TOKEN)
    params = PoolParams(
        manager=manager.address,
        reward_per_unit=PRICE,
        window=WINDOW,
        epoch_seconds=epoch,
        slash_amount=20 * TOKEN,
        validators=tuple(key.address for key in validators),
        threshold=2,
    )
    chain = Chain(bench, everybody, epoch)
    block = int(bench.web3.eth.block_number) + 1
    bench.send(contracts.create_pool(params), manager)
    bench.send(contracts.fund_pool(POOL, 10**6 * TOKEN), manager)
    bench.send(contracts.seat_trainers(POOL, [key.address for key in trainers], CHAIR_LEASE, CHAIR_GRACE), manager)
    for number in range(block, int(bench.web3.eth.block_number) + 1):
        found: Any = bench.web3.eth.get_block(number)
        for digest in found["transactions"]:
            chain.hear(bench.web3.eth.get_transaction_receipt(digest))
    chain.start = contracts.pool(POOL).started_at
    chain._read()
    return chain


class Play:
    """A pool of workers, validators and trainers; what they send is the product's to decide."""

    def __init__(self, folder: Path, chain: Chain, trainers: tuple[NodeKey, ...], joining: int) -> None:
        self._joining = joining
        self.chain, self.world = chain, World(folder, epoch=chain.epoch, window=WINDOW, **SLOW)
        self.world.chain, self.world.gathers = chain, True  # type: ignore[assignment]
        self.world.gossip.age = MessageStore().max_age
        for key in trainers:
            self.world.nodes[key.address] = Node(self.world, key, "worker")
        self.officers = {node.key.address for node in self.world.validators} | {key.address for key in trainers}
        self.world.more = lambda node: [self._lease(node)]

    def _members(self, node: Node) -> Any:
        return SimpleNamespace(
            own=node.key.address,
            is_member=lambda one: True,
            is_trainer=lambda one: one in self.officers,
            may_validate=lambda one: one in self.officers,
        )

    def _lease(self, node: Node) -> LeaseRenewal:
        door: Any = Door(self.chain, node.key)
        return LeaseRenewal(door, POOL, self._members(node), lambda: CONTACT, node.progress)

    async def keep(self, node: Node, number: int, *, nightly: bool) -> None:
        """Its owner starts it, while all join, and stops it at night."""
        door: Any = Door(self.chain, node.key)
        await trio.sleep(self._joining * number / len(self.world.nodes))
        while True:
            if not await needs_no_join(door, await self.chain.pool(POOL), node.key.address):
                await door.join(POOL, CONTACT)
            with trio.move_on_after(DAY - NIGHT) if nightly else trio.CancelScope():
                await node.live()
            await trio.sleep(NIGHT)

    async def work(self, node: Node) -> None:
        while True:
            await trio.sleep(FILES_EVERY)
            if node.lives:
                self.world.make(node, 100)

    async def run(self, weeks: int) -> None:
        async with trio.open_nursery() as nursery:
            # Those that judge come first: without them nobody is paid.
            order = [*self.world.validators, *(one for one in self.world.nodes.values() if one.role != "validator")]
            for number, node in enumerate(order):
                works = node.key.address not in self.officers
                nursery.start_soon(lambda n=node, i=number, w=works: self.keep(n, i, nightly=w and i % NIGHTLY == 0))
                nursery.start_soon(self.work, node)
            await trio.sleep(self._joining)
            for week in range(1, 1 + weeks):
                await trio.sleep(WEEK)
                tell(f"week {week} of {weeks}: {len(self.chain.sent)} transactions")
            nursery.cancel_scope.cancel()


class Seats:
    """The chair alone: validators that listen, trainers that lead and stand by. away: seconds of each day in which who
    leads then is not there."""

    def __init__(self, chain: Chain, validators: tuple[NodeKey, ...], trainers: tuple[NodeKey, ...], away: int) -> None:
        self.chain, self.validators, self.trainers, self._away = chain, validators, trainers, away
        self.facts = Facts(trio.current_time)
        self.silent_since: dict[Address, float] = {}
        self.nodes: list[LeaderTerms] = []
        chain.listeners.append(self._hear)

    def _hear(self, event: ChainEvent) -> None:
        for terms in self.nodes:
            self._apply(terms, event)
        if isinstance(event, TermTaken | TermHeld | TermEnded) and self.nodes:
            self.facts.tell([TermMoved(self.nodes[0].now.holder, self.nodes[0].now)])

    @staticmethod
    def _apply(terms: LeaderTerms, event: ChainEvent) -> None:
        match event:
            case TrainersSeated():
                terms.seat(event.trainers, event.lease_seconds, event.grace_seconds)
            case TermTaken():
                terms.take(event.term, event.holder, event.from_step, event.parent, event.until)
            case TermHeld():
                terms.hold(event.term, event.until, event.step)
            case TermEnded():
                terms.end(event.term, event.ended_at)

    def _seen(self, node: Address) -> Any:
        return SimpleNamespace(seen_at=self.silent_since.get(node, trio.current_time()), gone=None)

    def _step(self) -> int:
        return int(trio.current_time()) // 600

    def _service(self, key: NodeKey) -> LeaderLease:
        terms = LeaderTerms(self.trainers[0].address, trio.current_time)
        for event in self.chain.told:
            self._apply(terms, event)
        self.nodes.append(terms)
        seats = [one.address for one in self.validators]

        async def post(message: Any) -> None:
            await trio.lowlevel.checkpoint()
            self.facts.tell([Signed(key.address, message, b"")])

        members = SimpleNamespace(
            own=key.address,
            terms=terms,
            table=SimpleNamespace(get=self._seen, live=lambda now: range(105)),
            quorum=2,
            validators=tuple(seats),
            may_validate=lambda one: one in seats,
            is_evicted=lambda one: False,
        )
        context: Any = SimpleNamespace(
            key=key,
            domain=Domain(CHAIN_ID, self.chain.contracts.addresses.swarm),
            run=SimpleNamespace(spec=court_run()),
            pool=POOL,
            membership=members,
            jury=SimpleNamespace(step_verdicts=lambda domain, term: {}),
            facts=self.facts,
            state=SimpleNamespace(policies=SimpleNamespace(newest_step=self._step(), heard_at=lambda count: [])),
            board=SimpleNamespace(post=post),
            clock=SimpleNamespace(monotonic=trio.current_time),
            time=SimpleNamespace(now=self.chain.now),
            progress=ProgressRecord(clock=trio.current_time, wall=trio.current_time),
        )
        context.until = lambda *given, **more: Context.until(context, *given, **more)
        context.on_news = lambda *given, **more: Context.on_news(context, *given, **more)
        root = b"\x55" * 32
        candidate: Any = SimpleNamespace(
            holds=lambda: True, ready=lambda: LeadFrom(self._step() + 1, root), at=lambda: (self._step(), root)
        )
        mine = None if key in self.validators else candidate
        return LeaderLease(context, Door(self.chain, key), mine, look_every=60.0)

    async def _live(self, key: NodeKey) -> None:
        """A trainer that is away whenever it leads at noon, for some hours."""
        while True:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    service = self._service(key)
                    nursery.start_soon(service.run)
                    while True:
                        await trio.sleep(DAY - trio.current_time() % DAY + 60)
                        if self._away and service._terms.now.holder == key.address:
                            scope.cancel()
                            break
            self.silent_since[key.address] = trio.current_time()
            await trio.sleep(self._away)
            del self.silent_since[key.address]

    async def run(self, days: int) -> None:
        async with trio.open_nursery() as nursery:
            for key in (*self.validators, *self.trainers):
                await Door(self.chain, key).join(POOL, CONTACT)
            for key in self.validators:
                nursery.start_soon(self._service(key).run)
            for key in self.trainers:
                nursery.start_soon(self._live, key)
            await trio.sleep(days * DAY)
            nursery.cancel_scope.cancel()


# what is measured


def played(
    workers: int, weeks: int, away: int | None, days: int = 7, epoch: int = HOUR, joining: int = WEEK
) -> list[tuple[float, str, int]]:
    """What was sent. away: of the chair alone and its days, seconds a day without a leader; None for the pool without
    it; epoch: seconds; joining: the first seconds, in which the nodes join and nothing is counted."""
    # Numbered apart from the judges and trainers, whatever their number.
    validators, trainers = keys_of(3, 1), keys_of(3, 11)
    others = keys_of(workers, 1000) if away is None else ()
    with tempfile.TemporaryDirectory() as folder, local_chain(cache_directory()) as (provider, _), ExitStack() as stack:
        deployer = NodeKey.generate()
        provider.make_request("anvil_setBalance", [deployer.address, hex(10**20)])  # type: ignore[arg-type]
        bench = Bench(Web3(provider, middleware=[AttributeDictMiddleware]), deployer)
        chain = prepare(bench, validators, trainers, others, epoch)
        names = {"WORKERS": others, "VALIDATORS": validators, "POOL": POOL, "PRICE": PRICE, "START": chain.start}
        names["DOMAIN"] = Domain(CHAIN_ID, chain.contracts.addresses.swarm)
        stack.enter_context(patch.multiple(earners, **names))
        stack.enter_context(patch("trio.to_thread.run_sync", inline))
        if away is None:
            main: Any = Play(Path(folder), chain, trainers, joining).run
            given = weeks
        else:
            main, given = Seats(chain, validators, trainers, away).run, days
        trio.run(main, given, clock=trio.testing.MockClock(autojump_threshold=0))
    return chain.sent


def day_of(sent: list[tuple[float, str, int]], since: float, days: float) -> dict[str, tuple[float, float]]:
    """kind -> (transactions, gas) of a day."""
    counted = [(kind, gas) for at, kind, gas in sent if at >= since]
    number, gas = Counter(kind for kind, _ in counted), Counter[str]()
    for kind, used in counted:
        gas[kind] += used
    return {kind: (number[kind] / days, gas[kind] / days) for kind in number}


def measure(workers: int, weeks: int) -> dict[str, Any]:
    """By part: what a day takes, by kind."""
    parts = {
        "pool": day_of(played(workers, weeks, None), WEEK, 7 * weeks),
        # For a week: its trainers renew nothing here, and are members for eight days.
        "chair": day_of(played(0, 1, 0), 60, 7),
        "contested chair": day_of(played(0, 1, AWAY), 60, 7),
    }
    sums = {name: sum(gas for _, gas in kinds.values()) for name, kinds in parts.items()}
    totals = {
        "without a chair": sums["pool"],
        "with the chair": sums["pool"] + sums["chair"],
        "with a contested chair": sums["pool"] + sums["contested chair"],
    }
    return {"workers": workers, "weeks": weeks, "parts": parts, "totals": totals}


def main() -> None:
    parser = parser_of(__doc__, "eight workers, one week")
    parser.add_argument("--workers", type=int, default=100)
    options = parser.parse_args()
    silence_logs()
    found = measure(8 if options.quick else options.workers, 1 if options.quick else 2)
    for part, kinds in found["parts"].items():
        for kind, (number, gas) in sorted(kinds.items(), key=lambda item: -item[1][1]):
            print(f"{part:16} {kind:12} {number:7.2f} a day {gas:12,.0f} gas")
    for name, gas in found["totals"].items():
        coin = gas * BASE_MINIMUM_FEE / 10**18
        bar = f", bar {BARS[name] / 1e6:g} M" if name in BARS and not options.quick else ""
        print(f"a day of {found['workers']} workers, {name}: {gas / 1e6:.2f} M gas, {coin:.6f} ETH{bar}")
    save(options.json, found)


if __name__ == "__main__":
    main()
