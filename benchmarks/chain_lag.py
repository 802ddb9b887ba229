"""Is one transaction one transaction? Endpoints that lag, lie about numbers, and programs that are killed.

    python -m benchmarks.chain_lag [--lags 0,4,8] [--confirmations 0,1,3] [--quick] [--json]

A local chain makes a block a second. Between it and a program of ours stands an endpoint whose receipts (and, in other
rows, its transactions and blocks as well) are unknown for `lag` seconds after a transaction was taken, while its counts
are up to date. The program mints five tokens for an address of its own; where it is killed (-9) or gives up, it is
started again, as people do. What the chain then says the address has tells how often it was sent.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import msgspec
import trio

from cli.devnet import cache_directory
from contracts.bindings import Contracts
from node.chain.client import ChainClient
from node.chain.errors import ChainError
from node.chain.profile import NetworkProfile, read_profile, write_profile
from node.chain.rpc import FallbackProvider, rpc
from node.chain.sender import SendLimits
from protocol.identity import NodeKey
from tests.node.chain.chains import deployed_chain
from tests.node.chain.meddler import Meddler, meddling

AMOUNT = 5
STARTS = 8
AT_ONCE = 6
SEND, RECEIPT = "eth_sendRawTransaction", "eth_getTransactionReceipt"
BY_HASH, BLOCK = "eth_getTransactionByHash", "eth_getBlockByNumber"
BLIND = {"receipts": (RECEIPT,), "receipts, hashes": (RECEIPT, BY_HASH), "all but counts": (RECEIPT, BY_HASH, BLOCK)}
KILLS = {
    "-": None,
    "before it is sent": (SEND, "before"),
    "after it is sent": (SEND, "after"),
    "at the first look": (RECEIPT, "before"),
}
LIES = {"-": None, "nonce too low": {"error": {"code": -32000, "message": "nonce too low"}}}


class Row(msgspec.Struct):
    """One program's life. tokens: what arrived; seconds: until it was done."""

    lag: float
    blind: str
    confirmations: int
    killed: str
    lie: str
    starts: int
    tokens: int
    seconds: float


def program(profile: str, outbox: str, secret: str, to: str, limits: str) -> None:
    """What is started, killed and started again."""

    async def main() -> None:
        key = NodeKey(bytes.fromhex(secret))
        chain = ChainClient(
            read_profile(Path(profile)),
            key,
            outbox=Path(outbox),
            limits=msgspec.json.decode(limits, type=SendLimits),
        )
        try:
            left = await chain.resume(key)
            if not any(one.receipt is not None for one in left):
                await chain.faucet(NodeKey(bytes.fromhex(to)).address, AMOUNT)
        finally:
            chain.close()

    try:
        trio.run(main)
    except ChainError as error:
        sys.exit(f"{error.what}: {error.why}")


class Case:
    """One combination, with a key, an outbox and an endpoint of its own."""

    def __init__(self, profile: NetworkProfile, folder: Path, lag: float, blind: str, confirmations: int) -> None:
        self.profile, self.folder, self.lag, self.blind = profile, folder, lag, blind
        self.confirmations = confirmations
        self.key, self.to = NodeKey.generate(), NodeKey.generate()

    def play(self, killed: str, lie: str) -> Row:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        with httpx.Client() as http:
            rpc(http, self.profile.rpc_urls[0], "anvil_setBalance", self.key.address, hex(10**18))
        began, starts = time.monotonic(), 0
        with meddling(self.profile.rpc_urls[0]) as meddler:
            meddler.lags = dict.fromkeys(BLIND[self.blind], self.lag)
            if LIES[lie] is not None:
                meddler.after[SEND] = LIES[lie]
            profile = folder / "network.toml"
            write_profile(profile, msgspec.structs.replace(self.profile, rpc_urls=(meddler.url,)))
            while starts < STARTS:
                starts += 1
                if self._run(meddler, profile, folder / "outbox.sqlite", KILLS[killed] if starts == 1 else None) == 0:
                    break
        tokens = _tokens(self.profile, self.to)
        return Row(
            self.lag, self.blind, self.confirmations, killed, lie, starts, tokens, round(time.monotonic() - began, 1)
        )

    def _run(self, meddler: Meddler, profile: Path, outbox: Path, kill: tuple[str, str] | None) -> int:
        limits = SendLimits(poll=0.2, give_up=40.0, confirmations=self.confirmations)
        words = [profile, outbox, self.key.secret.hex(), self.to.secret.hex(), msgspec.json.encode(limits).decode()]
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.chain_lag", "--program", *map(str, words)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        done = threading.Event()

        def at(method: str, when: str) -> None:
            if (method, when) == kill and not done.is_set():
                done.set()
                process.send_signal(signal.SIGKILL)
                process.wait()

        meddler.at = at
        _, said = process.communicate(timeout=120)
        if process.returncode > 0:
            print("   ", said.decode().strip()[-160:], file=sys.stderr)
        return process.returncode


def _tokens(profile: NetworkProfile, to: NodeKey) -> int:
    from web3 import Web3

    provider = FallbackProvider(profile.rpc_urls, profile.chain_id)
    try:
        return Contracts(Web3(provider), profile.contracts).token_balance(to.address)
    finally:
        provider.close()


def combinations(lags: list[float], confirmations: list[int], quick: bool) -> Iterator[tuple[Any, ...]]:
    """Every lag with every depth and blindness; kills and lies with the longest lag and with none."""
    for lag, depth, blind in product(lags, confirmations, BLIND):
        yield lag, blind, depth, "-", "-"
    ends = sorted({min(lags), max(lags)})
    for lag, depth, kill in product(ends, confirmations[:1] if quick else confirmations, list(KILLS)[1:]):
        yield lag, "receipts, hashes", depth, kill, "-"
    for lag, kill in product(ends, ("-", "after it is sent")):
        yield lag, "receipts, hashes", confirmations[0], kill, "nonce too low"


def main() -> None:
    if sys.argv[1:2] == ["--program"]:
        program(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags", default="0,4,8", help="seconds")
    parser.add_argument("--confirmations", default="0,1,3")
    parser.add_argument("--quick", action="store_true", help="kills at the first depth only")
    parser.add_argument("--json", action="store_true", help="the last line is one object with all rows")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    lags, depths = [float(x) for x in given.lags.split(",")], [int(x) for x in given.confirmations.split(",")]
    rows: list[Row] = []
    with deployed_chain(cache_directory()) as profile, tempfile.TemporaryDirectory() as folder:
        with httpx.Client() as http:
            rpc(http, profile.rpc_urls[0], "evm_setIntervalMining", 1)

        async def one(lag: float, blind: str, depth: int, kill: str, lie: str, limit: trio.CapacityLimiter) -> None:
            case = Case(profile, Path(folder), lag, blind, depth)
            row = await trio.to_thread.run_sync(case.play, kill, lie, limiter=limit)
            rows.append(row)
            print(
                f"lag {row.lag:g} s of {row.blind:17} {row.confirmations} confirmations  killed {row.killed:18}"
                f" lie {row.lie:14} {row.starts} start(s) {row.seconds:5.1f} s  sent {row.tokens // AMOUNT} time(s)",
                flush=True,
            )

        async def every() -> None:
            limit = trio.CapacityLimiter(AT_ONCE)
            async with trio.open_nursery() as nursery:
                for row in combinations(lags, depths, given.quick):
                    nursery.start_soon(partial(one, *row, limit))

        trio.run(every)
    doubled = sum(row.tokens > AMOUNT for row in rows)
    missing = sum(row.tokens < AMOUNT for row in rows)
    print(f"{len(rows)} programs: {doubled} sent twice, {missing} not at all")
    if given.json:
        print(json.dumps({"doubled": doubled, "missing": missing, "rows": msgspec.to_builtins(rows)}))


if __name__ == "__main__":
    main()
