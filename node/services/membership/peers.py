"""The peer records at work: kept below the state directory, filled by what members say, exchanged with peers.

So a node that comes back dials where the members were last, whatever the chain says or does not say.
"""

import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog
import trio

from contracts.bindings import PoolInfo
from node.changes import every, side_by_side
from node.member import Participant
from node.network.budget import Budgets
from node.services.base import Service
from node.state.files import write_whole
from node.swarm.peer_records import MAX_TOLD_BYTES, PeerRecords
from protocol.errors import UNREADABLE, IntellectError
from protocol.identity import Address
from protocol.messages import Heartbeat

log = structlog.get_logger()

PROTOCOL = "/intellect-node/peers/1"
NAME = "peers"
EMPTY = b"\x90"
"""A list of nothing, in msgpack."""


class PeerDialler(Service):
    """directory: the node's state."""

    name = "peers"

    def __init__(self, member: Participant, directory: Path) -> None:
        self._member = member
        self._path = directory / NAME
        # The book is larger than the question, so an asker must not get it as often as it likes.
        self._answers = Budgets(1 / 10.0, 1)  # to one peer
        membership = member.membership
        self.book = PeerRecords(member.key.address, member.domain, member.pool, membership.is_member)
        member.network.serve(PROTOCOL, self._answer, max_request=1)

    async def start(self, nursery: trio.Nursery) -> None:
        """Ready once what was kept is known."""
        # Before anything else starts: a node that comes back dials where members were, while the chain may still be
        # silent.
        await self._load()
        nursery.start_soon(self.run)

    async def run(self) -> None:
        save = partial(every, 30.0, self._save, at_once=False)
        await side_by_side(self._listen, partial(every, 30.0, self._ask_somebody), save)

    def status(self) -> dict[str, Any]:
        return {"node": {"peers_kept": len(self.book)}}

    async def _load(self) -> None:
        try:
            data = await trio.to_thread.run_sync(self._path.read_bytes)
            await self._take(data)
        except FileNotFoundError:
            log.debug("peers.none_kept")
        except (OSError, IntellectError) as error:
            log.warning("peers.not_read", path=str(self._path), error=repr(error))

    async def _save(self) -> None:
        try:
            await trio.to_thread.run_sync(write_whole, self._path, self.book.kept(time.time()))
        except OSError as error:
            log.warning("peers.not_kept", path=str(self._path), error=repr(error))

    async def _listen(self) -> None:
        async for signed in self._member.board.subscribe(Heartbeat):
            self.book.learn(signed, time.time())

    async def _ask_somebody(self) -> None:
        if connected := sorted(self._member.network.connected()):
            await self.ask(random.choice(connected))  # noqa: S311 - no secret

    async def ask(self, peer: Address) -> None:
        """Take what a peer knows of others."""
        network = self._member.network
        try:
            data = await network.request(peer, PROTOCOL, b"", max_response=MAX_TOLD_BYTES, timeout=10.0)
            await self._take(data)
        except IntellectError as error:  # of another version, or gone
            log.debug("peers.not_asked", peer=peer, why=error.why)

    async def _answer(self, asker: Address, _: bytes) -> bytes:
        return self.book.told(time.time()) if self._answers.take(asker, 1, trio.current_time()) else EMPTY

    async def _take(self, data: bytes) -> None:
        """Raises ProtocolError."""
        for raw in self.book.unknown(data):
            signed = self.book.read(raw, time.time())
            if signed is not None:
                self._member.membership.places.moved(signed.author, signed.message)
            await trio.lowlevel.checkpoint()  # a signature each


# What a node that was in a pool remembers of it, to come back while the chain does not answer. Blocking.
# Only its own join, seen in a block, counts here, never the word of peers. Who was thrown out meanwhile learns it
# when the chain answers.
REMEMBERED = "pool.json"
MAX_BYTES = 1 << 20


class Remembered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """label: chain, contract and number of the pool; pool: as the chain had it when this node joined."""

    label: str
    pool: PoolInfo


def remember(directory: Path, label: str, pool: PoolInfo) -> None:
    """This node is in the pool. Raises OSError."""
    write_whole(directory / REMEMBERED, msgspec.json.encode(Remembered(label, pool)))


def forget(directory: Path) -> None:
    """This node has left. Raises OSError."""
    (directory / REMEMBERED).unlink(missing_ok=True)


def recall(directory: Path, label: str) -> PoolInfo | None:
    """The pool that this node is still in, as far as it knows; None where it is in none, or in another one."""
    try:
        raw = (directory / REMEMBERED).read_bytes()
        found = msgspec.json.decode(raw, type=Remembered) if len(raw) <= MAX_BYTES else None
    # The chain knows it all the same, and is waited for then.
    except (OSError, *UNREADABLE):
        return None
    return found.pool if found is not None and found.label == label else None
