"""Serves the node's blobs and policies over HTTP, to anybody who can reach it. Off unless asked for.

    GET /v1/policies                 JSON: the policies held, oldest first, with the trainer's signed announcements
    GET /v1/blobs/<root>             the bytes; Range, ETag, HEAD; immutable, so any cache or CDN may keep them
    GET /v1/blobs/<root>/info        the piece list (MessagePack), against which each piece can be checked
    GET /distribution.txt, /v<N>/shard_00001.bin, /data1.bin      the SHARDCAST 0.3 view of the policies

Nothing here needs to be believed: blobs are named by their hash, policies by the trainer's signature. Knows files
and HTTP; what may be served is told by the store and by `policies`.
"""

import datetime
import hashlib
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog
import trio
from blake3 import blake3
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from node.blobs.files import NotWhole, damage, join
from node.blobs.http.sources import PolicyRow, encode_listing
from node.blobs.proof import BlobProofs
from node.bounded_dict import BoundedDict
from node.inference.layers import LayeredImage
from node.state.files import write_whole
from node.web.listener import HttpListener
from protocol.blobs import BlobInfo, encode_info
from protocol.errors import IntellectError
from protocol.identity import NodeKey
from protocol.policy import raw

log = structlog.get_logger(__name__)
# The gateway's own certificate: self-signed, known by its fingerprint, its key encrypted on disk.
# The fingerprint stands in the node's signed heartbeat, so the node key vouches for the certificate and no authority
# has to.
VALID = datetime.timedelta(days=365)
RENEW_BEFORE = datetime.timedelta(days=30)
_CONTEXT = "intellect-node gateway key password v1"


class Certificate(msgspec.Struct, frozen=True):
    """certificate, key: PEM files; password: of the key; fingerprint: SHA-256 of the DER form, 64 hex digits."""

    certificate: Path
    key: Path
    password: str
    fingerprint: str

    def __repr__(self) -> str:
        return f"Certificate({self.fingerprint})"


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """What a listener with this certificate speaks. Blocking: it reads the files."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # Older ones have known breaks, and no client of ours speaks them.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(certificate.certificate, certificate.key, certificate.password)
    return context


def own_certificate(directory: Path, node_key: NodeKey) -> Certificate:
    """The certificate in `directory`, made anew when there is none that is ours and valid for a month more."""
    # Derived: whoever cannot open the node's key cannot serve in its name, and nobody has to keep another password.
    password = blake3(node_key.secret, derive_key_context=_CONTEXT).hexdigest()
    pem, key = directory / "gateway-cert.pem", directory / "gateway-key.pem"
    known = _load(pem, key, password)
    if known is None:
        known = _make(pem, key, password, node_key)
    fingerprint = hashlib.sha256(known.public_bytes(Encoding.DER)).hexdigest()
    return Certificate(pem, key, password, fingerprint)


def _load(pem: Path, key: Path, password: str) -> x509.Certificate | None:
    try:
        certificate = x509.load_pem_x509_certificate(pem.read_bytes())
        private = load_pem_private_key(key.read_bytes(), password.encode())
    except (OSError, ValueError, TypeError):
        return None  # none yet, or of another key: a new one is made
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return certificate if private.public_key() == certificate.public_key() and left > RENEW_BEFORE else None


def _make(pem: Path, key: Path, password: str, node_key: NodeKey) -> x509.Certificate:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"intellect-node {node_key.address}")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    encryption = BestAvailableEncryption(password.encode())
    write_whole(key, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption), mode=0o600)
    write_whole(pem, certificate.public_bytes(Encoding.PEM), mode=0o600)
    return certificate


MAX_VERSIONS = 5


MAX_TRANSFERS = 64
_BYTES = {"content-type": "application/octet-stream", "accept-ranges": "bytes"}
_FOREVER = {"cache-control": "public, max-age=31536000, immutable"}
_NEVER = {"cache-control": "no-store"}


class ServedPolicy(msgspec.Struct, frozen=True):
    """path: the canonical image; image_root, image_size: its blob; announcement: the trainer's sealed message; layers:
    of a policy whose image is no blob yet, its tensors."""

    step: int
    policy_root: bytes
    image_root: bytes
    image_size: int
    path: Path
    announcement: bytes = b""
    layers: Callable[[], LayeredImage] | None = None


class ServedBlobs(Protocol):
    """The part of the blob store that is served."""

    def has(self, root: bytes) -> bool: ...
    def path(self, root: bytes) -> Path: ...
    def info(self, root: bytes) -> BlobInfo | None: ...
    @property
    def proof(self) -> BlobProofs: ...


class Gateway:
    """Mounted on a listener. certificate: None for plain HTTP; whole: sees that a policy's image, by the policy's root,
    is a blob."""

    def __init__(
        self,
        listener: HttpListener,
        blobs: ServedBlobs,
        policies: Callable[[], Sequence[ServedPolicy]],
        certificate: Certificate | None = None,
        whole: Callable[[bytes], Awaitable[object]] | None = None,
    ) -> None:
        self._listener = listener
        self._whole = whole
        self._making = trio.Lock()
        self._blobs = blobs
        self._policies = policies
        self._certificate = certificate
        self._digests = BoundedDict[bytes, bytes](2 * MAX_VERSIONS)
        self._digesting = trio.Lock()
        self.transfers = 0
        self.sent_bytes = 0
        listener.mount(self.routes())

    def source(self, place: str | None = None) -> str:
        """How others name this gateway; place: HOST:PORT as they reach it, where that differs."""
        scheme = "https" if self._certificate else "http"
        mark = f"#sha256={self._certificate.fingerprint}" if self._certificate else ""
        return f"{scheme}://{place or self._listener.place}{mark}"

    def routes(self) -> list[Route]:
        paths: Mapping[str, Callable[[Request], Any]] = {
            "/": self._index,
            "/v1/policies": self._list_policies,
            "/v1/blobs/{root}": self._blob,
            "/v1/blobs/{root}/info": self._info,
            "/distribution.txt": self._distribution,
            "/data1.bin": self._probe,
            "/{version}/{shard}": self._shard,
        }
        return [Route(path, endpoint, methods=["GET"]) for path, endpoint in paths.items()]

    # -- ours --------------------------------------------------------------------------------------

    async def _index(self, _: Request) -> Response:
        return PlainTextResponse("intellect-node gateway: /v1/policies  /v1/blobs/<root>  /distribution.txt\n")

    async def _list_policies(self, _: Request) -> Response:
        rows = [
            PolicyRow(
                policy.step,
                policy.policy_root.hex(),
                policy.image_root.hex(),
                policy.image_size,
                policy.announcement.hex(),
            )
            for policy in self._policies()
        ]
        return Response(encode_listing(rows), media_type="application/json", headers=_NEVER)

    async def _blob(self, request: Request) -> Response:
        root = _root(request)
        if root is None or not await self._has(root):
            return _missing("no such blob here")
        return self._file(request, root, tag=root.hex(), headers=_FOREVER)

    async def _info(self, request: Request) -> Response:
        root = _root(request)
        info = self._blobs.info(root) if root and await self._has(root) else None
        if info is None:
            return _missing("no such blob here")
        return Response(encode_info(info), headers={**_BYTES, **_FOREVER})

    async def _has(self, root: bytes) -> bool:
        """Whether a blob is here; the image of a policy that rests on another is made when it is asked for."""
        if self._blobs.has(root) or self._whole is None:
            return self._blobs.has(root)
        policy = next((each for each in self._policies() if each.image_root == root), None)
        if policy is not None:
            async with self._making:
                try:
                    await self._whole(policy.policy_root)
                except IntellectError as error:
                    log.warning("gateway.no_image", step=policy.step, why=error.why)
        return self._blobs.has(root)

    # -- SHARDCAST ---------------------------------------------------------------------------------

    async def _distribution(self, _: Request) -> Response:
        """The newest policies, oldest first."""
        newest = list(self._policies())[-MAX_VERSIONS:]
        lines = [
            f"v{each.step}: {(await self._digest(each)).hex()}|{shard_count(each.image_size)}\n" for each in newest
        ]
        return PlainTextResponse("".join(lines), headers=_NEVER)

    async def _digest(self, policy: ServedPolicy) -> bytes:
        """Plain BLAKE3 of a policy's image, computed once."""
        async with self._digesting:
            if policy.image_root not in self._digests:
                self._digests[policy.image_root] = await trio.to_thread.run_sync(_plain_digest, policy)
            return self._digests[policy.image_root]

    async def _probe(self, _: Request) -> Response:
        return Response(bytes(1_000_000), headers={**_BYTES, **_NEVER})

    async def _shard(self, request: Request) -> Response:
        version = str(request.path_params["version"])
        policy = next((each for each in self._policies() if f"v{each.step}" == version), None)
        span = shard_span(str(request.path_params["shard"]), policy.image_size) if policy else None
        if policy is None or span is None:
            return _missing("no such shard")
        root = policy.image_root
        if not await self._has(root):
            return _missing("its image cannot be made now")
        return self._file(request, root, tag=f"{root.hex()}-{span[0]}", headers=_NEVER, span=span)

    # -- files -------------------------------------------------------------------------------------

    def _file(
        self,
        request: Request,
        root: bytes,
        *,
        tag: str,
        headers: Mapping[str, str],
        span: tuple[int, int] | None = None,
    ) -> Response:
        """Part of a blob (all of it without `span`), or the range of that part which the request asks for."""
        info = self._blobs.info(root)
        if info is None:
            return _missing("it has just been dropped")
        path = self._blobs.path(root)
        start, size = span or (0, info.size)
        shown = {**_BYTES, **headers, "etag": f'"{tag}"'}
        if request.headers.get("if-none-match") == shown["etag"]:
            return Response(status_code=304, headers=shown)
        wanted = request.headers.get("range")
        if request.headers.get("if-range", shown["etag"]) != shown["etag"]:
            wanted = None
        try:
            part = parse_range(wanted, size)
        except Unsatisfiable:
            return Response(status_code=416, headers={**shown, "content-range": f"bytes */{size}"})
        if self.transfers >= MAX_TRANSFERS:
            return PlainTextResponse("too many transfers\n", 503, headers={"retry-after": "1"})
        offset, length = part or (0, size)
        if part:
            shown["content-range"] = f"bytes {offset}-{offset + length - 1}/{size}"
        return _FileRange(self, path, info, start + offset, length, 206 if part else 200, shown)

    def damaged(self, root: bytes, why: str) -> None:
        self._blobs.proof.lose(root, why)

    @contextmanager
    def transfer(self) -> Iterator[None]:
        """Counts as one of the transfers in progress."""
        self.transfers += 1
        try:
            yield
        finally:
            self.transfers -= 1


class _FileRange(Response):
    """Streams `length` bytes of a blob's file from `offset` on, each piece compared with its list; stops when the
    client goes away or stalls."""

    def __init__(
        self,
        gateway: Gateway,
        path: Path,
        info: BlobInfo,
        offset: int,
        length: int,
        status: int,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(status_code=status, headers={**headers, "content-length": str(length)})
        self._gateway = gateway
        self._path = path
        self._info = info
        self._offset = offset
        self._length = length

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            descriptor = await trio.to_thread.run_sync(os.open, self._path, os.O_RDONLY)
        except OSError:
            await _missing("it has just been dropped")(scope, receive, send)
            return
        try:
            with self._gateway.transfer():
                await self._answer(descriptor, scope, receive, send)
        finally:
            os.close(descriptor)

    async def _answer(self, descriptor: int, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
            if scope["method"] != "HEAD":
                await self._stream(descriptor, send)
            nursery.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stream(self, descriptor: int, send: Send) -> None:
        at, end, info = self._offset, self._offset + self._length, self._info
        step = max(1, 1024 * 1024 // info.piece_size)
        while at < end:
            first = at // info.piece_size
            pieces, start = range(first, min(first + step, len(info.pieces))), first * info.piece_size
            try:
                whole = await trio.to_thread.run_sync(_joined, descriptor, info, pieces)
            except NotWhole as error:
                self._gateway.damaged(info.root, str(error))
                raise OSError(f"{self._path.name}: {error}") from error  # cut off: the rest is had elsewhere
            data = whole[at - start : end - start]
            await send({"type": "http.response.body", "body": data, "more_body": True})
            at += len(data)
            self._gateway.sent_bytes += len(data)


def _joined(descriptor: int, info: BlobInfo, pieces: range) -> bytes:
    with damage():
        return join(descriptor, info, pieces)


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # the rest of a request that needs no body
    scope.cancel()


def _plain_digest(policy: ServedPolicy) -> bytes:
    """BLAKE3 of an image's bytes, of which none is written."""
    hasher = blake3(max_threads=blake3.AUTO)
    if policy.layers is None:
        return hasher.update_mmap(policy.path).digest()
    image = policy.layers()
    hasher.update(image.layout.header)
    for bits in image.values():
        hasher.update(raw(bits))
    return hasher.digest()


def _root(request: Request) -> bytes | None:
    text = str(request.path_params["root"])
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        return None
    return bytes.fromhex(text)


def _missing(why: str) -> Response:
    return PlainTextResponse(f"{why}\n", 404, headers=_NEVER)


# -- what a SHARDCAST 0.3 client expects: distribution.txt, the file in shards, something to measure bandwidth with

SHARD_BYTES = 50_000_000


_SHARD = re.compile(r"shard_([0-9]{5,6})\.bin")


def shard_count(size: int) -> int:
    """Shards of a file of `size` bytes."""
    return -(-size // SHARD_BYTES)


def shard_span(name: str, size: int) -> tuple[int, int] | None:
    """(offset, length) of the shard with this file name, None if there is no such shard."""
    match = _SHARD.fullmatch(name)
    index = int(match[1]) - 1 if match else -1
    if not 0 <= index < shard_count(size):
        return None
    offset = index * SHARD_BYTES
    return offset, min(SHARD_BYTES, size - offset)


# -- ranges (RFC 9110, section 14): a single one is honoured, several may be answered with the whole file, and are

_RANGE = re.compile(r"bytes=([0-9]{0,20})-([0-9]{0,20})")


class Unsatisfiable(Exception):
    """The range lies outside the file: 416."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """(offset, length) of the range asked for; None when the whole file is to be sent. Raises Unsatisfiable."""
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        length = min(int(last), size)
        if length == 0:
            raise Unsatisfiable
        return size - length, length
    start = int(first)
    end = min(int(last), size - 1) if last else size - 1
    if last and int(last) < start:
        return None  # malformed, not unsatisfiable: ignored
    if start >= size:
        raise Unsatisfiable
    return start, end - start + 1
