"""Cases for the contracts as files: who is accused, by which signatures. JSON, read strictly.

A case proves itself by the signatures in it, so anybody may carry it to the chain: the validator that gathered it,
or whoever is handed the file. Knows the form only; the contract decides.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from node.chain.errors import ChainError
from node.state.files import write_whole
from protocol.errors import IntellectError
from protocol.identity import parse_address
from protocol.statements import Verdict, WorkCommitment
from protocol.work import Leaf, proof, tree_of

MAX_CASE_BYTES = 8 * 1024 * 1024
Word = Annotated[str, msgspec.Meta(pattern="^(0x)?[0-9a-fA-F]{64}$")]
Signature = Annotated[str, msgspec.Meta(pattern="^(0x)?[0-9a-fA-F]{130}$")]
Signatures = Annotated[tuple[Signature, ...], msgspec.Meta(max_length=64)]
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

    def statement(self) -> WorkCommitment:
        node = parse_address(self.node)
        return WorkCommitment(self.pool, node, unhex(self.policy_root), self.index, unhex(self.file_root), self.units)


class Judgement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A verdict in JSON."""

    pool: U63
    node: str
    policy_root: Word
    index: U63
    file_root: Word
    units: U32
    outcome: U8
    reason: U8

    def statement(self) -> Verdict:
        node, words = parse_address(self.node), (unhex(self.policy_root), self.index, unhex(self.file_root))
        return Verdict(self.pool, node, *words, self.units, self.outcome, self.reason)


class FileCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="file"):
    """A quorum's verdicts over one file. signature: of the node over the commitment (for `slash`); epoch, and
    either proof or files (policy root, index, file root and units of all in that epoch, in order): for `invalidate`.
    """

    commitment: Commitment
    reason: U8
    verdicts: Signatures
    signature: Signature | None = None
    epoch: U63 | None = None
    proof: Annotated[tuple[Word, ...], msgspec.Meta(max_length=64)] | None = None
    files: Annotated[tuple[tuple[Word, U63, Word, U32], ...], msgspec.Meta(max_length=50_000)] | None = None

    def path(self) -> tuple[bytes, ...]:
        """The Merkle proof of the file in its epoch. Raises CaseError."""
        if self.proof is not None:
            return tuple(unhex(word) for word in self.proof)
        c = self.commitment.statement()
        wanted = Leaf(c.policy_root, c.index, c.file_root, c.units)
        leaves = [Leaf(unhex(policy), index, unhex(root), units) for policy, index, root, units in self.files or ()]
        if wanted not in leaves:
            raise CaseError(
                "the file is not in the case's epoch",
                "neither a proof nor a list of files that contains it is given",
                "add proof, or files with what each leaf of the tree says, in its order",
            )
        return proof(tree_of(c.pool, c.node, leaves), leaves.index(wanted))


class CommitmentContradiction(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="commitments"
):
    """Two commitments of one node for the same place: evidence by itself."""

    first: Commitment
    first_signature: Signature
    second: Commitment
    second_signature: Signature


class VerdictContradiction(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="verdicts"
):
    """Two verdicts of one validator over the same commitment: evidence by itself."""

    first: Judgement
    first_signature: Signature
    second: Judgement
    second_signature: Signature


class EpochCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="epoch"):
    """A quorum's verdicts over everything that a node committed for one epoch. outcome: Outcome, not ACCEPT."""

    pool: U63
    node: str
    epoch: U63
    outcome: U8
    reason: U8
    verdicts: Signatures


Case = FileCase | CommitmentContradiction | VerdictContradiction | EpochCase


def unhex(text: str) -> bytes:
    """'0x..' as bytes."""
    return bytes.fromhex(text.removeprefix("0x"))


def commitment_in_json(c: WorkCommitment) -> Commitment:
    """The other way round."""
    root, file = "0x" + c.policy_root.hex(), "0x" + c.file_root.hex()
    return Commitment(pool=c.pool, node=c.node, policy_root=root, index=c.index, file_root=file, units=c.units)


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
