"""The chain's endpoints: do they answer, are they the right chain, how old is what they know, how far back do they go.

Blocking HTTP, one endpoint at a time: call from a thread.
"""

import time
from typing import Any
from urllib.parse import urlsplit

import httpx

from node.chain.profile import NetworkProfile
from node.chain.rpc import certificates, rpc
from node.preflight.finding import Finding, failure, ok, warning

TIMEOUT = 8.0
SLOW = 1.5
"""Seconds per answer from which on following the chain is a burden."""
LAG = 60.0
PROBES = 16
LOG_BLOCKS = 10
Endpoint = dict[str, Any]


def check_rpc(profile: NetworkProfile, now: float, *, deep: bool = False) -> list[Finding]:
    """One finding for each endpoint, and one for all of them where none can be used. deep: also ask for old logs."""
    probed = [probe(url, profile, deep=deep) for url in profile.rpc_urls]
    found = [judge(endpoint, profile, now) for endpoint in probed]
    if any(endpoint.get("chain_id") == profile.chain_id for endpoint in probed):
        return found
    what = f"no endpoint of {profile.name} can be used: {'; '.join(one.what for one in found)}"
    remedy = (
        "devnet: intellect-node devnet up" if profile.name == "local" else "use another RPC in rpc_urls of the profile"
    )
    return [*found, failure("rpc", what[:500], remedy)]


def probe(url: str, profile: NetworkProfile, *, deep: bool) -> Endpoint:
    """What one endpoint says of itself. Credentials in its URL are left out."""
    found: Endpoint = {"endpoint": shown(url)}
    try:
        with httpx.Client(timeout=TIMEOUT, verify=certificates()) as http:
            began = time.monotonic()
            found["chain_id"] = int(rpc(http, url, "eth_chainId"), 16)
            found["seconds"] = round(time.monotonic() - began, 3)
            block = rpc(http, url, "eth_getBlockByNumber", "latest", False)
            found["block"], found["timestamp"] = int(block["number"], 16), int(block["timestamp"], 16)
            if deep and profile.deployed:
                found["logs_from"] = _logs_from(http, url, profile, found["block"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TypeError, KeyError, OSError) as error:
        found["error"] = (str(error) or type(error).__name__)[:200]
    return found


def judge(endpoint: Endpoint, profile: NetworkProfile, now: float) -> Finding:
    """Pure. now: unix seconds."""
    name, another = endpoint["endpoint"], "take it out of rpc_urls in the profile, or name a better one"
    if "error" in endpoint:
        return warning("rpc", f"{name}: {endpoint['error']}", another, **endpoint)
    if endpoint["chain_id"] != profile.chain_id:
        what = f"{name} is chain {endpoint['chain_id']}, {profile.name} is chain {profile.chain_id}"
        return warning("rpc", what, another, **endpoint)
    age = now - endpoint["timestamp"]
    pace = f"{max(age, 0):.0f} s old, answers in {endpoint['seconds']:.2f} s"
    told = f"{name}: chain {profile.chain_id}, block {endpoint['block']}, {pace}"
    logs = endpoint.get("logs_from")
    if logs is not None and logs > profile.deployed_block:
        what = f"{told}; it tells logs from block {logs} on, the contracts are from {profile.deployed_block}"
        return warning("rpc", what, "use an RPC with all logs (an archive is not needed)", **endpoint)
    if endpoint["seconds"] > SLOW:
        return warning("rpc", f"{told}: slow", another, **endpoint)
    if age > LAG:
        return warning("rpc", f"{told}: it lags, or the chain stands still", another, **endpoint)
    return ok("rpc", told, **endpoint)


def shown(url: str) -> str:
    """An endpoint without what its owner would not show: keys stand in paths, queries and before the host."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    hidden = "/…" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.hostname}{port}{hidden}"


def _logs_from(http: httpx.Client, url: str, profile: NetworkProfile, head: int) -> int:
    """The first block of which logs are told, found by halving between the contracts' first block and the newest."""
    low, high = min(profile.deployed_block, head), head
    if _tells_logs(http, url, profile, low):
        return low
    for _ in range(PROBES):
        if high - low <= LOG_BLOCKS:
            break
        middle = (low + high) // 2
        low, high = (low, middle) if _tells_logs(http, url, profile, middle) else (middle, high)
    return high


def _tells_logs(http: httpx.Client, url: str, profile: NetworkProfile, block: int) -> bool:
    wanted = {"address": profile.contracts.swarm, "fromBlock": hex(block), "toBlock": hex(block + LOG_BLOCKS)}
    try:
        return isinstance(rpc(http, url, "eth_getLogs", wanted), list)
    except ValueError:
        return False
