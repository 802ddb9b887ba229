"""Puts the three contracts on a chain and ties them together.

Knows the order; leaves keys, funds and where the addresses are written to its callers.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from eth_account import Account
from web3 import Web3
from web3.contract.contract import ContractConstructor, ContractFunction

from contracts.bindings import Addresses, ContractError, artifact
from protocol.identity import Address, NodeKey, parse_address

TOKEN = 10**18
RECEIPT_SECONDS = 60


class DeployParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is fixed for ever when the contracts are born. Amounts in token wei, times in seconds.

    treasury: None for the deployer; token: an existing ERC-20, None for a new TestToken.
    """

    token: Address | None = None
    treasury: Address | None = None
    unbonding_seconds: int = 7 * 24 * 3600
    reporter_bps: int = 1_000
    base_stake: int = 10 * TOKEN
    stake_per_unit: int = 10 * TOKEN


class Deployment(msgspec.Struct, frozen=True):
    """block: where the first of them was mined; logs of ours start there."""

    addresses: Addresses
    block: int


def deploy(web3: Web3, key: NodeKey, params: DeployParams, on_step: Callable[[str], None] | None = None) -> Deployment:
    """Deploy and wire. Blocks until all is mined; raises ContractError if a transaction fails."""
    say = on_step or (lambda _: None)
    first = web3.eth.block_number
    token = params.token or _create(web3, key, "TestToken")
    say(f"token {token}")
    treasury = params.treasury or key.address
    vault = _create(web3, key, "StakeVault", token, params.unbonding_seconds, treasury, params.reporter_bps)
    say(f"vault {vault}")
    swarm = _create(web3, key, "Swarm", vault, params.base_stake, params.stake_per_unit)
    say(f"swarm {swarm}")
    _send(
        web3, key, web3.eth.contract(address=_hex(vault), abi=artifact("StakeVault")["abi"]).functions.setSwarm(swarm)
    )
    return Deployment(Addresses(token=token, vault=vault, swarm=swarm), first)


def _create(web3: Web3, key: NodeKey, name: str, *args: Any) -> Address:
    factory = web3.eth.contract(abi=artifact(name)["abi"], bytecode=artifact(name)["bytecode"])
    return parse_address(_send(web3, key, factory.constructor(*args))["contractAddress"])


def _send(web3: Web3, key: NodeKey, call: ContractConstructor | ContractFunction) -> Any:
    sender = _hex(key.address)
    nonce = web3.eth.get_transaction_count(sender, "pending")
    transaction = call.build_transaction({"from": sender, "nonce": nonce, "chainId": web3.eth.chain_id})
    signed = Account.sign_transaction(transaction, key.secret)
    digest = web3.eth.send_raw_transaction(signed.raw_transaction)
    receipt = web3.eth.wait_for_transaction_receipt(digest, timeout=RECEIPT_SECONDS, poll_latency=0.05)
    if receipt["status"] != 1:
        raise ContractError("the contracts could not be deployed", f"0x{digest.hex()} reverted", "check the parameters")
    return receipt


def _hex(address: Address) -> Any:
    return Web3.to_checksum_address(address)
