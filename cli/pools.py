"""Pools of a run: what is said of one, who plays on a devnet, and which pool is its default."""

from pathlib import Path
from typing import TYPE_CHECKING

from cli.errors import CHAIN, CommandError

if TYPE_CHECKING:
    from node.chain.profile import NetworkProfile
    from protocol.identity import NodeKey
    from protocol.run import RunSpec


def about_run(spec: "RunSpec") -> str:
    """A run in one line, for those who choose a pool. The opener's word: only the run's root is proof."""
    weights = spec.weight_bytes()
    need = spec.requirements.worker
    asked = [(need.cores, "cores"), (need.memory_gib, "GiB memory"), (need.gpu_memory_gib, "GiB GPU memory")]
    machine = ", ".join(f"{amount:g} {what}" for amount, what in asked if amount) or "any machine"
    engines = ", ".join(spec.verification.admitted)
    text = f"{spec.name}: {spec.environment.name}, model of {weights / 1e6:,.1f} MB; workers: {machine}, {engines}"
    # The contract bounds bytes; a cut may go through a character, which is then left out.
    about_bytes = 200
    return text.encode()[:about_bytes].decode(errors="ignore")


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
