"""A node's connection to one network: its threads, its patience, its key and its unfinished transactions.

Runs blocking web3 in a few threads. What is read and written by it say `views.py` and `client.py`.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
import trio
from web3 import Web3
from web3.exceptions import BadFunctionCallOutput
from web3.middleware import AttributeDictMiddleware

from contracts import codes
from contracts.asking import at_once
from contracts.bindings import ChainEvent, Contracts, TransactionCall, parse_log, raw_log
from node.chain.errors import ChainError, NotDeployed, OtherContracts, RpcUnreachable, translate
from node.chain.outbox import Outbox
from node.chain.profile import NetworkProfile
from node.chain.refusals import CALL
from node.chain.rpc import EXPECTED, Eth, FallbackProvider
from node.chain.sender import Recovered, Sender, SendLimits
from node.chain.simulate import SimulatedStep, Simulation, simulate
from node.chain.witnesses import EndpointRecord, Witnesses
from protocol.identity import Address, NodeKey, parse_address
from protocol.statements import Domain
from protocol.upkeep import Patience

T = TypeVar("T")
logger = structlog.get_logger()


class Receipt(msgspec.Struct, frozen=True):
    """A transaction in a block. transaction: 0x hex; events: ours, in order; cost: wei of the chain's coin;
    contract: the address of one that was deployed.
    """

    transaction: str
    block: int
    gas_used: int
    events: tuple[ChainEvent, ...]
    cost: int = 0
    contract: Address | None = None


class Connection:
    """Every method may raise ChainError and its subclasses.

    key: signs writes that name no other key; outbox: the database file that remembers unfinished
    transactions over a restart, and with `tells` those that nobody was told of (`told`); timeout: seconds per endpoint
    and request.
    """

    def __init__(
        self,
        profile: NetworkProfile,
        key: NodeKey | None = None,
        *,
        outbox: Path | None = None,
        tells: bool = False,
        timeout: float = 8.0,
        limits: SendLimits | None = None,
    ) -> None:
        self.profile = profile
        self.key = key
        self.domain = Domain(profile.chain_id, profile.contracts.swarm)
        self.healthy = True
        self._provider = FallbackProvider(profile.rpc_urls, profile.chain_id, timeout)
        self._witnesses = Witnesses(self._provider.endpoints)
        self._web3 = Web3(self._provider, middleware=[AttributeDictMiddleware])
        self._eth = Eth(self._provider.endpoints)
        self._contracts = Contracts(self._web3, profile.contracts, self._eth)
        self._limiter = trio.CapacityLimiter(8)
        self._deadline = timeout * len(profile.rpc_urls) * 4
        # By chain and contract: what was left for another deployment is not sent to this one.
        self._outbox = Outbox(outbox, f"{profile.chain_id}:{profile.contracts.swarm}", tells=tells)
        self._checked = False
        self.other_code: tuple[str, ...] = ()
        self.astray: tuple[str, ...] = ()
        """Contracts that have other code than this program's, once they were looked at."""
        self._sender = Sender(
            self._eth,
            profile.chain_id,
            self._outbox,
            self._thread,
            limits or default_limits(profile),
            self._witnesses,
            lambda: self._provider.endpoints.uncertain,
        )

    @property
    def url(self) -> str:
        """The RPC endpoint in use."""
        return self._provider.endpoints.url

    @property
    def has_second(self) -> bool:
        """Whether there is another endpoint to ask what one has told."""
        return self._witnesses.several

    def endpoints(self) -> list[EndpointRecord]:
        """What is known of each, in the order of the profile."""
        return self._witnesses.records()

    async def connect(self) -> None:
        """Check chain id and contracts, and send again what an earlier process left unfinished."""
        # Nothing is read: the check of the contracts comes before any first read.
        await self._read("connect", lambda: None)
        if self.key is not None:
            await self.resume(self.key)

    async def resume(self, key: NodeKey) -> list[Recovered]:
        """What an earlier process left unfinished with this key: settled, or sent again; and what it has not told of.
        receipt: as Receipt."""
        left = await self._sender.resume(key)
        return [msgspec.structs.replace(one, receipt=one.receipt and self._receipt(one.receipt)) for one in left]

    async def told(self, transactions: Iterable[str]) -> None:
        """Whoever asked for these knows what became of them."""
        await self._thread(partial(self._outbox.tell, list(transactions)), abandon=False)

    @property
    def contracts(self) -> Contracts:
        """The bindings, for building calls; reading through them blocks."""
        return self._contracts

    async def ask(self, action: str, view: Callable[[Contracts], T]) -> T:
        """Any view of the contracts, in a thread. action completes "cannot ..."."""
        return await self._read(action, lambda: view(self._contracts))

    async def simulate(self, steps: Sequence[SimulatedStep], sender: Address) -> Simulation:
        """What the steps would cost, one after the other; raises what they would revert with."""
        work = partial(simulate, self._eth, steps, sender, l1_fees=self.profile.l1_fees)
        return await self._read(steps[0].action, work)

    async def execute(self, step: SimulatedStep, key: NodeKey) -> Receipt:
        """Send one transaction and wait until it counts."""
        return await self._write(step.action, step.call, key)

    def close(self) -> None:
        """Close connections and files. What was abandoned in a thread ends by itself, and writes nothing down."""
        self._provider.close()
        self._outbox.close()

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
            # What does not have the form of the ABI is no riddle where the contracts are known to be others.
            if self.other_code and isinstance(error, BadFunctionCallOutput):
                raise OtherContracts(self.other_code, self.profile.name, self.astray) from error
            raise translate(error, action) from error

    def _check_contracts(self) -> None:
        if self.profile.deployed:
            found = self._witnesses.agreed("look at the contracts", CALL, self._codes)
            if missing := [slot for slot, ours in found.ours.items() if ours is None]:
                raise NotDeployed(missing, self.profile.chain_id)
            self.other_code = tuple(slot for slot, ours in found.ours.items() if not ours)
            self.astray = found.astray
        self._checked = True

    def _codes(self) -> codes.Found:
        """Which contracts have the code that this program knows, and are tied to each other: one question about all,
        else one about each, for endpoints that run no program of ours."""
        try:
            return codes.look(self._contracts)
        except (RpcUnreachable, *EXPECTED) as error:
            if isinstance(error, RpcUnreachable) and not error.refused:
                raise
            logger.info("chain.contracts_asked_one_by_one", why=str(error)[:200])
        return codes.answered(self._contracts, at_once(*codes.questions(self._contracts)))

    def require_own_code(self) -> None:
        """Before a stake answers here, once the contracts were looked at. Raises OtherContracts."""
        if self.other_code or self.astray:
            raise OtherContracts(self.other_code, self.profile.name, self.astray)

    async def _write(
        self,
        action: str,
        call: TransactionCall,
        key: NodeKey | None,
        patience: Patience | None = None,
    ) -> Receipt:
        signer = key or self.key
        if signer is None:
            raise ChainError(f"cannot {action}", "no key was given to sign with", "give the key to sign with")
        # Sending does not go through `_read`, which checks that the contracts are there.
        if not self._checked:
            await self._read("connect", lambda: None)
        try:
            receipt = await self._sender.send(call, signer, action, patience)
        except RpcUnreachable:
            self.healthy = False
            raise
        return self._receipt(receipt)

    def _receipt(self, receipt: Any) -> Receipt:
        parsed = (parse_log(raw_log(entry), self.profile.contracts) for entry in receipt["logs"])
        return Receipt(
            transaction="0x" + receipt["transactionHash"].hex(),
            block=receipt["blockNumber"],
            gas_used=receipt["gasUsed"],
            events=tuple(event for event in parsed if event is not None),
            cost=receipt["gasUsed"] * receipt.get("effectiveGasPrice", 0) + _l1_part(receipt),
            contract=parse_address(receipt["contractAddress"]) if receipt.get("contractAddress") else None,
        )

    async def _approve(self, spender: Address, amount: int, key: NodeKey | None) -> None:
        owner = key or self.key
        if owner is None:
            return  # the write that follows says so
        allowed = await self._read("read an allowance", lambda: self._contracts.allowance(owner.address, spender))
        self.require_own_code()
        # Exactly the amount and not without end: a contract that were wrong could take no more than this.
        if allowed < amount:
            await self._write("approve tokens", self._contracts.approve(spender, amount), key)


def default_limits(profile: NetworkProfile) -> SendLimits:
    """Impatient with a local chain, sparing with public endpoints."""
    poll = 0.2 if profile.confirmations == 0 else 1.0
    max_fee = int(profile.max_fee_gwei * 10**9)
    return SendLimits(poll=poll, confirmations=profile.confirmations, max_fee=max_fee)


def _l1_part(receipt: Any) -> int:
    """OP stack receipts tell the fee for the data beside the gas."""
    fee = receipt.get("l1Fee", 0)
    return int(fee, 16) if isinstance(fee, str) else int(fee or 0)
