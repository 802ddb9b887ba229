"""A contribution: what a peer learnt in a round, as a file that anybody can check and add.

    magic "INC\\x01" | bytes of the header, u32 | header, msgpack | each tensor in name order, flat, in the run's form

The tensors are those of the round's fragment (all of them, where the run has one): outer state minus inner result, so
adding them to nothing but the outer state is a step downhill. Their shapes are the run's, never the file's: a file has
exactly one length that it may have. Pure; tensors are decoded one at a time.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from protocol.codec import decode_msgpack
from protocol.exchange import F32, ContributionError, ExchangeForm
from protocol.pretraining import Diloco

# A digest for each stretch of a round: some thousand of 32 bytes.
MAX_HEADER_BYTES = 1 << 18
MAX_ARITHMETIC = 400
MAX_TOKENS = 1 << 40
_FRONT = struct.Struct("<4sI")
_MAGIC = b"INC\x01"
Shapes = Mapping[str, tuple[int, ...]]


class ContributionHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """outer: state root of the round's beginning; replica_id: whose rows; tokens: learnt from (of rollouts: how many);
    loss_first, loss_last: of its first and last inner step; inner: blob roots of the peer's own state (moments, what
    was carried over) before and after, the state root of nothing where it has none; stretches: digests of the peer's
    state at each `diloco.stretch` inner steps; arithmetic: what the bits depend on; batches: of a run with rollouts,
    the root of each inner step's manifest."""

    run_root: bytes
    round: int
    outer: bytes
    replica_id: int
    tokens: int
    loss_first: float
    loss_last: float
    inner: tuple[bytes, bytes]
    stretches: tuple[bytes, ...]
    arithmetic: str
    batches: tuple[bytes, ...] = ()


class Expected(NamedTuple):
    """What a contribution must fit. outers: state root of each round whose contributions are taken now (the round
    that runs and, for the late, the one before), None where any will do; replicas: below which a replica's number is;
    tokens: most of a round; stretches: most digests; batch: rollouts of each manifest that it names, 0 where it names
    none."""

    run_root: bytes
    outers: Mapping[int, bytes | None]
    replicas: int
    tokens: int
    stretches: int
    batch: int = 0

    def objection(self, header: ContributionHeader) -> str:
        """Why a header does not fit, in words; empty if it does."""
        roots = (header.run_root, header.outer, *header.inner, *header.stretches, *header.batches)
        named = header.tokens == len(header.batches) * self.batch if self.batch else not header.batches
        checks = (
            (all(len(root) == 32 for root in roots), "a root in it is not 32 bytes"),
            (header.run_root == self.run_root, "it is of another run"),
            (header.round in self.outers, f"it is of round {header.round}"),
            (self.outers.get(header.round) in (None, header.outer), "it begins at another outer state"),
            (0 <= header.replica_id < self.replicas, f"its replica is {header.replica_id} of {self.replicas}"),
            (0 < header.tokens <= self.tokens, f"it says that it learnt from {header.tokens} tokens of {self.tokens}"),
            (named, f"it names {len(header.batches)} batches, which are no {header.tokens} of its kind"),
            (all(map(math.isfinite, (header.loss_first, header.loss_last))), "a loss in it is not finite"),
            (len(header.stretches) <= self.stretches, f"it has {len(header.stretches)} digests of {self.stretches}"),
            (len(header.arithmetic) <= MAX_ARITHMETIC, "what it says of its arithmetic is too long"),
        )
        return next((why for good, why in checks if not good), "")


def expected_of(rules: Diloco, run_root: bytes, outers: Mapping[int, bytes | None], batch: int = 0) -> Expected:
    """What a run expects of a contribution to these rounds. batch: rollouts of an inner step, 0 with text."""
    digests = -(-rules.round_steps // rules.stretch) if rules.stretch else 0
    tokens = rules.round_steps * (batch or rules.batch_tokens)
    return Expected(run_root, outers, rules.max_contributions, tokens, digests, batch)


class Contribution(NamedTuple):
    """header, and the encoded tensors, which are not decoded yet: `tensor` and `check` raise ContributionError."""

    header: ContributionHeader
    form: ExchangeForm
    shapes: Shapes
    parts: Mapping[str, memoryview]

    def tensor(self, name: str) -> F32:
        """float32, flat."""
        return self.form.decode(self.parts[name], math.prod(self.shapes[name]))

    def check(self) -> float:
        """Decode everything once; its L2 norm."""
        total = 0.0
        for name in self.shapes:
            # In float32 the sum of a billion squares would no longer notice the small ones.
            values = self.tensor(name).astype(np.float64)
            total += float(np.dot(values, values))
        return math.sqrt(total)


def encode_header(header: ContributionHeader) -> bytes:
    """What stands before the tensors. Its length depends on the numbers in it, not on its roots."""
    body = msgspec.msgpack.encode(header)
    return _FRONT.pack(_MAGIC, len(body)) + body


def encode_contribution(header: ContributionHeader, tensors: Mapping[str, F32], form: ExchangeForm) -> Iterator[bytes]:
    """The file, part by part. tensors: by name, in any order."""
    yield encode_header(header)
    for name in sorted(tensors):
        yield form.encode(tensors[name])


def most_bytes(shapes: Shapes, form: ExchangeForm) -> int:
    """The longest file that may be fetched."""
    return _FRONT.size + MAX_HEADER_BYTES + sum(form.size(math.prod(shape)) for shape in shapes.values())


def decode_header(data: bytes | memoryview, expected: Expected) -> tuple[ContributionHeader, memoryview]:
    """(the header, compared with what it must be; what stands behind it). Raises ContributionError."""
    view = memoryview(data).cast("B")
    if len(view) < _FRONT.size:
        raise ContributionError("it is shorter than its header")
    magic, length = _FRONT.unpack(view[: _FRONT.size])
    if magic != _MAGIC:
        raise ContributionError("it is none, or one of another version")
    body = view[_FRONT.size :]
    # The length is the stranger's: compared with what is there before a slice is taken.
    if length > min(len(body), MAX_HEADER_BYTES):
        raise ContributionError(f"it promises a header of {length} bytes")
    header = decode_msgpack(
        bytes(body[:length]), ContributionHeader, limit=MAX_HEADER_BYTES, error=_HeaderError, what="header"
    )
    if why := expected.objection(header):
        raise ContributionError(why)
    return header, body[length:]


def decode_contribution(
    data: bytes | memoryview, shapes: Shapes, form: ExchangeForm, expected: Expected
) -> Contribution:
    """Header and lengths, compared with what they must be; no tensor is decoded. Raises ContributionError."""
    header, body = decode_header(data, expected)
    sizes = {name: form.size(math.prod(shapes[name])) for name in sorted(shapes)}
    # Shapes are the run's: a file cannot say that it has other tensors, only have the wrong length.
    if len(body) != sum(sizes.values()):
        raise ContributionError(f"its tensors have {len(body)} bytes, those of the run's model {sum(sizes.values())}")
    parts: dict[str, memoryview] = {}
    for name, size in sizes.items():
        parts[name], body = body[:size], body[size:]
    return Contribution(header, form, {name: tuple(shapes[name]) for name in sizes}, parts)


class _HeaderError(ContributionError):
    """As decode_msgpack raises it."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
