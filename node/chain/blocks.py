"""The chain's blocks: the newest one, which of them are deep enough, and whether others still show one."""

import msgspec
from web3.exceptions import BlockNotFound

from node.chain.connection import Connection
from node.chain.refusals import EndpointRefused, RefusalKind

GET_BLOCK = "eth_getBlockByNumber"


class Block(msgspec.Struct, frozen=True):
    """timestamp: unix seconds, the clock of everything in the contracts; parent: the hash of the block before, empty
    where the endpoint did not tell it."""

    number: int
    hash: bytes
    timestamp: int
    parent: bytes = b""


class Blocks(Connection):
    """Those of one network."""

    async def block(self, number: int | None = None) -> Block:
        """The latest block, or the one with `number`."""
        return await self._read("read a block", lambda: self._block("latest" if number is None else hex(number)))

    def _block(self, which: str) -> Block:
        found = self._eth.get_block(which)
        parent = bytes.fromhex(found.get("parentHash", "0x")[2:])
        return Block(int(found["number"], 16), bytes.fromhex(found["hash"][2:]), int(found["timestamp"], 16), parent)

    async def settled_block(self, latest: Block) -> int:
        """The newest block whose events count: under the profile's confirmations and finality."""
        deep = latest.number - self.profile.confirmations
        if self.profile.finality == "latest":
            return deep
        final = await self._read("read a block", lambda: self._block(self.profile.finality))
        return min(deep, final.number)

    async def agreed_hash(self, number: int) -> bytes | None:
        """Of a block, as two endpoints tell it; None where none has it any more. One that lags has no opinion."""

        def view() -> bytes:
            try:
                return self._block(hex(number)).hash
            except BlockNotFound as error:
                raise EndpointRefused(RefusalKind.BEHIND, GET_BLOCK, str(error)) from error

        def ask() -> bytes | None:
            try:
                return self._witnesses.agreed("read a block", GET_BLOCK, view, patient=False)
            except EndpointRefused as refusal:
                if refusal.kind is not RefusalKind.BEHIND:
                    raise
                return None

        return await self._read("read a block", ask)

    def put_last(self) -> str:
        """Ask the others before the endpoint that tells of blocks now; returns that one, as it is shown."""
        endpoints = self._provider.endpoints
        return endpoints.put_last(endpoints.each(GET_BLOCK)[0])

    async def compare_heads(self, now: float) -> None:
        """Leave an endpoint that stands still, or is in the future, for another one. now: unix seconds."""

        def newest() -> int:
            return self._block("latest").timestamp

        await self._read("read a block", lambda: self._witnesses.put_laggards_last(newest, now))
