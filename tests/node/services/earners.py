"""A pool that pays, in memory: real certifying, paying, settling and tabling over real journals.

Board, blobs, jury and chain are doubles; the chain checks what the contract checks: signatures, order, maturity, money.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import trio

from contracts.bindings import (
    CaseInfo,
    Claimed,
    EarningsDropped,
    EarningsHeld,
    EarningsPosted,
    Filed,
    Filings,
    NodeInfo,
    PoolBooks,
    PoolFunded,
    PoolInfo,
    PostedEarnings,
    Redeemed,
    Slashed,
    SlashOverturned,
    Stake,
    ValidatorsSet,
    WaitingEarnings,
)
from node.chain.blocks import Block
from node.chain.errors import ChainError, FeeTooHigh, Reverted
from node.chain.ledger import Ledger
from node.clock import Clock
from node.progress import ProgressRecord
from node.services.base import ServiceManager
from node.services.certifier import Certifier
from node.services.claim_carrier import ClaimCarrier
from node.services.claimer import Claimer
from node.services.context import PoolTime
from node.services.court.earnings_tabler import EarningsTabler
from node.services.departure import Departure
from node.services.leaf_reader import LeafReader
from node.services.pool_accounting import PoolAccounting
from node.swarm.counts import COUNTS
from node.swarm.facts import Facts, PolicyFollowed, WorkTouched
from node.swarm.vote_set import FileState
from protocol.blobs import BlobInfo, describe
from protocol.earnings import Accepted, EarningsLine, leaves_of
from protocol.filing import Filing
from protocol.identity import Address, NodeKey, address_bytes
from protocol.messages import (
    EarningsVote,
    EpochRootSigned,
    PolicyAnnounced,
    Signed,
    VerdictIssued,
    open_envelope,
    seal,
    together,
)
from protocol.pages import verify
from protocol.statements import (
    Domain,
    Earnings,
    EpochRoot,
    Rechecked,
    VerdictOutcome,
    WorkCommitment,
    sign,
    signer_of,
    work_id,
)
from protocol.upkeep import Patience
from tests.attacks.validators.court import InlineJournal, court_run

WORKERS = tuple(NodeKey(bytes([n]) * 32) for n in (21, 22, 23))
VALIDATORS = tuple(NodeKey(bytes([n]) * 32) for n in (31, 32, 33))
TRAINER = NodeKey(bytes([41]) * 32)
DOMAIN = Domain(31337, TRAINER.address)
POOL, PRICE, START = 7, 10**13 + 7, 1000


class Treasury:
    """The contract's side of earnings. Blocks of two seconds; down: nobody answers."""

    def __init__(self, epoch: int, window: int, escrow: int = 10**12, delay: int | None = None) -> None:
        self.epoch, self.window, self.free = epoch, window, 0
        self.delay = -(-window // 4) if delay is None else delay
        self._waiting: WaitingEarnings | None = None
        self.validators = [key.address for key in VALIDATORS]
        self.threshold, self.per_epoch = 2, 10**9
        self._posted = PostedEarnings(None, bytes(32), 0)
        self.owed = 0
        self.units: dict[Address, int] = {}
        self.received: Counter[Address] = Counter()
        """By provider, wei."""
        self.claims: list[tuple[Address, int]] = []
        self.filed: dict[Address, dict[int, int]] = {}
        self.redeemed: list[tuple[Address, int]] = []
        self.held_filings = 0
        self.files_sent = 0
        self.slashed: set[Address] = set()
        self.posts: list[tuple[int, int]] = []
        self.tokens: Counter[Address] = Counter()
        self.lends: set[Address] = set()
        self.credits: Counter[Address] = Counter()
        self.collected: list[tuple[Address, int]] = []
        self.ledgers: list[Ledger] = []
        self.told: list[Any] = []
        self.down = self.loses_answers = self.claims_fail = False
        self.dear = False
        """Whether gas costs more than is paid for what can wait."""
        self.stopped_at = 0
        self.attested, self.most = False, 10**9
        self._tell(ValidatorsSet, block=START // 2, validators=tuple(self.validators), threshold=self.threshold)
        self.fund(escrow, block=START // 2)

    def fund(self, units: int, block: int = 0) -> None:
        self.free += units
        self._tell(PoolFunded, block=block, payer=TRAINER.address, amount=units * PRICE, escrow=self.free * PRICE)

    def seat(self, keys: Sequence[NodeKey]) -> None:
        """Others take office."""
        self.validators = [key.address for key in keys]
        self._tell(ValidatorsSet, validators=tuple(self.validators), threshold=self.threshold)

    def slash(self, node: Address, case: int) -> None:
        """case: 0 for a conviction by the node's own signatures."""
        self.slashed.add(node)
        self._tell(Slashed, node=node, provider=node, reason=5, amount=1, file_root=bytes(32), case_id=case)

    def overturn(self, node: Address) -> None:
        self.slashed.discard(node)
        self._tell(SlashOverturned, node=node, case_id=1, compensation=0)

    def now(self) -> int:
        return START + int(trio.current_time()) // 2 * 2

    @property
    def posted(self) -> PostedEarnings:
        """The table that counts: one that has waited long enough does, whoever asks."""
        waiting = self._waiting
        if waiting is not None and self.now() >= waiting.counts_at:
            more, first = waiting.total - self._posted.total, self._first()
            self.free, self.owed, self._waiting = self.free - more, self.owed + more, None
            given = (waiting.epoch, waiting.root, waiting.total, more, waiting.epoch + 1 - first)
            self._posted = PostedEarnings(*given)
        return self._posted

    def _first(self) -> int:
        return 0 if self._posted.epoch is None else self._posted.epoch + 1

    def hold(self, seconds: int) -> None:
        """The guardian does."""
        if self._waiting is None:
            raise AssertionError("nothing waits")
        counts_at = self.now() + seconds
        self._waiting = msgspec.structs.replace(self._waiting, held=True, counts_at=counts_at)
        self._tell(EarningsHeld, epoch=self._waiting.epoch, counts_at=counts_at)

    def drop(self) -> None:
        """The arbiter does."""
        if self._waiting is None or not self._waiting.held:
            raise AssertionError("nothing is held")
        self._tell(EarningsDropped, epoch=self._waiting.epoch, root=self._waiting.root)
        self._waiting = None

    async def _answer(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.down:
            raise ChainError("no answer", "the endpoint is down", "wait")

    async def books(self, pool: int, known: PoolInfo | None = None) -> PoolBooks:
        await self._answer()
        return PoolBooks(self.info(), self.posted, self._waiting)

    def info(self) -> PoolInfo:
        _ = self.posted
        given = {
            "id": POOL,
            "delay": self.delay,
            "started_at": START,
            "epoch_seconds": self.epoch,
            "window": self.window,
        }
        given |= {"escrow": self.free * PRICE, "owed": self.owed * PRICE, "reward_per_unit": PRICE}
        given |= {"units_per_epoch": self.per_epoch, "threshold": self.threshold, "validators": tuple(self.validators)}
        given |= {"stopped_at": self.stopped_at, "ended": bool(self.stopped_at)}
        given |= {"attested": self.attested, "max_units_per_epoch": self.most, "filings": self._filings()}
        return PoolInfo(**dict.fromkeys(PoolInfo.__struct_fields__, 0) | given)  # type: ignore[arg-type]

    async def block(self, number: int | None = None) -> Block:
        await self._answer()
        number = self.now() // 2 if number is None else number
        return Block(number, b"", 2 * number)

    async def claimed(self, pool: int, node: Address) -> int:
        await self._answer()
        return self.units.get(node, 0)

    def case_bond(self, slash: int) -> int:
        return 25

    def token_balance(self, holder: Address) -> int:
        return self.tokens[holder]

    def allowance(self, owner: Address, spender: Address) -> int:
        return self.tokens[owner] if owner in self.lends else 0

    def allowance_of(self, pool: int, node: Address) -> int:
        return 2**62

    async def ask(self, action: str, look: Callable[[Any], Any]) -> Any:
        await self._answer()
        return look(self)

    async def node_info(self, node: Address) -> NodeInfo:
        await self._answer()
        return NodeInfo(node, node, 1, POOL, 0, True, 0)

    async def stake_of(self, provider: Address) -> Stake:
        await self._answer()
        return Stake(5, 0, 0, 0)

    async def credit_of(self, who: Address) -> int:
        await self._answer()
        return self.credits[who]

    async def collect(self, who: Address) -> None:
        await self._answer()
        assert self.credits[who], "the contract refuses it"
        self.collected.append((who, self.credits.pop(who)))

    async def case(self, case: int) -> CaseInfo:
        raise AssertionError("nobody was slashed")

    async def post_earnings(self, earnings: Earnings, signatures: Sequence[bytes]) -> None:
        await self._answer()
        signers = {signer_of(DOMAIN, earnings, one) for one in signatures}
        epoch, root, total = earnings.epoch, earnings.root, earnings.total
        assert len(signers) == len(signatures) >= self.threshold and signers <= set(self.validators)
        first = 0 if self.posted.epoch is None else self.posted.epoch + 1
        if self._waiting is not None:
            raise Reverted("post", "TableWaits", {})
        assert self.stopped_at or (epoch + 1 - first) * self.epoch >= self.delay, "it covers too little"
        more = total - self.posted.total
        if epoch < first:
            raise Reverted("post", "EpochNotLater", {})
        assert self.now() >= START + (epoch + 1) * self.epoch + self.window, "it is not mature"
        assert 0 <= more <= (epoch + 1 - first) * self.per_epoch
        if more > self.free:
            raise Reverted("post", "EscrowTooSmall", {})
        counts_at = self.now() + self.delay
        self._waiting = WaitingEarnings(root, total, epoch, counts_at, False, bytes(32))
        self.posts.append((epoch, total))
        given = {"number": earnings.number, "blob": earnings.blob, "counts_at": counts_at}
        self._tell(EarningsPosted, epoch=epoch, root=root, total=total, signers=tuple(signers), **given)

    async def claim(
        self, pool: int, node: Address, units: int, proof: Sequence[bytes], patience: Patience | None = None
    ) -> SimpleNamespace:
        await self._answer()
        if not verify(self.posted.root, EarningsLine(address_bytes(node), units).leaf(), proof):
            raise Reverted("claim", "BadProof", {})
        if node in self.slashed:
            raise Reverted("claim", "CaseNotFinal", {})
        if self.dear and patience is not None:
            raise FeeTooHigh(100, 2, waits=True)
        due = units - self.units.get(node, 0)
        if due <= 0 or self.claims_fail:
            raise Reverted("claim", "NothingToClaim", {})
        assert due <= self.owed
        self.owed -= due
        self.units[node] = units
        self.claims.append((node, due))
        self.received[provider_of(node)] += due * PRICE
        self._tell(Claimed, node=node, provider=provider_of(node), units=due, amount=due * PRICE)
        if self.loses_answers:
            raise ChainError("no answer", "lost on its way back", "wait")
        return SimpleNamespace(events=(self.told[-1],))

    def _filings(self) -> Filings | None:
        if not self.stopped_at:
            return None
        starts = START + (self._last() + 1) * self.epoch + 2 * self.window
        if self._waiting is not None:
            starts = max(starts, self._waiting.counts_at)
        ends = starts + self.window
        left = sum(self.filed_by(POOL, node) for node in self.filed)
        return Filings(left, 0, self.held_filings, starts, ends, max(ends + self.delay, self.held_filings))

    def _last(self) -> int:
        return (self.stopped_at - START) // self.epoch

    def file_by_hand(self, node: Address, units: Mapping[int, int]) -> None:
        """As with another key, whenever that is."""
        self.filed[node] = dict(units)
        for epoch, one in units.items():
            self._tell(Filed, node=node, epoch=epoch, units=one)

    def filed_by(self, pool: int, node: Address) -> int:
        gone = node in [who for who, _ in self.redeemed]
        return 0 if gone else sum(self.filed.get(node, {}).values())

    @property
    def contracts(self) -> "Treasury":
        return self

    async def execute(self, step: Any, key: NodeKey) -> None:
        await step.call

    async def file(self, pool: int, node: Address, filings: Sequence[Filing]) -> None:
        """As the contract checks it."""
        await self._answer()
        times, seated = self._filings(), tuple(self.validators)
        if times is None or not times.starts <= self.now() < times.ends or self._waiting is not None:
            raise Reverted("file", "NotNow", {})
        self.files_sent += 1
        own = self.filed.setdefault(node, {})
        for filing in filings:
            assert (filing.bench, filing.threshold, filing.validators) == (1, self.threshold, seated)
            assert self._first() <= filing.epoch <= self._last(), "a table has it"
            places = [(line.seat, line.root.number) for line in filing.lines]
            assert places == sorted(set(places)), "not in order"
            for line in filing.lines:
                assert (line.root.pool, line.root.epoch) == (POOL, filing.epoch)
                assert signer_of(DOMAIN, line.root, line.signature) == seated[line.seat]
                assert verify(line.root.root, EarningsLine(address_bytes(node), line.units).leaf(), line.proof)
            if filing.units <= own.get(filing.epoch, 0):
                raise Reverted("file", "NothingToFile", {})
            more, own[filing.epoch] = filing.units - own.get(filing.epoch, 0), filing.units
            self._tell(Filed, node=node, epoch=filing.epoch, units=more)
        if self.loses_answers:
            raise ChainError("no answer", "lost on its way back", "wait")

    async def redeem(self, pool: int, node: Address) -> None:
        await self._answer()
        times, units = self._filings(), self.filed_by(pool, node)
        if times is None or self.now() < times.redeems or not units:
            raise Reverted("redeem", "NotNow", {})
        units = min(units, self.free)
        self.free -= units
        self.redeemed.append((node, units))
        self.received[provider_of(node)] += units * PRICE
        self._tell(Redeemed, node=node, provider=provider_of(node), filed=units, units=units, amount=units * PRICE)

    def follow(self, ledger: Ledger) -> None:
        """A follower delivers the whole history at every start."""
        for event in self.told:
            ledger.apply(event)
        self.ledgers.append(ledger)

    def _tell(self, kind: type, **fields: Any) -> None:
        block = fields.pop("block", None) or self.now() // 2
        given = {"block": block, "transaction": "0x", "log_index": len(self.told), "pool": POOL} | fields
        event = kind(**{name: given.get(name, 0) for name in kind.__struct_fields__})
        self.told.append(event)
        for ledger in self.ledgers:
            ledger.apply(event)


def provider_of(node: Address) -> Address:
    """Who is paid: the first two workers' nodes belong to one provider, each other node to itself."""
    return WORKERS[0].address if node == WORKERS[1].address else node


class Gossip:
    """What everybody says. lost: whether a message does not reach a node; kept, as shelves do: the newest of a kind;
    age: seconds for which they are, for ever unless a test says it."""

    def __init__(self) -> None:
        self.age = math.inf
        self.boards: dict[Address, Board] = {}
        self.kept: dict[tuple[Address, type], dict[bytes, tuple[float, Signed[Any]]]] = {}
        self.lost: Callable[[Address, Any], bool] = lambda to, message: False

    def say(self, key: NodeKey, message: Any) -> None:
        assert message.fault() is None
        self.tell(Signed(key.address, message, msgspec.msgpack.encode(message)))

    def tell(self, signed: Signed[Any]) -> None:
        kept = self.kept.setdefault((signed.author, type(signed.message)), {})
        kept.pop(signed.raw, None)
        kept[signed.raw] = trio.current_time(), signed
        while len(kept) > COUNTS[type(signed.message)].kept:
            del kept[next(iter(kept))]
        for address, board in self.boards.items():
            if not self.lost(address, signed.message):
                board.hear(signed)


class Board:
    def __init__(self, gossip: Gossip, key: NodeKey) -> None:
        self._gossip, self._key = gossip, key
        self.facts = Facts()
        self.heard: Any = None
        for messages in gossip.kept.values():
            for at, signed in messages.values():
                if at > trio.current_time() - gossip.age and not gossip.lost(key.address, signed.message):
                    self.hear(signed)
        self.posted: list[Any] = []

    async def post(self, message: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.posted.append(message)
        self._gossip.say(self._key, message)

    async def post_raw(self, raw: bytes) -> None:
        """Whoever says it: it is its author's."""
        await trio.lowlevel.checkpoint()
        self._gossip.tell(open_envelope(DOMAIN, POOL, raw))

    def say(self, entries: Any, within: float) -> None:
        """At once."""
        rest = list(entries)
        while rest:
            message, rest = together(POOL, rest)
            self.posted.append(message)
            self._gossip.say(self._key, message)

    def hear(self, signed: Signed[Any]) -> None:
        match signed.message:
            case VerdictIssued() | EpochRootSigned() | EarningsVote():
                self.facts.tell([signed])
            case PolicyAnnounced() as message:
                self.facts.tell([PolicyFollowed(signed.author, message, signed.raw)])

    def opened(self, raw: bytes, kind: type) -> Any:
        """In the journals of these tests a verdict is its message."""
        return VERDICTS[raw]


VERDICTS: dict[bytes, Any] = {}


class Blobs:
    """Everybody's, in a folder. missing: roots that nobody hands over."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.missing = folder, set[bytes]()
        self.fetched, self.sought = list[bytes](), list[bytes]()

    async def fetch(self, root: bytes, sources: Any, *, max_size: int, timeout: float, priority: int = 0) -> Path:
        path = self.folder / root.hex()
        if root in self.missing or not path.exists():
            self.sought.append(root)
            await trio.sleep(timeout)
            raise ChainError("no such blob", "nobody has it", "wait")
        await trio.lowlevel.checkpoint()
        if path.stat().st_size > max_size:
            self.sought.append(root)
            raise ChainError("no such blob", "it is longer than was said", "wait")
        self.fetched.append(root)
        return path

    async def add(self, source: bytes) -> BlobInfo:
        await trio.lowlevel.checkpoint()
        info = describe(source)
        path = self.folder / info.root.hex()
        if not path.exists():
            path.write_bytes(source)
        return info


class Jury:
    """What a node thinks of works; forgotten at a restart."""

    def __init__(self, owner: "Node") -> None:
        self.states: dict[bytes, FileState] = {}
        self.accusing: dict[bytes, dict[Address, Any]] = {}
        self._own = owner
        self._works: dict[bytes, Any] = {}
        self._listeners: list[Callable[[Any], None]] = []
        self.facts = owner.board.facts
        self.quarantined: dict[Address, Any] = {}
        self.vote_set = self.disputes = self.register = self.seals = self
        said = SimpleNamespace(author=TRAINER.address)
        self.policies = SimpleNamespace(
            equivocation=None, find=lambda root: True, announcement=lambda root: said, is_orphan=lambda root: False
        )

    def follow(self, listener: Callable[[Any], None]) -> None:
        self._listeners.append(listener)

    def follow_closed(self, listener: Callable[[Any], None]) -> None:
        """Nothing is closed here."""

    def get(self, id: bytes) -> Any:
        return self._works.get(id)

    def state(self, id: bytes) -> FileState:
        return self.states.get(id, FileState.OPEN)

    def undisputed(self, id: bytes, patience: float = 0.0) -> bool:
        return True

    def verdict_of(self, id: bytes, validator: Address) -> Any:
        return VERDICTS.get(id + validator.encode())

    def rejecting(self, id: bytes) -> dict[Address, Any]:
        return self.accusing.get(id, {})

    def active_validators(self) -> list[Address]:
        return [node.key.address for node in self._own.world.nodes.values() if node.role == "validator" and node.lives]

    def was_sealed(self, id: bytes, validator: Address) -> bool:
        return True

    def is_withheld(self, validator: Address, work: Any) -> bool:
        return False

    def hear(self, work: Any, state: FileState) -> None:
        self.states[work.id] = state
        self._works[work.id] = work
        for listener in self._listeners:
            listener(work)
        self.facts.tell([WorkTouched(work.node, work.id)])


class Membership:
    def __init__(self, world: "World") -> None:
        self._world = world
        self.evicted: set[Address] = set()
        self.own, self.trainer = "", TRAINER.address
        self.terms = SimpleNamespace(trainers=())
        self.table = {address: SimpleNamespace(beat=None) for address in world.nodes}

    def is_evicted(self, node: Address) -> bool:
        return node in self.evicted

    def is_member(self, node: Address) -> bool:
        return node in self._world.nodes and node not in self._world.gone

    def is_trainer(self, node: Address) -> bool:
        return node == TRAINER.address

    def addresses(self) -> list[Address]:
        return list(self._world.nodes)

    @property
    def validators(self) -> list[Address]:
        return [node.key.address for node in self._world.nodes.values() if node.role == "validator"]

    def is_validator(self, node: Address) -> bool:
        return node in self.validators


class Heard:
    """Whoever lives is heard."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def get(self, author: Address) -> float | None:
        return trio.current_time() if author in self._world.nodes and self._world.nodes[author].lives else None


class Endpoint:
    """One node's way to the chain. asked: what for, and how often."""

    def __init__(self, chain: Any, asked: Counter[str]) -> None:
        self._chain, self._asked = chain, asked

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._chain, name)

        async def ask(*given: Any, **named: Any) -> Any:
            self._asked[name] += 1
            return await found(*given, **named)

        return ask if iscoroutinefunction(found) else found

    def books(self, pool: int, known: PoolInfo | None = None) -> Any:
        self._asked["books" if known is None else "tables"] += 1
        return self._chain.books(pool, known)


class Node:
    """One node with its directory; `live` starts its services over it, as often as one likes."""

    def __init__(self, world: "World", key: NodeKey, role: str) -> None:
        self.world, self.key, self.role = world, key, role
        self.asked = Counter[str]()
        self.journal = InlineJournal()
        self.lives = False
        self.scope = trio.CancelScope()
        self.wanted = True

    async def live(self) -> None:
        """Until `stop`; a new daemon each time."""
        world, own = self.world, self.key.address
        self.progress = ProgressRecord(clock=trio.current_time, wall=trio.current_time)
        self.board = world.gossip.boards[own] = Board(world.gossip, self.key)
        self.board.heard = Heard(world)
        self.jury, self.membership = Jury(self), Membership(world)
        ledger = Ledger(own, lambda: world.read_until, world.chain.now)
        world.chain.follow(ledger)
        time = PoolTime(START, world.chain.epoch, world.chain.window, wall=lambda: START + trio.current_time())
        context: Any = SimpleNamespace(
            key=self.key,
            domain=DOMAIN,
            pool=POOL,
            run=SimpleNamespace(spec=court_run(), root=bytes(32)),
            board=self.board,
            blobs=world.blobs,
            journal=self.journal,
            membership=self.membership,
            quorum=2,
            state=self.jury,
            facts=self.jury.facts,
            progress=self.progress,
            clock=Clock(wall=lambda: START + trio.current_time()),
            time=time,
        )
        chain: Any = Endpoint(world.chain, self.asked)
        books = PoolAccounting(context, chain, ledger, pauses=world.pauses[0])
        self.paying, self.claimer = LeafReader(books), Claimer(books, gathers=world.gathers)
        self.manager = ServiceManager()
        self.leaving = Departure(context, self.claimer, self.manager)
        services: list[Any] = [self.paying, self.claimer, self.leaving, *world.more(self)]
        if self.role == "validator":
            self.certifying = Certifier(context, round_seconds=world.round_seconds)
            self.tabling = EarningsTabler(books, pauses=world.pauses[1])
            self.bringing = ClaimCarrier(books, **world.turns)
            services += [self.certifying, self.tabling, self.bringing]
        self.lives, self.scope = True, trio.CancelScope()
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    for service in services:
                        nursery.start_soon(service.run)
                    await self.manager.left.wait()
                    self.wanted = False
                    nursery.cancel_scope.cancel()
        finally:
            self.lives = False
            world.gossip.boards.pop(own, None)
            if ledger in world.chain.ledgers:
                world.chain.ledgers.remove(ledger)

    def stop(self) -> None:
        self.scope.cancel()


class World:
    def __init__(
        self,
        folder: Path,
        *,
        epoch: int = 3600,
        window: int = 86_400,
        escrow: int = 10**12,
        delay: int | None = None,
        round_seconds: float = 4.0,
        pauses: tuple[tuple[float, float], tuple[float, float]] = ((1.0, 300.0), (1.0, 15.0)),
    ) -> None:
        """delay: seconds that a table waits, a quarter of the window unless given; pauses: between two looks at what is
        earned, and at the table."""
        self.round_seconds, self.pauses = round_seconds, pauses
        self.turns = dict[str, int]()
        """When a keeper claims for another."""
        self.chain, self.gossip, self.blobs = Treasury(epoch, window, escrow, delay), Gossip(), Blobs(folder)
        self.nodes: dict[Address, Node] = {}
        for keys, role in ((WORKERS, "worker"), (VALIDATORS, "validator")):
            for key in keys:
                self.nodes[key.address] = Node(self, key, role)
        self.made = 0
        self.gone: set[Address] = set()
        """Who has left the pool."""
        self.more: Callable[[Node], list[Any]] = lambda node: []
        """Further services of a node."""
        self.gathers = False
        """Whether pay waits for its node's time of the week."""
        self.read_until = float("inf")
        """Of the chain's events, by everybody."""
        self.accepted: dict[Address, int] = {}

    @property
    def workers(self) -> list[Node]:
        return [self.nodes[key.address] for key in WORKERS]

    @property
    def validators(self) -> list[Node]:
        return [self.nodes[key.address] for key in VALIDATORS]

    def hire(self, key: NodeKey) -> Node:
        """Somebody who knows nothing of what was."""
        node = self.nodes[key.address] = Node(self, key, "validator")
        return node

    @property
    def epoch(self) -> int:
        return int(trio.current_time()) // self.chain.epoch

    def make(
        self, worker: Node, units: int = 100, judges: Sequence[Node] | None = None, epoch: int | None = None
    ) -> Any:
        """A file of a worker that the given validators (those that live) accept."""
        self.made += 1
        root, policy = self.made.to_bytes(32), bytes([7]) * 32
        epoch = self.epoch if epoch is None else epoch
        commitment = WorkCommitment(POOL, worker.key.address, policy, self.made, root, units, epoch)
        id = work_id(commitment)
        slot, made_at = policy + self.made.to_bytes(8), trio.current_time()
        worker.journal.commit_file(slot, b"raw", root, policy, self.made, units, made_at, b"", 0, epoch, id)
        worker.journal.files.judge_file(root, "accepted")
        work = SimpleNamespace(id=id, node=worker.key.address, commitment=commitment, task=None)
        fields = {name: getattr(commitment, name) for name in commitment.__struct_fields__}
        for judge in [node for node in self.validators if node.lives] if judges is None else judges:
            raw = id + judge.key.address.encode()
            verdict = SimpleNamespace(**fields, outcome=VerdictOutcome.ACCEPT, work=id)
            VERDICTS[raw] = SimpleNamespace(message=SimpleNamespace(verdict=verdict), author=judge.key.address)
            judge.journal.say("verdict", id, raw, START + trio.current_time())
            judge.jury.hear(work, FileState.ACCEPTED)
        self.accepted[worker.key.address] = self.accepted.get(worker.key.address, 0) + units
        return work

    async def root(self, key: NodeKey, epoch: int, works: Sequence[Accepted], number: int = 1, **change: Any) -> None:
        """A validator's root over these works; change: of what it says otherwise."""
        leaves, files = leaves_of(works)
        for file in files:
            await self.blobs.add(file)
        info = await self.blobs.add(msgspec.msgpack.encode(leaves))
        total = sum(one.units for one in works)
        given = {"pool": POOL, "epoch": epoch, "number": number, "root": leaves.root(), "total": total}
        said = EpochRoot(**given | {"blob": info.root} | change)  # type: ignore[arg-type]
        message = EpochRootSigned(pool=POOL, statement=said, signature=sign(key, DOMAIN, said))
        self.gossip.tell(open_envelope(DOMAIN, POOL, seal(key, DOMAIN, message)))

    def refuse(self, work: Any, *, only: Sequence[Node]) -> None:
        """Two validators find a fault in a dispute; these nodes hear of it."""
        c = work.commitment
        said: dict[Address, Any] = {}
        for key in VALIDATORS[:2]:
            verdict = Rechecked(c.pool, c.node, c.policy_root, c.index, c.file_root, c.units, 1, 5, c.epoch)
            said[key.address] = SimpleNamespace(verdict=verdict, signature=sign(key, DOMAIN, verdict))
        for node in only:
            node.jury.accusing[work.id] = said
            node.jury.hear(work, FileState.REJECTED)

    def now(self) -> int:
        """The chain's second."""
        return self.chain.now()

    def paid(self) -> Counter[Address]:
        return Counter(self.chain.units)


async def inline(work: Any, *args: Any) -> Any:
    """Threads and mock clocks do not mix."""
    await trio.lowlevel.checkpoint()
    return work(*args)
