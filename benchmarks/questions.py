"""How often does a member ask the chain in a day, by role?

    python -m benchmarks.questions [--seconds 600] [--endpoints 2] [--quick] [--json FILE]

A local chain makes a block every two seconds. For each role the product's follower and the services that watch the
pool's money (`Claimer`, `EarningsTabler`, `ClaimCarrier`, `PoolKeeper`) look at it with their own pace, each role
through endpoints of its own that count together what they are asked. Epochs are of 3,000 seconds, and nothing happens
in the pool: what a transaction takes is not here, nor what a join takes. Printed are questions a day.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import trio

from benchmarks.command import parser_of, save, silence_logs
from node.chain.client import ChainClient
from node.chain.endpoints import rpc
from node.chain.follower import EventFollower
from node.chain.http import certificates
from node.services.claim_carrier import ClaimCarrier
from node.services.claimer import Claimer
from node.services.context import PoolTime
from node.services.court.earnings_tabler import EarningsTabler
from node.services.membership.events import Events
from node.services.pool_accounting import ChainPoller, PoolAccounting
from node.services.pool_keeper import PoolKeeper
from node.state.journal import Journal
from protocol.identity import NodeKey
from tests.memory_network import MemoryHub
from tests.node.chain.chains import Participants, local_chain, with_contracts
from tests.node.chain.meddler import Meddler, meddling
from tests.node.services.daemons import Daemon

BLOCK, CONFIRMATIONS = 2, 2
EPOCH, WINDOW = 3000, 600
SETTLES = 30.0
"""Seconds until each has read what was before."""
DAY = 86_400
_settling: Callable[[PoolAccounting], ChainPoller] = lambda books: Claimer(books)  # as a role opens it
ROLES: dict[str, tuple[Callable[[PoolAccounting], ChainPoller], ...]] = {
    "worker": (_settling,),
    "validator": (_settling, EarningsTabler, ClaimCarrier),
    "trainer": (_settling, ClaimCarrier, PoolKeeper),
}


async def follow(
    people: Participants, through: Sequence[Meddler], key: NodeKey, role: str, folder: Path, nursery: Any
) -> None:
    """Start what a member of a role asks the chain with."""
    profile = msgspec.structs.replace(
        people.client.profile, rpc_urls=tuple(one.url for one in through), confirmations=CONFIRMATIONS
    )
    chain, daemon = ChainClient(profile, key), Daemon(MemoryHub(), key)
    pool = await chain.pool(people.pool)
    context = daemon.context
    context.pool, context.journal = people.pool, Journal(folder / f"{role}.sqlite")
    context.time = PoolTime(pool.started_at, pool.epoch_seconds, pool.window)
    events = Events(EventFollower(chain, people.pool, folder / f"{role}-chain.sqlite"), daemon.membership)
    await events.start(nursery)
    books = PoolAccounting(context, chain, events.ledger)
    for kind in ROLES[role]:
        nursery.start_soon(kind(books).run)


async def measure(seconds: float, endpoints: int, folder: Path) -> list[dict[str, Any]]:
    with local_chain(folder) as (provider, url), ExitStack() as stack:
        profile = with_contracts(provider, url, "anvil_setBalance", min_window=10)
        people = Participants(ChainClient(profile, NodeKey.generate()))
        await people.prepare(epoch_seconds=EPOCH, window=WINDOW)
        with httpx.Client(verify=certificates()) as http:
            await trio.to_thread.run_sync(partial(rpc, http, url, "evm_setIntervalMining", BLOCK))
        keys, asked = (people.node, people.validator, people.manager), dict[str, Counter[str]]()
        async with trio.open_nursery() as nursery:
            for role, key in zip(ROLES, keys, strict=True):
                through, counts = [stack.enter_context(meddling(url)) for _ in range(endpoints)], Counter[str]()
                for one in through:
                    one.at = lambda method, when, counts=counts: counts.update([method] if when == "before" else [])
                asked[role] = counts
                await follow(people, through, key, role, folder, nursery)
            await trio.sleep(SETTLES)
            for counts in asked.values():
                counts.clear()
            began = time.monotonic()
            await trio.sleep(seconds)
            took = time.monotonic() - began
            nursery.cancel_scope.cancel()
    return [
        {"role": role, "a day": round(sum(counts.values()) * DAY / took)}
        | {method: round(count * DAY / took) for method, count in counts.most_common()}
        for role, counts in asked.items()
    ]


def main() -> None:
    parser = parser_of(__doc__, "thirty seconds")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--endpoints", type=int, default=1)
    a = parser.parse_args()
    silence_logs()
    with tempfile.TemporaryDirectory() as folder:
        rows = trio.run(measure, 30.0 if a.quick else a.seconds, a.endpoints, Path(folder))
    for row in rows:
        print(row)
    save(a.json, rows)


if __name__ == "__main__":
    main()
