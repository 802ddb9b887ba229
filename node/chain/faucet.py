"""Money on a local chain: anvil sets any balance, and the test token mints for anybody.

Works from any process that has the profile, without a shared key, so that several may fund at once.
"""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import trio

from node.chain.endpoints import rpc
from node.chain.errors import DevnetError, scrubbed, shown
from node.chain.http import client_for, is_here
from node.chain.profile import NetworkProfile
from protocol.identity import Address, NodeKey

if TYPE_CHECKING:  # web3 takes a second, and `is_devnet` needs none
    from node.chain.client import ChainClient

FAUCET_CAP = 1_000_000 * 10**18
"""TestToken mints at most this much per call, token wei."""
COIN_FOR_GAS = 10**18


SET_BALANCE = ("anvil_setBalance", "hardhat_setBalance", "evm_setAccountBalance")
"""What the programs that run a local chain call it: anvil, Hardhat, ganache."""


def is_devnet(profile: NetworkProfile) -> bool:
    """Whether the profile names a chain that the faucet may be tried on. The number 31337 alone says nothing: others
    share chains of that number."""
    here = all(is_here(urlsplit(url).hostname or "") for url in profile.rpc_urls)
    return profile.name == "local" or (profile.chain_id == 31337 and here)


class DevnetFaucet:
    """Funds accounts of one devnet."""

    def __init__(self, client: "ChainClient") -> None:
        self._client = client

    async def fund(self, address: Address, *, coin: int = 0, token: int = 0) -> None:
        """Add wei of the chain's coin, and of the token. Raises DevnetError or ChainError."""
        if coin:
            await self._add_coin(address, coin)
        while token > 0:
            part = min(token, FAUCET_CAP)
            minter = NodeKey.generate()
            await self._add_coin(minter.address, COIN_FOR_GAS)
            await self._client.faucet(address, part, key=minter)
            token -= part

    async def _add_coin(self, address: Address, amount: int) -> None:
        have = (await self._client.balances(address)).coin
        await trio.to_thread.run_sync(_set_balance, self._client.url, address, have + amount)


def _set_balance(url: str, address: Address, amount: int) -> None:
    try:
        with client_for(url, timeout=8.0) as http:
            refusals: list[ValueError] = []
            for method in SET_BALANCE:
                try:
                    rpc(http, url, method, address, hex(amount))
                    return
                except ValueError as error:
                    refusals.append(error)
            raise refusals[0]
    except (httpx.HTTPError, ValueError) as error:
        raise DevnetError(
            f"cannot fund {address}",
            f"{shown(url)}: {scrubbed(str(error), url)}",
            "only a local chain gives coins away; see: intellect-node devnet",
        ) from error
