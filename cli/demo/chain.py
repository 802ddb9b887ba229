"""The demo's own local chain: its keeper is one more supervised process, stopped after all the others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from cli.demo.cast import Scene
from cli.demo.supervise import SupervisedProgram, Supervisor
from cli.demo.view import DemoView
from cli.devnet import cache_directory
from cli.errors import CHAIN, USAGE, CommandError
from protocol.errors import UNREADABLE

if TYPE_CHECKING:
    from node.chain.client import ChainClient
    from node.chain.devnet import Devnet
    from node.chain.profile import NetworkProfile

NAME = "the chain"


@dataclass(frozen=True, slots=True)
class DemoChain:
    """profile: the file that `--network` takes."""

    profile: Path
    client: "ChainClient"


@asynccontextmanager
async def open_chain(
    scene: Scene, environment: dict[str, str], view: DemoView, network: Path | None = None
) -> AsyncIterator[DemoChain]:
    """A running chain with the contracts on it. Its state survives in the scene for --resume. network: a profile of
    one that runs already, and goes on."""
    from node.chain.client import ChainClient
    from node.chain.devnet import Devnet
    from node.chain.profile import local_profile_path, read_profile

    if network is not None:
        with closing(ChainClient(read_profile(network))) as client:
            await client.connect()
            _say_where(client.profile, view)
            yield DemoChain(network, client)
        return
    publish = local_profile_path(scene.home)
    devnet = Devnet(scene.home / "devnet", cache=cache_directory(), publish=publish)
    # One of its own, without the zygote: it must be stopped after all the others, who still tell the chain that they
    # leave.
    supervisor = Supervisor(view.say)
    view.say("starting a local chain and deploying the contracts")
    try:
        await supervisor.start(
            SupervisedProgram(NAME, devnet.keeper_command(), environment, scene.log("chain"), scene.directory)
        )
        async with trio.open_nursery() as nursery:
            profile = await _until_up(devnet, supervisor)
            # Only once it is up: while it starts, its own failure says more than "died".
            nursery.start_soon(supervisor.watch)
            with closing(ChainClient(profile)) as client:
                await client.connect()
                _say_where(profile, view)
                yield DemoChain(devnet.profile_path, client)
            nursery.cancel_scope.cancel()
    finally:
        await supervisor.stop()


def playground(network: str) -> Path:
    """The file of a chain's profile to play on. Raises ProfileError, and CommandError where coin and tokens are no
    toys."""
    from node.chain.faucet import is_devnet
    from node.chain.profile import load_profile, profile_path
    from node.config import default_home

    profile = load_profile(network, home=default_home())
    if not is_devnet(profile):
        raise CommandError(
            f"the demo does not play on {profile.name}",
            "it makes its own coin and tokens, which only a chain on this machine gives away",
            "leave --network out, or name the profile of a local chain: anvil's or Hardhat's, chain id 31337",
            USAGE,
        )
    place = profile_path(network, home=default_home())
    assert place is not None  # it was just read
    return place.resolve()


def _say_where(profile: "NetworkProfile", view: DemoView) -> None:
    view.say(f"chain {profile.chain_id} at {profile.rpc_urls[0]}, swarm contract {profile.contracts.swarm}")


async def _until_up(devnet: "Devnet", supervisor: Supervisor) -> "NetworkProfile":
    from node.chain.profile import read_profile

    start = 180.0  # seconds; the first time anvil itself is downloaded
    with trio.move_on_after(start):
        while True:
            # First: what the keeper has left in failure.json says more than that time ran out.
            if supervisor.has_ended(NAME):
                raise _failure(devnet.directory)
            status = await trio.to_thread.run_sync(devnet.status, abandon_on_cancel=True)
            if status.running and devnet.profile_path.exists() and (devnet.directory / "keeper.pid").exists():
                return read_profile(devnet.profile_path)
            await trio.sleep(0.1)
    raise CommandError(
        "the local chain does not come up", f"no answer within {start:.0f} s", f"look into {devnet.directory}", CHAIN
    )


def _failure(directory: Path) -> CommandError:
    import msgspec

    try:
        said = msgspec.json.decode((directory / "failure.json").read_bytes(), type=dict[str, str])
        return CommandError(said["what"], said["why"], said["remedy"], CHAIN)
    except (OSError, KeyError, *UNREADABLE):
        return CommandError(
            "the local chain does not come up", "the process that keeps it ended", "read logs/chain.log", CHAIN
        )
