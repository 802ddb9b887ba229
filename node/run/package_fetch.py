"""A package from a web server that holds it as ROOT.tar (`env publish --mirror`): bounded, and checked by its root."""

import httpx

from node.chain.http import client_for
from node.environments.errors import PackageError
from node.environments.package.archive import MAX_BYTES, root_of
from node.run.packages import KnownPackage, keep


def fetch(root: str, url: str) -> KnownPackage:
    """root: 64 hex digits; url: of the directory. Raises PackageError."""
    place = f"{url.rstrip('/')}/{root}.tar"
    try:
        archive = _content(place)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _failed(place, str(error) or type(error).__name__, "check --from, or ask another mirror") from None
    # So the mirror needs no trust, nor TLS.
    if root_of(archive) != root:
        raise _failed(place, "what lies there has another root", "ask another mirror")
    return keep(archive)


def _content(place: str) -> bytes:
    data = bytearray()
    # No redirect is followed: whoever named the mirror did not name where it sends us. As it comes, not as it unpacks:
    # 64 KB of an answer that is packed could become gigabytes before they are counted.
    with (
        # For each answer of the server.
        client_for(place, timeout=30.0, follow_redirects=False, headers={"accept-encoding": "identity"}) as http,
        http.stream("GET", place) as reply,
    ):
        if reply.is_redirect:
            raise _failed(place, f"it leads to {reply.headers['location'][:200]}", "give that place with --from")
        reply.raise_for_status()
        for part in reply.iter_raw(1 << 16):
            data += part
            # Counted as it comes: Content-Length is the server's word.
            if len(data) > MAX_BYTES:
                raise _failed(place, f"it has more than {MAX_BYTES} bytes", "ask another mirror")
    return bytes(data)


def _failed(place: str, why: str, remedy: str) -> PackageError:
    return PackageError("the environment package could not be fetched", f"{place}: {why}", remedy)
