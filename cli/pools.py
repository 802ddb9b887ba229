"""Opens pools: from a run owner's terms to the contract's parameters."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import CHAIN, CommandError

if TYPE_CHECKING:
    from node.chain.client import ChainClient
    from node.chain.profile import NetworkProfile
    from protocol.identity import Address, NodeKey
    from protocol.run import RunSpec

LEASE_SECONDS = 24 * 3600
COIN = 10**18
ABOUT_BYTES = 200
UNITS_PER_EPOCH = 10**9
"""What a pool pays for at most per epoch, all nodes together: what a thousand GPUs make in an hour at 270 tokens/s."""


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
    units_per_epoch: int = UNITS_PER_EPOCH
    epoch_seconds: int = 60
    window: int = 120
    about: str = ""


async def open_pool(chain: "ChainClient", terms: PoolTerms, key: "NodeKey") -> int:
    """Create and fund a pool with the key's tokens (minted where the token is a test token); its number."""
    from contracts.bindings import PoolParams

    params = PoolParams(
        run_root=terms.run_root,
        run_uri=terms.about,
        manager=terms.trainer,
        reward_per_unit=terms.reward_per_unit,
        window=terms.window,
        epoch_seconds=terms.epoch_seconds,
        lease_seconds=LEASE_SECONDS,
        units_per_epoch=terms.units_per_epoch,
        slash_amount=terms.slash,
        validators=terms.validators,
        threshold=terms.threshold,
    )
    number = await chain.create_pool(params, key=key)
    if terms.fund:
        await chain.fund_pool(number, terms.fund, key=key)
    return number


def about_run(spec: "RunSpec") -> str:
    """A run in one line, for those who choose a pool. The opener's word: only the run's root is proof."""
    weights = spec.weight_bytes()
    need = spec.requirements.worker
    asked = [(need.cores, "cores"), (need.memory_gib, "GiB memory"), (need.gpu_memory_gib, "GiB GPU memory")]
    machine = ", ".join(f"{amount:g} {what}" for amount, what in asked if amount) or "any machine"
    engines = ", ".join(spec.verification.admitted)
    text = f"{spec.name}: {spec.environment.name}, model of {weights / 1e6:,.1f} MB; workers: {machine}, {engines}"
    # The contract bounds bytes; a cut may go through a character, which is then left out.
    return text.encode()[:ABOUT_BYTES].decode(errors="ignore")


async def signer_for(chain: "ChainClient", key: "NodeKey | None", tokens: int = 0) -> "NodeKey":
    """The key itself, or on a local devnet a new account that is given coin and `tokens` (wei).

    Raises CommandError where there is no key and nothing is given away.
    """
    from node.chain.faucet import DevnetFaucet, is_devnet
    from protocol.identity import NodeKey

    if key is not None:
        return key
    if not is_devnet(chain.profile):
        raise _no_key(chain.profile)
    account = NodeKey.generate()
    await DevnetFaucet(chain).fund(account.address, coin=COIN, token=tokens)
    return account


def devnet_account(profile: "NetworkProfile", network: str) -> "NodeKey":
    """The account that a local devnet gives to whoever plays there: always the same one, with coin and tokens.

    Raises CommandError for any other network.
    """
    from node.chain.devnet import play_account
    from node.chain.faucet import is_devnet
    from node.config import default_home

    if not is_devnet(profile):
        raise _no_key(profile)
    # A devnet's own profile lies beside its accounts; the published one lies in the home.
    beside = Path(network).parent if network.endswith(".toml") else default_home() / "devnet"
    for directory in (beside, default_home() / "devnet"):
        account = play_account(directory)
        if account is not None:
            return account
    raise _no_key(profile)


def _no_key(profile: "NetworkProfile") -> CommandError:
    return CommandError(
        "no key to sign with",
        f"{profile.name} is no local devnet of yours, where anybody is given an account",
        "give --key NAME|FILE (make one with: intellect-node keys new NAME) or --state-dir DIR",
        CHAIN,
    )


def remember_pool(profile: "NetworkProfile", number: int) -> bool:
    """Make the pool the default of the local profile; False for a profile that is not ours to change."""
    import msgspec

    from node.chain.profile import local_profile_path, read_profile, write_profile
    from node.config import default_home

    path = local_profile_path(default_home())
    # By the contracts, not by the name: the profile of a demo's chain is called local, too.
    if not path.exists() or read_profile(path).contracts != profile.contracts:
        return False
    write_profile(path, msgspec.structs.replace(read_profile(path), pool=number))
    # Beside the chain as well: the profile, which has it, is removed when the chain goes down.
    if _memory().parent.is_dir():
        _memory().write_text(f"{number}\n", encoding="ascii")
    return True


def restore_pool() -> None:
    """After the local chain came back with its state: its default pool is that of before."""
    from node.chain.profile import local_profile_path, read_profile
    from node.config import default_home

    if _memory().exists():
        profile = read_profile(local_profile_path(default_home()))
        remember_pool(profile, int(_memory().read_text(encoding="ascii")))


def _memory() -> Path:
    from node.config import default_home

    return default_home() / "devnet" / "pool"
