"""Follows a pool's events, each exactly once per run, over restarts, outages and replaced blocks.

Knows the cursor: rows and cursor stand in one SQLite transaction, so that neither can be ahead of the
other. At every start the whole known history is delivered again, so consumers keep no state of their own.
An endpoint whose newest block is older than what was read, with the same hashes, lags: it is waited for.

Behind one address stand several machines, and one that lags answers a question for logs with nothing, as if nothing
had happened. So each look near the newest block asks for the last blocks again, in the same question, and tells what
it has not told. The same answer shows whether what was told still stands. So a look takes two questions: for the newest
block, and for logs if that is another one than before. Where each look finds a new block they are one request. Blocks
that were passed over between two looks are asked for
only where a log is missing, where the chain goes back, or once in AGAIN / 2 blocks.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog
import trio

from contracts.bindings import NOBODY, ChainEvent, ContractError, Joined, Left, RawLog, parse_log, pool_topic, topic_of
from node.chain.blocks import Block
from node.chain.client import ChainClient
from node.chain.errors import ChainError, shown
from node.chain.witnesses import EndpointRecord, is_future
from node.changes import about
from node.state.tables import SchemaForm, open_table, refused, resealed, sealed
from protocol.errors import IntellectError

HEAD_SECONDS, DEVNET_HEAD_SECONDS = 6.0, 3.0
"""Seconds between two looks at the newest block; the second on a chain of one's own, which nobody pays for by the
question."""
KEPT_BLOCKS = 256
"""Block hashes remembered for finding the fork point; a deeper reorganisation starts over."""
AGAIN = 32
"""Blocks before those that are new whose logs are asked for again: machines behind one address differ by fewer."""
MAX_BACKOFF = 30.0
LAG_PATIENCE = 20.0
"""Seconds for which a shorter chain is taken for an endpoint that lags, before it is believed."""
GRACE = 60.0
"""Seconds of the chain's time after the end of a lease in which its renewal may still come."""
log = structlog.get_logger()

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS chain_blocks (
    number INTEGER PRIMARY KEY, hash BLOB NOT NULL, {sealed("number, hash")});
CREATE TABLE IF NOT EXISTS chain_events (
    block INTEGER NOT NULL, log_index INTEGER NOT NULL, body BLOB NOT NULL, {sealed("block, log_index, body")},
    PRIMARY KEY (block, log_index));
CREATE TABLE IF NOT EXISTS chain_source (id INTEGER PRIMARY KEY CHECK (id = 0), name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS chain_time (id INTEGER PRIMARY KEY CHECK (id = 0), at INTEGER NOT NULL, {sealed("at")});
"""
FORM = SchemaForm("what was read of the chain,", 2, _SCHEMA, {1: resealed(_SCHEMA)}, cache=True)


class RolledBack(msgspec.Struct, frozen=True):
    """Blocks above `block` were replaced: `events`, delivered before, did not happen. New ones follow."""

    block: int
    events: tuple[ChainEvent, ...]


Delivery = ChainEvent | RolledBack


class EventStore:
    """The follower's rows. Blocking; every method is one transaction."""

    def __init__(self, path: Path | str) -> None:
        self._lock = threading.Lock()
        self._path = path
        # After a power cut the last blocks are read again.
        self._db = open_table(path, FORM, durable=False)

    def bind(self, source: str) -> None:
        """Forget everything if the rows are of another chain, contract or pool."""
        with self._lock, refused(self._path, FORM), self._at_once():
            row = self._db.execute("SELECT name FROM chain_source").fetchone()
            if row is not None and row[0] != source:
                self._db.execute("DELETE FROM chain_events")
                self._db.execute("DELETE FROM chain_blocks")
                self._db.execute("DELETE FROM chain_time")
            self._db.execute("INSERT OR REPLACE INTO chain_source VALUES (0, ?)", (source,))

    def blocks(self) -> list[tuple[int, bytes]]:
        """Remembered (number, hash), newest first; the first is the cursor."""
        with self._lock, refused(self._path, FORM):
            return list(self._db.execute("SELECT number, hash FROM chain_blocks ORDER BY number DESC"))

    def events(self, above: int = -1) -> list[RawLog]:
        """Stored logs of blocks above a number, in order."""
        with self._lock, refused(self._path, FORM):
            query = "SELECT body FROM chain_events WHERE block > ? ORDER BY block, log_index"
            return [msgspec.json.decode(body, type=RawLog) for (body,) in self._db.execute(query, (above,))]

    def time(self) -> int:
        """Of the last block that was read, unix seconds; 0 before the first."""
        with self._lock, refused(self._path, FORM):
            row = self._db.execute("SELECT at FROM chain_time").fetchone()
        return row[0] if row else 0

    def compact(self) -> list[RawLog]:
        """Forget renewals of leases that later ones made worthless, and members that are long gone: else each start
        would read all that ever joined. What a reorganisation could undo stays. Returns what is left, in order."""
        blocks, now, logs = self.blocks(), self.time(), self.events()
        # Only what no reorganisation can reach: `roll_back` must find every event that it has to take back.
        settled = [log for log in logs if blocks and log.block <= blocks[0][0] - KEPT_BLOCKS]
        useless = _outdated(settled, now)
        with self._lock, refused(self._path, FORM), self._at_once():
            keys = [(log.block, log.log_index) for log in useless]
            self._db.executemany("DELETE FROM chain_events WHERE block = ? AND log_index = ?", keys)
        gone = {(log.block, log.log_index) for log in useless}
        return [log for log in logs if (log.block, log.log_index) not in gone]

    def advance(self, cursor: Block, logs: Sequence[RawLog]) -> None:
        rows = [(entry.block, entry.log_index, msgspec.json.encode(entry)) for entry in logs]
        with self._lock, refused(self._path, FORM), self._at_once():
            self._db.executemany("INSERT OR REPLACE INTO chain_events VALUES (?, ?, ?)", rows)
            self._db.execute("INSERT OR REPLACE INTO chain_blocks VALUES (?, ?)", (cursor.number, cursor.hash))
            self._db.execute("INSERT OR REPLACE INTO chain_time VALUES (0, ?)", (cursor.timestamp,))
            keep = "SELECT number FROM chain_blocks ORDER BY number DESC LIMIT ?"
            self._db.execute(f"DELETE FROM chain_blocks WHERE number NOT IN ({keep})", (KEPT_BLOCKS,))  # noqa: S608 - ours

    def roll_back(self, block: int) -> None:
        with self._lock, refused(self._path, FORM), self._at_once():
            self._db.execute("DELETE FROM chain_events WHERE block > ?", (block,))
            self._db.execute("DELETE FROM chain_blocks WHERE number > ?", (block,))

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield

    def close(self) -> None:
        with self._lock:
            self._db.close()


class EventFollower:
    """A service. `healthy` is false while the chain cannot be reached; `block` is the last one read; `unanswered`: the
    chain was asked, and did not answer since; `looked`: set after the next look; `now`: the chain's time as far as it
    is known, unix seconds, and `read_until`: that up to which its events were delivered. Both stand still while the
    chain is silent.

    path: a SQLite file, which may be shared with others' tables. Deliveries come from `events`, a bounded
    channel: a slow consumer slows the reading. pool: None follows everything that our contracts tell, else the
    Swarm's and the court's events of that pool. poll: seconds between looks; patience: see LAG_PATIENCE.
    """

    def __init__(
        self,
        client: ChainClient,
        pool: int | None,
        path: Path | str,
        *,
        poll: float = HEAD_SECONDS,
        capacity: int = 256,
        patience: float = LAG_PATIENCE,
        pace: float = 0.05,
        again: int = AGAIN,
        look_back: float = 300.0,
    ) -> None:
        self._again = again
        # Between two looks by two endpoints at what one alone has told, which may have kept something back.
        self._look_back_every = look_back
        # Seconds between two questions for history: a newcomer is one of many that an endpoint serves.
        self._pace = pace
        self.healthy = False
        self.block: Block | None = None
        self.unanswered = False
        self.looked = trio.Event()
        self.now = self.read_until = 0
        self._client = client
        self._pool = pool
        self._path = path
        self._poll = poll
        self._patience = patience
        self._behind_since: float | None = None
        self._cursor: tuple[int, bytes] | None = None
        """Number and hash of the last block that was read."""
        self._written = 0
        """The last block whose reading the store knows."""
        self._seen: dict[int, Block] = {}
        """The newest blocks that were seen, by number."""
        self._linked = 0
        """From this number on each of them is the parent of the next: these need no question."""
        self._sure = -1
        """The newest block at which the cursor's stood."""
        self._told: dict[tuple[int, int], bytes] = {}
        """Block and index of the logs of the last AGAIN blocks and more, and the hash of the block."""
        self._seconded = client.profile.deployed_block - 1
        """The last block up to which two endpoints have told the same logs."""
        self._look_back_at = time.monotonic() + self._look_back_every
        self._news = 0
        """Looks in a row that found a new block."""
        self._ahead: tuple[int, bytes, list[RawLog]] | None = None
        """The logs that came with the newest block: from which block on, and its hash."""
        self._done: bytes | None = None
        """The hash of the newest block at the last look, if all up to it was read."""
        self._send, self.events = trio.open_memory_channel[Delivery](capacity)

    def around(self, at: int) -> tuple[int | None, int | None]:
        """Of the blocks that were seen, the last before a time, unix seconds, and the first after that; None where none
        was seen."""
        before = max((one.number for one in self._seen.values() if one.timestamp < at), default=None)
        after = min((one.number for one in self._seen.values() if one.timestamp >= at), default=None)
        return before, after

    def endpoints(self) -> list[EndpointRecord]:
        """What is known of those that tell what is followed."""
        return self._client.endpoints()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver history, then follow until cancelled. `started` when history is read, not yet delivered."""
        store = await trio.to_thread.run_sync(EventStore, self._path)
        try:
            profile = self._client.profile
            chair = "" if profile.contracts.chair == NOBODY else f":{profile.contracts.chair}"
            places = f"{profile.contracts.swarm}:{profile.contracts.court}:{profile.contracts.payroll}{chair}"
            source = f"3:{profile.chain_id}:{places}:{self._pool or 'all'}"  # the third form of rows
            await trio.to_thread.run_sync(store.bind, source)
            history = await trio.to_thread.run_sync(store.compact)
            self.now = await trio.to_thread.run_sync(store.time)
            task_status.started()
            await self._deliver(history)
            self._cursor = next(iter(await trio.to_thread.run_sync(store.blocks)), None)
            self._told = {(log.block, log.log_index): log.block_hash for log in history}
            self._forget_told()
            if self._cursor is not None:  # what is older was forgotten in part
                self._seconded = self._cursor[0] - KEPT_BLOCKS
            await self._follow(store)
        finally:
            self._send.close()
            store.close()

    async def _follow(self, store: EventStore) -> None:
        backoff, believed = self._poll, False
        while True:
            try:
                latest = await self._newest()
                if not believed:
                    await self._check_logs(latest)
                    believed = True
                behind = await self._step(store, latest)
                if self._client.has_second and not behind and time.monotonic() >= self._look_back_at:
                    await self._client.compare_heads(time.time())  # one that stands still has no news to be doubted
                    await self._look_back(store)
            except (ChainError, ContractError) as error:
                if self.healthy or self.block is None:
                    log.warning("chain.unreachable", why=error.why, pool=self._pool)
                self.healthy, self.unanswered = False, True
                self._has_looked()
                # All members wait for one endpoint: those that ask ever more slowly let it come back.
                backoff = min(backoff * 2, MAX_BACKOFF)
                await trio.sleep(backoff)
                continue
            backoff = self._poll
            await trio.sleep_until(about(self._pace if behind else self._poll))

    async def _newest(self) -> Block:
        """The newest block; one in the future is taken from whoever says so only if the others do."""
        self._ahead = None
        if self._cursor is None or self._news < 2:
            latest = await self._client.block()
        else:
            first = self._first_again(self._cursor[0] + 1)
            given = (first, self._topics)
            latest, logs = await self._client.newest_with_logs(*given, everything=self._pool is None)
            self._ahead = (first, latest.hash, logs) if logs is not None else None
        if self._client.has_second and is_future(latest.timestamp, time.time()):
            await self._client.compare_heads(time.time())
            latest = await self._client.block()
        return latest

    async def _step(self, store: EventStore, latest: Block) -> bool:
        """Read what is new up to the newest block; returns whether there is more to read at once."""
        if latest.hash == self._done:
            self._reached(latest)
            self._news = 0
            return False
        self._news += 1
        forward = self._see(latest)
        # First: events of replaced blocks must be taken back before any later one is told.
        sure = forward and self._sure >= 0 and latest.number - self._sure < self._again // 2
        if not sure and not await self._undo_replaced(store, latest):
            return False
        first = self._cursor[0] + 1 if self._cursor else self._client.profile.deployed_block
        settled = await self._client.settled_block(latest)
        # A chain that stands still is read to its end all the same.
        target = self._seen_until(first, settled) if forward else settled
        # Only blocks that are deep enough are read: what is shallow may be replaced, and would have to be taken back.
        if first > target:
            self._reached(latest)
            self._done = latest.hash if first > settled else None
            return False
        while first + self._client.log_blocks <= target - KEPT_BLOCKS:  # so old that it is not replaced any more
            last = first + self._client.log_blocks - 1
            if not await self._read_chunk(store, first, last, latest):
                return True
            first = last + 1
            await trio.sleep(self._pace)
        last = min(first + self._client.log_blocks - 1, target)
        if not await self._read_chunk(store, first, last, latest):
            return True
        self._done = latest.hash if last == settled else None
        return last < target

    async def _read_chunk(self, store: EventStore, first: int, last: int, latest: Block) -> bool:
        """Keep and deliver the events of some blocks, in one transaction; false if they were replaced meanwhile."""
        # Asked for before its logs: if it is replaced between the two, it has another hash at the next look.
        end = self._seen.get(last) or await self._client.block(last)
        # In several questions where an endpoint gives few blocks at once: else a machine that lags loses events there.
        again = self._first_again(first) if last > latest.number - KEPT_BLOCKS else first
        everything = self._pool is None
        found = self._came_along(again, last, latest)
        if found is None:
            found = await self._client.logs(again, last, self._topics, everything=everything)
        if self._client.has_second and any((one.block, one.log_index) not in self._told for one in found):
            # Money follows from events: one endpoint's word makes none.
            found = await self._client.logs(again, last, self._topics, everything=everything, agreed=True)
        if any(entry.block == last and entry.block_hash != end.hash for entry in found):
            return False  # between two questions: ask again
        places = {(entry.block, entry.log_index) for entry in found}
        lost = any(again <= place[0] <= last and place not in places for place in self._told)
        # What was told is not there: its block was replaced, or a machine lags.
        if lost and self._cursor and self._sure != latest.number:
            self._sure = latest.number if await self._stands(*self._cursor, latest) else -1
            if self._sure < 0:
                return False
        known = {place: self._told.get(place) for place in places}
        logs = [entry for entry in found if known[entry.block, entry.log_index] != entry.block_hash]
        if any(known[entry.block, entry.log_index] is not None for entry in logs):
            self._sure = -1
            return False  # a block that was replaced: the next look sees where, and takes back what it told
        late = sum(entry.block < first for entry in logs)
        if late:
            log.info("chain.told_late", events=late, pool=self._pool)
        # Kept before it is delivered: a crash in between delivers again at the next start, and misses nothing.
        # Blocks without an event whose reading may be forgotten at a restart: to write each down is most of a quiet
        # second.
        if logs or last >= self._written + 16:
            await trio.to_thread.run_sync(store.advance, end, logs)
            self._written = last
        self._cursor = end.number, end.hash
        self._told |= {(entry.block, entry.log_index): entry.block_hash for entry in logs}
        self._forget_told()
        self._reached(latest)
        await self._deliver(logs)
        self.read_until = end.timestamp
        return True

    def _first_again(self, first: int) -> int:
        """From which block on logs are asked for, if all before `first` were read."""
        return max(self._client.profile.deployed_block, first - self._again)

    def _came_along(self, first: int, last: int, latest: Block) -> list[RawLog] | None:
        """The logs of some blocks, if they came with the newest one; once."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or first < ahead[0] or latest.hash != ahead[1]:
            return None
        return [one for one in ahead[2] if first <= one.block <= last]

    async def _look_back(self, store: EventStore) -> None:
        """Whether the endpoint in use has kept events back. What is found missing is read anew, from before it."""
        if self._cursor is None:
            return
        first, last = self._seconded + 1, self._cursor[0] - self._again
        while first <= last:
            end = min(first + self._client.log_blocks - 1, last)
            found = await self._client.logs(first, end, self._topics, everything=self._pool is None, agreed=True)
            known = {(one.block, one.log_index) for one in await trio.to_thread.run_sync(store.events, first - 1)}
            missing = [one.block for one in found if (one.block, one.log_index) not in known]
            if missing:
                log.warning("chain.events_kept_back", blocks=missing[:8], pool=self._pool)
                remembered = [self._cursor, *await trio.to_thread.run_sync(store.blocks)]
                kept = max((number for number, _ in remembered if number < min(missing)), default=-1)
                await self._take_back(store, kept, remembered)
                return
            self._seconded, first = end, end + 1
            await trio.sleep(self._pace)
        self._look_back_at = time.monotonic() + self._look_back_every

    @property
    def _topics(self) -> list[str | None]:
        return [] if self._pool is None else [None, "0x" + pool_topic(self._pool).hex()]

    def _forget_told(self) -> None:
        newest = self._cursor[0] if self._cursor else 0
        self._told = {place: digest for place, digest in self._told.items() if place[0] > newest - KEPT_BLOCKS}

    def _see(self, latest: Block) -> bool:
        """Note the newest block; whether it is a later one than at the last look, and no block that was seen is known
        to be replaced."""
        newest, known = max(self._seen, default=-1), self._seen.get(latest.number)
        if known is not None and known.hash == latest.hash:
            return False  # nothing is new, or an endpoint lags
        parent = self._seen.get(latest.number - 1)
        if parent is None or parent.hash != latest.parent:
            self._linked = latest.number
        replaced = known is not None or (parent is not None and parent.hash != latest.parent)
        kept = range(0 if replaced else latest.number - KEPT_BLOCKS, 0 if replaced else latest.number)
        self._seen = {number: one for number, one in self._seen.items() if number in kept} | {latest.number: latest}
        return latest.number > newest and not replaced

    def _seen_until(self, first: int, target: int) -> int:
        """The last block to read, near the newest one: the last up to `target` that was the newest itself at a look, so
        that nobody has to be asked for it."""
        if target - first >= self._again or len(self._seen) < 2:
            return target
        return max((number for number in self._seen if number <= target), default=first - 1)

    async def _check_logs(self, latest: Block) -> None:
        """Before anything is read: whether logs are told at all. Of a node that is a member, the one of its joining
        must be there; one that joined a moment ago may wait for an endpoint that lags. Raises ChainError."""
        key = self._client.key
        if key is None or self._pool is None:
            return
        block = (await self._client.standing(self._pool, key.address)).joined_block
        if not 0 < block < latest.number - self._again:
            return
        topics = ["0x" + topic_of(Joined).hex(), "0x" + pool_topic(self._pool).hex()]
        if not any(entry.block == block for entry in await self._client.logs(block, block, topics)):
            raise self._client.distrust_logs(f"this node joined in block {block}, and no log there says so")

    def _reached(self, latest: Block) -> None:
        """The chain answered; said before its events are delivered, so that who hears of them can rely on it."""
        if not self.healthy:
            log.info("chain.followed", pool=self._pool, block=latest.number)
        self.healthy, self.unanswered, self.block, self.now = True, False, latest, latest.timestamp
        self._has_looked()

    def _has_looked(self) -> None:
        self.looked.set()
        self.looked = trio.Event()

    async def _undo_replaced(self, store: EventStore, latest: Block) -> bool:
        """Take back what a reorganisation took out; false while the endpoint only seems to lag."""
        if self._cursor is None or await self._stands(*self._cursor, latest):
            self._behind_since, self._sure = None, latest.number
            return True
        remembered = [self._cursor, *await trio.to_thread.run_sync(store.blocks)]
        kept = -1
        for number, known in remembered:
            if await self._stands(number, known, latest):
                kept = number
                break
        newest_comparable = next((number for number, _ in remembered if number <= latest.number), -1)
        # All that it still shows is what we know, so it may only be behind: its word alone takes nothing back.
        if latest.number < remembered[0][0] and kept == newest_comparable and self._still_patient(latest):
            return False
        self._behind_since = None
        # Whom a slash hit would be a member again, until it is told anew: one endpoint's word takes nothing back.
        if self._client.has_second and await self._still_stands(kept, remembered):
            return False
        await self._take_back(store, kept, remembered)
        return True

    async def _still_stands(self, kept: int, remembered: Sequence[tuple[int, bytes]]) -> bool:
        """Whether other endpoints show the first block that the one in use calls replaced. Raises EndpointsDisagree."""
        number, known = min(one for one in remembered if one[0] > kept)
        stands = await self._client.agreed_hash(number) == known
        if stands:
            log.warning("chain.endpoint_went_back", url=self._client.put_last(), block=number, pool=self._pool)
        return stands

    async def _take_back(self, store: EventStore, kept: int, remembered: Sequence[tuple[int, bytes]]) -> None:
        """Forget what was read above block `kept`, one of those remembered, and tell so: it is read again."""
        self._done, self._sure = None, -1
        undone = await trio.to_thread.run_sync(store.events, kept)
        await trio.to_thread.run_sync(store.roll_back, kept)
        self._cursor, self._written = next((one for one in remembered if one[0] == kept), None), 0
        self._told = {place: digest for place, digest in self._told.items() if place[0] <= kept}
        log.warning("chain.rolled_back", block=kept, events=len(undone), pool=self._pool)
        if undone:
            events = (self._parsed(entry) for entry in undone)
            await self._send.send(RolledBack(kept, tuple(event for event in events if event is not None)))

    async def _stands(self, number: int, known: bytes, latest: Block) -> bool:
        """Whether a block is the one that it was. The newest one tells its own hash and the one before it, and what is
        linked with it those before."""
        if number == latest.number:
            return known == latest.hash
        if number == latest.number - 1 and latest.parent:
            return known == latest.parent
        if self._linked <= number < latest.number and number in self._seen and latest == self._seen.get(latest.number):
            return known == self._seen[number].hash
        return number < latest.number and (await self._client.block(number)).hash == known

    def _still_patient(self, latest: Block) -> bool:
        """Whether a chain that is shorter, but not different, is waited for a little longer."""
        now = time.monotonic()
        if self._behind_since is None:
            self._behind_since = now
            log.info("chain.endpoint_behind", url=shown(self._client.url), block=latest.number)
        return now - self._behind_since < self._patience

    async def _deliver(self, logs: Sequence[RawLog]) -> None:
        """One after the other: to read ten thousand takes seconds, in which a node has more to do.

        Not in a thread: it would hold the interpreter's lock for as long, and the loop would wait all the same.
        """
        for entry in logs:
            event = self._parsed(entry)
            if event is None:
                await trio.lowlevel.checkpoint()
            else:
                await self._send.send(event)

    def _parsed(self, entry: RawLog) -> ChainEvent | None:
        """None for what is not ours to know, or has not its form."""
        try:
            return parse_log(entry, self._client.profile.contracts)
        except IntellectError as error:
            log.warning("chain.bad_log", why=error.why)
            return None


def _outdated(logs: Sequence[RawLog], now: int) -> list[RawLog]:
    """Of what members did, all between the first and the last renewal of each, and everything of one that has left, or
    whose lease has run out by `now`."""
    of: dict[bytes, list[RawLog]] = {}
    for log in logs:
        if log.topics and log.topics[0] in _COMINGS and len(log.topics) > 2:
            of.setdefault(log.topics[2], []).append(log)
    useless: list[RawLog] = []
    for told in of.values():
        last = told[-1]
        # `lease_until` is the second word of a Joined event's data.
        gone = last.topics[0] != _COMINGS[0] or int.from_bytes(last.data[32:64]) + GRACE < now
        # The first joining stays: it says since when somebody is a member.
        useless += told if gone else told[1:-1]
    return useless


_COMINGS = (topic_of(Joined), topic_of(Left))
