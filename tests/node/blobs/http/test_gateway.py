"""Blobs and policies over HTTP: what is served, and what a fetcher believes of it."""

import http.server
import os
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import trio
from blake3 import blake3

from node.blobs.errors import BadSource, SourceFailed
from node.blobs.http import fetch
from node.blobs.http.fetch import HttpBlobs
from node.blobs.http.server import Certificate, Gateway, ServedPolicy, own_certificate, server_context
from node.blobs.http.sources import HttpSource, parse_source
from node.blobs.store import BlobStore
from node.web.host import bind
from node.web.listener import HttpListener
from protocol.blobs import decode_info, encode_info
from protocol.identity import NodeKey

PIECE = 256 * 1024
DATA = os.urandom(9 * 1024 * 1024 + 7)
LARGE = 32 * 1024 * 1024
"""More than the sockets of both ends hold."""
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""It trusts nobody: to read whom the system trusts takes longer than a request."""


def make_store(path: Path) -> BlobStore:
    return BlobStore(path, quota=10**9)


def gateway_of(
    store: BlobStore,
    policies: Callable[[], Sequence[ServedPolicy]] = tuple,
    certificate: Certificate | None = None,
) -> tuple[HttpListener, Gateway]:
    context = server_context(certificate) if certificate else None
    listener = HttpListener(bind("127.0.0.1:0", "the gateway", "--gateway"), context)
    return listener, Gateway(listener, store, policies, certificate)


@asynccontextmanager
async def serving(listener: HttpListener, gateway: Gateway):
    async with trio.open_nursery() as nursery:
        await nursery.start(listener.run)
        yield parse_source(gateway.source(), private=True)
        nursery.cancel_scope.cancel()


async def ask(source: HttpSource, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(verify=NO_TLS, timeout=20) as client:
        return await client.request(method, source.url + path, headers=headers)


# -- serving ---------------------------------------------------------------------------------------


async def test_a_blob_is_served_whole_and_in_ranges_as_http_says(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    root = (await store.add(DATA)).root
    path = f"/v1/blobs/{root.hex()}"
    async with serving(*gateway_of(store)) as source:
        whole = await ask(source, path)
        assert (whole.status_code, whole.content) == (200, DATA)
        assert whole.headers["etag"] == f'"{root.hex()}"' and "immutable" in whole.headers["cache-control"]
        part = await ask(source, path, range="bytes=5-9")
        assert (part.status_code, part.content) == (206, DATA[5:10])
        assert part.headers["content-range"] == f"bytes 5-9/{len(DATA)}"
        assert (await ask(source, path, range="bytes=-3")).content == DATA[-3:]
        assert (await ask(source, path, range=f"bytes={len(DATA) - 2}-")).content == DATA[-2:]
        assert (await ask(source, path, range=f"bytes={len(DATA)}-")).status_code == 416
        assert (await ask(source, path, range="bytes=1-2,4-5")).status_code == 200
        assert (await ask(source, path, range="bytes=0-1", **{"if-range": '"another"'})).status_code == 200
        assert (await ask(source, path, **{"if-none-match": f'"{root.hex()}"'})).status_code == 304
        head = await ask(source, path, method="HEAD")
        assert head.headers["content-length"] == str(len(DATA)) and head.content == b""
        info = await ask(source, path + "/info")
        assert decode_info(info.content, root) == store.info(root)


@pytest.mark.parametrize(
    "path", ["/v1/blobs/" + "0" * 64, "/v1/blobs/../../secret", "/v1/blobs/xyz/info", "/v9/x", "/v0/shard_00001.bin"]
)
async def test_what_is_not_there_is_404(tmp_path: Path, path: str) -> None:
    async with serving(*gateway_of(make_store(tmp_path))) as source:
        assert (await ask(source, path)).status_code == 404


async def test_the_shardcast_view_describes_and_cuts_the_newest_policies(tmp_path: Path) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(50_000_001)
    store, digest = make_store(tmp_path / "store"), blake3(image.read_bytes()).hexdigest()
    root = (await store.add(image, move=True)).root
    policies = [ServedPolicy(step, bytes([step % 2]) * 32, root, 50_000_001, store.path(root)) for step in range(7)]
    async with serving(*gateway_of(store, lambda: policies)) as source:
        text = (await ask(source, "/distribution.txt")).text
        assert text.splitlines() == [f"v{step}: {digest}|2" for step in range(2, 7)]
        assert len((await ask(source, "/v6/shard_00001.bin")).content) == 50_000_000
        assert (await ask(source, "/v6/shard_00002.bin")).content == b"\0"
        assert (await ask(source, "/v6/shard_00003.bin")).status_code == 404
        assert (await ask(source, "/v6/shard_00000.bin")).status_code == 404
        assert len((await ask(source, "/data1.bin")).content) == 1_000_000
        listed = (await ask(source, "/v1/policies")).json()["policies"]
        assert [row["step"] for row in listed] == list(range(7))


async def test_a_client_that_goes_away_frees_its_transfer(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(LARGE)
    root = (await store.add(large, move=True)).root
    listener, gateway = gateway_of(store)
    async with serving(listener, gateway) as source:
        stream = await trio.open_tcp_stream("127.0.0.1", int(source.url.rpartition(":")[2]))
        await stream.send_all(f"GET /v1/blobs/{root.hex()} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await stream.receive_some(1000)
        assert gateway.transfers == 1
        await stream.aclose()
        with trio.fail_after(60):
            while gateway.transfers:
                await trio.sleep(0.02)
        assert gateway.sent_bytes < LARGE


# -- certificates ----------------------------------------------------------------------------------


def test_a_certificate_is_kept_encrypted_and_made_anew_for_another_node(tmp_path: Path) -> None:
    key = NodeKey.generate()
    certificate = own_certificate(tmp_path, key)
    assert own_certificate(tmp_path, key) == certificate
    assert (tmp_path / "gateway-key.pem").stat().st_mode & 0o777 == 0o600
    assert b"ENCRYPTED" in (tmp_path / "gateway-key.pem").read_bytes()
    assert own_certificate(tmp_path, NodeKey.generate()).fingerprint != certificate.fingerprint


async def test_over_tls_only_the_announced_certificate_is_accepted(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    root = (await store.add(DATA)).root
    certificate = own_certificate(tmp_path, NodeKey.generate())
    async with serving(*gateway_of(store, tuple, certificate)) as source:
        assert source.url.startswith("https://") and source.fingerprint == certificate.fingerprint
        got = HttpBlobs(make_store(tmp_path / "mine"))
        assert (await got.fetch(root, [source], max_size=10**8, timeout=30)).read_bytes() == DATA
        stranger = HttpSource(source.url, "0" * 64, private=True)
        unknown = HttpSource(source.url, private=True)
        for impostor in (stranger, unknown):
            other = HttpBlobs(make_store(tmp_path / f"other{len(impostor.fingerprint)}"))
            with pytest.raises(SourceFailed, match="(?i)fingerprint|certificate"):
                await other.fetch(root, [impostor], max_size=10**8, timeout=30)


async def test_a_gateway_that_a_stranger_announces_leads_to_nothing_beside_a_member(tmp_path: Path) -> None:
    """By number or by name: the address is looked at after the name is resolved."""
    store = make_store(tmp_path / "store")
    root = (await store.add(DATA)).root
    async with serving(*gateway_of(store, tuple)) as source:
        mine = HttpBlobs(make_store(tmp_path / "mine"))
        for host in ("127.0.0.1", "localhost", "127.1", "2130706433"):
            text = source.url.replace("127.0.0.1", host)
            with pytest.raises(SourceFailed, match="not on the public internet"):
                await mine.fetch(root, [parse_source(text, private=False)], max_size=10**8, timeout=30)
        assert (await mine.fetch(root, [source], max_size=10**8, timeout=30)).read_bytes() == DATA


# -- fetching --------------------------------------------------------------------------------------


@contextmanager
def odd_server(answers: "dict[str, bytes]", status: int | None = None) -> Iterator[HttpSource]:
    """A plain HTTP server of somebody else: honours ranges, or answers `status` to everything."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = answers.get(self.path)
            if status or data is None:
                self.send_error(status or 404)
                return
            span = self.headers.get("range")
            first, last = (int(part) for part in span[6:].split("-")) if span else (0, len(data) - 1)
            body = data[first : last + 1]
            self.send_response(206 if span else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield HttpSource(f"http://127.0.0.1:{server.server_port}", private=True)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_a_source_that_sends_a_wrong_byte_is_dropped_and_the_others_finish(tmp_path: Path) -> None:
    origin = make_store(tmp_path / "origin")
    info = await origin.add(DATA)
    path = f"/v1/blobs/{info.root.hex()}"
    bad = bytearray(DATA)
    bad[5 * PIECE + 3] ^= 1
    mine = make_store(tmp_path / "mine")
    told: list[int] = []
    async with serving(*gateway_of(origin)) as good:
        with odd_server({path: bytes(bad), path + "/info": encode_info(info)}) as liar:
            got = await HttpBlobs(mine).fetch(
                info.root, [liar, good], max_size=10**8, timeout=30, progress=lambda have, _: told.append(have)
            )
    assert got.read_bytes() == DATA
    assert told[0] == 0 and told[-1] == len(DATA) and told == sorted(told)


async def test_with_no_honest_source_the_liar_is_named_and_the_good_pieces_stay(tmp_path: Path) -> None:
    origin = make_store(tmp_path / "origin")
    info = await origin.add(DATA)
    path = f"/v1/blobs/{info.root.hex()}"
    bad = DATA[: 5 * PIECE] + bytes(len(DATA) - 5 * PIECE)
    mine = make_store(tmp_path / "mine")
    with odd_server({path: bad, path + "/info": encode_info(info)}) as liar:
        with pytest.raises(SourceFailed, match="is not what its hash says"):
            await HttpBlobs(mine).fetch(info.root, [liar], max_size=10**8, timeout=30)
    assert not mine.has(info.root)
    resumed: list[int] = []
    async with serving(*gateway_of(origin)) as good:
        await HttpBlobs(mine).fetch(
            info.root, [good], max_size=10**8, timeout=30, progress=lambda have, _: resumed.append(have)
        )
    assert resumed[0] >= 5 * PIECE and mine.path(info.root).read_bytes() == DATA
    assert mine.used == len(DATA)


@pytest.mark.parametrize("status", [302, 404, 500])
async def test_a_source_that_only_fails_ends_in_an_error_that_says_so(tmp_path: Path, status: int) -> None:
    with odd_server({}, status) as source:
        with pytest.raises(SourceFailed, match=f"HTTP status {status}"):
            await HttpBlobs(make_store(tmp_path)).fetch(bytes(32), [source], max_size=100, timeout=30)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("begun", [b"", b"X: ", b"Transfer-Encoding: chunked\r\n\r\n1;", b"\r\n"])
async def test_a_source_that_drips_is_too_slow_wherever_it_does(tmp_path: Path, begun: bytes, tls: bool) -> None:
    made = own_certificate(tmp_path, NodeKey.generate())
    context = server_context(made)

    async def drip(stream: trio.abc.Stream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.receive_some(1000)
            await stream.send_all(b"HTTP/1.1 200 OK\r\n" + begun)
            while True:
                await stream.send_all(b"a")
                await trio.sleep(0.2)

    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    source = HttpSource(f"http://127.0.0.1:{port}", private=True)
    if tls:
        source = HttpSource(f"https://127.0.0.1:{port}", made.fingerprint, private=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, drip, [trio.SSLListener(listener, context) if tls else listener])
        with trio.fail_after(10), pytest.raises(SourceFailed):
            await fetch.fetch_listing(source, slowest=1.0)
        nursery.cancel_scope.cancel()


async def test_a_blob_larger_than_expected_is_refused_before_any_of_it_is_stored(tmp_path: Path) -> None:
    origin, mine = make_store(tmp_path / "origin"), make_store(tmp_path / "mine")
    root = (await origin.add(DATA)).root
    async with serving(*gateway_of(origin)) as source:
        with pytest.raises(SourceFailed, match="too large"):
            await HttpBlobs(mine).fetch(root, [source], max_size=1000, timeout=30)
    assert mine.used == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://x",
        "http://",
        "http://a:99999",
        "http://u:p@h",
        "https://h#sha256=12",
        "http://h#sha256=" + "0" * 64,
        "http://h?q=1",
        "x" * 400,
    ],
)
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(BadSource):
        parse_source(text, private=False)


def test_a_source_reads_back_as_it_was_written() -> None:
    for text in ("http://h:80", "https://[::1]:8443/cdn#sha256=" + "ab" * 32, "https://cdn.example/x"):
        assert str(parse_source(text, private=False)) == text


async def test_a_piece_that_the_disk_has_changed_is_not_sent(tmp_path: Path) -> None:
    """Neither whole nor in a range; what lies before it has gone out, and the answer is cut off."""
    store = make_store(tmp_path)
    root = (await store.add(DATA)).root
    file = store.path(root)
    file.write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    async with serving(*gateway_of(store)) as source:
        assert (await ask(source, f"/v1/blobs/{root.hex()}", range="bytes=0-9")).content == DATA[:10]
        with pytest.raises(httpx.HTTPError):
            await ask(source, f"/v1/blobs/{root.hex()}", range="bytes=-3")
        assert store.proof.damaged == 1
        assert (await ask(source, f"/v1/blobs/{root.hex()}")).status_code == 404
