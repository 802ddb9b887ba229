"""The envelope around a sample's activation proofs: which rules they follow, and what they were made for.

The published core says nothing of itself: no version, no k, no policy, no request, so a proof can be moved anywhere.
An envelope is 44 bytes, unsigned big-endian, before the concatenated proofs:

    magic 2 (b"AP") | version 1 (1) | tie rule 1 (1: lowest position) | k 2 | rows per proof 2 | count 4 | binding 32

binding = BLAKE3 over pool, node, policy root, submission index, group, sample, k, rows per proof, prompt, output (and
who said what of it, where it took turns; which experts computed it, where there are some): an envelope of one policy,
request or worker opens as no other's. The worker's signature over the file (its commitment) covers it. Opening is
strict: anything that `seal` would not have written is refused before any arithmetic.
"""

import struct
from collections.abc import Sequence

import msgspec
from blake3 import blake3

from protocol.identity import Address, address_bytes
from protocol.segments import sampled_count
from protocol.toploc import ActivationProof, MalformedProof, proof_count, proof_size, split_proofs

VERSION = 1
TIES_TO_LOWEST = 1
_MAGIC = b"AP"
_HEAD = struct.Struct(">2sBBHHI32s")
_PLACE = struct.Struct("<QQIIHHII")
_BINDING = "intellect-node proof envelope v1"
_BINDING_OF_TURNS = "intellect-node proof envelope of several turns v1"
_BINDING_OF_EXPERTS = "intellect-node proof envelope of experts v1"
ENVELOPE_BYTES = _HEAD.size


class WrongBinding(MalformedProof):
    """A well-formed envelope that was made for another policy, request or worker."""


class ProofSubject(msgspec.Struct, frozen=True):
    """What one sample's proofs are about. policy_root: 32 bytes; prompt, output: token ids; segments, experts: see
    protocol.segments, protocol.routing."""

    pool: int
    node: Address
    policy_root: bytes
    index: int
    group: int
    sample: int
    prompt: Sequence[int]
    output: Sequence[int]
    segments: Sequence[int] = ()
    experts: bytes = b""

    @property
    def sampled(self) -> int:
        return sampled_count(self.segments, len(self.output))


def binding(subject: ProofSubject, k: int, rows: int) -> bytes:
    """The 32 bytes that tie an envelope to its subject and to the rules it was made by."""
    numbers = (subject.pool, subject.index, subject.group, subject.sample, k, rows)
    # Both lengths are hashed in: otherwise tokens could move from the prompt's end to the output's beginning.
    place = _PLACE.pack(*numbers, len(subject.prompt), len(subject.output))
    tokens = struct.pack(f"<{len(subject.prompt) + len(subject.output)}i", *subject.prompt, *subject.output)
    content = b"".join((place, address_bytes(subject.node), subject.policy_root, tokens))
    if not subject.segments and not subject.experts:
        return blake3(content, derive_key_context=_BINDING).digest()
    said = struct.pack(f"<{len(subject.segments)}i", *subject.segments)
    if subject.experts:
        sizes = struct.pack("<II", len(subject.segments), len(subject.experts))
        return blake3(content + said + sizes + subject.experts, derive_key_context=_BINDING_OF_EXPERTS).digest()
    return blake3(content + said, derive_key_context=_BINDING_OF_TURNS).digest()


def seal(proofs: bytes, subject: ProofSubject, k: int, rows: int) -> bytes:
    """proofs: the concatenated proofs of one sample, from `toploc.proofs_for`; rows: decode rows per proof."""
    count = proof_count(subject.sampled, rows)
    if len(proofs) != count * proof_size(k):
        raise ValueError(f"{len(proofs)} bytes are not the {count} proofs of {subject.sampled} sampled tokens")
    return _HEAD.pack(_MAGIC, VERSION, TIES_TO_LOWEST, k, rows, count, binding(subject, k, rows)) + proofs


def open_envelope(data: bytes, subject: ProofSubject, k: int, rows: int) -> list[ActivationProof]:
    """The proofs inside; raises MalformedProof, or WrongBinding if they were made for something else."""
    count = proof_count(subject.sampled, rows)
    size = ENVELOPE_BYTES + count * proof_size(k)
    if len(data) != size:
        raise _malformed(f"{len(data)} bytes instead of {size}")
    magic, version, ties, own_k, own_rows, own_count, bound = _HEAD.unpack_from(data)
    if (magic, version, ties) != (_MAGIC, VERSION, TIES_TO_LOWEST):
        raise _malformed("no envelope of version 1")
    # k and rows are the run's. An envelope that could choose them would be compared by fewer points.
    if (own_k, own_rows, own_count) != (k, rows, count):
        raise _malformed(f"{own_count} proofs of k {own_k} over {own_rows} rows instead of {count} of {k} over {rows}")
    # Last, since hashing all tokens costs the most of these checks.
    if bound != binding(subject, k, rows):
        raise WrongBinding("misplaced activation proof", "it was made for another policy, request or worker")
    return split_proofs(data[ENVELOPE_BYTES:], k, count)


def _malformed(why: str) -> MalformedProof:
    return MalformedProof("malformed activation proof", why)
