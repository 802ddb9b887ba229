"""The list of policies at GET /v1/policies: written by a gateway, read (with suspicion) by whoever fetches from one."""

from collections.abc import Iterable

import msgspec

from protocol.errors import ProtocolError
from protocol.messages import MAX_MESSAGE_BYTES

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


class Listing(msgspec.Struct, frozen=True):
    """policies: oldest first."""

    schema_version: int
    policies: tuple[PolicyRow, ...]


def encode_listing(rows: Iterable[PolicyRow]) -> bytes:
    return msgspec.json.encode(Listing(1, tuple(rows)))


def decode_listing(data: bytes) -> Listing:
    """Parse and bound; raises MalformedListing."""
    if len(data) > MAX_LISTING_BYTES:
        raise MalformedListing("bad list of policies", f"more than {MAX_LISTING_BYTES} bytes")
    try:
        listing = msgspec.json.decode(data, type=Listing)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
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
