"""Makes a pair of keys into a participant: money, bond, registration. Safe to repeat."""

import structlog

from node.chain.client import ChainClient
from node.chain.errors import ChainError, InsufficientStake
from node.chain.faucet import DevnetFaucet
from node.units import TOKEN
from protocol.identity import NodeKey

log = structlog.get_logger()


async def prepare_participant(
    client: ChainClient,
    faucet: DevnetFaucet | None,
    provider_key: NodeKey,
    node_key: NodeKey,
    *,
    stake: int,
    units: int = 1,
) -> None:
    """Fund both accounts (where there is a faucet), bond up to `stake` token wei, register the node.

    Raises InsufficientStake if `stake` does not cover the provider's nodes, InsufficientFunds, and
    ChainError if the node has another provider.
    """
    info = await client.node_info(node_key.address)
    if info.owner not in (None, provider_key.address):
        raise ChainError(
            f"the node {node_key.address} has another provider",
            f"it belongs to {info.owner} for life, not to {provider_key.address}",
            "use that provider's key, or make a new key for the node",
        )
    new_units = 0 if info.provider else units
    required = await client.required_stake(provider_key.address, new_units, node_key.address)
    if stake < required:
        raise InsufficientStake(provider_key.address, stake, required)
    min_coin = TOKEN // 2
    if faucet is not None:
        for address in (provider_key.address, node_key.address):
            if (await client.balances(address)).coin < min_coin:
                await faucet.fund(address, coin=TOKEN)
    bonded = (await client.stake_of(provider_key.address)).bonded
    if bonded < stake:
        await _bond(client, faucet, provider_key, stake - bonded)
    if info.provider is None:
        await register_node(client, provider_key, node_key, units)


async def register_node(client: ChainClient, provider_key: NodeKey, node_key: NodeKey, units: int) -> None:
    """Register one node with its consent; the provider's bond must already cover it."""
    deadline, signature = await client.register_node_signature(node_key, provider_key.address, units)
    await client.register_node(node_key.address, units, deadline, signature, key=provider_key)
    log.info("chain.node_registered", node=node_key.address, provider=provider_key.address, units=units)


async def _bond(client: ChainClient, faucet: DevnetFaucet | None, provider_key: NodeKey, amount: int) -> None:
    have = (await client.balances(provider_key.address)).token
    if faucet is not None and have < amount:
        await faucet.fund(provider_key.address, token=amount - have)
    await client.bond(provider_key.address, amount, key=provider_key)
    log.info("chain.bonded", provider=provider_key.address, amount=str(amount))
