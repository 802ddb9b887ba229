"""A web3 provider over the endpoints of a profile."""

from collections.abc import Sequence
from typing import Any

from web3.exceptions import Web3Exception
from web3.providers.base import JSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from node.chain.endpoints import Endpoints, encoded
from node.chain.refusals import EndpointRefused

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
        # Without web3's numbers: a question that is heard twice is the same one.
        return self.endpoints.request(method, encoded(method, params))
