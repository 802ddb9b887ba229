"""Before joining: is this node registered, and does a stake answer for it? On a local devnet, make it so.

The provider's key stakes and is never needed by a running daemon. On a devnet a provider key is made and kept
beside the node's own, so that one command is enough there.
"""

from pathlib import Path

import structlog
import trio

from contracts.bindings import NOBODY
from node.chain.client import ChainClient
from node.chain.errors import ChainError, InsufficientStake, tokens
from node.chain.faucet import DevnetFaucet, is_devnet
from node.chain.setup import prepare_participant
from node.config import NodeConfig
from node.state.keystore import load_key, load_or_create, read_password
from protocol.identity import NodeKey

log = structlog.get_logger()


async def ensure_participant(chain: ChainClient, key: NodeKey, config: NodeConfig, directory: Path) -> None:
    """Return once the node may join; raises ChainError (no stake, not registered) with the command that helps."""
    node = await chain.node_info(key.address)
    if node.provider is not None:
        bonded = (await chain.stake_of(node.provider)).bonded
        required = await chain.required_stake(node.provider, 0)
        if bonded < required:
            raise InsufficientStake(node.provider, bonded, required)
        return
    if not (config.auto_setup and is_devnet(chain.profile)):
        raise ChainError(
            f"the node {key.address} has no stake",
            f"no provider has registered it on {chain.profile.name}",
            f"as its provider: intellect-node contract provider register --units {config.units}, which bonds "
            f"{tokens(await chain.required_stake(NOBODY, config.units))} tokens; then intellect-node contract node "
            f"register --units {config.units} --node-state {directory} (both with --network and --key)",
        )
    provider = await trio.to_thread.run_sync(_provider_key, config, directory)
    await prepare_participant(chain, DevnetFaucet(chain), provider, key, stake=config.stake, units=config.units)
    log.info("node.set_up", provider=provider.address, stake=str(config.stake))


def _provider_key(config: NodeConfig, directory: Path) -> NodeKey:
    password = read_password(config.password, config.password_file, directory)
    if config.provider_key_file is not None:
        return load_key(config.provider_key_file, password)
    return load_or_create(directory / "provider-key.json", password)
