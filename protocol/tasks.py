"""Tasks of the swarm: what is asked for, cut into shards, and who should do which.

A task is a specification, a blob; its root is the task's id. A shard's result is a rollout file (of a review: a report)
whose commitment names the task in place of the policy and the shard in place of the submission's index, so that
whatever holds of rollouts holds of it. What is not sampled (a report, a stretch of a merged policy, what a teacher says
of a rollout file) validators compute again. Problems and random numbers follow from (task, shard) and not from who does
it: whoever takes a shard over makes the same answers. Pure.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec
from blake3 import blake3

from protocol.blobs import describe
from protocol.codec import decode_json
from protocol.draw import sample_seed
from protocol.errors import ProtocolError
from protocol.identity import Address, address_bytes
from protocol.merging import Merge, MergeError
from protocol.rollout import MAX_FILE_BYTES, MAX_REPORT_BYTES
from protocol.run import Asset, EnvironmentSpec, RunSpec, check_asset_path, is_root
from protocol.sections import LengthBudget, Rule, Section

TaskId = bytes
Kind = Literal["generate", "filter", "evaluate", "judge", "review", "merge", "teach"]
Part = Literal["training", "held_out", "all"]
Device = Literal["any", "cpu", "cuda"]

MAX_SPEC_BYTES = 8 * 1024
MAX_SHARDS = 4096
MAX_SHARD_SIZE = 256
MAX_SHARD_SAMPLES = 8192
MAX_NAME = 128
MAX_REVIEW_BYTES = 1 << 20
"""Of a review's report."""
MAX_REVIEW_UNITS = 1 << 20
"""What one result of which nothing is sampled may be paid for at most, in units of work."""
STRETCH = 1 << 20
"""Numbers of a merged policy that are one problem of a merge task; its tensors lie one after another."""
MAX_STRETCHES = 16
"""Of a shard."""
_MAX_IMAGE_HEADER = 1 << 24
COPIES = 3
"""How many nodes do the same of a judge or review task, each by itself. The median of opinions needs three."""
SUBJECT = "subject.arrow"
"""The path of the file that is judged, among a judge task's assets."""
LESSON = "{}.arrow"
"""The path of a rollout file among a teach task's assets, by the number of its problem."""
MAX_ASSETS = 16
WEIGHTS = "policy.safetensors"
"""The path of the weights that a task brings along, among its assets."""
ANYBODY = Address("0x0000000000000000000000000000000000000000")
"""Stands for the node in the seeds of a task."""
_RENDEZVOUS = "intellect-node task rendezvous v1"


class TaskError(ProtocolError):
    """A task that cannot be done as it is written."""


class MergeOrder(Section, frozen=True):
    """models, base: 64 hex digits of policies' roots; base: that all came from, empty for an average."""

    models: tuple[str, ...]
    base: str = ""
    rule: Merge = Merge()

    def fault(self) -> str:
        """Why it cannot be done, in words; empty if it can."""
        try:
            self.rule.check()
        except MergeError as error:
            return error.why
        if len(self.models) != len(self.rule.weights):
            return f"{len(self.models)} models have {len(self.rule.weights)} weights"
        if bool(self.base) != self.rule.needs_base:
            return f"{self.rule.method} {'needs a' if self.rule.needs_base else 'has no'} base"
        return "" if all(map(is_root, self.policies)) else "a policy is not named by 64 hex digits"

    @property
    def policies(self) -> tuple[str, ...]:
        return (*self.models, self.base) if self.base else self.models


class TaskSpec(Section, frozen=True):
    """One task.

    policy: 64 hex digits of the root of the policy that answers (empty: nothing is sampled, kinds review, merge and
    teach), or of the blob of the task's own asset WEIGHTS, an image of weights that are no policy of the run (a merged
    model); step: its step; environment: as in a run, None: the run's own, with `assets` beside it; part: which of its
    problems, "all" numbers the held-out ones after the training ones; first, last: numbers of the problems, without the
    last; samples: answers to each; shard_size: problems of a shard; copies: nodes that each do the same;
    max_prompt_tokens, max_output_tokens, temperature: 0 for the run's; lease_seconds: how long a claimed shard may
    take; device: what engines must compute on; subject: 64 hex digits of what is judged (a rollout file) or reviewed (a
    package); units: of work that each result counts as, where nothing is sampled; merge: what is merged, whose problems
    are stretches of STRETCH numbers of the result; nonce: tells tasks apart that are equal otherwise. The problems of a
    teach task are its assets, rollout files of which the run's teacher says how likely their tokens are.
    """

    kind: Kind
    last: int
    policy: str = ""
    step: int = -1
    environment: EnvironmentSpec | None = None
    assets: tuple[Asset, ...] = ()
    part: Part = "training"
    first: int = 0
    samples: int = 1
    shard_size: int = 16
    copies: int = 1
    max_prompt_tokens: int = 0
    max_output_tokens: int = 0
    temperature: float = 0.0
    lease_seconds: float = 120.0
    device: Device = "any"
    subject: str = ""
    units: int = 0
    merge: MergeOrder | None = None
    nonce: str = ""
    version: int = 1

    @property
    def problems(self) -> int:
        return self.last - self.first

    @property
    def spans(self) -> int:
        """Stretches of problems, each done by `copies` nodes."""
        return -(-self.problems // self.shard_size)

    @property
    def shards(self) -> int:
        return self.spans * self.copies

    @property
    def samples_asked(self) -> bool:
        """Whether its results are rollout files."""
        return self.kind not in ("review", "merge", "teach")

    @property
    def weights(self) -> Asset | None:
        """The weights that it brings along."""
        return next((asset for asset in self.assets if asset.path == WEIGHTS), None)

    @property
    def policies(self) -> tuple[str, ...]:
        """The roots of all policies of the run that are needed for it, as hex."""
        named = self.merge.policies if self.merge else ()
        return (self.policy, *named) if self.policy and not self.weights else named

    @property
    def most_bytes(self) -> int:
        """Of a result of which nothing is sampled."""
        if self.kind == "teach":
            return MAX_REPORT_BYTES
        return 2 * STRETCH * self.shard_size + _MAX_IMAGE_HEADER if self.kind == "merge" else MAX_REVIEW_BYTES

    def numbers(self, shard: int) -> range:
        """The problems of a shard, 0 <= shard < shards."""
        if not 0 <= shard < self.shards:
            raise IndexError(f"shard {shard} of {self.shards}")
        start = self.first + shard // self.copies * self.shard_size
        return range(start, min(start + self.shard_size, self.last))

    def siblings(self, shard: int) -> range:
        """The shards that ask for the same, this one among them: no node does two of them."""
        start = shard - shard % self.copies
        return range(start, start + self.copies)

    def check(self) -> None:
        """Raise TaskError naming the first field that makes no sense."""
        for field, good, rule in self._rules():
            if not good:
                raise TaskError(f"unusable task: {field}", rule, "correct what was asked for")
        for asset in self.assets:
            check_asset_path(asset.path)

    def _rules(self) -> list[Rule]:
        # What is sampled is proven by activations; what is not needs several nodes that say the same.
        pinned = self.kind in ("judge", "review")
        sizes = 1 <= self.shard_size <= MAX_SHARD_SIZE and 1 <= self.samples <= 256
        return [
            ("version", self.version == 1, "this program reads version 1"),
            ("problems", 0 <= self.first < self.last < 2**63, "must be a range that is not empty"),
            (
                "samples",
                sizes and self.shard_size * self.samples <= MAX_SHARD_SAMPLES,
                "1 to 256 to each, 8192 a shard",
            ),
            ("step", -1 <= self.step < 2**63, "must be -1 to 2^63 - 1"),
            ("copies", self.copies == (COPIES if pinned else 1), f"{COPIES} to judge or review, otherwise 1"),
            ("shards", sizes and self.shards <= MAX_SHARDS, f"at most {MAX_SHARDS}: make each larger"),
            ("policy", is_root(self.policy) or not self.samples_asked, "must be the root of a policy, 64 hex digits"),
            ("subject", is_root(self.subject) == pinned, "must be a root, 64 hex digits, to judge or review"),
            ("units", self._units_fit(), f"1 to {MAX_REVIEW_UNITS} for what is not sampled, else 0"),
            ("merge", (self.merge is None) == (self.kind != "merge"), "must be there to merge, and only then"),
            ("merge", not self.merge or not self.merge.fault(), self.merge.fault() if self.merge else ""),
            (
                "merge",
                not self.merge or (self.first == 0 and self.shard_size <= MAX_STRETCHES),
                f"begins at stretch 0, at most {MAX_STRETCHES} a shard",
            ),
            (
                "assets",
                not self.weights or (self.samples_asked and self.weights.root == self.policy),
                f"{WEIGHTS} must be what `policy` names, in a task that samples",
            ),
            ("assets", self.kind != "judge" or self._has_subject(), f"must hold what is judged as {SUBJECT}"),
            ("assets", self.kind != "teach" or self._has_files(), "must be one rollout file for each problem"),
            ("shard_size", self.kind != "teach" or self.shard_size == 1, "must be 1 to teach"),
            ("lease_seconds", 1 <= self.lease_seconds <= 86_400, "must be 1 to 86400"),
            ("temperature", self.temperature == 0 or 0.01 <= self.temperature <= 10, "must be 0 or 0.01 to 10"),
            ("tokens", 0 <= min(self.max_prompt_tokens, self.max_output_tokens), "limits are not negative"),
            ("tokens", max(self.max_prompt_tokens, self.max_output_tokens) <= 1 << 20, "limits are at most 1048576"),
            ("nonce", len(self.nonce) <= MAX_NAME, f"at most {MAX_NAME} characters"),
            (
                "environment",
                not (self.environment and self.environment.for_desks_only),
                "must not be one for desks only",
            ),
            ("assets", len(self.assets) <= MAX_ASSETS, f"a task has at most {MAX_ASSETS} files"),
            # A task's owner is a stranger: who fetches a file takes its root for hex.
            (
                "assets",
                all(is_root(asset.root) and 0 <= asset.size < 2**63 for asset in self.assets),
                "must be named by 64 hex digits and a size",
            ),
        ]

    def _units_fit(self) -> bool:
        return self.units == 0 if self.samples_asked else 1 <= self.units <= MAX_REVIEW_UNITS

    def _has_subject(self) -> bool:
        return any((asset.path, asset.root) == (SUBJECT, self.subject) for asset in self.assets)

    def _has_files(self) -> bool:
        paths = [asset.path for asset in self.assets]
        named = paths == [LESSON.format(number) for number in range(self.last)] if self.last <= MAX_ASSETS else False
        return self.first == 0 and named and all(0 < asset.size <= MAX_FILE_BYTES for asset in self.assets)


def encode_task(spec: TaskSpec) -> bytes:
    """Canonical JSON: keys in sorted order, no spaces. These bytes are the task's blob."""
    fields = msgspec.to_builtins(spec)
    if spec.merge is None:
        del fields["merge"]  # as it was before there were merges: ids stay
    return msgspec.json.encode(fields, order="sorted")


def decode_task(data: bytes) -> TaskSpec:
    """Parse and check; raises TaskError. One task has one encoding: another one would be another id."""
    spec = decode_json(data, TaskSpec, limit=MAX_SPEC_BYTES, error=TaskError, what="unusable task")
    spec.check()
    # A second spelling would be a second task with its own random numbers: draw until the answers suit.
    if encode_task(spec) != data:
        raise TaskError("unusable task", "it is not written in canonical form", "write it with encode_task")
    return spec


def task_id(encoded: bytes) -> TaskId:
    """32 bytes: the blob root of the specification."""
    return describe(encoded).root


def run_of_shard(run: RunSpec, spec: TaskSpec, shard: int) -> RunSpec:
    """The run by which a shard is made and checked: the task's environment and sizes, no length budgets."""
    base = run.rollout
    rollout = msgspec.structs.replace(
        base,
        group_size=spec.samples,
        prompts_per_file=len(spec.numbers(shard)),
        max_prompt_tokens=spec.max_prompt_tokens or base.max_prompt_tokens,
        max_output_tokens=spec.max_output_tokens or base.max_output_tokens,
        temperature=spec.temperature or base.temperature,
    )
    environment = spec.environment or run.environment
    return msgspec.structs.replace(run, rollout=rollout, environment=environment, length_budget=LengthBudget())


def shard_seed(task: TaskId, shard: int, group: int, sample: int) -> bytes:
    """The 32-byte seed of one answer's random numbers, whoever gives it."""
    return sample_seed(task, ANYBODY, shard, group, sample)


def weight(task: TaskId, shard: int, node: Address) -> int:
    """Rendezvous hashing (Thaler, Ravishankar 1996): of the nodes that could do a shard the lightest should.

    Words of 64 bits from one BLAKE3 stream of each node, so that all of them cost little more than one.
    """
    stream = blake3(task + address_bytes(node), derive_key_context=_RENDEZVOUS)
    return int.from_bytes(stream.digest(8, seek=8 * shard))


def by_weight(task: TaskId, shards: int, node: Address) -> list[int]:
    """All shards of a task, those first that suit a node best."""
    stream = blake3(task + address_bytes(node), derive_key_context=_RENDEZVOUS).digest(8 * shards)
    words = [stream[8 * shard : 8 * shard + 8] for shard in range(shards)]
    return sorted(range(shards), key=words.__getitem__)


def rank(task: TaskId, shard: int, own: Address, others: Iterable[Address]) -> int:
    """How many of `others` should do a shard rather than `own`."""
    mine = weight(task, shard, own)
    # Ties need no rule: two words of 64 bits are equal about never, and then two nodes do one shard.
    return sum(weight(task, shard, one) < mine for one in others if one != own)


def admits_engine(spec: TaskSpec, engine: str) -> bool:
    """Whether a node whose heartbeat names this engine meets what the task requires."""
    return spec.device == "any" or f"({spec.device}" in engine
