"""What can go wrong with blobs, as values with a cause and a remedy."""

from node.network.errors import NetworkError
from protocol.errors import IntellectError, OwnFailure


class GatewayError(IntellectError):
    """Root of the errors of HTTP sources."""


class BadSource(GatewayError):
    """Text that is no HTTP source."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(
            f"{text[:120]!r} is not an HTTP source",
            why,
            "write http://HOST:PORT, or https://HOST:PORT#sha256=<64 hex digits of its certificate's fingerprint>",
        )


class SourceFailed(GatewayError):
    """No source could deliver. why: what each of them did."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why, "check that the source runs and serves this run, or name another one")


class BlobUnavailable(NetworkError):
    """No source delivered the blob in time."""

    def __init__(self, root: bytes, why: str) -> None:
        super().__init__(f"blob {root.hex()[:16]} is unavailable", why, "wait until a node that holds it is online")
        self.root = root


class BlobTooLarge(NetworkError):
    """The blob is bigger than the caller allows."""

    def __init__(self, root: bytes, size: int, limit: int) -> None:
        super().__init__(
            f"blob {root.hex()[:16]} is too large", f"{size} bytes, and at most {limit} are allowed here", "skip it"
        )
        self.root, self.limit = root, limit


class StoreFull(NetworkError, OwnFailure):
    """The blob store's quota or its disk is exhausted, and nothing unpinned is left to evict."""

    def __init__(self, why: str) -> None:
        super().__init__("the blob store is full", why, "free disk space, or raise the store's quota")


class StoreFailed(NetworkError, OwnFailure):
    """The blob store's disk does not work."""

    def __init__(self, why: str, remedy: str = "check the disk and the permissions of the state folder") -> None:
        super().__init__("the blob store cannot be used", why, remedy)


class StoreBusy(StoreFailed):
    """This process or its machine has as many files open as it may."""

    def __init__(self, why: str) -> None:
        super().__init__(why, "raise the limit of open files: ulimit -n, or LimitNOFILE of its unit")
