"""The gossip messages: small, signed, typed. One frozen struct each.

A message travels in an envelope signed by its author's node key, so it stays authentic when a third
node relays it later (catch-up after a loss). Anything bigger than MAX_MESSAGE_BYTES is a blob.
"""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

import msgspec
from blake3 import blake3

from protocol.agreement import MAX_LISTED, Proposal, Word
from protocol.audit import RATE_ONE
from protocol.blobs import describe
from protocol.codec import decode_msgpack
from protocol.engines import MAX_CLASS
from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey, address_bytes, recover
from protocol.lots import MAX_GROUPS, SECRET_BYTES, LotPledge
from protocol.manifest import MAX_CARD_BYTES, PolicyStatement
from protocol.statements import (
    Domain,
    Earnings,
    EpochRoot,
    Rechecked,
    Statement,
    TermSilent,
    Verdict,
    WorkCommitment,
    sign,
    signer_of,
    struct_hash,
)
from protocol.tasks import MAX_SHARDS, MAX_SPEC_BYTES

# Gossip carries each message to everybody: what is larger is announced by its root, and fetched by whoever wants it.
MAX_MESSAGE_BYTES = 16 * 1024
ENVIRONMENT_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
MAX_PACKAGE_BYTES = 64 << 20
MAX_ABOUT = 200
"""Characters of one line about an environment."""
# A relayed multiaddr with two peer ids has some 150 characters.
MAX_CONTACT = 160
MAX_CONTACTS_EACH = 4
"""Of one node: its contact and the further ones."""
MAX_GATEWAY = 300
MAX_VERSION = 40
MAX_DETAIL = 300
# Of this window and the next ones: a pledge must be known before its window's first policy exists.
MAX_PLEDGES = 4
MAX_VERDICT_BYTES = MAX_MESSAGE_BYTES // 2 - 256
"""An envelope of a verdict: two of them fit one dispute."""
DIGEST = 16
NO_PROMPTS = bytes(32)
"""Of a judgement that came to no prompts: its file was refused before, or is about something else."""
"""Bytes of a group's reward digest: four were matched with other rewards in 39 seconds of trying."""
MAX_VALUES = 352
"""Groups of one file for which a verdict can carry recomputed values; of larger files it carries none."""
MAX_SHOWN = 64
"""Signatures beside a closed word on a list."""
MAX_ENTRIES = 32
"""Seals, and messages in one: each verdict is a signature to check, on the event loop."""
# A verdict has few possible values: without a salt its seal could be opened by trying them all.
SALT_BYTES = 16
_CONTEXT = "intellect-node message v1"
_WHAT = "malformed message"
_SEAL = "intellect-node verdict seal v1"
_VALUES = "intellect-node verdict values v1"
_STEP_VALUES = "intellect-node step verdict values v1"


class MalformedMessage(ProtocolError):
    """A gossip message that does not parse, is too long or claims another author."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, kw_only=True):
    """pool: the pool on chain that the message belongs to."""

    pool: int

    def fault(self) -> str | None:
        """Why the message is out of bounds, None if it is not. Strangers write every field."""
        return None

    def said_at(self) -> int | None:
        """Unix milliseconds at which its author says to have sent it; None where it does not say."""
        return None


class Heartbeat(_Message, frozen=True, omit_defaults=True):
    """A node says what it is, where it is and how it does.

    contact: the multiaddr by which it is best reached; also: further ones, in the order in which they are worth a try.

    boot, count: its number. `boot` rises with every start of the node and `count` with every heartbeat since: no clock
    is asked which of two is newer. at: unix milliseconds at sending; interval: seconds until the next one;
    policy_step: newest policy it holds, -1 for none; rate: tokens per second;
    finished: the run is over (trainer only); reward: the mean of the last held-back evaluations (trainer only;
    all along, not only at the end: every page draws a curve of it);
    gateway: where it serves blobs by HTTP, with its certificate's fingerprint, or empty; lots: what a validator
    pledges for this window and the next ones. Of a run that pre-trains: replica_id: whose rows it learns from, -1 for
    none; outer: the state root with which its round (policy_step) begins, 32 bytes or none. version: of its program, as
    a package names it; nothing is decided by it.

    What the trainer's queue lacks is not said. Workers see that no policy comes; a number with stale groups and groups
    without signal in it would tell them less.
    """

    boot: int
    count: int
    at: int
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
    replica_id: int = -1
    outer: bytes = b""
    version: str = ""

    @property
    def number(self) -> tuple[int, int]:
        """Of two heartbeats of one node, the one with the higher number is newer."""
        return self.boot, self.count

    def said_at(self) -> int:
        return self.at

    def fault(self) -> str | None:
        # Whole numbers have no bound in Python; in SQLite and in most readers of JSON they have this one.
        if not all(0 <= each < 2**63 for each in (self.boot, self.count, self.at)):
            return "a number is out of range"
        if len(self.lots) > MAX_PLEDGES or not all(pledge.well_formed() for pledge in self.lots):
            return "the pledges are too many or not in form"
        if len(self.also) >= MAX_CONTACTS_EACH or any(len(each) > MAX_CONTACT for each in self.also):
            return "the contacts are too many or too long"
        # NaN is not ordered, and JSON has no word for it: pages and sums would break far from here.
        if not (math.isfinite(self.rate) and math.isfinite(self.reward or 0.0)):
            return "the rate or the reward is no number"
        if not -1 <= self.replica_id < MAX_LISTED or len(self.outer) not in (0, 32):
            return "the replica or the outer state's root is out of bounds"
        if max(len(self.state), len(self.role)) > 64 or len(self.engine) > MAX_CLASS:
            return "a text is too long"
        if len(self.contact) > MAX_CONTACT or len(self.gateway) > MAX_GATEWAY or len(self.version) > MAX_VERSION:
            return "a text is too long"
        # Others wait some of these intervals before they call a node dead: a long one would be a way to live for ever.
        return None if 0.1 <= self.interval <= 3600 else "the interval is out of bounds"


class PolicyAnnounced(_Message, frozen=True):
    """The trainer published a policy. statement: its word about the step (protocol.manifest), signed by itself
    (`PolicyStatement.commitment`, 65 bytes); manifest_root: 32 bytes; manifest_size: bytes; manifest, batch: the
    manifest itself, and that of the step's batch, where they are small enough to save a round trip; empty otherwise.
    """

    statement: PolicyStatement
    signature: bytes
    manifest_root: bytes
    manifest_size: int
    manifest: bytes = b""
    batch: bytes = b""

    @property
    def step(self) -> int:
        return self.statement.step

    @property
    def term(self) -> int:
        return self.statement.term

    @property
    def epoch(self) -> int:
        return self.statement.epoch

    @property
    def policy_root(self) -> bytes:
        return self.statement.policy_root

    @property
    def parent(self) -> bytes:
        """Root of the policy before it."""
        return self.statement.parent

    @property
    def batch_root(self) -> bytes:
        return self.statement.batch_root

    @property
    def told_batch(self) -> bytes:
        """The manifest of the batch, where it came along and is what the statement names; empty otherwise."""
        return self.batch if self.batch and describe(self.batch).root == self.batch_root else b""

    @property
    def state_root(self) -> bytes:
        return self.statement.state_root

    def fault(self) -> str | None:
        if self.statement.pool != self.pool or len(self.signature) != 65:
            return "the statement is for another pool, or its signature not 65 bytes"
        if len(self.manifest_root) != 32 or not 0 < self.manifest_size < 2**63:
            return "the manifest's root is not 32 bytes, or its size out of range"
        return self.statement.fault()


class CheckpointOffered(_Message, frozen=True):
    """Here is the state of `step`, for whoever audits. root (32 bytes), size: of its card (protocol.manifest). Whether
    it is the state that the trainer stated follows from its bytes."""

    term: int
    step: int
    root: bytes
    size: int

    def fault(self) -> str | None:
        if len(self.root) != 32 or not 0 < self.size <= MAX_CARD_BYTES:
            return "the checkpoint's root is not 32 bytes, or its card too long"
        return None if 0 <= self.term < 2**32 and 0 < self.step < 2**63 else "a number is out of range"


class StepObjected(_Message, frozen=True):
    """A standby came to another state than this term's leader stated, in the step that led to policy `step`."""

    term: int
    step: int

    def fault(self) -> str | None:
        return None if 0 <= self.term < 2**32 and 0 < self.step < 2**63 else "a number is out of range"


class RolloutCommitted(_Message, frozen=True):
    """A worker committed to a file. signature: over the commitment, EIP-712; size: bytes of the file."""

    commitment: WorkCommitment
    signature: bytes
    size: int

    def fault(self) -> str | None:
        # The commitment has a signature of its own: put into another pool's message it would be somebody's true word
        # there.
        if self.commitment.pool != self.pool or self.size <= 0:
            return "the commitment is for another pool, or the size is not positive"
        return _statement_fault(self.commitment)


class Judgement(_Message, frozen=True):
    """What a validator found in a file: a verdict, or a second look. report_root (32 bytes), report_size: the
    recomputed values of an accepted one.

    What makes judgements comparable, so that everybody sees a disagreement without fetching a report: window, rate: of
    the lot; checked: bitmap of the groups that went through the model; rewards: per group DIGEST bytes of BLAKE3 over
    its recomputed rewards (zeros: scoring took too long); logprobs: per checked group the mean log-probability of its
    output tokens, float32 little-endian; group: where the fault lies, -1 for the whole file; standing: what the author
    thinks of the worker by now (decision.Level); verifier: the class of engine that it looks with; prompts: of what the
    author was to see answered in this file (`values.prompts_hash`), zeros where it came to none. signature: over the
    verdict, EIP-712, for the contract.
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
    standing: int = 0
    verifier: str = ""
    prompts: bytes = NO_PROMPTS

    def fault(self) -> str | None:
        if len(self.report_root) not in (0, 32) or len(self.detail) > MAX_DETAIL or self.verdict.pool != self.pool:
            return "a root or text has the wrong length"
        # The contract sees the hash only. What a verdict says beside it must be bound, or its author could say it in
        # two ways.
        if self.verdict.values != values_hash(self):
            return "its values are not those that its verdict signs"
        return _statement_fault(self.verdict) or _values_fault(self)


class VerdictIssued(Judgement, frozen=True):
    """A validator's one word about a work, for ever. salt: opens its seal (`Seal`), 16 bytes."""

    salt: bytes = bytes(SALT_BYTES)

    def fault(self) -> str | None:
        return "the salt has the wrong length" if len(self.salt) != SALT_BYTES else Judgement.fault(self)


class VerdictRechecked(Judgement, frozen=True):
    """What a validator found when it looked at every group again, for an open dispute about the work."""

    verdict: Rechecked


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A validator has its verdict on a work, and shows it once others cannot copy it. work: its id; seal: `seal_of` the
    verdict; 32 bytes each."""

    work: bytes
    seal: bytes


class EpochRootSigned(_Message, frozen=True):
    """A validator signs the root of its leaves of an epoch. signature: over the statement, EIP-712, for the contract;
    nothing else stands here, so whoever says it again says what its author said."""

    statement: EpochRoot
    signature: bytes

    def fault(self) -> str | None:
        said = self.statement
        if said.pool != self.pool or len(self.signature) != 65:
            return "the root is another pool's, or its signature not 65 bytes"
        if max(said.epoch, said.number, said.total) >= 2**63:
            return "a number is out of range"
        return _statement_fault(said)


class EarningsVote(_Message, frozen=True):
    """A validator signs the table of what all nodes have earned. table (32 bytes), size: the table as a blob
    with what it rests on (`table.encode_head`); signature: over the earnings, EIP-712, for the contract."""

    earnings: Earnings
    table: bytes
    size: int
    signature: bytes

    def fault(self) -> str | None:
        if self.earnings.pool != self.pool or len(self.table) != 32 or self.size <= 0:
            return "the earnings are another pool's, or a root is not 32 bytes"
        if max(self.earnings.epoch, self.earnings.number, self.earnings.total) >= 2**63:
            return "a number is out of range"
        return _statement_fault(self.earnings)


class AcceptedList(_Message, frozen=True):
    """A validator's word on which works it held accepted when it heard of policy `step`, and had not named before.

    works: their ids, rising; a step with more of them than MAX_LISTED has several words.
    """

    step: int
    works: tuple[bytes, ...]

    def fault(self) -> str | None:
        if not 0 <= self.step < 2**63 or not 0 < len(self.works) <= MAX_LISTED:
            return "the step is out of range, or the works are none or too many"
        if any(len(one) != 32 for one in self.works):
            return "a work's id is not 32 bytes"
        rising = all(one < two for one, two in zip(self.works, self.works[1:], strict=False))
        return None if rising else "a work is named twice, or they are not in order"


Carried = VerdictIssued | AcceptedList | EpochRootSigned | EarningsVote
Entry = Seal | Carried


class ValidatorBatch(_Message, frozen=True):
    """What a validator has to say by now, in one message: seals, and messages that would otherwise travel
    by themselves, verdicts above all. Each entry counts as much as if it had come alone; one that is not in form, or
    that its author did not sign, refuses the whole, which nobody but its author can have made."""

    seals: tuple[Seal, ...] = ()
    carried: tuple[Carried, ...] = ()

    def fault(self) -> str | None:
        many = len(self.seals), len(self.carried)
        # Empty ones cost a signature and say nothing.
        if not any(many) or max(many) > MAX_ENTRIES:
            return "its entries are none or too many"
        if any(len(one.work) != 32 or len(one.seal) != 32 for one in self.seals):
            return "a work or a seal is not 32 bytes"
        if any(one.pool != self.pool for one in self.carried):
            return "what it carries is for another pool"
        return next((why for one in self.carried if (why := one.fault())), None)


class RoundVote(_Message, frozen=True):
    """A validator's word on which contributions a round of pre-training comes to. outer, state, size, files: see
    `agreement.Proposal`; ballot, closed: see `agreement.Word`; shown: of a closed word, signatures of validators that
    named the same in an open one of that ballot."""

    round: int
    ballot: int
    closed: bool
    outer: bytes
    state: bytes
    size: int
    files: tuple[bytes, ...]
    shown: tuple[bytes, ...] = ()

    @property
    def word(self) -> Word:
        return Word(self.ballot, self.closed, Proposal(self.outer, self.state, self.size, self.files))

    def fault(self) -> str | None:
        if not (0 <= self.round < 2**31 and 0 <= self.ballot < 2**63 and 0 < self.size < 2**63):
            return "a number is out of range"
        if len(self.files) > MAX_LISTED or any(len(one) != 32 for one in (self.outer, self.state, *self.files)):
            return "the contributions are too many, or a root is not 32 bytes"
        if len(self.shown) > MAX_SHOWN or any(len(one) != 65 for one in self.shown) or (self.shown and not self.closed):
            return "its signatures are too many, not 65 bytes, or beside an open word"
        # In one order: a list is compared by its bytes, and everybody adds in this order.
        rising = all(one < two for one, two in zip(self.files, self.files[1:], strict=False))
        return None if rising else "the contributions are doubled or not in order"


class StepVerdict(_Message, frozen=True):
    """A validator's one word about a step of the trainer, for ever. It is a verdict on the commitment that the trainer
    signed by stating it, so that a contract reads it as any other.

    trainer, word: who stated it, and its signature; outcome: Outcome; reason: checks.Reason; window, rate: of the lot
    (-1: looked because another accused); arithmetic: the class of the replay; signature: over the verdict, EIP-712.
    """

    statement: PolicyStatement
    trainer: Address
    word: bytes
    outcome: int
    reason: int
    signature: bytes
    detail: str = ""
    window: int = -1
    rate: int = 0
    arithmetic: str = ""

    @property
    def verdict(self) -> Verdict:
        """Raises ProtocolError for a statement out of range."""
        said = self.statement.commitment(self.trainer)
        values = [self.detail, self.window, self.rate, self.arithmetic]
        return Verdict(
            pool=self.pool,
            node=self.trainer,
            policy_root=said.policy_root,
            index=said.index,
            file_root=said.file_root,
            units=said.units,
            outcome=self.outcome,
            reason=self.reason,
            values=blake3(msgspec.msgpack.encode(values), derive_key_context=_STEP_VALUES).digest(),
        )

    def fault(self) -> str | None:
        if self.statement.pool != self.pool or self.statement.step < 1 or len(self.word) != 65:
            return "the statement is for another pool or of no step, or its signature not 65 bytes"
        if len(self.detail) > MAX_DETAIL or len(self.arithmetic) > MAX_CLASS:
            return "a text is too long"
        if not -1 <= self.window < 2**63 or not 0 <= self.rate <= RATE_ONE:
            return "the window or the rate is out of range"
        if self.outcome not in (0, 1, 2) or (self.outcome == 0) != (self.reason == 0):
            # An acceptance with a reason, or a refusal without one, would count for either side.
            return "its outcome is none, or its reason does not fit it"
        return self.statement.fault() or _statement_fault(self.verdict)


class LotsRevealed(_Message, frozen=True):
    """A validator tells the secret of a window whose files can no longer be committed."""

    window: int
    secret: bytes

    def fault(self) -> str | None:
        fine = self.window >= 0 and len(self.secret) == SECRET_BYTES
        return None if fine else "the window is negative or the secret not 32 bytes"


class DisputeRaised(_Message, frozen=True):
    """Two validators contradict each other about one file. first, second: the envelopes of their verdicts."""

    first: bytes
    second: bytes

    def fault(self) -> str | None:
        return "a verdict in it is too long" if max(len(self.first), len(self.second)) > MAX_VERDICT_BYTES else None


class VerdictRequested(_Message, frozen=True):
    """The trainer asks every validator for its verdict on a file that waits too long. commitment: its envelope."""

    commitment: bytes


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

    def said_at(self) -> int:
        return self.sequence

    def fault(self) -> str | None:
        if not 0 < len(self.spec) <= MAX_SPEC_BYTES or len(self.done) > MAX_SHARDS // 8 or self.sequence < 0:
            return "the task is too long, or a number is out of range"
        return None


class TaskClaimed(_Message, frozen=True):
    """A node takes a shard. task: 32 bytes; sequence: unix milliseconds, so that a later claim is another message."""

    task: bytes
    shard: int
    sequence: int

    def said_at(self) -> int:
        return self.sequence

    def fault(self) -> str | None:
        if len(self.task) != 32 or not 0 <= self.shard < MAX_SHARDS or self.sequence < 0:
            return "a root is not 32 bytes, or a number is out of range"
        return None


class EnvironmentPublished(_Message, frozen=True):
    """A node offers an environment package to whoever wants it, again and again. root (32 bytes), size: of its archive;
    name, determinism, turns, about: as the archive says itself, which whoever fetches it compares; sequence: unix
    milliseconds."""

    name: str
    root: bytes
    size: int
    determinism: str
    turns: int
    about: str
    sequence: int

    def said_at(self) -> int:
        return self.sequence

    def fault(self) -> str | None:
        # Names are shown on terminals and pages and become file names: letters, digits and two signs, nothing that
        # looks alike.
        if not ENVIRONMENT_NAME.fullmatch(self.name) or self.determinism not in ("exact", "bounded", "judged"):
            return "its name or class is none"
        if len(self.root) != 32 or not 0 < self.size <= MAX_PACKAGE_BYTES or not 1 <= self.turns <= 64:
            return "a root is not 32 bytes, or a number is out of range"
        if len(self.about) > MAX_ABOUT or not self.about.isprintable() or self.sequence < 0:
            return "what it says of itself is too long or not printable"
        return None


class LeaderSilent(_Message, frozen=True):
    """A validator does not hear the trainer that holds the chair. until: end of the lease that it means, unix seconds;
    step: the newest policy that it knows; signature: over `statements.TermSilent`, for the contract."""

    term: int
    until: int
    step: int
    signature: bytes

    @property
    def statement(self) -> TermSilent:
        return TermSilent(self.pool, self.term, self.until, self.step)

    def fault(self) -> str | None:
        fine = 0 <= self.term < 2**32 and 0 <= self.until < 2**40 and 0 <= self.step < 2**63
        fine = fine and len(self.signature) == 65
        return None if fine else "a number is out of range, or the signature not 65 bytes"


Message = (
    Heartbeat
    | PolicyAnnounced
    | CheckpointOffered
    | StepObjected
    | RolloutCommitted
    | ValidatorBatch
    | VerdictIssued
    | VerdictRechecked
    | AcceptedList
    | StepVerdict
    | LotsRevealed
    | DisputeRaised
    | VerdictRequested
    | EpochRootSigned
    | EarningsVote
    | RoundVote
    | LeaderSilent
    | TaskOffered
    | TaskClaimed
    | EnvironmentPublished
)
BOUND = (Judgement, EpochRootSigned)
"""Whose own signature binds all that they say."""
ANY_MESSAGE = cast(type[Message], Message)  # msgspec decodes unions; type checkers have no word for it
T = TypeVar("T")
M = TypeVar("M", bound=Message)
J = TypeVar("J", bound=VerdictIssued | VerdictRechecked)
M_co = TypeVar("M_co", bound=Message, covariant=True)


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """payload: an encoded Message; signature: 65 bytes by its author over domain and payload. Empty around a judgement
    and an epoch's root, whose own signatures bind all that they say: so they stay evidence outside of the message that
    carried them."""

    payload: bytes
    signature: bytes


class Parsed(msgspec.Struct, frozen=True):
    """A message in form, of which nobody knows yet who wrote it."""

    message: Message
    envelope: Envelope
    raw: bytes


class Signed(msgspec.Struct, Generic[M_co], frozen=True, gc=False):
    """A message whose author is proven. packed: the envelope's bytes; empty where they follow from the message."""

    author: Address
    message: M_co
    packed: bytes

    @property
    def raw(self) -> bytes:
        """The envelope's bytes, for relaying."""
        return self.packed or (envelope_of(self.message) if isinstance(self.message, Judgement) else b"")


def envelope_of(word: Judgement | EpochRootSigned) -> bytes:
    """The only envelope in which such a word is read: what signs it stands within it."""
    return msgspec.msgpack.encode(Envelope(msgspec.msgpack.encode(word), b""))


def lean(signed: Signed[J], like: J | None) -> Signed[J]:
    """The same in a third of the memory: without an envelope that can be made again, and with the values of another
    word that has the same. Nodes keep tens of thousands of verdicts, and honest ones say alike."""
    word = signed.message
    alike = {
        name: getattr(like, name)
        for name in type(word).__struct_fields__
        if like is not None and getattr(word, name) == getattr(like, name)
    }
    packed = b"" if envelope_of(word) == signed.raw else signed.raw
    return Signed(signed.author, msgspec.structs.replace(word, **alike), packed)


def topic(domain: Domain, pool: int) -> str:
    """The gossip topic of a pool."""
    return f"/intellect-node/{domain.chain_id}/{domain.contract.lower()}/{pool}/1"


def message_digest(domain: Domain, payload: bytes) -> bytes:
    """The 32 bytes that an envelope's author signs."""
    # With the domain: a message of one chain and contract is nobody's word on another.
    return blake3(domain.separator() + payload, derive_key_context=_CONTEXT).digest()


def seal(key: NodeKey, domain: Domain, message: Message) -> bytes:
    """Encode and sign; raises MalformedMessage if it would be too long to send."""
    payload = msgspec.msgpack.encode(message)
    # A judgement's own signature is the one that a contract takes; a second one would be another envelope of the same
    # word.
    signature = b"" if isinstance(message, BOUND) else key.sign_hash(message_digest(domain, payload))
    raw = msgspec.msgpack.encode(Envelope(payload, signature))
    if len(raw) > MAX_MESSAGE_BYTES:
        raise MalformedMessage("message not sent", f"{len(raw)} bytes is more than {MAX_MESSAGE_BYTES}")
    return raw


def together(pool: int, words: Iterable[Entry]) -> tuple[Message, list[Entry]]:
    """One message of as many of these as fit, and those that do not. What would go alone goes as itself."""
    taken: dict[type, list[Any]] = {Seal: [], object: []}
    rest: list[Entry] = []
    room = MAX_MESSAGE_BYTES - 256  # bytes of a message around its entries, at most
    for word in words:
        alike, size = taken.get(type(word), taken[object]), len(msgspec.msgpack.encode(word))
        if len(alike) < MAX_ENTRIES and (size <= room or not any(taken.values())):
            alike.append(word)
            room -= size
        else:
            rest.append(word)
    seals, carried = taken.values()
    if len(carried) == 1 and not seals:
        return carried[0], rest
    return ValidatorBatch(pool=pool, seals=tuple(seals), carried=tuple(carried)), rest


def open_envelope(domain: Domain, pool: int, raw: bytes) -> Signed[Message]:
    """Parse, bound and authenticate; raises MalformedMessage or InvalidSignature."""
    return authenticate(domain, parse_envelope(pool, raw))


def parse_envelope(pool: int, raw: bytes) -> Parsed:
    """Everything about an envelope that costs no signature; raises MalformedMessage.

    One message has one encoding: another envelope around the same payload and signature would be a replay that
    nobody recognises. So would another encoding of a judgement, whose bytes nothing signs.
    """
    envelope = _decode(raw, Envelope)
    message = _decode(envelope.payload, ANY_MESSAGE)
    # All that is cheap comes before the signature, which takes the event loop longer than all of it.
    problem = "it is for another pool" if message.pool != pool else message.fault()
    # A list's signature is shown by others without its bytes.
    if isinstance(message, (*BOUND, RoundVote)) and msgspec.msgpack.encode(message) != envelope.payload:
        problem = "the message is not encoded in the shortest way"
    # msgpack has long and short forms of one number: the envelope written anew must give the same bytes.
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
    if isinstance(message, BOUND):
        if envelope.signature:
            raise MalformedMessage(_WHAT, "the envelope of a judgement or a root is signed a second time")
        said = message.verdict if isinstance(message, Judgement) else message.statement
        return Signed(signer_of(domain, said, message.signature), message, parsed.raw)
    author = recover(message_digest(domain, envelope.payload), envelope.signature)
    # Otherwise anybody could repeat a commitment in a message of their own, and use up its author's places.
    if isinstance(message, RolloutCommitted) and message.commitment.node != author:
        raise MalformedMessage(_WHAT, "the commitment is not the author's own")
    return Signed(author, message, parsed.raw)


def signature_of(signed: Signed[Any]) -> bytes:
    """65 bytes, by its author over domain and payload."""
    return _decode(signed.raw, Envelope).signature


def openers(domain: Domain, message: RoundVote) -> Iterator[tuple[Address, bytes]]:
    """Who named in an open word what this one closes, going by the signatures that it shows. Each costs a recovery; one
    that is no signature is nobody's."""
    opened = msgspec.structs.replace(message, closed=False, shown=())
    digest = message_digest(domain, msgspec.msgpack.encode(opened))
    for signature in message.shown:
        try:
            author = recover(digest, signature)
        # The author of the word chose what to show. A bad one among good ones is left out, so that no good one is lost.
        except ProtocolError:
            continue
        yield author, signature


def entries(message: Message) -> Iterator[Message | Seal]:
    """A message and all that it says in one: what each costs its author."""
    yield message
    if isinstance(message, ValidatorBatch):
        yield from message.seals
        for one in message.carried:
            yield from entries(one)


def with_carried(signed: Signed[Message]) -> Iterator[Signed[Message]]:
    """A message, and what it carries as if that had come by itself. Of verdicts and roots the bytes are evidence; what
    else is carried has those of the whole."""
    yield signed
    if isinstance(signed.message, ValidatorBatch):
        for one in signed.message.carried:
            raw = signed.raw
            # Put into an envelope of its own: as evidence it must stand without the message that brought it.
            if isinstance(one, BOUND):
                raw = envelope_of(one)
            yield Signed(signed.author, one, raw)


def of_kind(signed: Signed[Message], kind: type[M]) -> Signed[M]:
    """The same, if its message is of that kind; raises MalformedMessage."""
    if not isinstance(signed.message, kind):
        raise MalformedMessage(_WHAT, f"it is {type(signed.message).__name__} and not {kind.__name__}")
    return cast(Signed[M], signed)


def _statement_fault(statement: Statement) -> str | None:
    """Why no contract could be shown this statement: a root of another length, a number or address out of range."""
    try:
        struct_hash(statement)
    except ProtocolError as error:
        return error.why
    return None


def values_hash(message: Judgement) -> bytes:
    """32 bytes over everything that a judgement says beside its statement, a verdict's salt too: what `Verdict.values`
    binds, so that two of one validator on one work that differ in anything are two statements."""
    said = [getattr(message, name) for name in _VALUES_OF]
    if isinstance(message, VerdictIssued):
        said.append(message.salt)
    return blake3(msgspec.msgpack.encode(said), derive_key_context=_VALUES).digest()


_VALUES_OF = (
    *("detail", "report_root", "report_size", "window", "rate", "checked", "rewards", "logprobs", "group"),
    *("standing", "verifier", "prompts"),
)


def signed(draft: J, key: NodeKey, domain: Domain) -> J:
    """A judgement whose statement binds all that it says, signed."""
    verdict = msgspec.structs.replace(draft.verdict, values=values_hash(draft))
    return msgspec.structs.replace(draft, verdict=verdict, signature=sign(key, domain, verdict))


def seal_of(message: VerdictIssued, author: Address) -> bytes:
    """What is told of a verdict before it is shown. It binds the author, so that nobody can repeat another's seal."""
    said = struct_hash(message.verdict) + message.salt + address_bytes(author)
    return blake3(said, derive_key_context=_SEAL).digest()


def _values_fault(message: Judgement) -> str | None:
    """What is wrong with the comparable values of a verdict, by themselves."""
    checked = sum(byte.bit_count() for byte in message.checked)
    groups = len(message.rewards) // DIGEST
    if len(message.verifier) > MAX_CLASS or not 0 <= message.standing <= 16:
        return "the verifier or the standing is not in form"
    if len(message.prompts) != len(NO_PROMPTS):
        return "the hash of the prompts has the wrong length"
    if not 0 <= message.rate <= RATE_ONE or not -1 <= message.group < MAX_GROUPS:
        return "the rate or the group is out of range"
    if len(message.checked) > MAX_GROUPS // 8 or len(message.rewards) % DIGEST or groups > MAX_VALUES:
        return "the recomputed values are too many"
    # Means are matched to groups by their order in the bitmap, so there must be as many.
    if len(message.logprobs) not in (0, 4 * checked) or checked > MAX_VALUES and message.logprobs:
        return "the recomputed values do not belong to the groups"
    return None
