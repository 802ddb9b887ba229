"""What a transaction is made of, and what it pays per gas. Sends nothing."""

from collections.abc import Mapping
from typing import Any

import msgspec
from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from hexbytes import HexBytes
from web3 import Web3

from contracts.asking import at_once
from node.chain.outbox import Pending
from node.chain.refusals import OF_THE_QUESTION, TIP, EndpointRefused
from node.chain.rpc import Eth
from protocol.identity import Address, NodeKey

FEE_BUMP = 1.125
"""At least 10 % more is what nodes accept as a replacement."""
BASES = 2
"""Base fees that a transaction offers: it outlasts five full blocks in a row, each of which raises one by an eighth."""
FEES = ("maxFeePerGas", "maxPriorityFeePerGas")
"""Wei per gas: in all, and of it for whoever makes the block."""


def sign_transaction(fields: Mapping[str, Any], key: NodeKey, action: str, intent: str) -> Pending:
    """fields: complete, as web3 takes them."""
    signed = Account.sign_transaction({name: fields[name] for name in fields if name != "from"}, key.secret)
    digest = "0x" + bytes(signed.hash).hex()
    return Pending(digest, key.address, int(fields["nonce"]), bytes(signed.raw_transaction), action, intent)


def fields_of(pending: Pending) -> dict[str, Any]:
    """A signed transaction's fields again, so that it can be signed with a higher fee."""
    decoded = TypedTransaction.from_bytes(HexBytes(pending.raw)).as_dict()
    names = ("chainId", "nonce", "gas", "maxFeePerGas", "maxPriorityFeePerGas", "value")
    fields: dict[str, Any] = {name: int(decoded[name]) for name in names}
    fields["data"] = HexBytes(decoded["data"])
    if decoded.get("to"):
        fields["to"] = Web3.to_checksum_address(HexBytes(decoded["to"]).to_0x_hex())
    return fields


def raise_fee(fields: Mapping[str, Any], factor: float = FEE_BUMP) -> dict[str, Any]:
    """The same transaction, paid better."""
    better = {name: int(fields[name] * factor) + 1 for name in FEES}
    return {**fields, **better}


def noop(sender: Address, nonce: int, chain_id: int, fees: Mapping[str, Any]) -> dict[str, Any]:
    """A transaction that does nothing but use up a number."""
    own = Web3.to_checksum_address(sender)
    noop_gas = 21_000
    return {"to": own, "data": b"", "value": 0, "gas": noop_gas, "chainId": chain_id, "nonce": nonce, **fees}


class Price(msgspec.Struct, frozen=True):
    """Wei per gas: what the newest block takes, and what an endpoint recommends to add. at: that block's time."""

    base: int
    tip: int
    at: int


def price_now(eth: Eth) -> Price:
    """Asks an endpoint."""
    block, tip = at_once(lambda: eth.get_block("latest"), lambda: _tip(eth))
    base = int(block.get("baseFeePerGas", "0x0"), 16)
    return Price(base, max(0, eth.gas_price() - base) if tip is None else tip, int(block["timestamp"], 16))


def price_paid(pending: Pending) -> int:
    """Wei per gas that a block took when this was signed, as `Sender` makes a fee of it, with the tip."""
    fields = fields_of(pending)
    most, tip = (int(fields[name]) for name in FEES)
    return (most - tip) // BASES + tip


def _tip(eth: Eth) -> int | None:
    """None where the endpoints do not have the method, which is not in Ethereum's specification."""
    try:
        return int(eth.ask(TIP), 16)
    except EndpointRefused as refusal:
        if refusal.kind not in OF_THE_QUESTION:
            raise
        return None
