"""The batch manifest: everything that turns policy `step` into policy `step + 1`, by name.

The run, the state before, the files, whose recomputed values of them count, and the arithmetic. Whoever holds what it
names computes the same batch; whoever has the same arithmetic computes the same state, bit for bit. The trainer signs
its root together with what came out (`PolicyStatement`). Pure: bytes and hashes; knows no file and no tensor.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import msgspec
from blake3 import blake3
from eth_hash.auto import keccak

from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError
from protocol.identity import Address, address_from_bytes
from protocol.lots import MAX_GROUPS
from protocol.rollout import MAX_FILE_BYTES, MAX_REPORT_BYTES
from protocol.statements import WorkCommitment, work_id
from protocol.tasks import MAX_SHARDS, MAX_SPEC_BYTES

MAX_MANIFEST_BYTES = 8 * 1024 * 1024
# As many files as a step of 65,536 prompts has, four to a file.
MAX_WORKS = 16_384
MAX_REPORTS = 32
"""Of one file: each validator's and the trainer's own."""
MAX_JUDGED = 4
"""Judge tasks of one file; it has one, unless it was asked about again."""
MAX_TEXT = 300
MAX_CARD_BYTES = 8 * 1024 * 1024
MAX_CONSUMED = 1 << 16
MAX_STATE_FILES = 1024
FED = 3
"""Batches without a work of a worker after which its next one goes first."""
_ARITHMETIC = "intellect-node arithmetic v1"
_STATE = "intellect-node state v1"
_LOT = "intellect-node order of works v1"
_SLOT = b"intellect-node policy statement v1"
POLICY_STATEMENT = (
    "PolicyStatement(uint256 pool,uint32 term,uint64 step,uint64 epoch,bytes32 parent,bytes32 policyRoot,"
    "bytes32 batchRoot,bytes32 stateRoot)"
)
_STATEMENT = keccak(POLICY_STATEMENT.encode())
_WHAT = "bad batch manifest"
_CARD = "bad checkpoint"


class MalformedManifest(ProtocolError):
    """A manifest that is out of bounds, of another run or step, or uses something twice."""


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Written without field names: a manifest has one row a file."""


class Arithmetic(_Row, frozen=True):
    """What the last bits of a step depend on. Equal ones give equal states; number of threads changes nothing.

    processor: instruction set, or the GPU's name; dtype: of the layers; ranks: processes that share the batch;
    adamw: which of torch's implementations; versions: of everything that computes; compiled: what compiled the layers,
    with its version, empty where nothing did.
    """

    processor: str
    dtype: str
    ranks: int
    sharded: bool
    micro_batch_tokens: int
    packing: bool
    logit_cells: int
    fp32_logits: bool
    offload: bool
    adamw: str
    versions: str
    compiled: str

    @property
    def name(self) -> str:
        """16 hex digits that stand for the class."""
        # A short name for people and tables; where it matters the fields themselves are compared.
        return blake3(msgspec.msgpack.encode(self), derive_key_context=_ARITHMETIC).hexdigest(8)

    def differences(self, other: "Arithmetic") -> list[str]:
        """In words, what the other one has differently: 'processor: x86_64-AVX2 instead of x86_64-AVX512'."""
        names = self.__struct_fields__
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in names)
        return [f"{name}: {own} instead of {theirs}" for name, own, theirs in pairs if own != theirs]

    def fault(self) -> str | None:
        texts = (self.processor, self.dtype, self.adamw, self.versions, self.compiled)
        numbers = (self.ranks, self.micro_batch_tokens, self.logit_cells)
        fine = all(len(text) <= MAX_TEXT for text in texts) and all(0 < number < 2**48 for number in numbers)
        return None if fine else "its arithmetic is out of bounds"


class UsedReport(_Row, frozen=True):
    """Whose recomputed values of a file count. author: 20 bytes; root, size: of the report; groups: bitmap of those
    whose values are taken from it."""

    author: bytes
    root: bytes
    size: int
    groups: bytes

    def fault(self) -> str | None:
        if len(self.author) != 20 or len(self.root) != 32 or not 0 < self.size <= MAX_REPORT_BYTES:
            return "a report is not named in form"
        return None if 0 < len(self.groups) <= MAX_GROUPS // 8 and any(self.groups) else "a report gives no group"


class JudgedShard(_Row, frozen=True):
    """What one judge thought of some answers: its commitment field by field (node: 20 bytes), and the report of the
    validator (author: 20 bytes) who read the scores off it. Of a teacher's result, which is a report by itself, both
    are that."""

    node: bytes
    shard: int
    file_root: bytes
    units: int
    epoch: int
    author: bytes
    report_root: bytes
    report_size: int

    def fault(self) -> str | None:
        if any(len(one) != 20 for one in (self.node, self.author)) or len(self.file_root) != 32:
            return "a judge's work is not named in form"
        if len(self.report_root) != 32 or not 0 < self.report_size <= MAX_REPORT_BYTES:
            return "the report on a judge's work is not named in form"
        fine = 0 <= self.shard < MAX_SHARDS and 0 <= self.units < 2**32 and 0 <= self.epoch < 2**64
        return None if fine else "a number of a judge's work is out of range"


class JudgedTask(_Row, frozen=True):
    """A task about a file, for judges or the teacher. task, subject: roots of the specification and of the answers that
    it is about; shards: results with a report, ascending."""

    task: bytes
    task_size: int
    subject: bytes
    subject_size: int
    shards: tuple[JudgedShard, ...]

    def commitment(self, pool: int, one: JudgedShard) -> WorkCommitment:
        """What a judge signed."""
        node = address_from_bytes(one.node)
        return WorkCommitment(pool, node, self.task, one.shard, one.file_root, one.units, one.epoch)

    def fault(self) -> str | None:
        if len(self.task) != 32 or len(self.subject) != 32:
            return "a judge task is not named in form"
        if not 0 < self.task_size <= MAX_SPEC_BYTES or not 0 < self.subject_size <= MAX_FILE_BYTES:
            return "the size of a judge task is none"
        numbers = [one.shard for one in self.shards]
        if not 0 < len(numbers) <= MAX_SHARDS or any(a >= b for a, b in pairwise(numbers)):
            return "a judge task has no result, too many, or one twice"
        return next((why for one in self.shards if (why := one.fault())), None)


class UsedWork(_Row, frozen=True):
    """A file that a batch is made of: its commitment field by field (node: 20 bytes), size in bytes, and reports.

    used, flat: bitmaps of the groups that are learnt from, and of those that are used up without; judged: the tasks in
    which judges gave the rewards that the reports lack, or the run's teacher spoke.
    """

    node: bytes
    policy_root: bytes
    policy_step: int
    index: int
    file_root: bytes
    units: int
    epoch: int
    size: int
    reports: tuple[UsedReport, ...]
    used: bytes
    flat: bytes
    judged: tuple[JudgedTask, ...] = ()

    @property
    def author(self) -> Address:
        return address_from_bytes(self.node)

    def commitment(self, pool: int) -> WorkCommitment:
        """What the worker signed."""
        return WorkCommitment(pool, self.author, self.policy_root, self.index, self.file_root, self.units, self.epoch)

    def name(self, pool: int) -> bytes:
        """The work's id; at a desk, where nobody commits to anything, the file's root."""
        return work_id(self.commitment(pool)) if pool else self.file_root

    def fault(self, step: int) -> str | None:
        if len(self.node) != 20 or len(self.policy_root) != 32 or len(self.file_root) != 32:
            return "a work is not named in form"
        # Work of a policy that does not exist yet cannot have been made.
        if not 0 <= self.policy_step <= step or not 0 < self.size <= MAX_FILE_BYTES:
            return "a file is of a later policy, or its size is none"
        if not (0 <= self.index < 2**64 and 0 <= self.units < 2**32 and 0 <= self.epoch < 2**64):
            return "a number of a work is out of range"
        if not 0 < len(self.reports) <= MAX_REPORTS:
            return "a work has no report, or too many"
        if len(self.judged) > MAX_JUDGED:
            return "a file has too many judge tasks"
        parts = (*self.reports, *self.judged)
        return self._bitmap_fault() or next((why for one in parts if (why := one.fault())), None)

    def blobs(self) -> Iterator[tuple[bytes, int, bytes]]:
        """(root, size, who made it) of all that its groups are made from; who: 20 bytes, empty for the trainer."""
        # The worker first: whoever wants the file asks its author before anybody else.
        yield self.file_root, self.size, self.node
        for one in self.reports:
            yield one.root, one.size, one.author
        for task in self.judged:
            yield task.task, task.task_size, b""
            yield task.subject, task.subject_size, b""
            for shard in task.shards:
                yield shard.report_root, shard.report_size, shard.author

    def _bitmap_fault(self) -> str | None:
        maps = (self.used, self.flat, *(one.groups for one in self.reports))
        # Bitmaps of one file have one length; another length is of another file.
        if len({len(each) for each in maps}) != 1 or not any(self.used) and not any(self.flat):
            return "its bitmaps are of several files, or no group of a work is used"
        given = 0
        for one in self.reports:
            groups = int.from_bytes(one.groups, "little")
            if given & groups:
                return "two reports give values of one group"
            # Bit by bit: a group that two reports give would be trained on with whichever came last.
            given |= groups
        used, flat = int.from_bytes(self.used, "little"), int.from_bytes(self.flat, "little")
        return None if used & flat == 0 and used | flat == given else "a group is used twice, or without a report"


class ComposedBatch(_Row, frozen=True):
    """What a batch is made of, known before the policy is that learns from it. pool: 0 at a desk; works: in the order
    of `work_order`."""

    run_root: bytes
    pool: int
    step: int
    works: tuple[UsedWork, ...]

    def check(self, run_root: bytes, pool: int, step: int, max_staleness: int) -> None:
        """Raise MalformedManifest unless this may be the batch of this step of this run."""
        fault = self._frame_fault(run_root, pool, step) or self._work_fault(max_staleness)
        if fault:
            raise MalformedManifest(_WHAT, fault)

    def _frame_fault(self, run_root: bytes, pool: int, step: int) -> str | None:
        if self.run_root != run_root or self.pool != pool:
            return "it is of another run or pool"
        if self.step != step:
            return f"it is for step {self.step}, asked for was step {step}"
        return None if 0 < len(self.works) <= MAX_WORKS else "it names no work, or too many"

    def _work_fault(self, max_staleness: int) -> str | None:
        for work in self.works:
            if fault := work.fault(self.step):
                return fault
            # Checked here, too: a trainer that trains on old rollouts breaks a rule that everybody can see.
            if self.step - work.policy_step > max_staleness:
                return f"a file is of policy {work.policy_step}, more than {max_staleness} steps old"
        # Strictly rising: one order for each set of works, so a batch has one root, and no work stands twice.
        order = [work_order(self.pool, work) for work in self.works]
        if any(a >= b for a, b in pairwise(order)):
            return "its works are not in order, or one stands twice"
        return None


class BatchManifest(_Row, frozen=True):
    """The whole of a step: a batch, and what it was applied to. term: of the trainer, 0 as long as a pool has one;
    parent, state: policy root and state root of `step`, 32 bytes each; ended_by: why the run is over, if it is."""

    batch: ComposedBatch
    term: int
    parent: bytes
    state: bytes
    arithmetic: Arithmetic
    ended_by: str = ""

    def check(self, run_root: bytes, pool: int, step: int, max_staleness: int) -> None:
        """Raise MalformedManifest unless this may be what turned policy `step` of this run into the next."""
        if len(self.parent) != 32 or len(self.state) != 32 or not 0 <= self.term < 2**32:
            raise MalformedManifest(_WHAT, "a root is not 32 bytes, or the term is out of range")
        fault = self.arithmetic.fault() if len(self.ended_by) <= MAX_TEXT else "a text is too long"
        if fault:
            raise MalformedManifest(_WHAT, fault)
        self.batch.check(run_root, pool, step, max_staleness)


class CheckpointFile(_Row, frozen=True):
    """A file of a checkpoint as a blob. size: bytes."""

    root: bytes
    size: int


class CheckpointCard(_Row, frozen=True):
    """What a checkpoint is made of beside its tensors, which are in its files (safetensors, one of each rank).

    step: the next one; updates: how many AdamW has made; consumed: (group learnt from, step), in order. Who fetches it
    compares the state root of it all with the signed one: a card by itself proves nothing.
    """

    step: int
    updates: int
    consumed: tuple[tuple[str, int], ...]
    files: tuple[CheckpointFile, ...]

    def check(self, step: int) -> None:
        """Raise MalformedManifest unless this may be the checkpoint of `step`."""
        if self.step != step or not 0 <= self.updates < 2**48:
            raise MalformedManifest(_CARD, f"it is of step {self.step}, asked for was step {step}")
        if len(self.consumed) > MAX_CONSUMED or not 0 < len(self.files) <= MAX_STATE_FILES:
            raise MalformedManifest(_CARD, "it names too much, or no file")
        if any(len(name) > MAX_TEXT or not 0 <= at < step for name, at in self.consumed):
            raise MalformedManifest(_CARD, "it says that a group was learnt from in a later step")
        if any(len(one.root) != 32 or not 0 < one.size < 2**48 for one in self.files):
            raise MalformedManifest(_CARD, "a file is not named in form")


def lot_of(pool: int, policy_root: bytes, node: Address, index: int) -> int:
    """Where a file stands among those of its policy, 0 to 2^48; at a desk its submission index.

    Nobody chooses it: the root came out of a step of training, an address has a stake, indices have no gaps, and what
    is in the file does not count.
    """
    if not pool:
        return index
    named = policy_root + node.lower().encode() + index.to_bytes(8, "big")
    return int.from_bytes(blake3(named, derive_key_context=_LOT).digest(6))


def batch_order(starving: bool, order: tuple[int, int, bytes]) -> tuple[bool, int, int, bytes]:
    """In which works come into a batch, of their `work_order`. starving: the first work of a worker of whom the last
    FED batches name none. It stands before all others: the freshest first would leave out a slow worker for ever, and
    nobody could tell a trainer that drops one from that."""
    return (not starving, *order)


def work_order(pool: int, work: UsedWork) -> tuple[int, int, bytes]:
    """The freshest policy first, then by lot, then by name: the order of works and of their rows."""
    return -work.policy_step, lot_of(pool, work.policy_root, work.author, work.index), work.name(pool)


def encode_manifest(manifest: BatchManifest | ComposedBatch | CheckpointCard) -> bytes:
    return msgspec.msgpack.encode(manifest)


def decode_manifest(data: bytes) -> BatchManifest:
    """Raises MalformedManifest. Whether it makes sense: `BatchManifest.check`."""
    return decode_msgpack(data, BatchManifest, limit=MAX_MANIFEST_BYTES, error=MalformedManifest, what=_WHAT)


def decode_composed(data: bytes) -> ComposedBatch:
    """Raises MalformedManifest."""
    return decode_msgpack(data, ComposedBatch, limit=MAX_MANIFEST_BYTES, error=MalformedManifest, what=_WHAT)


def decode_card(data: bytes) -> CheckpointCard:
    """Raises MalformedManifest."""
    return decode_msgpack(data, CheckpointCard, limit=MAX_CARD_BYTES, error=MalformedManifest, what=_CARD)


def state_root(step: int, updates: int, consumed: Mapping[str, int], digests: Iterable[tuple[str, bytes]]) -> bytes:
    """32 bytes that name what the trainer goes on from. updates: how many AdamW has made; consumed: groups learnt from
    within the staleness, and when; digests: (name, BLAKE3 of the whole float32 tensor) of weights and moments, in
    order. Random states are left out: nothing in a step draws from them."""
    hasher = blake3(derive_key_context=_STATE)
    hasher.update(step.to_bytes(8, "little") + updates.to_bytes(8, "little"))
    hasher.update(msgspec.msgpack.encode(sorted(consumed.items())))
    for name, digest in digests:
        hasher.update(len(name.encode()).to_bytes(4, "little") + name.encode() + digest)
    return hasher.digest()


class PolicyStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A trainer's one word about a step: from the policy `parent`, by this batch, came this policy and this state.

    batch_root: of the manifest as a blob; parent and batch_root are zeros for step 0. epoch: of the pool, in which the
    policy counts for its trainer's pay: one policy of two epochs is two statements about one step.
    """

    pool: int
    term: int
    step: int
    epoch: int
    parent: bytes
    policy_root: bytes
    batch_root: bytes
    state_root: bytes

    def fault(self) -> str | None:
        roots = (self.parent, self.policy_root, self.batch_root, self.state_root)
        if any(len(root) != 32 for root in roots) or not 0 <= self.pool < 2**256:
            return "a root of the statement is not 32 bytes"
        fine = 0 <= self.term < 2**32 and 0 <= self.step < 2**63 and 0 <= self.epoch < 2**63
        return None if fine else "a number of it is out of range"

    @property
    def struct_hash(self) -> bytes:
        """EIP-712's hashStruct, 32 bytes. Raises ProtocolError for fields that are out of range."""
        if fault := self.fault():
            raise ProtocolError("unusable policy statement", fault)
        numbers = b"".join(number.to_bytes(32) for number in (self.pool, self.term, self.step, self.epoch))
        return keccak(_STATEMENT + numbers + self.parent + self.policy_root + self.batch_root + self.state_root)

    def commitment(self, trainer: Address) -> WorkCommitment:
        """What the trainer signs: a commitment of its own to this statement, whose slot is (term, step).

        Two of one slot are what `Court.evidence` punishes, and a quorum's verdicts about one are what `Court.slash`
        takes, both as they stand. The slot's root is no policy's, so nobody can take it for rollouts.
        """
        slot = keccak(_SLOT + self.term.to_bytes(4))
        return WorkCommitment(self.pool, trainer, slot, self.step, self.struct_hash, units=0)
