"""Whose is a transaction's number: who asks by hash and by block is not misled by an endpoint whose parts lag.

Endpoints are many machines: one counts a transaction whose receipt, or hash, another one does not know yet. Blocking.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from web3 import Web3
from web3.exceptions import BlockNotFound, TransactionNotFound, Web3RPCError

REMEMBERED_BLOCKS = 120
"""So far back every full node counts an account's transactions."""


class Use(msgspec.Struct, frozen=True):
    """The transaction (0x hex) that used a number, and how many blocks stand on its own."""

    transaction: str
    depth: int


def count(web3: Web3, sender: str, block: Any = "latest") -> int:
    """Transactions of a sender up to a block."""
    return int(web3.eth.get_transaction_count(Web3.to_checksum_address(sender), block))


def is_known(web3: Web3, transaction: str) -> bool:
    """Whether the endpoint has heard of it, in a block or not."""
    try:
        web3.eth.get_transaction(transaction)  # pyright: ignore[reportArgumentType]
    except TransactionNotFound:
        return False
    return True


def use_of(web3: Web3, sender: str, nonce: int) -> Use | None:
    """What used the sender's number; None if no block that this endpoint shows did, or it is too long ago."""
    try:
        head = int(web3.eth.block_number)
        low, high = max(0, head - REMEMBERED_BLOCKS), head
        if count(web3, sender, high) <= nonce or (low > 0 and count(web3, sender, low) > nonce):
            return None
        while low < high:
            middle = (low + high) // 2
            if count(web3, sender, middle) > nonce:
                high = middle
            else:
                low = middle + 1
        block: Any = web3.eth.get_block(low, full_transactions=True)
    except (BlockNotFound, Web3RPCError):
        return None
    for row in block["transactions"]:
        if not isinstance(row, Mapping):
            return None  # an endpoint that shows hashes only
        if str(row["from"]).lower() == sender.lower() and int(row["nonce"]) == nonce:
            return Use("0x" + bytes(row["hash"]).hex(), head - low)
    return None
