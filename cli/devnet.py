"""`intellect-node devnet`: a chain on this machine, with the contracts, for playing and for tests."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import CHAIN, CommandError
from cli.output import AsJson, console, print_json

if TYPE_CHECKING:
    from node.chain.devnet import Devnet, DevnetOptions

app = typer.Typer(help="A local chain with the contracts, kept up in the background.", no_args_is_help=True)


@app.command(
    "up", epilog="Examples:  intellect-node devnet up   |   intellect-node devnet up --port 8545 --block-time 2"
)
def up(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of its RPC. 0: any free one, kept from then on.")
    ] = 0,
    chain_id: Annotated[int, typer.Option("--chain-id", min=1, help="Chain id, where a new chain is made.")] = 31337,
    block_time: Annotated[int, typer.Option("--block-time", min=1, help="Seconds between empty blocks.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Start the chain (or find it running) and write the network profile 'local'."""
    from cli.pools import restore_pool
    from node.chain.devnet import DevnetOptions

    devnet = local_devnet(DevnetOptions(port=port, chain_id=chain_id, block_time=block_time))
    if not as_json:
        console().print("  [dim]-[/] starting the chain (the first time anvil is downloaded)")
    profile = devnet.up()
    # A start writes the profile anew, without the pool.
    restore_pool()
    if as_json:
        print_json({"chain_id": profile.chain_id, "url": profile.rpc_urls[0], "profile": str(local_profile())})
        return
    out = console()
    out.print(f"chain {profile.chain_id} at {profile.rpc_urls[0]}", soft_wrap=True)
    out.print(f"swarm contract {profile.contracts.swarm}\nprofile {local_profile()} (--network local)", soft_wrap=True)


@app.command("down", epilog="Example:  intellect-node devnet down --forget")
def down(
    forget: Annotated[
        bool, typer.Option("--forget", help="Remove its state and keys too: the next one is new.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the chain. Its state is kept for the next `up` unless --forget is given."""
    devnet = local_devnet()
    found = devnet.down()
    if forget:
        shutil.rmtree(devnet.directory, ignore_errors=True)
    if as_json:
        print_json({"stopped": found})
        return
    console().print("stopped" if found else "it was not running")


@app.command("status", epilog="Example:  intellect-node devnet status --json")
def status(as_json: AsJson = False) -> None:
    """Whether the chain runs, where, and at which block. Exit code 4 when it does not."""
    import msgspec

    state = local_devnet().status()
    if as_json:
        print_json(msgspec.to_builtins(state))
    elif state.running:
        console().print(f"running at {state.url}, block {state.block} (anvil {state.anvil_pid})", soft_wrap=True)
    if not state.running:
        if as_json:
            raise typer.Exit(CHAIN)
        raise CommandError(
            "the local chain does not run", f"nothing answers for {state.directory}", "intellect-node devnet up", CHAIN
        )


def local_devnet(options: "DevnetOptions | None" = None) -> "Devnet":
    """The one devnet of this user."""
    from node.chain.devnet import Devnet
    from node.config import default_home

    return Devnet(default_home() / "devnet", cache=cache_directory(), options=options, publish=local_profile())


def local_profile() -> Path:
    """Where the profile 'local' lies."""
    from node.chain.profile import local_profile_path
    from node.config import default_home

    return local_profile_path(default_home())


def cache_directory() -> Path:
    """Where programs that we download are kept: $INTELLECT_NODE_CACHE, or this user's cache directory."""
    from node.places import default_cache

    return default_cache()
