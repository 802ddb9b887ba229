"""Gets one transaction into a block, once: simulate, number, sign, write down, send, wait, raise the fee.

Knows nonces, fees and receipts; what a transaction means is its caller's business. A row stays in the outbox from
before the first sending until enough blocks stand on the receipt, so that a crash, an outage, a replaced block
or an answer that got lost never makes it two.
"""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median
from typing import Any, Protocol, TypeVar

import msgspec
import structlog
import trio

from contracts.asking import at_once
from contracts.bindings import TransactionCall
from node.bounded_dict import BoundedDict
from node.chain.errors import (
    ChainError,
    FeeTooHigh,
    InsufficientFunds,
    Reverted,
    RpcRefused,
    RpcUnreachable,
    TransactionReplaced,
    TransactionUnconfirmed,
    translate,
)
from node.chain.outbox import Fate, Outbox, Pending
from node.chain.receipts import Receipts
from node.chain.refusals import EndpointRefused, RefusalKind
from node.chain.rpc import EXPECTED, Eth
from node.chain.transactions import (
    BASES,
    FEE_BUMP,
    FEES,
    Price,
    fields_of,
    noop,
    price_now,
    price_paid,
    raise_fee,
    sign_transaction,
)
from node.chain.witnesses import Witnesses
from protocol.identity import Address, NodeKey
from protocol.upkeep import Patience

ENDPOINT_LAG = 15.0
"""Seconds that one endpoint, or one part of it, may be behind another."""
log = structlog.get_logger()
T = TypeVar("T")


class Runner(Protocol):
    """Runs a blocking function in a thread."""

    def __call__(self, function: Callable[[], T], *, abandon: bool) -> Awaitable[T]: ...


class SendLimits(msgspec.Struct, frozen=True):
    """Seconds: between looks for a receipt, without one before the fee is raised, before giving up waiting.

    confirmations: blocks on top of a receipt's before it counts; lag: seconds that an endpoint's counts may run ahead
    of its receipts; max_fee: wei per gas that are never exceeded; longest_raise: seconds between two raises at most,
    which grow from `bump_after` by twos, since each variant may be mined; offered: seconds between two times that a
    transaction is offered to every endpoint.
    """

    poll: float = 0.2
    bump_after: float = 30.0
    give_up: float = 120.0
    confirmations: int = 0
    lag: float = ENDPOINT_LAG
    max_fee: int = 100 * 10**9
    longest_raise: float = 600.0
    offered: float = 5.0


class Recovered(msgspec.Struct, frozen=True):
    """What became of a transaction that an earlier process left unfinished. receipt: as `Eth` has it, None
    where it is in no block."""

    pending: Pending
    fate: Fate
    receipt: Any | None = None


class _NonceTaken(Exception):
    """Another program with the same key was faster."""


class _Underpriced(Exception):
    """No endpoint takes it at this fee."""


class _Sent(msgspec.Struct):
    """One nonce on its way: every variant that was sent, the newest last. unheard: offers of the newest in a row that
    no endpoint took; again_at: when the next one may follow (monotonic)."""

    nonce: int
    fields: dict[str, Any]
    variants: list[Pending]
    patience: Patience | None = None
    seen: bool = False
    replaced: bool = False
    unheard: int = 0
    again_at: float = 0.0

    def offered(self, *, heard: bool) -> None:
        """Equal bytes cost nothing, and what nobody took is in no block; but who refuses is not hurried."""
        # Seconds after which what no endpoint took is offered again; twice as long each time.
        self.again_at = time.monotonic() + 0.5 * 2 ** min(self.unheard, 4)
        self.unheard = 0 if heard else self.unheard + 1


class Sender:
    """One per client. Transactions of one key go out in order; different keys do not wait for each other.

    uncertain: whether the last request of this thread failed at one endpoint before another answered, which
    leaves open whether the first one took it.
    """

    def __init__(
        self,
        eth: Eth,
        chain_id: int,
        outbox: Outbox,
        run: Runner,
        limits: SendLimits,
        witnesses: Witnesses,
        uncertain: Callable[[], bool] = lambda: False,
    ) -> None:
        self._eth = eth
        self._chain_id = chain_id
        self._outbox = outbox
        self._run = run
        self._limits = limits
        self._uncertain = uncertain
        self._locks: dict[str, trio.Lock] = {}
        self._own: set[tuple[str, int]] = set()
        """(sender, nonce) that a task of this process waits for."""
        # Numbers of keys of which it is known how often their fee was raised.
        self._raises: BoundedDict[tuple[str, int], tuple[int, float]] = BoundedDict(1024)
        """(sender, nonce) -> how often its fee was raised, and when it may be again (monotonic)."""
        self._used: dict[str, tuple[int, float]] = {}
        """sender -> (the number after our last mined one, when)."""
        self._receipts = Receipts(eth, outbox, witnesses, limits.confirmations, limits.lag, limits.offered)

    async def send(self, call: TransactionCall, key: NodeKey, action: str, patience: Patience | None = None) -> Any:
        """Returns the receipt (`Eth`) of a successful transaction. patience: until when it can wait for a better price.

        An unfinished equal call of an earlier process, or one that was given up waiting for, is taken up
        instead of being sent a second time. Raises Reverted, InsufficientStake, InsufficientFunds, FeeTooHigh (nothing
        was sent), RpcUnreachable, RpcRefused, TransactionReplaced, or TransactionUnconfirmed (it stays in the outbox).
        """
        sender = key.address
        async with self._locks.setdefault(sender, trio.Lock()):
            # Not abandoned at a cancellation: it may be between writing down and sending.
            sent = await self._run(partial(self._submit, call, key, action, patience), abandon=False)
            # Marked while the lock is held: `resume` must not take up what this task is about to wait for.
            self._own.add((sender, sent.nonce))
        try:
            receipt = await self._wait(sent, key, action)
        finally:
            self._own.discard((sender, sent.nonce))
        self._used[sender] = (sent.nonce + 1, time.monotonic())
        if receipt["status"] != 1:
            raise await self._run(partial(self._why_reverted, call, key, action, receipt), abandon=True)
        return receipt

    async def resume(self, key: NodeKey) -> list[Recovered]:
        """Settle what was mined meanwhile, send the rest again; returns what an earlier process left, and what it did
        and told nobody of."""
        action = "go on with what was left"
        return await self._run(partial(_translated, partial(self._left, key.address), action), abandon=False)

    # ---- in threads: putting out

    def _submit(self, call: TransactionCall, key: NodeKey, action: str, patience: Patience | None) -> _Sent:
        gas_margin = 1.25
        try:
            # A crash between sending and hearing of the receipt must not pay twice for one intent.
            earlier = self._unfinished(call, key)
            if earlier is not None:
                log.info("chain.taken_up", action=action, transaction=earlier.variants[-1].hash)
                earlier.patience = patience
                return earlier
            sender = key.address
            asked = {**call.fields(), "from": sender}
            # Simulated before it is sent: a revert is then told with its reason and costs no gas.
            _, gas, fees, have, nonce = at_once(
                lambda: self._eth.call(asked),
                lambda: self._eth.estimate_gas(asked),
                lambda: self._fees(sender, patience),
                lambda: self._eth.get_balance(sender),
                lambda: self._nonce(sender),
            )
            # State may move between the estimate and the block; what is not used is not paid.
            fields = {**call.fields(), "gas": int(gas * gas_margin), "chainId": self._chain_id, **fees, "nonce": nonce}
            _require_funds(have, sender, fields, action)
            return self._number_and_put_out(fields, key, action, call.intent, patience)
        except EXPECTED as error:
            raise translate(error, action) from error

    def _unfinished(self, call: TransactionCall, key: NodeKey) -> _Sent | None:
        """An equal call that waits for a block, or was mined and nobody was told; the others are sent again first."""
        found: _Sent | None = None
        for left in self._resume(key.address):
            equal = left.fate in (Fate.PENDING, Fate.MINED) and left.pending.intent == call.intent
            if equal and found is None:
                waiting = [p for p in self._outbox.pending(key.address) if p.nonce == left.pending.nonce]
                variants = waiting or [left.pending]
                found = _Sent(left.pending.nonce, fields_of(variants[-1]), variants)
        return found

    def _number_and_put_out(
        self, fields: dict[str, Any], key: NodeKey, action: str, intent: str, patience: Patience | None
    ) -> _Sent:
        """fields: complete; after a refusal the number is asked for anew."""
        tries = 0
        nonce_tries = 4  # another program with our key may be sending, too; it needs a moment to get its own through
        for turn in range(nonce_tries + 4):  # and four for the fee
            if turn:
                fields["nonce"] = self._nonce(key.address)
            sent = _Sent(fields["nonce"], fields, [], patience)
            try:
                self._put_out(sent, key, action, intent)
            except _NonceTaken:
                tries += 1
                if tries == nonce_tries:
                    break
                time.sleep(0.2 * tries)
                continue
            except _Underpriced:
                fees, most = self._fees(key.address, patience), self._most(key.address, patience)
                # Above the ten per cent that nodes ask of a replacement, also where their view of the fees is older
                # than ours.
                fields = _raised({**fields, **fees}, most, 1.5)
                continue
            return sent
        # Not for ever: behind this may be an endpoint that refuses whatever it is given.
        raise RpcRefused(action, f"its number or its fee was refused again and again ({key.address})")

    def _fees(self, sender: Address, patience: Patience | None) -> dict[str, Any]:
        price, cap = price_now(self._eth), self._limits.max_fee
        most = self._most(sender, patience, price)
        if price.base > most:
            raise FeeTooHigh(price.base, most, waits=most < cap)
        # A tip is at most this part of the highest fee: what an endpoint recommends is its own word.
        tip = min(price.tip, most // 10, most - price.base)
        if tip < price.tip:
            log.warning("chain.tip_capped", told=price.tip, paid=tip)
        return {"maxPriorityFeePerGas": tip, "maxFeePerGas": min(BASES * price.base + tip, most)}

    def _most(self, sender: Address, patience: Patience | None, price: Price | None = None) -> int:
        """Wei per gas that are not exceeded now: the owner's cap, or less for what can wait."""
        cap = self._limits.max_fee
        if patience is None:
            return cap
        price = price or price_now(self._eth)
        # Transactions of a key, the newest, whose middle price is what is usual.
        mined = [row for row in self._outbox.history(sender) if row.fate is Fate.MINED][-9:]
        # Who has sent nothing yet knows no other price.
        usual = int(median([price_paid(row) for row in mined])) if mined else price.base + price.tip
        return patience.most(usual, cap, price.at)

    def _nonce(self, sender: Address) -> int:
        """The lowest number that neither the chain's pool nor an unfinished transaction of ours uses.

        An endpoint behind the one that told the last receipt may count too few; a while later it is believed.
        """
        number = self._eth.get_transaction_count(sender, "pending")
        after, seen = self._used.get(sender, (0, 0.0))
        if number < after and time.monotonic() - seen < ENDPOINT_LAG:
            number = after
        ours = {pending.nonce for pending in self._outbox.pending(sender)}
        # A hole would keep every later transaction out of all blocks, so the lowest free number is taken.
        while number in ours:
            number += 1
        return number

    def _put_out(self, sent: _Sent, key: NodeKey, action: str, intent: str) -> None:
        """Sign, write down, send. An unreachable chain is no failure here: the waiting sends again."""
        pending = sign_transaction(sent.fields, key, action, intent)
        # Written down before it is sent: what nobody wrote down could be neither waited for nor raised.
        self._outbox.record(pending)
        first = not sent.variants
        try:
            self._broadcast(pending, first=first)
            sent.offered(heard=True)
        except RpcUnreachable as error:
            sent.offered(heard=False)
            log.warning("chain.send_delayed", action=action, transaction=pending.hash, why=error.why)
        # Certainly not taken by anybody: without this the row would be sent again for ever.
        except (ChainError, _NonceTaken, _Underpriced):
            self._outbox.refuse(pending.hash)
            raise
        sent.variants.append(pending)

    def _broadcast(self, pending: Pending, *, first: bool = False) -> None:
        """first: nothing was sent with this nonce before, so that whoever has it now is somebody else.

        Returns where it was taken, or may have been by one endpoint of several; raises RpcUnreachable where none took
        it for now, and others where it certainly was not taken.
        """
        try:
            self._eth.send_raw_transaction(pending.raw)
        except EndpointRefused as refusal:
            used = refusal.kind in (RefusalKind.NONCE_USED, RefusalKind.OCCUPIED)
            # "Nonce too low" for a variant may mean that an earlier variant of ours was mined: the receipts will tell.
            if refusal.kind is RefusalKind.KNOWN or self._uncertain() or (used and not first):
                return
            if used:
                if self._receipts.took(pending, wait=refusal.kind is RefusalKind.NONCE_USED):
                    return
                raise _NonceTaken from refusal
            if refusal.kind is RefusalKind.UNDERPRICED:
                raise _Underpriced from refusal
            if refusal.kind in (RefusalKind.BEHIND, RefusalKind.WRONG):
                raise RpcUnreachable({refusal.endpoint: str(refusal)}, refused=True) from refusal
            raise translate(refusal, pending.action) from refusal

    # ---- in threads: looking

    def _look(self, sent: _Sent) -> Any | None:
        """One look at a transaction of ours; a used number without a receipt of ours is somebody else's."""
        receipt, settled = self._receipts.settled(sent.variants)
        if settled:
            return receipt
        there = receipt is not None
        if sent.seen and not there:
            # Its block was replaced. The pool may have forgotten the transaction, so it is sent again.
            log.warning("chain.receipt_vanished", transaction=sent.variants[-1].hash)
            self._broadcast(sent.variants[-1])
        sent.seen = there
        used = not there and self._eth.get_transaction_count(sent.variants[0].sender) > sent.nonce
        sent.replaced = used and self._receipts.is_replaced(sent.variants)
        return None

    def _why_reverted(self, call: TransactionCall, key: NodeKey, action: str, receipt: Any) -> ChainError:
        asked = {**call.fields(), "from": key.address}
        try:
            self._eth.call(asked, receipt["blockNumber"])
        except (RpcUnreachable, *EXPECTED) as error:
            if isinstance(error, EndpointRefused) and error.kind is RefusalKind.REVERTED:
                return translate(error, action)
            log.warning("chain.revert_unexplained", action=action, why=str(error)[:200])
        return Reverted(action, "unknown", {}, "0x" + receipt["transactionHash"].hex())

    # ---- in threads: what was left

    def _left(self, sender: Address) -> list[Recovered]:
        done: list[Recovered] = []
        for one in self._outbox.untold(sender):
            if (receipt := self._eth.get_transaction_receipt(one.hash)) is not None:
                done.append(Recovered(one, Fate.MINED, receipt))
            else:  # this endpoint lags, or blocks were replaced far below: it is waited for, or sent again
                self._outbox.reopen(one.hash)
        return [*done, *self._resume(sender)]

    def _resume(self, sender: Address) -> list[Recovered]:
        """Every unfinished number of the sender that no task waits for: settled, or sent again."""
        groups: dict[int, list[Pending]] = {}
        for pending in self._outbox.pending(sender):
            if (sender, pending.nonce) not in self._own:
                groups.setdefault(pending.nonce, []).append(pending)
        if not groups:
            return []
        # Once for all of them: each would be a request, and the count cannot fall between.
        done = self._eth.get_transaction_count(sender)
        return [self._recover(variants, done) for _, variants in sorted(groups.items())]

    def _recover(self, variants: list[Pending], done: int) -> Recovered:
        last = variants[-1]
        receipt, settled = self._receipts.settled(variants)
        if receipt is not None and settled:
            fate = Fate.MINED if receipt["status"] == 1 else Fate.REVERTED
            digest = "0x" + receipt["transactionHash"].hex()
            return Recovered(next(one for one in variants if one.hash == digest), fate, receipt)
        # The number is used. Unless a block shows that somebody else used it, the receipt may still come.
        if last.nonce < done:
            if receipt is None and self._receipts.is_replaced(variants):
                self._outbox.settle(last.sender, last.nonce, Fate.REPLACED)
                log.warning("chain.replaced", action=last.action, transaction=last.hash)
                return Recovered(last, Fate.REPLACED)
            return Recovered(last, Fate.PENDING)
        try:
            self._broadcast(last)
        except _Underpriced:
            log.info("chain.resend_underpriced", transaction=last.hash)
        except RpcUnreachable as error:
            if not error.refused:
                raise
            log.info("chain.resend_refused", action=last.action, why=error.why)
        except ChainError as error:
            log.warning("chain.resend_refused", action=last.action, why=error.why)
            self._outbox.settle(last.sender, last.nonce, Fate.REFUSED)
            return Recovered(last, Fate.REFUSED)
        return Recovered(last, Fate.PENDING)

    def _bump(self, sent: _Sent, key: NodeKey, action: str) -> None:
        """Pay more, if it is time for that."""
        raised, again_at = self._raises.get((key.address, sent.nonce), (0, 0.0))
        if time.monotonic() < again_at:
            return
        price = price_now(self._eth)
        # Raises by an eighth of a fee that a block would take: blocks that come late are no reason to pay more. One
        # that no block takes is raised as often as the cap allows.
        if price.base <= sent.fields["maxFeePerGas"] and raised >= 5:
            return
        better = _raised(sent.fields, self._most(key.address, sent.patience, price))
        # The cap cut it: what pays less than a real raise is refused, and would only be noise.
        if better["maxFeePerGas"] < raise_fee(sent.fields)["maxFeePerGas"]:
            log.warning("chain.fee_at_cap", action=action, nonce=sent.nonce, fee=sent.fields["maxFeePerGas"])
            return  # no endpoint takes a replacement that pays less than a tenth more
        fresh = self._fees(key.address, sent.patience)
        pause = min(self._limits.bump_after * 2**raised, self._limits.longest_raise)
        self._raises[key.address, sent.nonce] = raised + 1, time.monotonic() + pause
        sent.fields = {name: max(value, fresh[name]) if name in fresh else value for name, value in better.items()}
        log.info("chain.fee_raised", action=action, nonce=sent.nonce, fee=sent.fields["maxFeePerGas"])
        try:
            self._put_out(sent, key, action, sent.variants[0].intent)
        except (ChainError, _Underpriced) as error:
            log.warning("chain.fee_not_raised", action=action, why=str(error))

    def _maintain(self, sent: _Sent, key: NodeKey) -> None:
        """What stands before ours in the queue: raise the fees of what nobody waits for, fill what nobody sent."""
        sender = key.address
        for left in self._resume(sender):
            if left.fate is Fate.PENDING and left.pending.nonce < sent.nonce:
                variants = [p for p in self._outbox.pending(sender) if p.nonce == left.pending.nonce]
                if variants:
                    # As patient as what waits behind it.
                    stuck = _Sent(left.pending.nonce, fields_of(variants[-1]), variants, sent.patience)
                    self._bump(stuck, key, left.pending.action)
        self._fill_gap(sent, key)

    def _fill_gap(self, sent: _Sent, key: NodeKey) -> None:
        """A number before ours that nothing uses keeps ours out of every block: use it up with nothing."""
        gap = self._eth.get_transaction_count(key.address, "pending")
        if gap >= sent.nonce or any(pending.nonce == gap for pending in self._outbox.pending(key.address)):
            return
        # Some program of this key signed a number and lost it: everything behind waits until that number is used.
        log.warning("chain.gap_filled", nonce=gap, sender=key.address)
        nothing = _Sent(gap, noop(key.address, gap, self._chain_id, self._fees(key.address, None)), [])
        try:
            self._put_out(nothing, key, f"fill the unused number {gap}", "")
        except (ChainError, _NonceTaken, _Underpriced) as error:
            log.info("chain.gap_not_filled", why=str(error))

    # ---- waiting

    async def _wait(self, sent: _Sent, key: NodeKey, action: str) -> Any:
        started = tended = time.monotonic()
        pause = self._limits.poll
        while time.monotonic() - started < self._limits.give_up:
            try:
                # Looking may be abandoned at a cancellation: it changes nothing that is not written down.
                receipt = await self._run(partial(self._guarded, partial(self._look, sent), action), abandon=True)
                pause = self._limits.poll
            except RpcUnreachable:
                # An endpoint that is down is not hurried by being asked five times a second.
                receipt, pause = None, min(pause * 2, 5.0)
            if receipt is not None:
                return receipt
            if sent.replaced:
                await self._run(partial(self._outbox.settle, key.address, sent.nonce, Fate.REPLACED), abandon=False)
                raise TransactionReplaced(action, sent.variants[-1].hash, sent.nonce)
            await trio.sleep(pause)
            if pause > self._limits.poll or (sent.unheard and time.monotonic() >= sent.again_at):
                await self._again(sent, action)
            elif time.monotonic() - tended > self._limits.bump_after:
                tended = time.monotonic()
                await self._hurry(sent, key, action)
        raise TransactionUnconfirmed(action, sent.variants[-1].hash, self._limits.give_up)

    async def _hurry(self, sent: _Sent, key: NodeKey, action: str) -> None:
        """Nothing happened for a while: look at what stands before ours, then pay more for ours."""

        def work() -> None:
            self._maintain(sent, key)
            self._receipts.offer(sent.variants[-1])
            if not sent.seen and not sent.unheard:
                self._bump(sent, key, action)

        try:
            async with self._locks.setdefault(key.address, trio.Lock()):
                await self._run(partial(self._guarded, work, action), abandon=False)
        except ChainError as error:
            log.info("chain.not_hurried", action=action, why=error.why)

    async def _again(self, sent: _Sent, action: str) -> None:
        """After an outage nobody knows what arrived: sending the same bytes again is harmless."""
        again = partial(self._broadcast, sent.variants[-1])
        try:
            await self._run(partial(self._guarded, again, action), abandon=False)
            sent.offered(heard=True)
        except ChainError as error:
            sent.offered(heard=False)
            log.info("chain.send_delayed", transaction=sent.variants[-1].hash, why=error.why)

    def _guarded(self, function: Callable[[], T], action: str) -> T | None:
        """web3's own exceptions as ours; a refusal while waiting changes nothing, the next look may be better."""
        try:
            return function()
        except RpcUnreachable:
            raise
        except (_Underpriced, _NonceTaken, ChainError) as error:
            log.info("chain.look_failed", action=action, why=str(error)[:200])
        except EXPECTED as error:
            log.info("chain.look_failed", action=action, why=str(error)[:200])
        return None


def _translated(function: Callable[[], T], action: str) -> T:
    try:
        return function()
    except EXPECTED as error:
        raise translate(error, action) from error


def _raised(fields: dict[str, Any], most: int, factor: float = FEE_BUMP) -> dict[str, Any]:
    """The same transaction, paid better, but no better than that."""
    better = raise_fee(fields, factor)
    return {**better, **{name: min(better[name], most) for name in FEES}}


def _require_funds(have: int, sender: Address, fields: Any, action: str) -> None:
    need = fields["gas"] * fields["maxFeePerGas"]
    if have < need:
        why = f"{sender} has {have} wei of the chain's coin, {need} may be needed for gas"
        raise InsufficientFunds(f"cannot {action}", why, "send the account some of the chain's coin")
