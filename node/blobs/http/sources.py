"""The name of an HTTP source: its URL, and for TLS the fingerprint of its certificate.

    http://203.0.113.7:8000        https://203.0.113.7:8443#sha256=<64 hex digits>

A fingerprint replaces certificate authorities: it stands in the node's signed heartbeat. An https source
without one is checked against the system's authorities, as a CDN is.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from node.blobs.errors import BadSource
from protocol.errors import UNREADABLE, ProtocolError
from protocol.messages import MAX_MESSAGE_BYTES

MAX_SOURCE = 300
_MARK = "sha256="


class HttpSource(msgspec.Struct, frozen=True):
    """url: without a trailing slash; fingerprint: SHA-256 of the DER certificate as 64 hex digits, or empty; private:
    whether it may be in a network of one's own, as one that this node's owner named may."""

    url: str
    fingerprint: str = ""
    private: bool = False

    def __str__(self) -> str:
        return f"{self.url}#{_MARK}{self.fingerprint}" if self.fingerprint else self.url


def parse_source(text: str, *, private: bool) -> HttpSource:
    """private: of `HttpSource`, False for what a stranger announces in a network of strangers. Raises BadSource."""
    if len(text) > MAX_SOURCE or not text.isascii() or not text.isprintable():
        raise BadSource(text, f"it is longer than {MAX_SOURCE} characters or has odd ones")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise BadSource(text, str(error)) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadSource(text, "it does not begin with http://HOST or https://HOST")
    # It is announced to the whole pool: a credential in it would be, too.
    if parts.username or parts.password or parts.query:
        raise BadSource(text, "it carries a user name, a password or a query")
    fingerprint = _fingerprint(text, parts.scheme, parts.fragment)
    # urlsplit takes the brackets of an IPv6 address away.
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port is None else f"{host}:{port}"
    return HttpSource(f"{parts.scheme}://{place}{parts.path.rstrip('/')}", fingerprint, private)


def _fingerprint(text: str, scheme: str, fragment: str) -> str:
    if not fragment:
        return ""
    digits = fragment.removeprefix(_MARK).lower()
    if not fragment.startswith(_MARK) or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise BadSource(text, "what follows # is not sha256= and 64 hex digits")
    if scheme == "http":
        raise BadSource(text, "plain http has no certificate whose fingerprint could be checked")
    return digits


MAX_LISTING_BYTES = 4 * 1024 * 1024
MAX_POLICIES = 64


class MalformedListing(ProtocolError):
    """A source's list of policies makes no sense."""


class PolicyRow(msgspec.Struct, frozen=True):
    """Roots as 64 hex digits; image_size in bytes; announcement: the trainer's sealed message as hex, or empty.

    Fields of later versions are ignored: a list promises nothing that is not checked against a root or a signature.
    """

    step: int
    policy_root: str
    image_root: str
    image_size: int
    announcement: str = ""


class PolicyListing(msgspec.Struct, frozen=True):
    """policies: oldest first."""

    schema_version: int
    policies: tuple[PolicyRow, ...]


def encode_listing(rows: Iterable[PolicyRow]) -> bytes:
    return msgspec.json.encode(PolicyListing(1, tuple(rows)))


def decode_listing(data: bytes) -> PolicyListing:
    """Parse and bound; raises MalformedListing."""
    if len(data) > MAX_LISTING_BYTES:
        raise MalformedListing("bad list of policies", f"more than {MAX_LISTING_BYTES} bytes")
    try:
        listing = msgspec.json.decode(data, type=PolicyListing)
    except UNREADABLE as error:
        raise MalformedListing("bad list of policies", str(error)[:200]) from None
    if listing.schema_version != 1 or len(listing.policies) > MAX_POLICIES:
        raise MalformedListing("bad list of policies", "another schema version, or too many policies")
    for row in listing.policies:
        _check(row)
    if sorted({row.step for row in listing.policies}) != [row.step for row in listing.policies]:
        raise MalformedListing("bad list of policies", "steps are repeated or out of order")
    return listing


def _check(row: PolicyRow) -> None:
    texts = (row.policy_root, row.image_root, row.announcement)
    if any(set(text) - set("0123456789abcdef") or len(text) % 2 for text in texts):
        raise MalformedListing("bad list of policies", "a root or announcement is not hexadecimal")
    if len(row.policy_root) != 64 or len(row.image_root) != 64 or len(row.announcement) > 2 * MAX_MESSAGE_BYTES:
        raise MalformedListing("bad list of policies", "a root or announcement has the wrong length")
    if row.step < 0 or row.image_size <= 0:
        raise MalformedListing("bad list of policies", "a step or size is out of bounds")
