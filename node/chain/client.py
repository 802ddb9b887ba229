"""The chain as the daemon sees it: async reads and writes in the words of the protocol.

Knows the contracts through `contracts.bindings` and runs blocking web3 in a few threads. What to do with
what it reads is for the roles; following events is `follower.py`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
import trio
from web3 import Web3
from web3.contract.contract import ContractConstructor, ContractFunction
from web3.exceptions import BlockNotFound
from web3.middleware import AttributeDictMiddleware
from web3.types import RPCEndpoint

from contracts.asking import at_once
from contracts.bindings import (
    NOBODY,
    CaseInfo,
    ChairInfo,
    ContractError,
    Contracts,
    Event,
    Joined,
    Member,
    MemberState,
    NodeInfo,
    PoolCreated,
    PoolInfo,
    PoolParams,
    PostedEarnings,
    RawLog,
    Stake,
    TermTaken,
    parse_log,
    pool_topic,
    raw_log,
    topic_of,
)
from node.chain.cases import Case, write_case
from node.chain.errors import ChainError, NotDeployed, RpcRefused, RpcUnreachable, translate
from node.chain.outbox import Outbox
from node.chain.profile import NetworkProfile
from node.chain.refusals import LOGS, Kind, Refused
from node.chain.rpc import EXPECTED, FallbackProvider
from node.chain.sender import Recovered, Sender, SendLimits
from node.chain.simulate import Simulation, Step, simulate
from protocol.identity import Address, NodeKey, parse_address
from protocol.statements import Domain, NodeRegistration, TermSilent, Verdict, WorkCommitment, sign

T = TypeVar("T")
E = TypeVar("E", bound=Event)
logger = structlog.get_logger()
THREADS = 8
MEMBER_BATCH = 256
GET_LOGS, GET_BLOCK = RPCEndpoint(LOGS), RPCEndpoint("eth_getBlockByNumber")
REGISTRATION_SECONDS = 3600


class Block(msgspec.Struct, frozen=True):
    """timestamp: unix seconds, the clock of everything in the contracts; parent: the hash of the block before, empty
    where the endpoint did not tell it."""

    number: int
    hash: bytes
    timestamp: int
    parent: bytes = b""


class Balances(msgspec.Struct, frozen=True):
    """Wei of the chain's coin and of the token."""

    coin: int
    token: int


class Receipt(msgspec.Struct, frozen=True):
    """A transaction in a block. transaction: 0x hex; events: ours, in order; cost: wei of the chain's coin;
    contract: the address of one that was deployed.
    """

    transaction: str
    block: int
    gas_used: int
    events: tuple[Event, ...]
    cost: int = 0
    contract: Address | None = None


class ChainClient:
    """Reads and writes of one network. Every method may raise ChainError and its subclasses.

    key: signs writes that name no other key; outbox: the database file that remembers unfinished
    transactions over a restart; timeout: seconds per endpoint and request.
    """

    def __init__(
        self,
        profile: NetworkProfile,
        key: NodeKey | None = None,
        *,
        outbox: Path | None = None,
        cases: Path | None = None,
        timeout: float = 8.0,
        limits: SendLimits | None = None,
    ) -> None:
        self.profile = profile
        self.key = key
        self.domain = Domain(profile.chain_id, profile.contracts.swarm)
        self.healthy = True
        self._provider = FallbackProvider(profile.rpc_urls, profile.chain_id, timeout)
        self._web3 = Web3(self._provider, middleware=[AttributeDictMiddleware])
        self._contracts = Contracts(self._web3, profile.contracts)
        self._limiter = trio.CapacityLimiter(THREADS)
        self._deadline = timeout * len(profile.rpc_urls) * 4
        # By chain and contract: what was left for another deployment is not sent to this one.
        self._outbox = Outbox(outbox, f"{profile.chain_id}:{profile.contracts.swarm}")
        self._checked = False
        self._spans: dict[str, Span] = {}
        """Of each endpoint, by how it is shown."""
        self._cases = cases
        self._contacts: dict[tuple[int, Address], tuple[int, str]] = {}
        self._sender = Sender(
            self._web3,
            profile.chain_id,
            self._outbox,
            self._thread,
            limits or default_limits(profile),
            lambda: self._provider.endpoints.uncertain,
        )

    @property
    def url(self) -> str:
        """The RPC endpoint in use."""
        return self._provider.endpoints.url

    async def connect(self) -> None:
        """Check chain id and contracts, and send again what an earlier process left unfinished."""
        # Nothing is read: the check of the contracts comes before any first read.
        await self._read("connect", lambda: None)
        if self.key is not None:
            await self.resume(self.key)

    async def resume(self, key: NodeKey) -> list[Recovered]:
        """What an earlier process left unfinished with this key: settled, or sent again. receipt: as Receipt."""
        left = await self._sender.resume(key)
        return [msgspec.structs.replace(one, receipt=one.receipt and self._receipt(one.receipt)) for one in left]

    @property
    def contracts(self) -> Contracts:
        """The bindings, for building calls; reading through them blocks."""
        return self._contracts

    async def ask(self, action: str, view: Callable[[Contracts], T]) -> T:
        """Any view of the contracts, in a thread. action completes "cannot ..."."""
        return await self._read(action, lambda: view(self._contracts))

    async def simulate(self, steps: Sequence[Step], sender: Address) -> Simulation:
        """What the steps would cost, one after the other; raises what they would revert with."""
        work = partial(simulate, self._web3, steps, sender, l1_fees=self.profile.l1_fees)
        return await self._read(steps[0].action, work)

    async def execute(self, step: Step, key: NodeKey) -> Receipt:
        """Send one transaction and wait until it counts."""
        return await self._write(step.action, step.call, key)

    def close(self) -> None:
        """Close connections and files. What was abandoned in a thread ends by itself, and writes nothing down."""
        self._provider.close()
        self._outbox.close()

    @property
    def log_blocks(self) -> int:
        """Blocks whose logs the endpoint gives in one answer, as far as is known."""
        return self._span.blocks

    # ---- reads

    async def block(self, number: int | None = None) -> Block:
        """The latest block, or the one with `number`."""
        return await self._read("read a block", lambda: self._block("latest" if number is None else hex(number)))

    async def pool(self, pool: int) -> PoolInfo:
        return await self._read(f"read pool {pool}", lambda: self._contracts.pool(pool))

    async def chair(self, pool: int) -> ChairInfo | None:
        """Who leads the pool; None where its manager does, for good."""
        return await self._read(f"read the chair of pool {pool}", lambda: self._contracts.chair_of(pool))

    async def terms(self, pool: int) -> list[TermTaken]:
        """Who has led, in the order of their terms. Looks through all blocks since the contracts were deployed, which
        takes a public chain's endpoint some questions a day of its age."""
        found, first, last = list[TermTaken](), self.profile.deployed_block, (await self.block()).number
        while first <= last:  # a question for each part, which has the time of one
            end = min(first + self.log_blocks - 1, last)
            events = partial(self._events, TermTaken, pool, first, end, self.profile.contracts.chair)
            found += await self._read(f"read the terms of pool {pool}", events)
            first = end + 1
        return found

    async def pool_count(self) -> int:
        """Pools have the numbers 1 to this."""
        return await self._read("count pools", self._contracts.pool_count)

    async def members(self, pool: int) -> list[Member]:
        """Everybody who ever joined, with the last contact; flags tell who left or was evicted."""
        return await self._read(f"read the members of pool {pool}", lambda: self._members(pool))

    async def is_evicted(self, pool: int, node: Address) -> bool:
        """Whether judges had a node slashed in a pool, and nobody overturned it."""
        return (await self._read(f"read node {node}", lambda: self._contracts.member(pool, node))).evicted

    async def joined_block(self, pool: int, node: Address) -> int:
        """Where the log of a member's last joining stands; 0 of one that never joined."""
        return (await self.standing(pool, node)).joined_block

    async def standing(self, pool: int, node: Address) -> MemberState:
        return await self._read(f"read node {node}", lambda: self._contracts.member(pool, node))

    async def node_info(self, node: Address) -> NodeInfo:
        return await self._read(f"read node {node}", lambda: self._contracts.node_info(node))

    async def stake_of(self, provider: Address) -> Stake:
        return await self._read("read a stake", lambda: self._contracts.stake_of(provider))

    async def backing_of(self, provider: Address) -> int:
        """Token wei that stand behind nodes that work already: bonded, or bonded before a case that is not final."""
        return await self._read("read a stake", lambda: self._contracts.backing_of(provider))

    async def required_stake(self, provider: Address, more_units: int = 0) -> int:
        """Token wei that the provider must have bonded, with `more_units` on top of its present nodes."""
        return await self._read("read a stake", lambda: self._contracts.required_stake(provider, more_units))

    async def earnings(self, pool: int) -> PostedEarnings:
        """The newest table of earnings that a quorum had posted."""
        return await self._read(f"read the earnings of pool {pool}", lambda: self._contracts.earnings(pool))

    async def claimed(self, pool: int, node: Address) -> int:
        """Units of the node that were paid, or went back to the pool, since the pool began."""
        return await self._read(f"read what {node} was paid", lambda: self._contracts.claimed(pool, node))

    async def case(self, case: int) -> CaseInfo:
        """A slash that judges ordered, by the vault's number."""
        return await self._read(f"read case {case}", lambda: self._contracts.case(case))

    async def appeal_seconds(self) -> int:
        return await self._read("read a parameter", self._contracts.appeal_seconds)

    async def balances(self, address: Address) -> Balances:
        def read() -> Balances:
            return Balances(
                *at_once(
                    lambda: int(self._web3.eth.get_balance(Web3.to_checksum_address(address))),
                    lambda: self._contracts.token_balance(address),
                )
            )

        return await self._read("read balances", read)

    async def gas_price(self) -> int:
        """Wei per gas that a transaction pays now, without the layer below."""
        return await self._read("read the price of gas", lambda: int(self._web3.eth.gas_price))

    async def settled_block(self, latest: Block) -> int:
        """The newest block whose events count: under the profile's confirmations and finality."""
        deep = latest.number - self.profile.confirmations
        if self.profile.finality == "latest":
            return deep
        final = await self._read("read a block", lambda: self._block(self.profile.finality))
        return min(deep, final.number)

    async def logs(self, first: int, last: int, topics: Sequence[Any], *, everything: bool = False) -> list[RawLog]:
        """Logs of the Swarm contract, the court and the chair in blocks first..last; everything: the vault's too."""
        c = self.profile.contracts
        places = [c.swarm, c.court, *([c.vault] if everything else []), *([] if c.chair == NOBODY else [c.chair])]
        return await self._read("read logs", lambda: self._logs(first, last, topics, places))

    def distrust_logs(self, why: str) -> ChainError:
        """The endpoint that tells logs does not tell them all: others are asked first. Returns the error to raise."""
        place = self._provider.endpoints.pass_over(LOGS)
        remedy = "name an endpoint with all logs in rpc_urls of the network profile; an archive of states is not needed"
        return RpcRefused("tell all logs", f"{place}: {why}", remedy)

    # ---- writes

    async def faucet(self, to: Address, amount: int, *, key: NodeKey | None = None) -> Receipt:
        """Mint test tokens; only where the token is a TestToken."""
        return await self._write("mint test tokens", self._contracts.mint(to, amount), key)

    async def bond(self, provider: Address, amount: int, *, key: NodeKey | None = None) -> Receipt:
        """Add the key's tokens to the provider's stake; approves first where that is needed."""
        await self._approve(self.profile.contracts.vault, amount, key)
        return await self._write("bond stake", self._contracts.bond(provider, amount), key)

    async def register_node(
        self, node: Address, units: int, deadline: int, node_signature: bytes, *, key: NodeKey | None = None
    ) -> Receipt:
        """key: the provider's. The signature is from `register_node_signature`."""
        call = self._contracts.register_node(node, units, deadline, node_signature)
        return await self._write("register the node", call, key)

    async def register_node_signature(
        self, node_key: NodeKey, provider: Address, units: int, *, deadline: int | None = None
    ) -> tuple[int, bytes]:
        """The node's consent: (deadline, signature), with its present nonce and, by default, an hour to use it."""
        # The nonce makes an old consent worthless: a node that was removed must agree anew.
        info = await self.node_info(node_key.address)
        until = deadline if deadline is not None else (await self.block()).timestamp + REGISTRATION_SECONDS
        statement = NodeRegistration(provider, node_key.address, units, info.nonce, until)
        return until, sign(node_key, self.domain, statement)

    async def create_pool(self, params: PoolParams, *, key: NodeKey | None = None) -> int:
        """Open a pool; returns its number."""
        receipt = await self._write("open a pool", self._contracts.create_pool(params), key)
        for event in receipt.events:
            if isinstance(event, PoolCreated):
                return event.pool
        raise RpcRefused("open a pool", f"transaction {receipt.transaction} has no PoolCreated event")

    async def fund_pool(self, pool: int, amount: int, *, key: NodeKey | None = None) -> Receipt:
        """Add the key's tokens to the pool's escrow; approves first where that is needed."""
        await self._approve(self.profile.contracts.swarm, amount, key)
        return await self._write(f"fund pool {pool}", self._contracts.fund_pool(pool, amount), key)

    async def sweep(self, pool: int, *, key: NodeKey | None = None) -> Receipt:
        return await self._write(f"sweep pool {pool}", self._contracts.sweep(pool), key)

    async def join(self, pool: int, contact: str, *, key: NodeKey | None = None) -> Receipt:
        """Join, renew the lease, or tell a new contact."""
        return await self._write(f"join pool {pool}", self._contracts.join(pool, contact), key)

    async def leave(self, pool: int, *, key: NodeKey | None = None) -> Receipt:
        return await self._write(f"leave pool {pool}", self._contracts.leave(pool), key)

    async def post_earnings(
        self,
        pool: int,
        epoch: int,
        root: bytes,
        total: int,
        signatures: Sequence[bytes],
        *,
        key: NodeKey | None = None,
    ) -> Receipt:
        """Put a table of earnings on chain. signatures: of a quorum of validators, of this Earnings."""
        call = self._contracts.post_earnings(pool, epoch, root, total, signatures)
        return await self._write(f"post the earnings of epoch {epoch}", call, key)

    async def claim(
        self, pool: int, node: Address, units: int, proof: Sequence[bytes], *, key: NodeKey | None = None
    ) -> Receipt:
        """Pay the node's provider what its line of the newest table says and was not paid yet; of an evicted node, give
        it back to the pool. Anybody may."""
        return await self._write(f"claim the pay of {node}", self._contracts.claim(pool, node, units, proof), key)

    async def expel(self, node: Address, *, key: NodeKey | None = None) -> Receipt:
        """End the membership of a node whose provider's stake no longer covers its nodes."""
        return await self._write(f"expel {node}", self._contracts.expel(node), key)

    async def finalize(self, case: int, *, key: NodeKey | None = None) -> Receipt:
        """End a case whose time for an appeal is over."""
        return await self._write(f"finalize case {case}", self._contracts.finalize(case), key)

    async def carry(self, case: Case, *, key: NodeKey | None = None) -> Receipt:
        """Punish who is accused by a quorum's verdicts, or by two statements of its own. The case is a file first: its
        owner can carry it again by hand (`contract slash FILE`), whatever becomes of the transaction."""
        if self._cases is not None:
            path = self._cases / f"{case.name}.json"
            try:
                await trio.to_thread.run_sync(write_case, path, case)
            except OSError as error:
                logger.warning("case.not_kept", path=str(path), why=str(error))  # the case still goes to the chain
        return await self._write(case.action, case.call(self._contracts), key)

    async def seat_trainers(
        self, pool: int, trainers: Sequence[Address], lease: int, grace: int, *, key: NodeKey | None = None
    ) -> Receipt:
        """As the manager, once: who trains, in the order of their turn. lease, grace: seconds."""
        call = self._contracts.seat_trainers(pool, trainers, lease, grace)
        return await self._write(f"seat the trainers of pool {pool}", call, key)

    async def hold_chair(self, pool: int, step: int, policy_root: bytes, *, key: NodeKey | None = None) -> Receipt:
        """As who leads: for another lease."""
        return await self._write("hold the chair", self._contracts.hold_chair(pool, step, policy_root), key)

    async def take_chair(
        self, pool: int, term: int, from_step: int, parent: bytes, *, key: NodeKey | None = None
    ) -> Receipt:
        """As a trainer whose turn it is: lead from policy from_step on, which comes after `parent`."""
        return await self._write("take the chair", self._contracts.take_chair(pool, term, from_step, parent), key)

    async def end_term(
        self, silent: Sequence[TermSilent], signatures: Sequence[bytes], *, key: NodeKey | None = None
    ) -> Receipt:
        """A quorum's words about one lease, and their signatures, in one order."""
        return await self._write("end the term of a silent trainer", self._contracts.end_term(silent, signatures), key)

    async def end_term_by_verdicts(
        self,
        term: int,
        commitment: WorkCommitment,
        verdicts: Sequence[Verdict],
        signatures: Sequence[bytes],
        *,
        key: NodeKey | None = None,
    ) -> Receipt:
        """End the term of the trainer that committed to a step. verdicts, signatures: a quorum's against it."""
        call = self._contracts.end_term_by_verdicts(term, commitment, verdicts, signatures)
        return await self._write(f"end the term of {commitment.node} by verdicts", call, key)

    # ---- inside

    async def _thread(self, function: Callable[[], T], *, abandon: bool) -> T:
        """Run in one of our threads; `abandon` leaves a hanging one behind when the caller is cancelled."""
        return await trio.to_thread.run_sync(function, abandon_on_cancel=abandon, limiter=self._limiter)

    async def _read(self, action: str, function: Callable[[], T]) -> T:
        try:
            with trio.fail_after(self._deadline):
                result = await self._thread(partial(self._guarded, action, function), abandon=True)
        except trio.TooSlowError as error:
            self.healthy = False
            raise RpcUnreachable({self.url: f"no answer within {self._deadline:.0f} s"}) from error
        except RpcUnreachable:
            self.healthy = False
            raise
        self.healthy = True
        return result

    def _guarded(self, action: str, function: Callable[[], T]) -> T:
        try:
            if self._checked:
                return function()
            return at_once(self._check_contracts, function)[1]
        except EXPECTED as error:
            raise translate(error, action) from error

    def _check_contracts(self) -> None:
        missing = self._missing() if self.profile.deployed else []
        if missing:
            raise NotDeployed(missing, self.profile.chain_id)
        self._checked = True

    def _missing(self) -> list[str]:
        """Contracts that are not there: one question about all, else one about each, for endpoints that run no program
        of ours."""
        try:
            return self._contracts.missing()
        except (RpcUnreachable, *EXPECTED) as error:
            if isinstance(error, RpcUnreachable) and not error.refused:
                raise
            logger.info("chain.contracts_asked_one_by_one", why=str(error)[:200])
        places = self._contracts.places()
        has = at_once(*(partial(self._contracts.has_code, address) for address in places.values()))
        return [slot for slot, there in zip(places, has, strict=True) if not there]

    async def _write(self, action: str, call: ContractFunction | ContractConstructor, key: NodeKey | None) -> Receipt:
        signer = key or self.key
        if signer is None:
            raise ChainError(f"cannot {action}", "no key was given to sign with", "give the key to sign with")
        # Sending does not go through `_read`, which checks that the contracts are there.
        if not self._checked:
            await self._read("connect", lambda: None)
        try:
            receipt = await self._sender.send(call, signer, action)
        except RpcUnreachable:
            self.healthy = False
            raise
        return self._receipt(receipt)

    def _receipt(self, receipt: Any) -> Receipt:
        parsed = (parse_log(raw_log(entry), self.profile.contracts) for entry in receipt["logs"])
        return Receipt(
            transaction="0x" + bytes(receipt["transactionHash"]).hex(),
            block=int(receipt["blockNumber"]),
            gas_used=int(receipt["gasUsed"]),
            events=tuple(event for event in parsed if event is not None),
            cost=int(receipt["gasUsed"]) * int(receipt.get("effectiveGasPrice", 0)) + _l1_part(receipt),
            contract=parse_address(receipt["contractAddress"]) if receipt.get("contractAddress") else None,
        )

    async def _approve(self, spender: Address, amount: int, key: NodeKey | None) -> None:
        owner = key or self.key
        if owner is None:
            return  # the write that follows says so
        allowed = await self._read("read an allowance", lambda: self._contracts.allowance(owner.address, spender))
        # Exactly the amount and not without end: a contract that were wrong could take no more than this.
        if allowed < amount:
            await self._write("approve tokens", self._contracts.approve(spender, amount), key)

    def _logs(self, first: int, last: int, topics: Sequence[Any], places: Sequence[Address]) -> list[RawLog]:
        """Ranges of the length that the endpoint stands."""
        found: list[RawLog] = []
        start = first
        while start <= last:
            end = min(start + self.log_blocks - 1, last)
            try:
                part = self._log_range(start, end, topics, places)
            except Refused as refusal:
                if refusal.kind is not Kind.RANGE or not self._span_of(refusal.endpoint).refused(end - start + 1):
                    raise
                continue
            self._span_of(self._provider.endpoints.answered).answered(end - start + 1, len(part))
            found += part
            start = end + 1
        return found

    @property
    def _span(self) -> "Span":
        """Of the endpoint that is asked for logs first."""
        return self._span_of(self._provider.endpoints.first_for(LOGS))

    def _span_of(self, endpoint: str) -> "Span":
        return self._spans.setdefault(endpoint, Span())

    def _block(self, which: str) -> Block:
        """Past web3's own formatters, as logs are: every node asks for a block each second."""
        found = self._web3.manager.request_blocking(GET_BLOCK, [which, False])
        if found is None:
            raise BlockNotFound(f"Block with id: {which!r} not found.")
        parent = bytes.fromhex(found.get("parentHash", "0x")[2:])
        return Block(int(found["number"], 16), bytes.fromhex(found["hash"][2:]), int(found["timestamp"], 16), parent)

    def _log_range(self, first: int, last: int, topics: Sequence[Any], places: Sequence[Address]) -> list[RawLog]:
        """Past web3's own formatters, which take longer than everything else that a log costs."""
        asked: Any = {
            "address": [Web3.to_checksum_address(place) for place in places],
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "topics": list(topics),
        }
        return [raw_log(entry) for entry in self._web3.manager.request_blocking(GET_LOGS, [asked])]

    def _members(self, pool: int) -> list[Member]:
        count, states = self._contracts.member_count(pool), list[MemberState]()
        for first in range(0, count, MEMBER_BATCH):
            states += self._contracts.members(pool, first, MEMBER_BATCH)
        self._read_contacts(pool, states)
        return [
            Member(s.node, s.provider, self._contacts.get((pool, s.node), (0, ""))[1], s.evicted, s.left, s.lease_until)
            for s in states
            if s.provider is not None
        ]

    def _read_contacts(self, pool: int, states: Sequence[MemberState]) -> None:
        """Contacts are in logs only, at the blocks that the contract remembers: those that we do not know yet."""
        wanted = {s.node: s.joined_block for s in states}
        blocks = sorted(
            block for node, block in wanted.items() if self._contacts.get((pool, node), (None, ""))[0] != block
        )
        while blocks:
            # One question for members that joined near each other, instead of one for each.
            near = [block for block in blocks if block < blocks[0] + self.log_blocks]
            blocks = blocks[len(near) :]
            for event in self._events(Joined, pool, near[0], near[-1], self.profile.contracts.swarm):
                if wanted.get(event.node) == event.block:
                    self._contacts[pool, event.node] = (event.block, event.contact)

    def _events(self, kind: type[E], pool: int, first: int, last: int, place: Address) -> list[E]:
        """Those of one kind, of the contract at `place`. A log without their form is passed over."""
        found: list[E] = []
        topics = ["0x" + topic_of(kind).hex(), "0x" + pool_topic(pool).hex()]
        for log in self._logs(first, last, topics, [place]):
            try:
                event = parse_log(log, self.profile.contracts)
            except ContractError as error:
                logger.warning("chain.bad_log", why=error.why)
                continue
            if isinstance(event, kind):
                found.append(event)
        return found


def default_limits(profile: NetworkProfile) -> SendLimits:
    """Impatient with a local chain, sparing with public endpoints."""
    poll = 0.2 if profile.confirmations == 0 else 1.0
    max_fee = int(profile.max_fee_gwei * 10**9)
    return SendLimits(poll=poll, confirmations=profile.confirmations, max_fee=max_fee)


def _l1_part(receipt: Any) -> int:
    """OP stack receipts tell the fee for the data beside the gas."""
    fee = receipt.get("l1Fee", 0)
    return int(fee, 16) if isinstance(fee, str) else int(fee or 0)


# How many blocks to ask for at once: more while answers are small, fewer where an endpoint refuses. Endpoints limit
# 1,000 to 100,000 blocks or 10,000 logs, and seldom say so.

LEAST, FIRST, MOST = 1, 256, 100_000
FEW, MANY = 1_000, 2_500
"""Logs in one answer up to which the next range is twice as long, and from which on it is half as long. A log is a
kilobyte, and a megabyte holds the interpreter's lock for 20 ms while it is decoded."""
CAUTIOUS = 64
"""Answers after which a length that was refused is tried again."""


class Span:
    """`blocks`: of the next question."""

    def __init__(self) -> None:
        self.blocks = FIRST
        self._ceiling = MOST
        self._good = 0

    def answered(self, asked: int, logs: int) -> None:
        """asked: blocks of that question; one that was cut short by the end of the chain says nothing."""
        self._good += 1
        if self._good >= CAUTIOUS:
            self._good, self._ceiling = 0, MOST
        if logs >= MANY:
            self.blocks = max(LEAST, self.blocks // 2)
        elif logs <= FEW and asked >= self.blocks:
            self.blocks = min(2 * self.blocks, self._ceiling)

    def refused(self, asked: int) -> bool:
        """Whether a shorter range is left to try."""
        self._good = 0
        if asked <= LEAST:
            return False
        self.blocks = max(LEAST, asked // 2)
        self._ceiling = self.blocks
        return True
