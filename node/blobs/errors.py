"""What can go wrong with blobs, as values with a cause and a remedy."""

from node.network.errors import NetworkError


class BlobUnavailable(NetworkError):
    """No source delivered the blob in time."""

    def __init__(self, root: bytes, why: str) -> None:
        super().__init__(f"blob {root.hex()[:16]} is unavailable", why, "wait until a node that holds it is online")
        self.root = root


class BlobTooLarge(NetworkError):
    """The blob is bigger than the caller (or the store) allows."""

    def __init__(self, root: bytes, size: int, limit: int) -> None:
        super().__init__(
            f"blob {root.hex()[:16]} is too large", f"{size} bytes, and at most {limit} are allowed here", "skip it"
        )
        self.root = root


class StoreFull(NetworkError):
    """The blob store's quota or its disk is exhausted, and nothing unpinned is left to evict."""

    def __init__(self, why: str) -> None:
        super().__init__("the blob store is full", why, "free disk space, or raise the store's quota")


class StoreFailed(NetworkError):
    """The blob store's disk does not work."""

    def __init__(self, why: str) -> None:
        super().__init__("the blob store cannot be used", why, "check the disk and the permissions of the state folder")
