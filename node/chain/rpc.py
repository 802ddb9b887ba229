"""The endpoints of a profile as web3 knows one, and what is asked of them without its forms."""

from collections.abc import Mapping, Sequence
from typing import Any

from web3.exceptions import BlockNotFound, Web3Exception
from web3.providers.base import JSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from node.chain.endpoints import Endpoints, encoded
from node.chain.refusals import CALL, ESTIMATE, RECEIPT, SEND, EndpointRefused

EXPECTED: tuple[type[Exception], ...] = (EndpointRefused, Web3Exception, ValueError, TypeError, KeyError)
"""Refusals of endpoints, and what web3 raises for bad answers."""


class FallbackProvider(JSONBaseProvider):
    """Raises what `Endpoints` does, of which it takes the arguments."""

    def __init__(self, urls: Sequence[str], chain_id: int, timeout: float = 8.0) -> None:
        super().__init__()
        self.endpoints = Endpoints(urls, chain_id, timeout)

    def close(self) -> None:
        self.endpoints.close()

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        return self.endpoints.request(method, encoded(method, params))


class Eth:
    """What a node asks of the chain, with the names that web3 has for it. web3 turns each question and answer over
    twice, which takes longer than the asking. Answers have the types that `answers.py` has looked for. Raises what
    `Endpoints` does. who, to: addresses in hex; amounts in wei."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints

    def ask(self, method: str, *params: Any) -> Any:
        """The result as the endpoint tells it."""
        return self._endpoints.request(method, encoded(method, params)).get("result")

    def call(self, asked: Mapping[str, Any], block: int | str = "latest") -> bytes:
        """asked: a transaction's fields; its data in hex."""
        return bytes.fromhex(self.ask(CALL, _plain(asked), _plain_block(block))[2:])

    def estimate_gas(self, asked: Mapping[str, Any]) -> int:
        return int(self.ask(ESTIMATE, _plain(asked)), 16)

    def get_balance(self, who: str) -> int:
        return int(self.ask("eth_getBalance", who, "latest"), 16)

    def get_code(self, who: str) -> bytes:
        return bytes.fromhex(self.ask("eth_getCode", who, "latest")[2:])

    def get_transaction_count(self, who: str, block: int | str = "latest") -> int:
        return int(self.ask("eth_getTransactionCount", who, _plain_block(block)), 16)

    def gas_price(self) -> int:
        return int(self.ask("eth_gasPrice"), 16)

    def block_number(self) -> int:
        return int(self.ask("eth_blockNumber"), 16)

    def get_block(self, which: int | str, transactions: bool = False) -> Mapping[str, Any]:
        """In the endpoint's hex. Raises BlockNotFound."""
        found = self.ask("eth_getBlockByNumber", _plain_block(which), transactions)
        if found is None:
            raise BlockNotFound(f"Block with id: {which!r} not found.")
        return found

    def has_transaction(self, transaction: str) -> bool:
        """Whether the endpoint has heard of it, in a block or not."""
        return self.ask("eth_getTransactionByHash", transaction) is not None

    def get_transaction_receipt(self, transaction: str) -> dict[str, Any] | None:
        """Its hashes as bytes, its numbers as such; logs, and what else it has, in the endpoint's hex. None where it
        shows none."""
        told = self.ask(RECEIPT, transaction)
        if told is None:
            return None
        hashes = {name: bytes.fromhex(told[name][2:]) for name in ("transactionHash", "blockHash")}
        numbers = ("blockNumber", "status", "gasUsed", "effectiveGasPrice")
        return {**told, **hashes, **{name: int(told[name], 16) for name in numbers if name in told}}

    def send_raw_transaction(self, raw: bytes) -> None:
        self.ask(SEND, "0x" + raw.hex())


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: hex(value) if isinstance(value, int) else value for name, value in fields.items()}


def _plain_block(block: int | str) -> str:
    return hex(block) if isinstance(block, int) else block
