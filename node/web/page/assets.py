"""The page's own files, read once from the package, and the headers under which a browser may use them.

Nothing of another site is ever loaded, no script or style stands in the document, and no text becomes markup:
whatever members call themselves, it is only text.
"""

import gzip
import hashlib
from importlib import resources

import msgspec
from starlette.requests import Request
from starlette.responses import Response

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
DOCUMENT = "index.html"


class Asset(msgspec.Struct, frozen=True):
    """One file. path: where it is served; body, packed: as it is, and gzipped."""

    path: str
    kind: str
    body: bytes
    packed: bytes
    tag: str

    def answer(self, request: Request) -> Response:
        """What a request for it gets: 304 where the browser has it."""
        headers = {**HEADERS, "etag": self.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self.packed, media_type=self.kind, headers={**headers, "content-encoding": "gzip"})
        return Response(self.body, media_type=self.kind, headers=headers)


def load_assets() -> list[Asset]:
    """All of them. Blocking: reads files."""
    folder = resources.files("node.web.page") / "assets"
    return [_asset(entry.name, entry.read_bytes()) for entry in folder.iterdir() if _ending(entry.name) in _TYPES]


def version_of(assets: list[Asset]) -> str:
    """Changes whenever one of them does."""
    return hashlib.sha256("".join(sorted(asset.tag for asset in assets)).encode()).hexdigest()[:16]


def _asset(name: str, body: bytes) -> Asset:
    path = "/" if name == DOCUMENT else f"/{name}"
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(path, _TYPES[_ending(name)], body, gzip.compress(body, 9, mtime=0), tag)


def _ending(name: str) -> str:
    return name.rpartition(".")[2]
