"""Posted tables of earnings: found by their root on chain among what validators signed, kept in the journal."""

from pathlib import Path

import structlog
import trio

from contracts.bindings import PostedEarnings
from node.recent import Recent
from node.services.station import Station
from node.state.journal import TABLE
from protocol.earnings import MAX_TABLE_BYTES, Table, checked_table, encode_table
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import EarningsSigned

log = structlog.get_logger()
FETCH_TIMEOUT = 30.0
HEARD = 16
"""Tables of one validator that are remembered: others are crowded out by its own."""


class Tables:
    """Posted tables by root, found among what validators signed. One per node."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._journal = station.journal
        self._signed: dict[Address, Recent[bytes, EarningsSigned]] = {}

    async def listen(self) -> None:
        async for signed in self._station.board.subscribe(EarningsSigned):
            said = self._signed.setdefault(signed.author, Recent(HEARD))
            said[signed.message.earnings.root] = signed.message

    async def of(self, posted: PostedEarnings) -> Table | None:
        """The table that stands on chain; None while nobody shows it."""
        pool = self._station.pool
        kept = await self._journal.do(self._journal.recall, TABLE)
        if kept is not None:
            table = await trio.to_thread.run_sync(_read_if, kept, pool, posted.root)
            if table is not None:
                return table
        alike = {author: said[posted.root] for author, said in self._signed.items() if posted.root in said}
        for author, message in alike.items():
            try:
                size = min(message.size, MAX_TABLE_BYTES)
                sources = [author, *self._station.membership.addresses()]
                path = await self._station.blobs.fetch(message.table, sources, max_size=size, timeout=FETCH_TIMEOUT)
                table = await trio.to_thread.run_sync(_read, path, pool, posted.root)
            except (IntellectError, OSError) as error:
                log.info("table.unusable", validator=author, why=str(error))
                continue
            await self._journal.do(self._journal.remember, TABLE, encode_table(table))
            return table
        return None


def _read(path: Path, pool: int, root: bytes) -> Table:
    return checked_table(path.read_bytes(), pool, root)


def _read_if(data: bytes, pool: int, root: bytes) -> Table | None:
    try:
        return checked_table(data, pool, root)
    except IntellectError:  # the one before
        return None
