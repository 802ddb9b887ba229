"""A gateway with a public chain's habits, in front of a real one: machines that lag behind each other, quotas and
limits told in the body, methods that are not served."""

from collections import Counter
from itertools import cycle
from typing import Any

import httpx

from node.chain.endpoints import rpc
from node.chain.http import certificates
from tests.node.chain.meddler import Meddler

HEADER_NOT_FOUND = {"error": {"code": -32000, "message": "header not found"}}
OVER_LIMIT = {"error": {"code": -32016, "message": "over rate limit"}}


class Gateway:
    """Makes a Meddler behave so. lags: blocks by which the machine behind the next question for logs is behind, one
    after the other; heads: the same for questions for blocks; every: each question of this number is over the limit of
    requests, 0 for none; range_limit: blocks in one question for logs; lacks: methods that it does not serve."""

    def __init__(
        self,
        meddler: Meddler,
        target: str,
        *,
        lags: tuple[int, ...] = (0,),
        heads: tuple[int, ...] = (0,),
        every: int = 0,
        range_limit: int = 10_000,
        lacks: tuple[str, ...] = ("eth_simulateV1", "eth_maxPriorityFeePerGas"),
    ) -> None:
        self.asked: Counter[str] = Counter()
        self.logs_asked: list[tuple[int, int]] = []
        self.by_number = 0
        """Questions for a block by its number."""
        self._http, self._target = httpx.Client(verify=certificates()), target
        self._lags, self._heads = cycle(lags), cycle(heads)
        self._every, self._range, self._lacks = every, range_limit, lacks
        meddler.rule = self._rule

    def close(self) -> None:
        self._http.close()

    def _head(self) -> int:
        return int(rpc(self._http, self._target, "eth_blockNumber"), 16)

    def _rule(self, request: dict[str, Any]) -> dict[str, Any] | None:
        method, params = request["method"], request["params"]
        self.asked[method] += 1
        if self._every and sum(self.asked.values()) % self._every == 0:
            return OVER_LIMIT
        if method in self._lacks:
            return {"error": {"code": -32601, "message": f"the method {method} does not exist/is not available"}}
        if method == "eth_getBlockByNumber":
            return self._block(params)
        return self._logs(params[0]) if method == "eth_getLogs" else None

    def _block(self, params: list[Any]) -> dict[str, Any] | None:
        head = self._head() - next(self._heads)
        if params[0] == "latest":
            params[0] = hex(head)
            return None
        self.by_number += 1
        if params[0].startswith("0x") and int(params[0], 16) > head:
            return HEADER_NOT_FOUND
        return None

    def _logs(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        first, newest = int(asked["fromBlock"], 16), asked["toBlock"] == "latest"
        last = self._head() if newest else int(asked["toBlock"], 16)
        self.logs_asked.append((first, last))
        if last - first + 1 > self._range:
            return {"error": {"code": -32602, "message": f"range {last - first + 1} exceeds limit of {self._range}"}}
        head = self._head() - next(self._lags)
        if first > head:
            return {"result": []}
        asked["toBlock"] = hex(min(last, head))
        return None
