"""The public face of blobs: a store of our own, and the exchange that fills it from peers."""

from node.network.exchange import BlobExchange
from node.network.store import BlobStore

__all__ = ["BlobExchange", "BlobStore"]
