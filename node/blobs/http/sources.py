"""The name of an HTTP source: its URL, and for TLS the fingerprint of its certificate.

    http://203.0.113.7:8000        https://203.0.113.7:8443#sha256=<64 hex digits>

A fingerprint replaces certificate authorities: it stands in the node's signed heartbeat. An https source
without one is checked against the system's authorities, as a CDN is.
"""

from urllib.parse import urlsplit

import msgspec

from node.blobs.errors import BadSource

MAX_SOURCE = 300
_MARK = "sha256="


class HttpSource(msgspec.Struct, frozen=True):
    """url: without a trailing slash; fingerprint: SHA-256 of the DER certificate as 64 hex digits, or empty."""

    url: str
    fingerprint: str = ""

    def __str__(self) -> str:
        return f"{self.url}#{_MARK}{self.fingerprint}" if self.fingerprint else self.url


def parse_source(text: str) -> HttpSource:
    """Raises BadSource."""
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
    return HttpSource(f"{parts.scheme}://{place}{parts.path.rstrip('/')}", fingerprint)


def _fingerprint(text: str, scheme: str, fragment: str) -> str:
    if not fragment:
        return ""
    digits = fragment.removeprefix(_MARK).lower()
    if not fragment.startswith(_MARK) or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise BadSource(text, "what follows # is not sha256= and 64 hex digits")
    if scheme == "http":
        raise BadSource(text, "plain http has no certificate whose fingerprint could be checked")
    return digits
