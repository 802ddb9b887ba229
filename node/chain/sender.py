"""Gets one transaction into a block: simulate, number, sign, write down, send, wait, raise the fee.

Knows nonces, fees and receipts; what a transaction means is its caller's business.
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
import structlog
import trio
from eth_account import Account
from web3 import Web3
from web3.contract.contract import ContractFunction
from web3.exceptions import ContractLogicError, TransactionNotFound, Web3RPCError

from node.chain.errors import (
    ChainError,
    InsufficientFunds,
    Reverted,
    RpcRefused,
    RpcUnreachable,
    TransactionUnconfirmed,
)
from node.chain.outbox import Outbox, Pending
from node.chain.translate import EXPECTED, translate
from protocol.identity import Address, NodeKey

GAS_MARGIN = 1.25
FEE_BUMP = 1.125
"""At least 10 % more is what nodes accept as a replacement."""
MAX_BUMPS = 5
NONCE_TRIES = 4
log = structlog.get_logger()
T = TypeVar("T")


class Runner(Protocol):
    """Runs a blocking function in a thread."""

    def __call__(self, function: Callable[[], T], *, abandon: bool) -> Awaitable[T]: ...


class SendLimits(msgspec.Struct, frozen=True):
    """Seconds: between looks for a receipt, without one before the fee is raised, before giving up waiting."""

    poll: float = 0.2
    bump_after: float = 30.0
    give_up: float = 120.0


class _NonceTaken(Exception):
    """Another program with the same key was faster."""


class _Sent(msgspec.Struct):
    """One nonce on its way: every variant that was sent."""

    nonce: int
    transaction: dict[str, Any]
    variants: list[Pending]


class Sender:
    """One per client. Transactions of one key go out in order; different keys do not wait for each other."""

    def __init__(self, web3: Web3, chain_id: int, outbox: Outbox, run: Runner, limits: SendLimits) -> None:
        self._web3 = web3
        self._chain_id = chain_id
        self._outbox = outbox
        self._run = run
        self._limits = limits
        self._locks: dict[str, trio.Lock] = {}
        self._next: dict[str, int] = {}
        self._in_flight: dict[str, int] = {}

    async def send(self, call: ContractFunction, key: NodeKey, action: str) -> Any:
        """Returns web3's receipt of a successful transaction.

        Raises Reverted, InsufficientStake, InsufficientFunds (nothing was sent), RpcUnreachable, RpcRefused or
        TransactionUnconfirmed (it stays in the outbox).
        """
        sender = key.address
        self._in_flight[sender] = self._in_flight.get(sender, 0) + 1
        try:
            async with self._locks.setdefault(sender, trio.Lock()):
                sent = await self._run(partial(self._submit, call, key, action), abandon=False)
            receipt = await self._wait(sent, key, action)
        finally:
            self._in_flight[sender] -= 1
        if receipt["status"] != 1:
            raise await self._run(partial(self._why_reverted, call, key, action, receipt), abandon=True)
        return receipt

    async def resume(self, key: NodeKey) -> int:
        """Send again what an earlier process left unfinished; returns how many transactions that were."""
        return await self._run(partial(self._resend, key.address), abandon=False)

    # ---- in threads

    def _submit(self, call: ContractFunction, key: NodeKey, action: str) -> _Sent:
        try:
            sender = Web3.to_checksum_address(key.address)
            call.call({"from": sender})
            gas = int(call.estimate_gas({"from": sender}) * GAS_MARGIN)
            fields: Any = {"from": sender, "gas": gas, "chainId": self._chain_id, **self._fees()}
            transaction: dict[str, Any] = dict(call.build_transaction(fields))
            self._require_funds(key.address, transaction, action)
            return self._number_and_put_out(transaction, key, action)
        except EXPECTED as error:
            raise translate(error, action) from error

    def _number_and_put_out(self, transaction: dict[str, Any], key: NodeKey, action: str) -> _Sent:
        for attempt in range(NONCE_TRIES):
            transaction["nonce"] = self._nonce(key.address)
            sent = _Sent(transaction["nonce"], transaction, [])
            try:
                self._put_out(sent, key, action)
            except _NonceTaken:
                self._next.pop(key.address, None)
                time.sleep(0.2 * (attempt + 1))
                continue
            self._next[key.address] = sent.nonce + 1
            return sent
        raise RpcRefused(action, f"another program keeps sending with the key of {key.address}")

    def _fees(self) -> dict[str, Any]:
        base = self._web3.eth.get_block("latest").get("baseFeePerGas", 0)
        tip = self._web3.eth.max_priority_fee
        return {"maxPriorityFeePerGas": tip, "maxFeePerGas": 2 * base + tip}

    def _require_funds(self, sender: Address, transaction: Any, action: str) -> None:
        need = transaction["gas"] * transaction["maxFeePerGas"] + transaction.get("value", 0)
        have = self._web3.eth.get_balance(Web3.to_checksum_address(sender))
        if have < need:
            why = f"{sender} has {have} wei of the chain's coin, {need} may be needed for gas"
            raise InsufficientFunds(f"cannot {action}", why, "send the account some of the chain's coin")

    def _nonce(self, sender: Address) -> int:
        chain = self._web3.eth.get_transaction_count(Web3.to_checksum_address(sender), "pending")
        others = self._in_flight.get(sender, 0) > 1
        return max(chain, self._next.get(sender, 0)) if others else chain

    def _put_out(self, sent: _Sent, key: NodeKey, action: str) -> None:
        """Sign, write down, send. An unreachable chain is no failure here: the waiting sends again."""
        signed = Account.sign_transaction(sent.transaction, key.secret)
        digest = "0x" + bytes(signed.hash).hex()
        pending = Pending(digest, key.address, sent.nonce, bytes(signed.raw_transaction), action)
        self._outbox.record(pending)
        sent.variants.append(pending)
        first = len(sent.variants) == 1
        try:
            self._broadcast(pending, first=first)
        except RpcUnreachable as error:
            log.warning("chain.send_delayed", action=action, transaction=digest, why=error.why)
        except (ChainError, _NonceTaken):
            if first:
                self._outbox.settle(key.address, sent.nonce)
            raise

    def _broadcast(self, pending: Pending, *, first: bool = False) -> None:
        """first: nothing was sent with this nonce before, so that whoever has it now is somebody else."""
        try:
            self._web3.eth.send_raw_transaction(pending.raw)
        except Web3RPCError as error:
            message = str(error.message or error).lower()
            if any(known in message for known in ("already known", "already imported")):
                return  # it is in the pool
            if "nonce too low" in message or (first and "replacement" in message):
                if first:
                    raise _NonceTaken from error
                return  # a variant of it is in a block
            raise translate(error, pending.action) from error

    def _look(self, sent: _Sent) -> Any | None:
        for pending in sent.variants:
            try:
                return self._web3.eth.get_transaction_receipt(pending.hash)  # pyright: ignore[reportArgumentType]
            except TransactionNotFound:
                continue
        return None

    def _bump(self, sent: _Sent, key: NodeKey, action: str) -> None:
        for field in ("maxFeePerGas", "maxPriorityFeePerGas"):
            sent.transaction[field] = int(sent.transaction[field] * FEE_BUMP) + 1
        log.info("chain.fee_raised", action=action, nonce=sent.nonce, fee=sent.transaction["maxFeePerGas"])
        try:
            self._put_out(sent, key, action)
        except ChainError as error:
            log.warning("chain.fee_not_raised", action=action, why=error.why)

    def _why_reverted(self, call: ContractFunction, key: NodeKey, action: str, receipt: Any) -> ChainError:
        try:
            call.call({"from": Web3.to_checksum_address(key.address)}, block_identifier=receipt["blockNumber"])
        except ContractLogicError as error:
            return translate(error, action)
        except EXPECTED as error:
            log.warning("chain.revert_unexplained", action=action, why=str(error)[:200])
        return Reverted(action, "unknown", {}, "0x" + bytes(receipt["transactionHash"]).hex())

    def _resend(self, sender: Address) -> int:
        done = self._web3.eth.get_transaction_count(Web3.to_checksum_address(sender), "latest")
        left = self._outbox.pending(sender)
        for pending in left:
            if pending.nonce < done:
                self._outbox.settle(sender, pending.nonce)
                continue
            try:
                self._broadcast(pending)
            except RpcUnreachable:
                raise
            except ChainError as error:
                log.warning("chain.resend_refused", action=pending.action, why=error.why)
                self._outbox.settle(sender, pending.nonce)
        return len({pending.nonce for pending in left if pending.nonce >= done})

    # ---- waiting

    async def _wait(self, sent: _Sent, key: NodeKey, action: str) -> Any:
        started = time.monotonic()
        bumped = started
        pause = self._limits.poll
        while time.monotonic() - started < self._limits.give_up:
            try:
                receipt = await self._run(partial(self._look, sent), abandon=True)
                pause = self._limits.poll
            except RpcUnreachable:
                receipt, pause = None, min(pause * 2, 5.0)
            if receipt is not None:
                await self._run(partial(self._outbox.settle, key.address, sent.nonce), abandon=False)
                return receipt
            await trio.sleep(pause)
            if pause > self._limits.poll:
                await self._again(sent)
            elif time.monotonic() - bumped > self._limits.bump_after and len(sent.variants) <= MAX_BUMPS:
                bumped = time.monotonic()
                await self._run(partial(self._bump, sent, key, action), abandon=False)
        raise TransactionUnconfirmed(action, sent.variants[-1].hash, self._limits.give_up)

    async def _again(self, sent: _Sent) -> None:
        """After an outage nobody knows what arrived: sending the same bytes again is harmless."""
        try:
            await self._run(partial(self._broadcast, sent.variants[-1]), abandon=False)
        except ChainError as error:
            log.info("chain.send_delayed", transaction=sent.variants[-1].hash, why=error.why)
