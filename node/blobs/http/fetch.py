"""Blobs from HTTP sources: by ranges, several connections at once, each piece verified before it is written.

A source that sends a wrong piece is dropped and named at once; one that fails is tried again with growing pauses,
and its share goes to the others. What has arrived stays in the store's partial file, so a later attempt, by HTTP or
from peers, goes on from there. The bytes move in worker threads.
"""

import math
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import structlog
import trio
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, NewConnectionError

from node.addresses import resolve
from node.blobs.errors import SourceFailed
from node.blobs.http.sources import MAX_LISTING_BYTES, HttpSource, PolicyRow, decode_listing
from node.blobs.partial import Partial
from node.blobs.store import BlobStore
from node.deadline import within
from protocol.blobs import MAX_INFO_BYTES, BlobInfo, decode_info
from protocol.errors import ProtocolError

log = structlog.get_logger(__name__)

# While one answer is verified and written, the other is on the line.
CONNECTIONS = 2
"""At once to each source."""
ATTEMPTS = 4
PAUSE = 0.25
"""Seconds before a source's second attempt; doubled each time."""
TIMEOUT = urllib3.Timeout(connect=5.0, read=20.0)
Progress = Callable[[int, int], None]
"""Told (bytes that are there, bytes in all)."""


class NotThere(HTTPError):
    """The source does not have the blob; asking again would not help."""


class HttpBlobs:
    """Fetches blobs from HTTP sources into a store."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def fetch(
        self,
        root: bytes,
        sources: Sequence[HttpSource],
        *,
        max_size: int,
        timeout: float,
        progress: Progress | None = None,
    ) -> Path:
        """The verified file of `root`. timeout: seconds for all of it. Raises SourceFailed, StoreFull."""
        if await self._store.whole(root):
            return self._store.path(root)
        # Each once: a source named twice would be forgiven twice as many failures.
        doors = [_Door(source) for source in dict.fromkeys(sources)]
        try:
            with trio.fail_after(timeout):
                info = self._store.partial_info(root) or await _info(doors, root)
                if info.size > max_size:
                    raise SourceFailed(
                        f"blob {root.hex()[:16]} is too large", f"{info.size} bytes, at most {max_size} are expected"
                    )
                return await self._download(info, doors, progress)
        except trio.TooSlowError:
            raise SourceFailed(f"blob {root.hex()[:16]} did not arrive", f"no end after {timeout:g} s") from None
        finally:
            for door in doors:
                door.close()

    async def _download(self, info: BlobInfo, doors: Sequence["_Door"], progress: Progress | None) -> Path:
        partial = await self._store.open_partial(info)
        try:
            transfer = _Transfer(info, partial, progress)
            async with trio.open_nursery() as nursery:
                for door in doors:
                    for _ in range(CONNECTIONS):
                        nursery.start_soon(transfer.serve, door)
            if len(partial.have) < len(info.pieces):
                raise SourceFailed(f"blob {info.root.hex()[:16]} cannot be had", _complaints(doors))
            return await self._store.finish(partial)
        finally:
            partial.close()


async def fetch_listing(source: HttpSource, *, slowest: float = 60.0) -> tuple[PolicyRow, ...]:
    """The policies that a source lists, oldest first. Raises SourceFailed. slowest: seconds for the request."""
    door = _Door(source, slowest)
    try:
        return decode_listing(await door.get("/v1/policies", None, MAX_LISTING_BYTES)).policies
    except (HTTPError, OSError) as error:
        raise SourceFailed(f"{source.url} does not list its policies", _short(error)) from None
    except ProtocolError as error:
        raise SourceFailed(f"{source.url} does not list its policies", error.why) from None
    finally:
        door.close()


class _Door:
    """One source: its connections, its failures, whether it is still asked. slowest: seconds for one request in all: a
    source that drips does not hold its share for ever."""

    def __init__(self, source: HttpSource, slowest: float = 60.0) -> None:
        self._slowest = slowest
        self.source = source
        self.failures = 0
        self.complaint = ""
        self.lied = False
        self._pool = _pool(source, slowest)
        self._path = urlsplit(source.url).path

    @property
    def open(self) -> bool:
        return not self.lied and self.failures < ATTEMPTS

    def failed(self, why: str, *, final: bool = False) -> None:
        self.failures += ATTEMPTS if final else 1
        self.complaint = why
        log.info("gateway.source_failed", source=self.source.url, why=why)

    def blame(self, why: str) -> None:
        self.lied = True
        self.complaint = why
        log.warning("gateway.source_lied", source=self.source.url, why=why)

    async def get(self, path: str, span: tuple[int, int] | None, limit: int) -> bytes:
        """At most `limit` bytes of a 200 answer, or exactly the (offset, length) asked for. Raises HTTPError."""
        return await trio.to_thread.run_sync(self._get, path, span, limit, abandon_on_cancel=True)

    def _get(self, path: str, span: tuple[int, int] | None, limit: int) -> bytes:
        with ExitStack() as _ASKING.until_read:
            return self._get_in_time(path, span, limit)

    def _get_in_time(self, path: str, span: tuple[int, int] | None, limit: int) -> bytes:
        """In a thread. No redirect is followed: a stranger's source does not choose where else we connect to."""
        headers = {"range": f"bytes={span[0]}-{span[0] + span[1] - 1}"} if span else {}
        deadline = time.monotonic() + self._slowest
        answer = self._pool.request(
            "GET", self._path + path, headers=headers, preload_content=False, redirect=False, retries=False
        )
        try:
            if answer.status in (404, 410):
                raise NotThere(f"HTTP status {answer.status}: it has no such blob")
            if answer.status != (206 if span else 200):
                raise HTTPError(f"HTTP status {answer.status}")
            data = bytearray()
            # One byte more than the limit tells "more" from "all"; decode_content=False, for a compressed answer could
            # grow a thousandfold.
            while True:
                chunk = answer.read1(limit + 1 - len(data), decode_content=False)
                data += chunk
                if len(data) > limit:
                    raise HTTPError(f"more than the {limit} bytes asked for")
                # Also where it ended: a line that was cut reads as an end.
                if time.monotonic() > deadline:
                    raise HTTPError(f"{len(data)} bytes in {self._slowest:g} s is too slow")
                if not chunk:
                    break
            if span and len(data) != span[1]:
                raise HTTPError(f"{len(data)} bytes instead of {span[1]}")
        except BaseException:
            answer.close()  # with what it still wanted to say
            raise
        answer.release_conn()
        return bytes(data)

    def close(self) -> None:
        self._pool.close()


_ASKING = threading.local()
"""until_read: what ends when this thread has read the answer that it waits for. urllib3's limits are per read: in the
lines before the body, and between its chunks, a byte every twenty seconds would satisfy them for days."""


class _Called(HTTPConnection):
    """private: of `HttpSource`; slowest: of `_Door`. What is called is the address that was looked at, not the name."""

    private = False
    slowest = math.inf

    def _new_conn(self) -> socket.socket:
        try:
            place = resolve(self.host.strip("[]"), self.port, private=self.private)
            seconds = self.timeout if isinstance(self.timeout, int | float) else TIMEOUT.connect_timeout
            made = socket.create_connection(place, timeout=cast(float, seconds))
        except OSError as error:
            raise NewConnectionError(self, str(error)) from error
        for option in self.socket_options or ():
            made.setsockopt(*option)
        return made


class _HttpConnection(_Called):
    def getresponse(self) -> urllib3.HTTPResponse:
        _ASKING.until_read.enter_context(within(self.sock, self.slowest))
        return super().getresponse()


class _HttpsConnection(_Called, HTTPSConnection):
    def getresponse(self) -> urllib3.HTTPResponse:
        _ASKING.until_read.enter_context(within(self.sock, self.slowest))
        return super().getresponse()


class _Transfer:
    """The pieces that are missing, as runs, handed to whichever connection is free."""

    def __init__(self, info: BlobInfo, partial: Partial, progress: Progress | None) -> None:
        self._info = info
        self._partial = partial
        self._progress = progress
        self._arrived = sum(info.span(index)[1] for index in partial.have)
        self._runs = deque(_missing_runs(info, partial.have))
        self._flying = 0
        self._landed = trio.Condition()
        self._tell(0)

    async def serve(self, door: _Door) -> None:
        """One connection of one source, until there is nothing more to ask for or the source is given up."""
        while door.open and (run := await self._next()):
            good = 0
            try:
                good = await self._bring(door, *run)
            finally:
                await self._land(run, good)
            if good < run[1] and door.open:
                await trio.sleep(PAUSE * 2 ** (door.failures - 1))

    async def _next(self) -> tuple[int, int] | None:
        """A run to fetch; waits while others have runs in flight that may come back."""
        async with self._landed:
            while not self._runs and self._flying:
                await self._landed.wait()
            if not self._runs:
                return None
            self._flying += 1
            return self._runs.popleft()

    async def _land(self, run: tuple[int, int], good: int) -> None:
        # A cancelled connection must give its run back, or those who wait for it wait for ever.
        with trio.CancelScope(shield=True):
            async with self._landed:
                self._flying -= 1
                if good < run[1]:
                    self._runs.appendleft((run[0] + good, run[1] - good))
                self._landed.notify_all()

    async def _bring(self, door: _Door, first: int, count: int) -> int:
        """Fetch, verify and write a run of pieces; how many of them were good."""
        offset = self._info.span(first)[0]
        length = sum(self._info.span(index)[1] for index in range(first, first + count))
        try:
            data = await door.get(f"/v1/blobs/{self._info.root.hex()}", (offset, length), length)
        except (HTTPError, OSError) as error:
            door.failed(_short(error), final=isinstance(error, NotThere))
            return 0
        good = await self._partial.write(first, data)
        self._tell(sum(self._info.span(index)[1] for index in range(first, first + good)))
        if good < count:
            # The list of hashes was checked against the root, so the bytes are the source's own doing, or its disk's.
            door.blame(f"piece {first + good} is not what its hash says")
        return good

    def _tell(self, more: int) -> None:
        self._arrived += more
        if self._progress:
            self._progress(self._arrived, self._info.size)


def _missing_runs(info: BlobInfo, have: set[int]) -> list[tuple[int, int]]:
    """(first piece, number of pieces) of at most so many bytes each."""
    # Bytes asked for in one request, as whole pieces: enough that its round trip does not matter, few enough that a
    # slow source's share can go to the others.
    run_bytes = 8 * 1024 * 1024
    most = max(1, run_bytes // info.piece_size)
    runs: list[tuple[int, int]] = []
    for index in range(len(info.pieces)):
        if index in have:
            continue
        if runs and sum(runs[-1]) == index and runs[-1][1] < most:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((index, 1))
    return runs


async def _info(doors: Sequence[_Door], root: bytes) -> BlobInfo:
    """The piece list, from whichever source has one that hashes to the root."""
    for _ in range(ATTEMPTS):
        for door in doors:
            if not door.open:
                continue
            try:
                return decode_info(await door.get(f"/v1/blobs/{root.hex()}/info", None, MAX_INFO_BYTES), root)
            except ProtocolError as error:
                door.blame(error.why)
            except (HTTPError, OSError) as error:
                door.failed(_short(error), final=isinstance(error, NotThere))
        if not any(door.open for door in doors):
            break
        await trio.sleep(PAUSE)
    raise SourceFailed(f"blob {root.hex()[:16]} cannot be had", _complaints(doors))


def _pool(source: HttpSource, slowest: float) -> urllib3.HTTPConnectionPool:
    """Connections that accept exactly the certificate with the fingerprint, or what the system trusts without one."""
    pinned: dict[str, Any] = {}
    if source.fingerprint:
        # The fingerprint names the one certificate: neither its name nor who signed it adds anything.
        pinned = {"cert_reqs": "CERT_NONE", "assert_hostname": False, "assert_fingerprint": source.fingerprint}
    pool = urllib3.connection_from_url(source.url, maxsize=CONNECTIONS, timeout=TIMEOUT, **pinned)
    kind = _HttpsConnection if pool.scheme == "https" else _HttpConnection
    # By a class: urllib3 makes its connections with arguments of its own.
    pool.ConnectionCls = type(kind.__name__, (kind,), {"private": source.private, "slowest": slowest})  # type: ignore[assignment]
    return pool


def _complaints(doors: Sequence[_Door]) -> str:
    said = [f"{door.source.url}: {door.complaint}" for door in doors if door.complaint]
    return "; ".join(said) if said else "no HTTP source was named"


def _short(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:200]
