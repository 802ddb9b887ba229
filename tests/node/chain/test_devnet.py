import gzip
import json
import os
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from node.chain.client import ChainClient
from node.chain.devnet import Devnet, DevnetOptions, StateCopies, play_account
from node.chain.errors import ChainError, DevnetError
from node.chain.faucet import FAUCET_CAP, DevnetFaucet, is_devnet
from node.chain.profile import NetworkProfile, load_profile, local_profile_path
from protocol.identity import NodeKey


async def revived(devnet: Devnet, old: int | None) -> None:
    with trio.fail_after(60):
        while devnet.anvil_pid in (None, old) or not devnet.status().running:
            await trio.sleep(0.05)


async def saved_up_to(devnet: Devnet, block: int) -> None:
    """Wait until the newest copy of the state has the block."""
    with trio.fail_after(60):
        while True:
            newest = StateCopies(devnet.directory / "state").newest_valid()
            if newest and json.loads(newest.read_bytes())["best_block_number"] >= block:
                return
            await trio.sleep(0.05)


async def test_a_killed_chain_comes_back_with_its_blocks_on_its_port(
    tmp_path: Path, anvil_cache: Path, connect: Callable[..., ChainClient]
) -> None:
    devnet = Devnet(tmp_path / "net", cache=anvil_cache)
    async with trio.open_nursery() as nursery:
        profile = await nursery.start(devnet.run)
        client, rich = connect(profile), NodeKey.generate()
        await DevnetFaucet(client).fund(rich.address, coin=10**18, token=5)
        assert (await client.balances(rich.address)).coin == 10**18
        player = play_account(tmp_path / "net")
        assert player is not None and (await client.balances(player.address)).token == FAUCET_CAP
        head = await client.block()
        await saved_up_to(devnet, head.number)
        old = devnet.anvil_pid
        assert old is not None
        os.kill(old, signal.SIGKILL)
        await revived(devnet, old)
        assert (await client.block(head.number)).hash == head.hash
        assert (await client.balances(rich.address)).token == 5
        await DevnetFaucet(client).fund(rich.address, token=1)
        nursery.cancel_scope.cancel()
    assert not devnet.status().running
    assert devnet.anvil_pid is None

    again = Devnet(tmp_path / "net", cache=anvil_cache)
    async with trio.open_nursery() as nursery:
        assert await nursery.start(again.run) == profile
        assert (await client.balances(rich.address)).token == 6
        nursery.cancel_scope.cancel()


def test_its_keys_are_its_own_and_private(tmp_path: Path, anvil_cache: Path) -> None:
    first, second = (Devnet(tmp_path / name, cache=anvil_cache) for name in "ab")
    assert {key.address for key in first.accounts()}.isdisjoint(key.address for key in second.accounts())
    assert [key.address for key in first.accounts()] == [key.address for key in first.accounts()]
    assert stat.S_IMODE(first.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((first.directory / "keys.json").stat().st_mode) == 0o600


def test_it_runs_in_the_background_survives_its_keeper_and_leaves_nothing_behind(
    tmp_path: Path, anvil_cache: Path
) -> None:
    published = local_profile_path(tmp_path)
    devnet = Devnet(tmp_path / "net", cache=anvil_cache, publish=published)
    try:
        profile = devnet.up()
        assert load_profile("local", home=tmp_path) == profile
        first = devnet.status()
        assert first.running and first.keeper_pid and first.anvil_pid and first.block is not None
        assert devnet.up() == profile
        assert devnet.status().keeper_pid == first.keeper_pid

        os.kill(first.keeper_pid, signal.SIGKILL)
        os.waitpid(first.keeper_pid, 0)
        assert devnet.up() == profile
        second = devnet.status()
        assert second.running and second.anvil_pid != first.anvil_pid
    finally:
        assert devnet.down()
    after = devnet.status()
    assert not after.running and after.keeper_pid is None and after.anvil_pid is None
    assert not published.exists()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", int(profile.rpc_urls[0].rsplit(":", 1)[1])))
    assert not devnet.down()


async def test_a_taken_port_is_told(tmp_path: Path, anvil_cache: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        devnet = Devnet(tmp_path / "net", cache=anvil_cache, options=DevnetOptions(port=port))
        with pytest.raises(DevnetError, match=f"port {port} is taken") as caught:
            await devnet.run()
        assert "--port" in caught.value.remedy
        background = Devnet(tmp_path / "net", cache=anvil_cache, options=DevnetOptions(port=port))
        with pytest.raises(DevnetError, match=f"port {port} is taken"):
            await trio.to_thread.run_sync(background.up)


async def test_a_directory_has_one_keeper(tmp_path: Path, anvil_cache: Path) -> None:
    first, second = (Devnet(tmp_path / "net", cache=anvil_cache) for _ in range(2))
    async with trio.open_nursery() as nursery:
        await nursery.start(first.run)
        with pytest.raises(ChainError, match="runs already"):
            await second.run()
        assert first.status().running
        nursery.cancel_scope.cancel()


def dump(block: int) -> str:
    state = {"block": {}, "accounts": {}, "blocks": [], "best_block_number": block}
    return "0x" + gzip.compress(json.dumps(state).encode()).hex()


def test_the_newest_copy_that_is_whole_is_taken_and_few_are_kept(tmp_path: Path) -> None:
    copies = StateCopies(tmp_path)
    assert copies.newest_valid() is None
    paths = [copies.save(dump(block)) for block in range(5)]
    assert [path.exists() for path in paths] == [False, False, True, True, True]
    paths[4].write_bytes(paths[4].read_bytes()[:-10])
    paths[3].write_text("{}")
    assert copies.newest_valid() == paths[2]
    with pytest.raises(ValueError, match="not a state"):
        copies.save("0x1234")


@pytest.mark.parametrize(
    ("name", "chain_id", "url", "devnet"),
    [
        ("local", 1337, "http://127.0.0.1:1", True),
        ("mine", 31337, "http://localhost:1", True),
        ("shared", 31337, "https://rpc.example", False),
        ("base", 8453, "http://127.0.0.1:1", False),
    ],
)
def test_a_number_alone_makes_no_devnet(name: str, chain_id: int, url: str, devnet: bool) -> None:
    assert is_devnet(NetworkProfile(name=name, chain_id=chain_id, rpc_urls=(url,))) is devnet


async def test_hardhats_and_ganaches_chains_give_coins_too(people: Any, meddler: Any, connect: Any) -> None:
    """Each calls it otherwise; anvil here knows two of the names."""
    meddler.before["anvil_setBalance"] = {"error": {"code": -32601, "message": "Method anvil_setBalance not found"}}
    client = connect(msgspec.structs.replace(people.client.profile, rpc_urls=(meddler.url,)))
    rich = NodeKey.generate().address
    await DevnetFaucet(client).fund(rich, coin=7)
    assert (await client.balances(rich)).coin == 7
