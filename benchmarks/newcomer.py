"""Seconds until a newcomer is in a pool with a long past: it has joined, knows all members, and hears the trainer.

    python -m benchmarks.newcomer [--members 10 300] [--events 10000] [--draws 1] [--quick] [--json]

A local chain gets the contracts, so many members, and so many `Joined` events, as renewals of leases make them, spread
over so many blocks. A trainer and then a newcomer join that pool, each a process of its own made of the product's
parts: chain client, follower, events, members, peer records, network, board, heartbeat. The trainer reads all of
history too, without anybody else on the line. Then the newcomer is killed and started again with its `chain.sqlite`.
None of the members but these two lives, and there are no bootnodes; --draws: so many newcomers, each with a key of
its own.

`in` counts from the first question to the chain until the newcomer holds the trainer alive; `stall` is the longest
time for which its event loop did nothing else, `own` the CPU of the loop's thread in one step at most, `lock` what it
waited at most for anything but a processor: on a machine that others use, the stalls that are ours are these two
(`--json` tells the longest steps); `calls` are its questions to the RPC endpoint.
"""

import argparse
import gc
import heapq
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import msgspec
import trio

from benchmarks.command import Child, parser_of, silence_logs
from benchmarks.hundred import beating
from cli.devnet import cache_directory
from contracts.bindings import Joined, PoolParams, TransactionCall
from contracts.deploy import TOKEN
from node.chain.client import ChainClient
from node.chain.endpoints import rpc
from node.chain.faucet import DevnetFaucet
from node.chain.follower import EventFollower
from node.chain.http import certificates
from node.chain.profile import NetworkProfile, read_profile, write_profile
from node.chain.rpc import Eth
from node.chain.setup import prepare_participant
from node.member import Participant, open_member
from node.network.host import Libp2pNetwork
from node.progress import ProgressRecord
from node.services.membership.events import Events
from node.services.membership.peers import PeerDialler
from node.services.membership.reach import Reach
from protocol.identity import NodeKey
from protocol.statements import Domain, NodeRegistration, sign
from tests.node.chain.chains import deployed_chain

AT_ONCE = 100
"""Transactions in one block."""
PATIENCE = 600.0
TICK = 0.005
MOST_STALLS = 12
WORTH = 0.002
"""Seconds from which on a step is kept."""


# the chain


class History:
    """A pool with a past, on a local chain."""

    def __init__(self, profile: NetworkProfile, folder: Path, draws: int) -> None:
        self.profile = profile
        self.folder = folder
        self.trainer, self.owner = NodeKey.generate(), NodeKey.generate()
        self.newcomers = [NodeKey.generate() for _ in range(draws)]
        self._http = httpx.Client(timeout=120, verify=certificates())
        self._url = profile.rpc_urls[0]

    async def make(self, members: int, events: int, blocks: int) -> int:
        """Open the pool, register everybody, let them join again and again. Returns the pool's number."""
        client = ChainClient(self.profile, self.owner, outbox=self.folder / "outbox.sqlite")
        try:
            faucet = DevnetFaucet(client)
            stakes = await client.required_stake(self.owner.address, members)
            await faucet.fund(self.owner.address, coin=10**20, token=stakes)
            for key in (self.trainer, *self.newcomers):
                stake = await client.required_stake(key.address, 1)
                await prepare_participant(client, faucet, NodeKey.generate(), key, stake=stake)
            number = await client.create_pool(self._params())
            await client.bond(self.owner.address, stakes)
            keys = [NodeKey.generate() for _ in range(members)]
            registrations = await self._registrations(client, keys)
            self._send([_transaction(self.owner, call) for call in registrations], 0)
            joins = cycle([_transaction(key, client.contracts.join(number, contact(key))) for key in keys])
            for key in keys:
                rpc(self._http, self._url, "anvil_setBalance", key.address, hex(10**20))
            self._send(islice(joins, events), blocks)
            return number
        finally:
            client.close()

    def _params(self) -> PoolParams:
        return PoolParams(
            manager=self.trainer.address,
            reward_per_unit=1,
            window=60,
            epoch_seconds=10,
            slash_amount=TOKEN,
            validators=(NodeKey.generate().address,),
        )

    async def _registrations(self, client: ChainClient, keys: list[NodeKey]) -> list[TransactionCall]:
        until = (await client.block()).timestamp + 360_000
        calls: list[TransactionCall] = []
        for key in keys:
            consent = sign(key, client.domain, NodeRegistration(self.owner.address, key.address, 1, 0, until))
            calls.append(client.contracts.register_node(key.address, 1, until, consent))
        return calls

    def _send(self, transactions: Iterable[dict[str, str]], blocks: int) -> None:
        """In blocks of AT_ONCE, and empty ones between them, without signatures: the chain knows how to pretend."""
        ask = self._ask
        ask([("anvil_autoImpersonateAccount", [True]), ("evm_setAutomine", [False])])
        made = iter(transactions)
        parts = list(iter(lambda: list(islice(made, AT_ONCE)), []))
        for part in parts:
            ask([("eth_sendTransaction", [transaction]) for transaction in part])
            ask([("anvil_mine", [hex(1 + blocks // len(parts))])])
        ask([("anvil_autoImpersonateAccount", [False]), ("evm_setAutomine", [True])])

    def _ask(self, calls: list[tuple[str, list[Any]]]) -> None:
        body = [{"jsonrpc": "2.0", "id": id, "method": name, "params": what} for id, (name, what) in enumerate(calls)]
        for answer in self._http.post(self._url, json=body).json():
            if "error" in answer:
                raise SystemExit(f"the local chain refuses: {answer['error']}")


def contact(key: NodeKey) -> str:
    """An address of a documentation net, where nobody answers."""
    return f"/ip4/127.0.0.1/tcp/{1 + int(key.address, 16) % 999}/p2p/{key.peer_id}"


def _transaction(key: NodeKey, call: TransactionCall) -> dict[str, str]:
    return {"from": key.address, "to": str(call.to), "data": "0x" + call.data.hex(), "gas": hex(400_000)}


# a node


class Told(msgspec.Struct):
    """Seconds since the first question to the chain. start: of the process until then."""

    start: float = 0.0
    asked: float = 0.0
    joined: float = 0.0
    known: float = 0.0
    linked: float = 0.0
    entered: float = 0.0
    cpu: float = 0.0
    stall: float = 0.0
    own: float = 0.0
    lock: float = 0.0
    calls: int = 0
    members: int = 0
    events: int = 0
    longest: list[tuple[float, float, float, str]] = []


# what its event loop did in the steps that stopped it longest


class Stalls(trio.abc.Instrument):
    """The longest steps. A step's seconds are its own CPU, waiting for a processor that others had, and the rest:
    waiting for the interpreter's lock, or for the system."""

    def __init__(self) -> None:
        self._longest: list[tuple[float, int, float, float, str]] = []
        self._numbers = itertools.count()
        self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._began = self._used = self._queued = 0.0
        self.own = 0.0
        """CPU seconds of the loop's thread in its most expensive step."""
        self.stall = self.lock = 0.0
        """Seconds by which a sleep of TICK was late at most, and what of that was neither the loop's own CPU nor
        waiting for a processor: the interpreter's lock, in a step or between two."""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began, self._used = time.perf_counter(), time.thread_time()
        self._queued = self._queue()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.perf_counter() - self._began
        if took < WORTH or not self._began:  # the step that installed this began before it
            return
        used = time.thread_time() - self._used
        self.own = max(self.own, used)
        queued = self._queue() - self._queued
        row = took, next(self._numbers), used, queued, f"{task.name} at {_place(task)}"
        keep = heapq.heappushpop if len(self._longest) >= MOST_STALLS else heapq.heappush
        keep(self._longest, row)

    async def watch(self) -> None:
        """Until cancelled, in the loop that is watched."""
        while True:
            began, used, queued = time.perf_counter(), time.thread_time(), self._queue()
            await trio.sleep(TICK)
            late = time.perf_counter() - began - TICK
            excused = time.thread_time() - used + self._queue() - queued
            self.stall, self.lock = max(self.stall, late), max(self.lock, late - excused)

    def longest(self) -> list[tuple[float, float, float, str]]:
        """(seconds, CPU seconds, seconds without a processor, task and where it waits now), the longest first."""
        rows = sorted(self._longest, reverse=True)
        return [(round(took, 4), round(used, 4), round(queued, 4), name) for took, _, used, queued, name in rows]

    def _queue(self) -> float:
        """Seconds for which this thread wanted a processor and had none, since it began."""
        return int(os.pread(self._schedule, 100, 0).split()[1]) / 1e9


def _place(task: trio.lowlevel.Task) -> str:
    """The innermost frame of ours in which a task stands after its step."""
    found = "its end"
    one = task.coro
    while one is not None:
        frame = getattr(one, "cr_frame", None) or getattr(one, "gi_frame", None) or getattr(one, "ag_frame", None)
        if frame is not None and "/trio/" not in frame.f_code.co_filename:
            found = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        one = getattr(one, "cr_await", None) or getattr(one, "gi_yieldfrom", None) or getattr(one, "ag_await", None)
    return found


class Newcomer:
    """As `node.daemon` joins, up to where it would obtain the run. trainer: it is the one, and waits for nobody."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.key = NodeKey(bytes.fromhex(settings["secret"]))
        self.directory = Path(settings["directory"])
        self.profile = read_profile(Path(settings["profile"]))
        self.pool: int = settings["pool"]
        self.trainer: bool = settings["trainer"]
        self.events: int = settings["events"]
        self.told = Told(start=time.time() - settings["began"])
        self._began = time.monotonic()
        self._joined = 0
        self._stalls = Stalls()

    async def run(self) -> None:
        _count_calls(self.told)
        trio.lowlevel.add_instrument(self._stalls)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stalls.watch)
            chain = ChainClient(self.profile, self.key, outbox=self.directory / "outbox.sqlite")
            await chain.connect()
            pool = await chain.pool(self.pool)
            domain = Domain(self.profile.chain_id, self.profile.contracts.swarm)
            network = Libp2pNetwork(self.key, "/ip4/127.0.0.1/tcp/0")
            opened = open_member(self.key, domain, pool, network, self.directory / "blobs", quota=1 << 30)
            self.told.asked = self._since()
            async with opened as member:
                await chain.join(self.pool, network.contacts()[0])
                self.told.joined = self._since()
                await self._enter(member, chain)
            nursery.cancel_scope.cancel()

    async def _enter(self, member: Participant, chain: ChainClient) -> None:
        follower = EventFollower(chain, member.pool, self.directory / "chain.sqlite")
        events = Events(follower, member.membership)
        apply = events._apply

        def counted(event: Any) -> None:
            self._joined += isinstance(event, Joined)
            apply(event)

        events._apply = counted  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            await events.start(nursery)
            await PeerDialler(member, self.directory).start(nursery)
            nursery.start_soon(Reach(member, ProgressRecord()).run)
            nursery.start_soon(member.listen)
            nursery.start_soon(beating(member, 1.0, member.pool).run)
            await self._wait(lambda: self._joined > self.events)
            self.told.known = self._since()
            self.told.members, self.told.events = member.membership.table.present(), self._joined
            if self.trainer:
                self._say()
                await trio.sleep_forever()
            trainer = member.membership.trainer
            await self._wait(lambda: trainer in member.network.connected())
            self.told.linked = self._since()
            await self._wait(lambda: trainer in member.membership.table.live(trio.current_time()))
            self.told.entered = self._since()
            self._say()
            nursery.cancel_scope.cancel()

    async def _wait(self, done: Any) -> None:
        with trio.fail_after(PATIENCE):
            while not done():
                await trio.sleep(TICK)

    def _since(self) -> float:
        return time.monotonic() - self._began

    def _say(self) -> None:
        self.told.cpu = time.process_time()
        stalls = self._stalls
        self.told.stall, self.told.own, self.told.lock = stalls.stall, stalls.own, stalls.lock
        self.told.longest = stalls.longest()
        told = msgspec.structs.asdict(self.told)
        print(
            json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in told.items()})
        )
        sys.stdout.flush()


def _count_calls(told: Told) -> None:
    ask = Eth.ask

    def counted(self: Any, method: str, *params: Any) -> Any:
        found = ask(self, method, *params)
        told.calls += 1  # once it is answered: what is asked together is heard twice
        return found

    Eth.ask = counted  # type: ignore[method-assign]


# all of it


def node(settings: dict[str, Any]) -> Child:
    """A node in another process, which says once what it measured."""
    settings = settings | {"began": time.time()}
    return Child([sys.executable, "-m", "benchmarks.newcomer", "--node", json.dumps(settings)])


def measure(members: int, events: int, blocks: int, draws: int) -> dict[str, Any]:
    """Make the past, then let the trainer, each newcomer, and the last one again read it."""
    with deployed_chain(cache_directory()) as profile, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        history = History(profile, folder, draws)
        began = time.monotonic()
        number = trio.run(history.make, members, events, blocks)
        sys.stderr.write(f"{members} members, {events} events made in {time.monotonic() - began:.0f} s\n")
        write_profile(folder / "network.toml", profile)
        found: dict[str, Any] = {"members": members, "events": events, "blocks": blocks}
        trainer = node(_settings(history, history.trainer, number, events))
        try:
            found["trainer"] = trainer.hear()
            found["first"] = [
                _once(_settings(history, key, number, events + 1 + before))
                for before, key in enumerate(history.newcomers)
            ]
            again = _settings(history, history.newcomers[-1], number, 0)
            found["again"] = _once(again)
        finally:
            trainer.end()
        found["chain_sqlite_bytes"] = Path(again["directory"], "chain.sqlite").stat().st_size
        return found


def _once(settings: dict[str, Any]) -> dict[str, Any]:
    newcomer = node(settings)
    try:
        return newcomer.hear()
    finally:
        newcomer.end()


def _settings(history: History, key: NodeKey, pool: int, events: int) -> dict[str, Any]:
    """events: that are read before a node counts as in; on a second start most are forgotten."""
    directory = history.folder / key.address
    directory.mkdir(exist_ok=True)
    return {
        "secret": key.secret.hex(),
        "directory": str(directory),
        "profile": str(history.folder / "network.toml"),
        "pool": pool,
        "trainer": key is history.trainer,
        "events": events,
    }


def _rows(found: dict[str, Any]) -> Iterator[str]:
    named = [("trainer", found["trainer"]), *(("first", row) for row in found["first"]), ("again", found["again"])]
    for name, row in named:
        entered = f"in {row['entered']:5.1f} s" if row["entered"] else "          "
        yield (
            f"{found['members']:4} members {found['events']} events  {name:8} {entered}  history {row['known']:5.1f} s"
            f"  CPU {row['cpu']:5.1f} s  stall {row['stall']:.3f} s (own {row['own']:.3f}, lock {row['lock']:.3f})"
            f"  {row['calls']} calls"
        )


def main() -> None:
    parser = parser_of(__doc__, "ten members, 1,000 events", "line")
    parser.add_argument("--members", type=int, nargs="+", default=[10, 300])
    parser.add_argument("--events", type=int, default=10_000, help="past Joined events, over a fifth as many blocks")
    parser.add_argument("--draws", type=int, default=1, help="newcomers, one after the other")
    parser.add_argument("--node", help=argparse.SUPPRESS)
    given = parser.parse_args()
    silence_logs()
    if given.node:
        gc.freeze()  # as node.daemon does
        trio.run(Newcomer(json.loads(given.node)).run)
        return
    sizes, events = ([10], 1_000) if given.quick else (given.members, given.events)
    rows: list[dict[str, Any]] = []
    for members in sizes:
        rows.append(measure(members, events, events // 5, given.draws))
        print("\n".join(_rows(rows[-1])), flush=True)
    if given.json:
        print(json.dumps({"load": os.getloadavg()[1], "rows": rows}))


if __name__ == "__main__":
    main()
