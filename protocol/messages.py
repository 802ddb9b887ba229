"""The gossip messages: small, signed, typed. One frozen struct each.

A message travels in an envelope signed by its author's node key, so it stays authentic when a third
node relays it later (catch-up after a loss). Anything bigger than MAX_MESSAGE_BYTES is a blob.
"""

from typing import cast

import msgspec
from blake3 import blake3

from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey, recover
from protocol.statements import Domain, Verdict, WorkCommitment

MAX_MESSAGE_BYTES = 16 * 1024
MAX_CONTACT = 160
MAX_GATEWAY = 300
MAX_DETAIL = 300
_CONTEXT = "intellect-node message v1"


class MalformedMessage(ProtocolError):
    """A gossip message that does not parse, is too long or claims another author."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, kw_only=True):
    """pool: the pool on chain that the message belongs to."""

    pool: int


class Heartbeat(_Message, frozen=True):
    """A node says what it is, where it is and how it does.

    sequence: strictly rising per node (unix milliseconds at sending); interval: seconds until the next one;
    policy_step: newest policy it holds, -1 for none; rate: tokens per second; queued: verified rollouts that
    wait for the trainer (trainer only), as a hint to workers; finished: the run is over (trainer only);
    gateway: where it serves blobs by HTTP, with its certificate's fingerprint, or empty.
    """

    sequence: int
    role: str
    state: str
    contact: str
    policy_step: int
    interval: float
    rate: float = 0.0
    engine: str = ""
    queued: int = 0
    finished: bool = False
    gateway: str = ""


class PolicyAnnounced(_Message, frozen=True):
    """The trainer published the policy of `step`. policy_root, manifest_root: 32 bytes; manifest_size: bytes.

    manifest: the manifest itself, where it is small enough to save a round trip; empty otherwise.
    """

    step: int
    policy_root: bytes
    manifest_root: bytes
    manifest_size: int
    manifest: bytes = b""


class RolloutCommitted(_Message, frozen=True):
    """A worker committed to a file. signature: over the commitment, EIP-712; size: bytes of the file."""

    commitment: WorkCommitment
    signature: bytes
    size: int


class VerdictIssued(_Message, frozen=True):
    """A validator judged a file. report_root (32 bytes), report_size: the recomputed values of an accepted one."""

    verdict: Verdict
    signature: bytes
    detail: str = ""
    report_root: bytes = b""
    report_size: int = 0


Message = Heartbeat | PolicyAnnounced | RolloutCommitted | VerdictIssued
_ANY_MESSAGE = cast(type[Message], Message)  # msgspec decodes unions; type checkers have no word for it


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """payload: an encoded Message; signature: 65 bytes by its author over domain and payload."""

    payload: bytes
    signature: bytes


class Signed(msgspec.Struct, frozen=True):
    """A message whose author is proven. raw: the envelope's bytes, for relaying."""

    author: Address
    message: Message
    raw: bytes


def topic(domain: Domain, pool: int) -> str:
    """The gossip topic of a pool."""
    return f"/intellect-node/{domain.chain_id}/{domain.contract.lower()}/{pool}/1"


def _digest(domain: Domain, payload: bytes) -> bytes:
    return blake3(domain.separator() + payload, derive_key_context=_CONTEXT).digest()


def seal(key: NodeKey, domain: Domain, message: Message) -> bytes:
    """Encode and sign; raises MalformedMessage if it would be too long to send."""
    payload = msgspec.msgpack.encode(message)
    raw = msgspec.msgpack.encode(Envelope(payload, key.sign_hash(_digest(domain, payload))))
    if len(raw) > MAX_MESSAGE_BYTES:
        raise MalformedMessage("message not sent", f"{len(raw)} bytes is more than {MAX_MESSAGE_BYTES}")
    return raw


def open_envelope(domain: Domain, pool: int, raw: bytes) -> Signed:
    """Parse, bound and authenticate; raises MalformedMessage or InvalidSignature."""
    what = "malformed message"
    envelope = decode_msgpack(raw, Envelope, limit=MAX_MESSAGE_BYTES, error=MalformedMessage, what=what)
    message = decode_msgpack(envelope.payload, _ANY_MESSAGE, limit=MAX_MESSAGE_BYTES, error=MalformedMessage, what=what)
    author = recover(_digest(domain, envelope.payload), envelope.signature)
    problem = _fault(message, author, pool)
    if problem:
        raise MalformedMessage(what, problem)
    return Signed(author, message, raw)


def _fault(message: Message, author: Address, pool: int) -> str | None:
    if message.pool != pool:
        return "it is for another pool"
    match message:
        case Heartbeat(contact=contact, state=state, role=role, engine=engine, interval=interval, gateway=gateway):
            if len(contact) > MAX_CONTACT or len(gateway) > MAX_GATEWAY or max(len(state), len(role), len(engine)) > 64:
                return "a text is too long"
            if not 0.1 <= interval <= 3600:
                return "the interval is out of bounds"
        case PolicyAnnounced(policy_root=root, manifest_root=manifest, step=step):
            if len(root) != 32 or len(manifest) != 32 or step < 0:
                return "a root is not 32 bytes, or the step is negative"
        case RolloutCommitted(commitment=commitment, size=size):
            if commitment.node != author or commitment.pool != pool or size <= 0:
                return "the commitment is not the author's own"
            if len(commitment.policy_root) != 32 or len(commitment.file_root) != 32 or commitment.index < 0:
                return "a root is not 32 bytes, or the index is negative"
        case VerdictIssued(verdict=verdict, detail=detail, report_root=root):
            if len(root) not in (0, 32) or len(detail) > MAX_DETAIL or verdict.pool != pool:
                return "a root or text has the wrong length"
            if len(verdict.policy_root) != 32 or len(verdict.file_root) != 32:
                return "a root is not 32 bytes"
    return None
