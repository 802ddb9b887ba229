"""Cases for the contracts as files: who is accused, by which signatures. JSON, read strictly.

A case proves itself by the signatures in it, so anybody may carry it to the chain: the validator that gathered it,
or whoever is handed the file. Knows the form only; the contract decides.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from node.chain.errors import ChainError
from node.state.files import write_whole
from protocol.errors import IntellectError
from protocol.identity import parse_address
from protocol.statements import Accepted, Verdict, WorkCommitment

MAX_CASE_BYTES = 256 * 1024
Word = Annotated[str, msgspec.Meta(pattern="^(0x)?[0-9a-fA-F]{64}$")]
Signature = Annotated[str, msgspec.Meta(pattern="^(0x)?[0-9a-fA-F]{130}$")]
U8 = Annotated[int, msgspec.Meta(ge=0, le=255)]
U32 = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
U63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class CaseError(ChainError):
    """A case file that cannot be used."""


class Commitment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A work commitment in JSON."""

    pool: U63
    node: str
    policy_root: Word
    index: U63
    file_root: Word
    units: U32
    epoch: U63

    def statement(self) -> WorkCommitment:
        node, words = parse_address(self.node), (unhex(self.policy_root), self.index, unhex(self.file_root))
        return WorkCommitment(self.pool, node, *words, self.units, self.epoch)


class Judgement(Commitment, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A verdict in JSON."""

    outcome: U8
    reason: U8
    values: Word

    def statement(self) -> Verdict:
        c = Commitment.statement(self)
        said = (self.outcome, self.reason, c.epoch, unhex(self.values))
        return Verdict(c.pool, c.node, c.policy_root, c.index, c.file_root, c.units, *said)


class Certificate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A validator's certificate of a work, in JSON."""

    pool: U63
    node: str
    epoch: U63
    work: Word
    units: U32

    def statement(self) -> Accepted:
        return Accepted(self.pool, parse_address(self.node), self.epoch, unhex(self.work), self.units)


class Vote(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One validator's part of a quorum. values: what it found besides; rechecked: it is of a Rechecked."""

    signature: Signature
    values: Word
    rechecked: bool = False


class FileCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="file"):
    """A quorum's verdicts, with outcome 2 and this reason, over one file. signature: the node's, of the commitment."""

    commitment: Commitment
    signature: Signature
    reason: U8
    votes: Annotated[tuple[Vote, ...], msgspec.Meta(max_length=16)]

    @property
    def signatures(self) -> list[bytes]:
        return [unhex(vote.signature) for vote in self.votes]

    @property
    def values(self) -> list[bytes]:
        return [unhex(vote.values) for vote in self.votes]

    @property
    def rechecked(self) -> int:
        """Bit i: vote i is of a Rechecked."""
        return sum(1 << i for i, vote in enumerate(self.votes) if vote.rechecked)


class _Contradiction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """Two statements by one key: evidence by itself."""

    first_signature: Signature
    second_signature: Signature


class CommitmentContradiction(_Contradiction, frozen=True, kw_only=True, tag="commitments"):
    """Two commitments of one node for the same place."""

    first: Commitment
    second: Commitment


class VerdictContradiction(_Contradiction, frozen=True, kw_only=True, tag="verdicts"):
    """Two verdicts of one validator on one work."""

    first: Judgement
    second: Judgement


class CertificateContradiction(_Contradiction, frozen=True, kw_only=True, tag="certificates"):
    """Two certificates of one work by one validator."""

    first: Certificate
    second: Certificate


class FalseCertificate(_Contradiction, frozen=True, kw_only=True, tag="certificate and verdict"):
    """A certificate of one work, and a verdict against it by the same validator."""

    first: Certificate
    second: Judgement


Case = FileCase | CommitmentContradiction | VerdictContradiction | CertificateContradiction | FalseCertificate


def unhex(text: str) -> bytes:
    """'0x..' as bytes."""
    return bytes.fromhex(text.removeprefix("0x"))


def to_hex(word: bytes) -> str:
    """The other way round."""
    return "0x" + word.hex()


def commitment_in_json(c: WorkCommitment) -> Commitment:
    return Commitment(**_fields(c))


def verdict_in_json(v: Verdict) -> Judgement:
    return Judgement(**_fields(v), outcome=v.outcome, reason=v.reason, values=to_hex(v.values))


def certificate_in_json(a: Accepted) -> Certificate:
    return Certificate(pool=a.pool, node=a.node, epoch=a.epoch, work=to_hex(a.work), units=a.units)


def _fields(c: WorkCommitment | Verdict) -> dict[str, Any]:
    roots = {"policy_root": to_hex(c.policy_root), "file_root": to_hex(c.file_root)}
    return {"pool": c.pool, "node": c.node, "index": c.index, "units": c.units, "epoch": c.epoch, **roots}


def read_case(path: Path) -> Case:
    """Raises CaseError naming the place that is wrong."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CASE_BYTES + 1)
    except OSError as error:
        raise CaseError(f"cannot read the case {path}", error.strerror or str(error), "check the path") from error
    if len(raw) > MAX_CASE_BYTES:
        raise CaseError(f"the case {path} is too big", f"more than {MAX_CASE_BYTES} bytes", "give another file")
    try:
        case: Case = msgspec.json.decode(raw, type=Case)
        for name in ("commitment", "first", "second"):
            if hasattr(case, name):
                getattr(case, name).statement()
    except (msgspec.DecodeError, IntellectError, ValueError) as error:
        remedy = "see docs/contracts-cli.md for the form of cases"
        raise CaseError(f"the case {path} cannot be used", str(error), remedy) from error
    return case


def write_case(path: Path, case: Case) -> None:
    """Blocking; complete or not at all."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(case), indent=2))
