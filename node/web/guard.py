"""Whose requests are taken: those of a page that was opened at an address of ours, never another site's script.

A stranger's page in the owner's browser can send requests to this machine. Where it names us by a host name of its own
(DNS rebinding), the Host header tells; where it names our address, the browser says so (Sec-Fetch-Site, Origin).
"""

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = "localhost"


class OwnHosts:
    """Middleware. names: host names by which this address may be asked for, beside localhost and every IP address:
    rebinding needs a name. Every other request is refused."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in (LOOPBACK, *names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = self._fault(Headers(scope=scope))
        app = PlainTextResponse(f"{why}\n", 403) if why else self._app
        await app(scope, receive, send)

    def _fault(self, headers: Headers) -> str | None:
        host = headers.get("host", "")
        # Two Host headers: a proxy may look at one and the browser's script have chosen the other.
        if len(headers.getlist("host")) != 1 or not self._is_ours(host_name(host)):
            return "this host name is not one of this node's: name it in the setting page_hosts"
        # A link from another site may be followed; its scripts may not fetch.
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return "asked for by another site"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "asked for by another site"
        return None

    def _is_ours(self, name: str) -> bool:
        return name in self._names or _is_address(name)


def host_name(host: str) -> str:
    """A Host header without its port, in lower case; empty for what is none."""
    try:
        # These characters end a host name in some parsers and not in others.
        return (urlsplit(f"//{host}").hostname or "") if host and not set(host) & set("/?#@\\ ") else ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
