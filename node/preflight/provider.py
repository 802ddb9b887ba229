"""The provider that stakes for this node, as far as it is known here, and what its owner types next, in order."""

from pathlib import Path
from shlex import quote

import msgspec

from contracts.bindings import PoolInfo
from node.chain.client import ChainClient
from node.chain.errors import ChainError, RpcUnreachable, tokens
from node.config import NodeConfig
from node.errors import KeyError_
from node.preflight.stake import Standing, coins, gas_step, look_up
from node.state.keystore import claimed_address, read_keystore
from protocol.identity import Address

PROVIDER_GAS = 1_000_000
"""For approving, bonding and registering: four times what it takes."""
FIRST_KEY = "provider"


class Provider(msgspec.Struct, frozen=True):
    """key: what commands call its key; coin, token: wei that the account has; needs: wei of coin for the steps below;
    mintable: whether the network's token is a test token, which anybody may make."""

    key: str
    address: Address
    coin: int
    token: int
    needs: int
    mintable: bool


def provider_file(config: NodeConfig) -> Path | None:
    """The provider's keystore: that of the settings, or the one key of this user, or the one called "provider"."""
    if config.provider_key_file is not None:
        return config.provider_key_file
    files = sorted((config.home / "keys").glob("*.json"))
    named = [file for file in files if file.stem == FIRST_KEY]
    return named[0] if named else files[0] if len(files) == 1 else None


async def look(
    chain: ChainClient, node: Address, pool: PoolInfo, config: NodeConfig, directory: Path
) -> tuple[Standing, list[str]]:
    """Where a node stands on chain, and what its owner types until it may join. Raises ChainError."""
    provider = await find_provider(chain, config)
    standing = await look_up(chain, node, pool, config.units, provider.address if provider else None)
    return standing, next_steps(standing, provider, network_word(config.network), directory, config.units)


async def find_provider(chain: ChainClient, config: NodeConfig) -> Provider | None:
    """None where no key is known. The keystore stays locked: its address stands in it. Raises ChainError."""
    file = provider_file(config)
    try:
        address = claimed_address(read_keystore(file)) if file else None
    except (KeyError_, ValueError):
        address = None
    if file is None or address is None:
        return None
    key = file.stem if file.parent == config.home / "keys" else str(file)
    balances = await chain.balances(address)
    needs = PROVIDER_GAS * await chain.gas_price()
    return Provider(key, address, balances.coin, balances.token, needs, await _is_mintable(chain, address))


def network_word(network: str) -> str:
    """What a command calls the network, in whatever directory it is typed."""
    return str(Path(network).resolve()) if "/" in network or network.endswith(".toml") else network


def next_steps(standing: Standing, provider: Provider | None, network: str, directory: Path, units: int) -> list[str]:
    """Commands to copy, and what to send to whom, until this node may join. Pure. Without a known provider the first
    step only: the others name its address."""
    gas = [] if standing.coin >= standing.gas else [f"{gas_step(standing)} (this node, for gas)"]
    if standing.staked:
        return gas
    if provider is None:
        return [f"intellect-node keys new {FIRST_KEY}"]
    common = f"--network {quote(network)} --key {quote(provider.key)}"
    return [*gas, *_provisions(standing, provider, common), *_staking(standing, common, directory, units)]


def _provisions(standing: Standing, provider: Provider, common: str) -> list[str]:
    """What the provider's account lacks: coin for gas, tokens for the stake."""
    steps: list[str] = []
    if provider.coin < provider.needs:
        lacking = coins(provider.needs - provider.coin)
        steps.append(f"send {lacking} of the chain's coin to {provider.address} (the provider, for gas)")
    missing = max(standing.required - standing.bonded, 0) - provider.token
    if missing > 0 and provider.mintable:
        steps.append(f"intellect-node contract faucet {provider.address} {tokens(missing)} {common}")
    elif missing > 0:
        steps.append(f"send {tokens(missing)} of the network's tokens to {provider.address} (the provider)")
    return steps


def _staking(standing: Standing, common: str, directory: Path, units: int) -> list[str]:
    if standing.registered:
        lacking = tokens(standing.required - standing.bonded)
        return [f"intellect-node contract stake {lacking} --provider {standing.provider} {common}"]
    bond = [f"intellect-node contract provider register --units {units} {common}"]
    register = f"intellect-node contract node register --units {units} --node-state {quote(str(directory))} {common}"
    return [*(bond if standing.bonded < standing.required else ()), register]


async def _is_mintable(chain: ChainClient, address: Address) -> bool:
    try:
        await chain.ask("try the faucet", lambda c: c.mint(address, 1).call({"from": address}))
    except RpcUnreachable:
        raise
    except ChainError:
        return False
    return True
