"""What is said about blobs between two nodes: requests, answers, and how they are read strictly.

Requests on `PROTOCOL` (msgpack): AskInfo, AskPieces, AskAny, Tell. Answers: one byte, then

    FOUND    for AskInfo a HaveInfo; for Tell a HaveMap; for AskPieces and AskAny
             u16be count | u16be milliseconds that it waited for its turn | count x u32be piece | their bytes
    MISSING  nothing: I do not have that
    CHOKED   u16be milliseconds after which asking again makes sense

A map is a bit per piece, lowest bit first. Knows bytes and bounds; knows nothing of who asks.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from node.blobs.errors import BlobUnavailable
from node.network.errors import NetworkError, PeerMisbehaved
from protocol.blobs import MAX_INFO_BYTES, MAX_PIECES, BlobInfo
from protocol.identity import Address

PROTOCOL = "/intellect-node/blob/2"
MAX_MAP = MAX_PIECES // 8
MAX_REQUEST = MAX_MAP + 256
MAX_ASKED = 128
"""Pieces in one request."""
INLINE = 256 * 1024
"""A blob of at most this many bytes comes with its piece list."""
ANSWER_LIMIT = MAX_INFO_BYTES + MAX_MAP + INLINE + 256

MISSING = b"\x00"
FOUND = b"\x01"
CHOKED = b"\x02"


class AskInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="info"):
    """What is blob `root`, and which of its pieces do you have?"""

    root: bytes


class AskPieces(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="pieces"):
    """Send these pieces of `root`, or as many of them as you have."""

    root: bytes
    pieces: tuple[int, ...]


class AskAny(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="any"):
    """Send up to `count` pieces of your choice, none of those in the map `skip`."""

    root: bytes
    count: int
    skip: bytes


class HaveReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="tell"):
    """I am fetching `root` and have the pieces of the map `have`; which do you have?"""

    root: bytes
    have: bytes


Request = AskInfo | AskPieces | AskAny | HaveReply


class HaveInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """info: an encoded BlobInfo; have: a map, empty for all; chooses: asks of AskAny are welcome; data: all of it."""

    info: bytes
    have: bytes = b""
    chooses: bool = False
    data: bytes = b""


class HaveMap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """have, chooses: as in HaveInfo."""

    have: bytes = b""
    chooses: bool = False


class Choked(NetworkError):
    """The peer has enough to do; after `seconds` it may be asked again."""

    def __init__(self, peer: Address, seconds: float) -> None:
        super().__init__(f"peer {peer} is busy", "its upload queue is full", "nothing to do; it is asked again")
        self.seconds = seconds


def read_request(data: bytes) -> Request:
    """Raises msgspec.DecodeError, for which the asker's stream is reset."""
    return msgspec.msgpack.decode(data, type=Request)


def choked(seconds: float) -> bytes:
    return CHOKED + _milliseconds(seconds)


def pieces_header(pieces: Sequence[int], waited: float) -> bytes:
    return FOUND + len(pieces).to_bytes(2) + _milliseconds(waited) + np.asarray(pieces, ">u4").tobytes()


def _milliseconds(seconds: float) -> bytes:
    return min(65_535, int(seconds * 1000)).to_bytes(2)


def answer_limit(info: BlobInfo, count: int) -> int:
    """Bytes that an answer of `count` pieces may take."""
    return 5 + 4 * count + min(info.size, count * info.piece_size)


def read_answer(answer: bytes, peer: Address, root: bytes) -> memoryview:
    """What follows FOUND. Raises BlobUnavailable (it has not got that), Choked, PeerMisbehaved."""
    kind = answer[:1]
    if kind == FOUND:
        return memoryview(answer)[1:]
    if answer == MISSING:
        raise BlobUnavailable(root, f"{peer} does not have it")
    if kind == CHOKED and len(answer) == 3:
        raise Choked(peer, int.from_bytes(answer[1:]) / 1000)
    raise PeerMisbehaved(peer, "its answer is neither yes nor no")


def read_pieces(
    body: memoryview, info: BlobInfo, asked: NDArray[np.int64], count: int, peer: Address
) -> tuple[list[int], memoryview, float]:
    """(pieces, their bytes one after another, seconds waited) of an answer.

    asked: what was asked for, or empty for `count` of any.

    Raises PeerMisbehaved unless it is exactly that.
    """
    number = int.from_bytes(body[:2])
    if not 1 <= number <= count or len(body) < 4 + 4 * number:
        raise PeerMisbehaved(peer, f"it sent {number} pieces for {count}")
    pieces: list[int] = np.frombuffer(body[4 : 4 + 4 * number], ">u4").astype(np.int64).tolist()
    # Pieces that nobody asked for would be written all the same, and one twice would count for the one that is missing.
    allowed = set(asked.tolist()) if len(asked) else range(len(info.pieces))
    if len(set(pieces)) != number or any(piece not in allowed for piece in pieces):
        raise PeerMisbehaved(peer, "it sent pieces that it was not asked for")
    data = body[4 + 4 * number :]
    if len(data) != sum(info.span(piece)[1] for piece in pieces):
        raise PeerMisbehaved(peer, f"{len(data)} bytes are not {number} pieces")
    return pieces, data, int.from_bytes(body[2:4]) / 1000
