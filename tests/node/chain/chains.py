"""A real chain with the contracts on it, in a process of its own."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from web3 import Web3

from contracts.deploy import DeployParams, deploy
from node.chain.anvil import find_anvil
from node.chain.profile import NetworkProfile
from node.chain.rpc import FallbackProvider, certificates, rpc
from protocol.identity import NodeKey

CHAIN_ID = 31337


@contextmanager
def deployed_chain(cache: Path) -> Iterator[NetworkProfile]:
    """One that makes a block per transaction; its profile. cache: where anvil lies, or is put."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([str(find_anvil(cache)), "--port", str(port), "--accounts", "0", "--silent"])
    provider = FallbackProvider([url], CHAIN_ID)
    try:
        _wait_for(url, process)
        deployer = NodeKey.generate()
        provider.make_request("anvil_setBalance", [deployer.address, hex(10**20)])  # type: ignore[arg-type]
        done = deploy(Web3(provider), deployer, DeployParams(unbonding_seconds=3600, min_window=10))
        yield NetworkProfile(name="test", chain_id=CHAIN_ID, rpc_urls=(url,), contracts=done.addresses)
    finally:
        provider.close()
        process.kill()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(500):
        assert process.poll() is None
        try:
            with httpx.Client(verify=certificates()) as http:
                rpc(http, url, "eth_chainId")
            return
        except httpx.HTTPError:
            time.sleep(0.01)
    raise AssertionError("anvil does not answer")
