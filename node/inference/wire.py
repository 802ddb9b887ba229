"""Frames between the daemon and its engine child: u32-LE length, then msgpack of one tagged struct.

Requests carry an id of their own and the reply repeats it; a request that fails is answered with `RequestFailed`.
Many are in flight at a time and their replies come in any order, `RequestProgress` of the longer ones before them.
`Cancel` has none of its own: the request that it names is answered, mostly with `RequestFailed`. `Ping` is answered
whatever the engine does. Knows bytes only: reading and writing is done by the two ends.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Generic, Self, TypeVar

import msgspec

from node.inference.layers import PatchFile
from protocol.decision import Evidence
from protocol.errors import UNREADABLE, ProtocolError
from protocol.messages import NO_PROMPTS
from protocol.run import RunSpec
from protocol.statements import WorkCommitment

MAX_FRAME = 64 * 1024 * 1024
HEADER = struct.Struct("<I")
MOST_REQUESTS = 64
"""That a child takes before the first of them is answered."""


def kept_policies(run: RunSpec) -> int:
    """How many policies' weights a child keeps: those that were loaded last."""
    # Kept beyond the run's max_staleness: the newest, the next, and one that is late.
    return run.recipe.max_staleness + 3


class EngineWireError(ProtocolError):
    """A frame that is too long or is not one of the messages."""


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, tag_field="type", kw_only=True):
    """id: chosen by the client, repeated in the reply; 0 in a reply to something unreadable."""

    id: int = 0


R = TypeVar("R")


class AnsweredMessage(_Message, Generic[R], frozen=True):
    """A request that is asked for an answer of this type."""


class Prepare(AnsweredMessage["EngineReady"], frozen=True):
    """Load the run. run: canonical RunSpec JSON; assets_dir: directory of its files."""

    run: bytes
    assets_dir: str


class EngineReady(_Message, frozen=True):
    """engine: name and version; parameters: of the model; engine_class: as in protocol.engines."""

    device: str
    dtype: str
    engine: str
    parameters: int
    engine_class: str = ""


class LoadPolicy(AnsweredMessage["Loaded"], frozen=True):
    """Keep a policy's weights. policy_root: 32 bytes; path: its bf16 image, already verified, or the one from which
    `patches` lead to it; digests: 32 bytes of each tensor in name order, and image_root: the blob that all are, which
    the engine then compares."""

    policy_root: bytes
    step: int
    path: str
    patches: tuple[PatchFile, ...] = ()
    digests: bytes = b""
    image_root: bytes = b""


class Loaded(_Message, frozen=True):
    seconds: float


class ShardOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which task a file is a shard's result of. spec: its canonical bytes (protocol.tasks); assets_dir: directory of
    its files, the run's where it has none; policy_root: of the loaded policy that it names."""

    spec: bytes
    assets_dir: str
    policy_root: bytes


class Produce(AnsweredMessage["Produced"], frozen=True):
    """Generate submission `index` of `node` under a loaded policy and write the rollout file to out_path.

    capacity: the class that the node claims for itself, which bounds its length budgets; task: where the file is the
    result of shard `index` of the task `policy_root`.
    """

    policy_root: bytes
    node: str
    pool: int
    index: int
    out_path: str
    capacity: int = 0
    task: ShardOrder | None = None


class Produced(_Message, frozen=True):
    """units: sampled tokens, as committed to; tokens: prompts and what environments said included; reward_estimate:
    mean of the own scores; informative: share of groups whose own scores differ. Both are None where this machine could
    not tell a score."""

    path: str
    units: int
    samples: int
    tokens: int
    seconds: float
    reward_estimate: float | None = None
    informative: float | None = None


class Inspect(AnsweredMessage["Inspected"], frozen=True):
    """Check a rollout file against its commitment. file_root: its blob's root, computed from the bytes if empty;
    report_path: where to write the recomputed values, empty for nowhere; groups: which ones to put through the
    model, None for all. Everything that needs no model is checked of all. second_look: compute in another way than
    the worker says it did, if the engine can; such log-probs are not for comparing. task: as in Produce."""

    policy_root: bytes
    node: str
    pool: int
    index: int
    units: int
    path: str
    report_path: str
    file_root: bytes = b""
    groups: tuple[int, ...] | None = None
    second_look: bool = False
    task: ShardOrder | None = None

    @classmethod
    def of(cls, commitment: WorkCommitment, path: Path, report: Path) -> Self:
        """All groups of a file that is committed to."""
        return cls(
            policy_root=commitment.policy_root,
            node=commitment.node,
            pool=commitment.pool,
            index=commitment.index,
            units=commitment.units,
            path=str(path),
            report_path=str(report),
            file_root=commitment.file_root,
        )


class Inspected(_Message, frozen=True):
    """outcome, reason: as in a Verdict; report_path: the written report if accepted, else empty;
    tokens: sampled tokens checked; statistics: what the checks measured; evidence: what the file says about its
    worker, for the sequential decision (nothing if no prefill was reached); group: where the fault lies, -1 for
    the whole file; checked: the groups that went through the model; rewards, logprobs: as in VerdictIssued;
    verifier: class of the engine that looked; unreplayed: groups of which this machine could not tell what the
    environment said between their turns; prompts: as in VerdictIssued."""

    outcome: int
    reason: int
    detail: str
    report_path: str = ""
    rewards_mean: float | None = None
    tokens: int = 0
    seconds: float = 0.0
    statistics: dict[str, float] = {}
    evidence: Evidence = Evidence({})
    group: int = -1
    checked: tuple[int, ...] = ()
    rewards: bytes = b""
    logprobs: bytes = b""
    verifier: str = ""
    unreplayed: tuple[int, ...] = ()
    prompts: bytes = NO_PROMPTS


class Teach(AnsweredMessage["Taught"], frozen=True):
    """Write what the run's teacher says of the rollout file at `path` to out_path, for a task (32 bytes). file_root: of
    the file, 32 bytes; checking: another one's result is to be compared with it."""

    path: str
    file_root: bytes
    task: bytes
    out_path: str
    checking: bool = False


class Taught(_Message, frozen=True):
    """tokens: that the teacher judged."""

    path: str
    tokens: int
    seconds: float


class AnswerRequest(AnsweredMessage["AnswerReply"], frozen=True):
    """Draw an answer to a prompt under a loaded policy, by the numbers of seed and number, and say each token as it
    comes; or, where there is an `output`, look what its tokens are worth, beside the `top` likeliest. Token ids."""

    policy_root: bytes
    prompt: list[int]
    most: int = 1
    temperature: float = 1.0
    seed: int = 0
    number: int = 0
    output: list[int] = []
    top: int = 0


class SaidToken(_Message, frozen=True):
    """Token `place` of the answer that the request `id` asks for."""

    place: int
    token: int


class AnswerReply(_Message, frozen=True):
    """output: what was drawn, of which some engines say no tokens before; logprobs, top: of the tokens that were to be
    looked at and of the likeliest there, by token, at temperature 1."""

    output: list[int] = []
    logprobs: list[float] = []
    top: list[dict[int, float]] = []


class Cancel(_Message, frozen=True):
    """Give up the request `which`: what was sampled of it is thrown away."""

    which: int


class Ping(_Message, frozen=True):
    """Are you alive?"""


class Pong(_Message, frozen=True):
    """beats: grows with everything that the engine's thread ends; busy: what it does now, empty for nothing; used:
    seconds of the engine that each kind of work has had (node.inference.scheduler)."""

    beats: int
    busy: str = ""
    used: dict[str, float] = {}


class RequestProgress(_Message, frozen=True):
    """How far the request `id` is. done: answers that are sampled, of those it needs so far.

    The answers themselves do not come one by one: what leaves an engine's process is a rollout file, an opinion or a
    mean, each of all its sequences, and nobody could use half of one.
    """

    done: int
    of: int


class RequestFailed(_Message, frozen=True):
    what: str
    why: str
    remedy: str


class ChildEnding(_Message, frozen=True):
    """The child's last word: it ends, and why. during: the requests that it was computing; whoever asks for the others
    may repeat them in good conscience."""

    what: str
    why: str
    remedy: str
    during: tuple[int, ...] = ()


Request = Prepare | LoadPolicy | Produce | Inspect | Teach | AnswerRequest | Cancel | Ping
Reply = (
    EngineReady
    | Loaded
    | Produced
    | Inspected
    | Taught
    | AnswerReply
    | Pong
    | RequestProgress
    | SaidToken
    | RequestFailed
    | ChildEnding
)

REPLY_TO: dict[type, type[Any]] = {
    Prepare: EngineReady,
    LoadPolicy: Loaded,
    Produce: Produced,
    Inspect: Inspected,
    Teach: Taught,
    AnswerRequest: AnswerReply,
}
"""What each request that is asked for is answered with."""


def encode(message: _Message) -> bytes:
    """The whole frame, length included."""
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_FRAME:
        raise EngineWireError("a message to the engine is too long", f"{len(body)} bytes")
    return HEADER.pack(len(body)) + body


def body_length(header: bytes) -> int:
    """Length that a frame's first four bytes announce; raises EngineWireError above MAX_FRAME."""
    (length,) = HEADER.unpack(header)
    if length > MAX_FRAME:
        raise EngineWireError("unreadable frame", f"{length} bytes announced, {MAX_FRAME} allowed")
    return length


def answer_to(request: AnsweredMessage[R], reply: Reply) -> R:
    """The reply as what such a request is answered with. Raises EngineWireError for another."""
    answer: Any = reply
    if not isinstance(answer, REPLY_TO[type(request)]):
        raise EngineWireError("no answer", f"{type(reply).__name__} is none to {type(request).__name__}")
    return answer


def requests(source: BinaryIO) -> Iterator[Request | EngineWireError]:
    """What comes until the stream ends, what cannot be read as its error. Raises EngineWireError where the next frame
    cannot be found, OSError."""
    while (header := source.read(HEADER.size)) and len(header) == HEADER.size:
        length = body_length(header)
        body = source.read(length)
        if len(body) < length:
            return
        try:
            yield _decode(body, Request)
        except EngineWireError as error:
            yield error


def decode_reply(body: bytes) -> Reply:
    """Raises EngineWireError."""
    return _decode(body, Reply)


def _decode(body: bytes, kind):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - of any kind
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except UNREADABLE as error:
        raise EngineWireError("unreadable frame", str(error)[:200]) from None
