"""A real chain with the contracts on it, in a process of its own."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from web3 import Web3

from contracts.bindings import PoolParams
from contracts.deploy import TOKEN, DeployParams, deploy
from node.chain.anvil import find_anvil
from node.chain.client import ChainClient
from node.chain.endpoints import rpc
from node.chain.faucet import DevnetFaucet
from node.chain.http import certificates
from node.chain.profile import NetworkProfile
from node.chain.rpc import FallbackProvider
from node.chain.setup import prepare_participant
from node.chain.simulate import SimulatedStep
from protocol.identity import NodeKey

CHAIN_ID = 31337


@contextmanager
def local_chain(cache: Path) -> Iterator[tuple[FallbackProvider, str]]:
    """One that makes a block per transaction, and its URL. cache: where anvil lies, or is put."""
    url = free_url()
    port = url.rpartition(":")[2]
    process = subprocess.Popen([str(find_anvil(cache)), "--port", port, "--accounts", "0", "--silent"])
    provider = FallbackProvider([url], CHAIN_ID)
    try:
        wait_for(url, process)
        yield provider, url
    finally:
        provider.close()
        process.kill()
        process.wait()


@contextmanager
def deployed_chain(cache: Path) -> Iterator[NetworkProfile]:
    """The same with the contracts; its profile."""
    with local_chain(cache) as (provider, url):
        yield with_contracts(provider, url, "anvil_setBalance", min_window=10)


def with_contracts(provider: FallbackProvider, url: str, set_balance: str, *, min_window: int) -> NetworkProfile:
    """The contracts put on a chain, whose method `set_balance` gives coin away; its profile."""
    deployer = NodeKey.generate()
    provider.make_request(set_balance, [deployer.address, hex(10**20)])  # type: ignore[arg-type]
    done = deploy(
        Web3(provider), deployer, DeployParams(unbonding_seconds=3600, appeal_seconds=60, min_window=min_window)
    )
    return NetworkProfile(name="test", chain_id=CHAIN_ID, rpc_urls=(url,), contracts=done.addresses)


def free_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(2000):
        assert process.poll() is None
        try:
            with httpx.Client(verify=certificates()) as http:
                rpc(http, url, "eth_chainId")
            return
        except httpx.HTTPError:
            time.sleep(0.01)
    raise AssertionError("the chain does not answer")


class Participants:
    """A pool with a manager who pays, a validator with a stake of its own, and one registered node."""

    def __init__(self, client: ChainClient) -> None:
        self.client = client
        self.manager, self.provider, self.validator, self.house = (NodeKey.generate() for _ in range(4))
        """house: the validator's provider."""
        assert client.key is not None
        self.node = client.key
        self.pool = 0

    async def prepare(self, *, epoch_seconds: int = 10, window: int = 60) -> None:
        faucet = DevnetFaucet(self.client)
        await faucet.fund(self.manager.address, coin=10**18, token=100 * TOKEN)
        await prepare_participant(self.client, faucet, self.provider, self.node, stake=100 * TOKEN)
        await prepare_participant(self.client, faucet, self.house, self.validator, stake=100 * TOKEN)
        params = PoolParams(
            manager=self.manager.address,
            reward_per_unit=10**15,
            window=window,
            epoch_seconds=epoch_seconds,
            slash_amount=50 * TOKEN,
            validators=(self.validator.address,),
        )
        self.pool = await self.client.create_pool(params, key=self.manager)
        await self.client.fund_pool(self.pool, 100 * TOKEN, key=self.manager)

    async def end(self) -> None:
        """The pool is over, by its manager's word."""
        await self.client.execute(
            SimulatedStep("end the pool", self.client.contracts.end_pool(self.pool)), self.manager
        )
