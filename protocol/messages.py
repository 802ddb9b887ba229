"""The gossip messages: small, signed, typed. One frozen struct each.

A message travels in an envelope signed by its author's node key, so it stays authentic when a third
node relays it later (catch-up after a loss). Anything bigger than MAX_MESSAGE_BYTES is a blob.
"""

import math
from typing import Generic, TypeVar, cast

import msgspec
from blake3 import blake3

from protocol.audit import RATE_ONE
from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey, recover
from protocol.lots import MAX_GROUPS, SECRET_BYTES, LotPledge
from protocol.statements import Domain, EpochVerdict, Statement, Verdict, WorkCommitment, struct_hash
from protocol.tasks import MAX_SHARDS, MAX_SPEC_BYTES
from protocol.work import EpochFault

MAX_MESSAGE_BYTES = 16 * 1024
MAX_CONTACT = 160
MAX_CONTACTS_EACH = 4
"""Of one node: its contact and the further ones."""
MAX_GATEWAY = 300
MAX_DETAIL = 300
MAX_PLEDGES = 4
MAX_VERDICT_BYTES = MAX_MESSAGE_BYTES // 2 - 256
"""An envelope of a verdict: two of them fit one dispute."""
MAX_VALUES = 768
"""Groups of one file for which a verdict can carry recomputed values; of larger files it carries none."""
"""Of a task's result that is no rollout file."""
_CONTEXT = "intellect-node message v1"
_WHAT = "malformed message"
_EPOCH_FAULTS = {(int(fault), int(fault.outcome)) for fault in EpochFault}


class MalformedMessage(ProtocolError):
    """A gossip message that does not parse, is too long or claims another author."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, kw_only=True):
    """pool: the pool on chain that the message belongs to."""

    pool: int


class Heartbeat(_Message, frozen=True, omit_defaults=True):
    """A node says what it is, where it is and how it does.

    contact: the multiaddr by which it is best reached; also: further ones, in the order in which they are worth a try.

    sequence: strictly rising per node (unix milliseconds at sending); interval: seconds until the next one;
    policy_step: newest policy it holds, -1 for none; rate: tokens per second;
    finished: the run is over (trainer only); reward: the mean of the last held-back evaluations (trainer only);
    gateway: where it serves blobs by HTTP, with its certificate's fingerprint, or empty; lots: what a validator
    pledges for this window and the next ones.
    """

    sequence: int
    role: str
    state: str
    contact: str
    policy_step: int
    interval: float
    rate: float = 0.0
    engine: str = ""
    finished: bool = False
    reward: float | None = None
    gateway: str = ""
    lots: tuple[LotPledge, ...] = ()
    also: tuple[str, ...] = ()


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
    """A validator judged a file. report_root (32 bytes), report_size: the recomputed values of an accepted one.

    What makes verdicts comparable: window, rate: of the lot; checked: bitmap of the groups that went through the
    model; rewards: per group 4 bytes of BLAKE3 over its recomputed rewards (4 zero bytes: scoring took too long);
    logprobs: per checked group the mean log-probability of its output tokens, float32 little-endian; group: where
    the fault lies, -1 for the whole file; recheck: judged again after a dispute, every group; standing: what the
    author thinks of the worker by now (decision.Level); verifier: the class of engine that it looks with.

    signature: over the verdict, EIP-712, for the contract; b"" where it takes the own first verdict back, and where
    it accepts a file of which it did not recompute every group.
    """

    verdict: Verdict
    signature: bytes
    detail: str = ""
    report_root: bytes = b""
    report_size: int = 0
    window: int = -1
    rate: int = 0
    checked: bytes = b""
    rewards: bytes = b""
    logprobs: bytes = b""
    group: int = -1
    recheck: bool = False
    standing: int = 0
    verifier: str = ""


class LotsRevealed(_Message, frozen=True):
    """A validator tells the secret of a window whose files can no longer be committed."""

    window: int
    secret: bytes


class DisputeRaised(_Message, frozen=True):
    """Two validators contradict each other about one file. first, second: the envelopes of their verdicts."""

    first: bytes
    second: bytes


class CheckRequested(_Message, frozen=True):
    """The trainer asks every validator for its verdict on a file that waits too long. commitment: its envelope."""

    commitment: bytes


class EpochJudged(_Message, frozen=True):
    """A validator refuses what a node put on chain for a whole epoch. signature: over the verdict, EIP-712, for the
    contract; detail: for people."""

    verdict: EpochVerdict
    signature: bytes
    detail: str = ""


class TaskOffered(_Message, frozen=True):
    """Work that is no training: a task (protocol.tasks), said again from time to time as long as it is open.

    sequence: rises with every repetition (unix milliseconds); spec: its canonical bytes, whose blob root is the task's
    id; done: bitmap of the shards whose results the author has, lowest bit first; open: False where nothing more is to
    be done.
    """

    sequence: int
    spec: bytes
    done: bytes = b""
    open: bool = True


class TaskClaimed(_Message, frozen=True):
    """A node takes a shard. task: 32 bytes; sequence: unix milliseconds, so that a later claim is another message."""

    task: bytes
    shard: int
    sequence: int


class WorkPublished(_Message, frozen=True):
    """A worker shows the files behind the root that it put on chain for an epoch.

    root: 32 bytes, as on chain; leaves_root, leaves_size: the blob with (file root, units) of every leaf.
    """

    epoch: int
    root: bytes
    leaves_root: bytes
    leaves_size: int


Message = (
    Heartbeat
    | PolicyAnnounced
    | RolloutCommitted
    | VerdictIssued
    | LotsRevealed
    | DisputeRaised
    | CheckRequested
    | WorkPublished
    | EpochJudged
    | TaskOffered
    | TaskClaimed
)
_ANY_MESSAGE = cast(type[Message], Message)  # msgspec decodes unions; type checkers have no word for it
T = TypeVar("T")
M = TypeVar("M", bound=Message)
M_co = TypeVar("M_co", bound=Message, covariant=True)


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """payload: an encoded Message; signature: 65 bytes by its author over domain and payload."""

    payload: bytes
    signature: bytes


class Parsed(msgspec.Struct, frozen=True):
    """A message in form, of which nobody knows yet who wrote it."""

    message: Message
    envelope: Envelope
    raw: bytes


class Signed(msgspec.Struct, Generic[M_co], frozen=True, gc=False):
    """A message whose author is proven. raw: the envelope's bytes, for relaying."""

    author: Address
    message: M_co
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


def open_envelope(domain: Domain, pool: int, raw: bytes) -> Signed[Message]:
    """Parse, bound and authenticate; raises MalformedMessage or InvalidSignature."""
    return authenticate(domain, parse_envelope(pool, raw))


def parse_envelope(pool: int, raw: bytes) -> Parsed:
    """Everything about an envelope that costs no signature; raises MalformedMessage.

    One message has one encoding: another envelope around the same payload and signature would be a replay that
    nobody recognises.
    """
    envelope = _decode(raw, Envelope)
    message = _decode(envelope.payload, _ANY_MESSAGE)
    problem = _fault(message, pool)
    if msgspec.msgpack.encode(envelope) != raw:
        problem = "the envelope is not encoded in the shortest way"
    if problem:
        raise MalformedMessage(_WHAT, problem)
    return Parsed(message, envelope, raw)


def _decode(raw: bytes, kind: type[T]) -> T:
    return decode_msgpack(raw, kind, limit=MAX_MESSAGE_BYTES, error=MalformedMessage, what=_WHAT)


def authenticate(domain: Domain, parsed: Parsed) -> Signed[Message]:
    """Who wrote it, for the price of one signature; raises MalformedMessage or InvalidSignature."""
    message, envelope = parsed.message, parsed.envelope
    author = recover(_digest(domain, envelope.payload), envelope.signature)
    if isinstance(message, RolloutCommitted) and message.commitment.node != author:
        raise MalformedMessage(_WHAT, "the commitment is not the author's own")
    return Signed(author, message, parsed.raw)


def of_kind(signed: Signed[Message], kind: type[M]) -> Signed[M]:
    """The same, if its message is of that kind; raises MalformedMessage."""
    if not isinstance(signed.message, kind):
        raise MalformedMessage(_WHAT, f"it is {type(signed.message).__name__} and not {kind.__name__}")
    return cast(Signed[M], signed)


def _fault(message: Message, pool: int) -> str | None:
    if message.pool != pool:
        return "it is for another pool"
    match message:
        case Heartbeat(lots=lots) if len(lots) > MAX_PLEDGES or not all(pledge.well_formed() for pledge in lots):
            return "the pledges are too many or not in form"
        case Heartbeat(also=also) if len(also) >= MAX_CONTACTS_EACH or any(len(each) > MAX_CONTACT for each in also):
            return "the contacts are too many or too long"
        case Heartbeat(rate=rate, reward=reward) if not (math.isfinite(rate) and math.isfinite(reward or 0.0)):
            return "the rate or the reward is no number"
        case Heartbeat(contact=contact, state=state, role=role, engine=engine, interval=interval, gateway=gateway):
            if len(contact) > MAX_CONTACT or len(gateway) > MAX_GATEWAY or max(len(state), len(role), len(engine)) > 64:
                return "a text is too long"
            if not 0.1 <= interval <= 3600:
                return "the interval is out of bounds"
        case PolicyAnnounced(policy_root=root, manifest_root=manifest, step=step):
            if len(root) != 32 or len(manifest) != 32 or step < 0:
                return "a root is not 32 bytes, or the step is negative"
        case RolloutCommitted(commitment=commitment, size=size):
            if commitment.pool != pool or size <= 0:
                return "the commitment is for another pool, or the size is not positive"
            return _statement_fault(commitment)
        case VerdictIssued(verdict=verdict, detail=detail, report_root=root):
            if len(root) not in (0, 32) or len(detail) > MAX_DETAIL or verdict.pool != pool:
                return "a root or text has the wrong length"
            return _statement_fault(verdict) or _values_fault(message)
        case LotsRevealed(window=window, secret=secret):
            if window < 0 or len(secret) != SECRET_BYTES:
                return "the window is negative or the secret not 32 bytes"
        case DisputeRaised(first=first, second=second):
            if max(len(first), len(second)) > MAX_VERDICT_BYTES:
                return "a verdict in it is too long"
        case EpochJudged(verdict=verdict, detail=detail):
            if verdict.pool != pool or len(detail) > MAX_DETAIL:
                return "the verdict is for another pool, or the text is too long"
            if (verdict.reason, verdict.outcome) not in _EPOCH_FAULTS:
                return "the reason is none for an epoch, or costs something else"
            return _statement_fault(verdict)
        case WorkPublished(epoch=epoch, root=root, leaves_root=leaves, leaves_size=size):
            if len(root) != 32 or len(leaves) != 32 or epoch < 0 or size <= 0:
                return "a root is not 32 bytes, or a number is out of range"
        case TaskOffered() | TaskClaimed():
            return _task_fault(message)
        case CheckRequested():
            return None
    return None


def _task_fault(message: TaskOffered | TaskClaimed) -> str | None:
    match message:
        case TaskOffered(spec=spec, done=done, sequence=sequence):
            if not 0 < len(spec) <= MAX_SPEC_BYTES or len(done) > MAX_SHARDS // 8 or sequence < 0:
                return "the task is too long, or a number is out of range"
        case TaskClaimed(task=task, shard=shard, sequence=sequence):
            if len(task) != 32 or not 0 <= shard < MAX_SHARDS or sequence < 0:
                return "a root is not 32 bytes, or a number is out of range"
    return None


def _statement_fault(statement: Statement) -> str | None:
    """Why no contract could be shown this statement: a root of another length, a number or address out of range."""
    try:
        struct_hash(statement)
    except ProtocolError as error:
        return error.why
    return None


def _values_fault(message: VerdictIssued) -> str | None:
    """What is wrong with the comparable values of a verdict, by themselves."""
    checked = sum(byte.bit_count() for byte in message.checked)
    groups = len(message.rewards) // 4
    if len(message.verifier) > 64 or not 0 <= message.standing <= 16:
        return "the verifier or the standing is not in form"
    if not 0 <= message.rate <= RATE_ONE or not -1 <= message.group < MAX_GROUPS:
        return "the rate or the group is out of range"
    if len(message.checked) > MAX_GROUPS // 8 or len(message.rewards) % 4 or groups > MAX_VALUES:
        return "the recomputed values are too many"
    if len(message.logprobs) not in (0, 4 * checked) or checked > MAX_VALUES and message.logprobs:
        return "the recomputed values do not belong to the groups"
    return None
