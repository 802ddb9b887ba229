"""What became of a transaction's number: whose it is, and whether enough blocks stand on that.

Who asks by hash and by block is not misled by an endpoint whose parts lag. Where there are two endpoints, a receipt
counts when both show it, and a number is somebody else's when neither shows one of ours; what one does not know it is
sent. Blocking.
"""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import structlog
from web3.exceptions import BlockNotFound

from contracts.asking import at_once
from node.chain.errors import EndpointsDisagree, RpcUnreachable
from node.chain.outbox import Fate, Outbox, Pending
from node.chain.refusals import RECEIPT, SEND, EndpointRefused
from node.chain.rpc import Eth
from node.chain.witnesses import Witnesses
from node.looked import looked

log = structlog.get_logger()


class Receipts:
    """confirmations: blocks on top of a receipt's before it counts; lag: seconds that an endpoint's counts may run
    ahead of its receipts; offered: seconds between two times that a transaction is offered to every endpoint."""

    def __init__(
        self, eth: Eth, outbox: Outbox, witnesses: Witnesses, confirmations: int, lag: float, offered: float
    ) -> None:
        self._again = offered
        self._eth, self._outbox, self._witnesses = eth, outbox, witnesses
        self._confirmations, self._lag = confirmations, lag
        self._missing: dict[tuple[str, int], float] = {}
        """(sender, nonce) -> since when the number is used and nobody knows by what."""
        self._offered: dict[str, float] = {}
        """Hash -> when it may be offered to every endpoint again (monotonic)."""

    def took(self, pending: Pending, *, wait: bool) -> bool:
        """Whether it was this one that used its number, though an endpoint refused it; waits until that is known."""
        told = list[bool]()

        def is_told() -> bool:
            use = use_of(self._eth, pending.sender, pending.nonce)
            if use is not None:
                told.append(use.transaction == pending.hash)
            elif self._eth.has_transaction(pending.hash):
                told.append(True)
            return bool(told)

        return looked(is_told, 0.2, self._lag if wait else 0.0) and told[0]

    def is_replaced(self, variants: list[Pending]) -> bool:
        """Whether a used number that has no receipt of ours is somebody else's: a block says so that is deep enough,
        or nobody has known anything of ours for as long as an endpoint may lag."""
        slot = (variants[0].sender, variants[0].nonce)
        use = use_of(self._eth, *slot)
        ours = {pending.hash for pending in variants}
        if self._witnesses.several and self._witnesses.anybody(RECEIPT, lambda: self._receipt(variants)) is not None:
            return False  # one endpoint does not show it
        if use is not None and use.transaction not in ours:
            # A shallow block can be replaced, and our own transaction may come back with the next one.
            return use.depth >= self._confirmations
        if use is not None or any(map(self._eth.has_transaction, ours)):
            self._missing.pop(slot, None)
            return False
        # One endpoint's count may come from a newer block than its receipts: only lasting silence is believed.
        return time.monotonic() - self._missing.setdefault(slot, time.monotonic()) >= self._lag

    def _receipt(self, variants: list[Pending]) -> Any | None:
        # The newest variant pays most, so it is the likeliest to have been mined.
        for pending in reversed(variants):
            if (receipt := self._eth.get_transaction_receipt(pending.hash)) is not None:
                self._missing.pop((pending.sender, pending.nonce), None)
                return receipt
        return None

    def settled(self, variants: list[Pending]) -> tuple[Any | None, bool]:
        """The receipt, if there is one, and whether enough blocks stand on it: then it is written down, too.

        Of one that seems deep enough the receipt is asked for again, after the height: blocks that are replaced between
        the two questions only make us wait longer.
        """
        wanted = self._confirmations
        if wanted:
            height, receipt = at_once(self._eth.block_number, lambda: self._receipt(variants))
            if receipt is None or height < receipt["blockNumber"] + wanted:
                return receipt, False
        receipt = self._receipt(variants)
        if receipt is None:
            return None, False
        block = receipt["blockNumber"]
        if (wanted and height < block + wanted) or not self._is_seconded(receipt, variants):
            return receipt, False
        winner, fate = "0x" + receipt["transactionHash"].hex(), Fate.MINED
        if receipt["status"] != 1:
            fate = Fate.REVERTED
        self._outbox.settle(variants[0].sender, variants[0].nonce, fate, winner=winner, block=block)
        return receipt, True

    def _is_seconded(self, receipt: Any, variants: list[Pending]) -> bool:
        """Whether a second endpoint shows the same, where there is one that answers."""
        if not self._witnesses.several:
            return True
        digest = "0x" + receipt["transactionHash"].hex()
        view = partial(self._eth.get_transaction_receipt, digest)
        try:
            shown = self._witnesses.agreed("read a receipt", RECEIPT, view, _told, patient=False)
        except EndpointsDisagree as error:
            log.warning("chain.receipt_not_seconded", transaction=digest, why=error.why)
            shown = None
        if _told(shown) == _told(receipt):
            return True
        self.offer(next(one for one in variants if one.hash == digest))
        return False

    def offer(self, pending: Pending) -> None:
        """Send it by every endpoint, now and then: one may have kept it to itself. Equal bytes cost nothing."""
        now = time.monotonic()
        if self._witnesses.several and now >= self._offered.get(pending.hash, 0.0):
            self._offered = {digest: until for digest, until in self._offered.items() if until > now}
            self._offered[pending.hash] = now + self._again
            self._witnesses.each_hears(SEND, lambda: self._eth.send_raw_transaction(pending.raw))


def _told(receipt: Any | None) -> object:
    """What of a receipt counts: its block, whether it had an effect, and what the contracts told."""
    if receipt is None:
        return None
    logs = [[text.lower() for text in (one["data"], one["address"], *one["topics"])] for one in receipt["logs"]]
    return receipt["blockHash"], receipt["status"], logs


class NumberUse(msgspec.Struct, frozen=True):
    """The transaction (0x hex) that used a number, and how many blocks stand on its own."""

    transaction: str
    depth: int


def use_of(eth: Eth, sender: str, nonce: int) -> NumberUse | None:
    """What used the sender's number; None if no block that this endpoint shows did, or it is too long ago."""
    remembered_blocks = 120  # blocks for which every full node counts an account's transactions
    try:
        head = eth.block_number()
        # Older states are on archive nodes only.
        low, high = max(0, head - remembered_blocks), head
        used = partial(eth.get_transaction_count, sender)
        if used(high) <= nonce or (low > 0 and used(low) > nonce):
            return None
        # Bisects: seven calls find the block among them.
        while low < high:
            middle = (low + high) // 2
            if used(middle) > nonce:
                high = middle
            else:
                low = middle + 1
        block = eth.get_block(low, transactions=True)
    except (BlockNotFound, EndpointRefused):
        return None
    except RpcUnreachable as error:
        if not error.refused:
            raise
        return None
    for row in block["transactions"]:
        if not isinstance(row, Mapping):
            return None  # an endpoint that shows hashes only
        if str(row["from"]).lower() == sender.lower() and int(row["nonce"], 16) == nonce:
            return NumberUse(row["hash"].lower(), head - low)
    return None
