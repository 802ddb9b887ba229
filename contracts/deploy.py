"""Puts the contracts on a chain and ties them together.

Knows the order; leaves keys, funds and where the addresses are written to its callers.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from contracts.bindings import Addresses, ContractError, TransactionCall, creation, write
from protocol.identity import Address, NodeKey, parse_address

if TYPE_CHECKING:  # it takes a second, and the parameters need none
    from web3 import Web3

TOKEN = 10**18
BURNED = Address("0x000000000000000000000000000000000000dEaD")
"""Where the vault sends what it burns: nobody has its key."""
RECEIPT_SECONDS = 60


class DeployParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is fixed for ever when the contracts are born. Amounts in token wei, times in seconds.

    token: an existing ERC-20 that moves exactly what it is told, None for a new TestToken; treasury: None for nobody,
    so that all is burned; arbiter: None for the deployer, never the treasury; burn_bps: share of a slash in 1/10,000,
    the rest is the treasury's; stake_per_unit: no slash takes more for a unit of a node; appeal_seconds: how long a
    slash by judgement can be overturned, at most half of unbonding_seconds; bond_bps: share of a case's amount in
    1/10,000 that each side puts up, min_bond at least; min_window: no pool's window is shorter.
    """

    token: Address | None = None
    treasury: Address | None = None
    arbiter: Address | None = None
    unbonding_seconds: int = 7 * 24 * 3600
    appeal_seconds: int = 24 * 3600
    burn_bps: int = 5_000
    bond_bps: int = 2_500
    min_bond: int = TOKEN
    base_stake: int = 0
    stake_per_unit: int = 100 * TOKEN
    min_window: int = 3600


class Deployment(msgspec.Struct, frozen=True):
    """block: where the first of them was mined; logs of ours start there."""

    addresses: Addresses
    block: int


Send = Callable[[TransactionCall, str], Any]
"""Gets one transaction into a block; what it does in words; returns web3's receipt, or raises."""


def deploy(web3: "Web3", key: NodeKey, params: DeployParams, send: Send | None = None) -> Deployment:
    """Deploy and wire. Blocks until all is mined; raises ContractError if a transaction fails.

    send: how to send, for callers that keep a journal or only want to know what would be sent.
    """
    send = send or (lambda call, _: _send(web3, key, call))
    first = web3.eth.block_number
    token = params.token or _create(send, "TestToken")
    vault = _create(send, "StakeVault", token, _vault_params(params, key.address))
    swarm = _create(send, "Swarm", vault, params.base_stake, params.stake_per_unit, params.min_window)
    court = _create(send, "Court", swarm)
    payroll = _create(send, "Payroll", court)
    chair = _create(send, "Chair", court)
    send(write(vault, "StakeVault", "setSwarm", swarm), "tie the vault to the swarm")
    send(write(swarm, "Swarm", "setCourt", court, payroll), "tie the swarm to the court and the payroll")
    places = Addresses(token=token, vault=vault, swarm=swarm, court=court, payroll=payroll, chair=chair)
    return Deployment(places, first)


def _vault_params(params: DeployParams, deployer: Address) -> tuple[Any, ...]:
    return (
        params.unbonding_seconds,
        params.appeal_seconds,
        params.treasury or BURNED,
        params.arbiter or deployer,
        params.burn_bps,
        params.bond_bps,
        params.min_bond,
    )


def _create(send: Send, name: str, *args: Any) -> Address:
    return parse_address(send(creation(name, *args), f"deploy {name}")["contractAddress"])


def send_now(web3: "Web3", key: NodeKey, call: TransactionCall) -> Any:
    """At the price of the moment; web3's receipt, whatever it says. Blocks until it is mined."""
    from eth_account import Account

    sender: Any = key.address
    fees = {"maxFeePerGas": 2 * int(web3.eth.gas_price), "maxPriorityFeePerGas": int(web3.eth.max_priority_fee)}
    asked: Any = {**call.fields(), **fees, "from": sender}
    nonce = web3.eth.get_transaction_count(sender, "pending")
    fields = {**asked, "gas": web3.eth.estimate_gas(asked), "nonce": nonce, "chainId": web3.eth.chain_id}
    digest = web3.eth.send_raw_transaction(Account.sign_transaction(fields, key.secret).raw_transaction)
    return web3.eth.wait_for_transaction_receipt(digest, timeout=RECEIPT_SECONDS, poll_latency=0.05)


def _send(web3: "Web3", key: NodeKey, call: TransactionCall) -> Any:
    receipt = send_now(web3, key, call)
    if receipt["status"] != 1:
        digest = bytes(receipt["transactionHash"]).hex()
        raise ContractError("the contracts could not be deployed", f"0x{digest} reverted", "check the parameters")
    return receipt
