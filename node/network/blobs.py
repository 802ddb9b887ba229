"""The public face of blobs: a store of our own, and the exchange that fills it from peers."""

from node.network.exchange import BlobExchange, Limits, Score
from node.network.store import BlobStore, Partial
from node.network.transfer import Progress

__all__ = ["BlobExchange", "BlobStore", "Limits", "Partial", "Progress", "Score"]
