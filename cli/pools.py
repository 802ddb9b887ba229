"""Opens pools: from a run owner's terms to the contract's parameters."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import CHAIN, CommandError

if TYPE_CHECKING:
    from node.chain.client import ChainClient
    from protocol.identity import Address, NodeKey

LEASE_SECONDS = 24 * 3600
COIN = 10**18


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """Amounts in token wei, times in seconds. trainer: its node's address, which manages the pool."""

    run_root: bytes
    trainer: "Address"
    validators: "tuple[Address, ...]"
    threshold: int = 1
    reward_per_unit: int = 10**15
    fund: int = 1000 * 10**18
    slash: int = 100 * 10**18
    epoch_seconds: int = 60
    window: int = 120


async def open_pool(chain: "ChainClient", terms: PoolTerms, key: "NodeKey") -> int:
    """Create and fund a pool with the key's tokens (minted where the token is a test token); its number."""
    from contracts.bindings import PoolParams

    params = PoolParams(
        run_root=terms.run_root,
        manager=terms.trainer,
        reward_per_unit=terms.reward_per_unit,
        window=terms.window,
        epoch_seconds=terms.epoch_seconds,
        lease_seconds=LEASE_SECONDS,
        slash_amount=terms.slash,
        validators=terms.validators,
        threshold=terms.threshold,
    )
    number = await chain.create_pool(params, key=key)
    if terms.fund:
        await chain.fund_pool(number, terms.fund, key=key)
    return number


async def signer_for(chain: "ChainClient", key: "NodeKey | None", tokens: int = 0) -> "NodeKey":
    """The key itself, or on a local devnet a new account that is given coin and `tokens` (wei).

    Raises CommandError where there is no key and nothing is given away.
    """
    from node.chain.faucet import DevnetFaucet, is_devnet
    from protocol.identity import NodeKey

    if key is not None:
        return key
    if not is_devnet(chain.profile):
        raise CommandError(
            "no key to sign with",
            f"{chain.profile.name} is no local devnet, where anybody is given an account",
            "give --key FILE; make one with: intellect-node keys new FILE",
            CHAIN,
        )
    account = NodeKey.generate()
    await DevnetFaucet(chain).fund(account.address, coin=COIN, token=tokens)
    return account


def remember_pool(network: str, number: int) -> bool:
    """Make the pool the default of the local profile; False for a profile that is not ours to change."""
    import msgspec

    from node.chain.profile import LOCAL, local_profile_path, read_profile, write_profile
    from node.config import default_home

    if network != LOCAL:
        return False
    path = local_profile_path(default_home())
    write_profile(path, msgspec.structs.replace(read_profile(path), pool=number))
    _memory().write_text(f"{number}\n", encoding="ascii")
    return True


def restore_pool() -> None:
    """After the local chain came back with its state: its default pool is that of before."""
    from node.chain.profile import LOCAL

    if _memory().exists():
        remember_pool(LOCAL, int(_memory().read_text(encoding="ascii")))


def _memory() -> Path:
    from node.config import default_home

    return default_home() / "devnet" / "pool"
