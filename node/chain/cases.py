"""Cases for the contracts: who is accused, by which signatures, and the call that carries it. Kept as JSON, read
strictly.

A case proves itself by the signatures in it, so anybody may carry it to the chain: the validator that gathered it,
or whoever is handed the file. Knows the form only; the contract decides.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from contracts.bindings import Contracts, TransactionCall
from node.chain.errors import ChainError
from node.state.files import write_whole
from protocol.errors import IntellectError
from protocol.identity import Address, parse_address
from protocol.statements import Earnings, EpochRoot, Verdict, WorkCommitment, struct_hash

MAX_CASE_BYTES = 256 * 1024
Word = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, msgspec.Meta(min_length=65, max_length=65)]
_HEX = re.compile("(0x)?([0-9a-fA-F]{64}|[0-9a-fA-F]{130})")
_ADDRESS = re.compile("0x[0-9a-fA-F]{40}")
_Flat = dict[str, str | int | bool]
_Text = dict[str, str | int | bool | _Flat | list[_Flat | str]]
"""A case in JSON: nested no deeper, whatever a file brings."""


class CaseError(ChainError):
    """A case file that cannot be used."""


class Vote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One validator's part of a quorum. values: what it found besides, 32 bytes; rechecked: it is of a Rechecked."""

    signature: Signature
    values: Word
    rechecked: bool = False


class FileCase(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="file"):
    """A quorum's verdicts, with outcome 2 and this reason, over one file. signature: the node's, of the commitment."""

    commitment: WorkCommitment
    signature: Signature
    reason: Annotated[int, msgspec.Meta(ge=0, le=255)]
    votes: Annotated[tuple[Vote, ...], msgspec.Meta(max_length=16)]

    @property
    def name(self) -> str:
        """Of its file."""
        return _place(self.commitment)

    @property
    def action(self) -> str:
        """Completes "cannot ..."."""
        return f"slash {self.commitment.node}"

    def call(self, contracts: Contracts) -> TransactionCall:
        """What carries it to the chain."""
        rechecked = sum(1 << i for i, vote in enumerate(self.votes) if vote.rechecked)
        said = [vote.signature for vote in self.votes], [vote.values for vote in self.votes]
        return contracts.slash(self.commitment, self.signature, self.reason, *said, rechecked)


class Contradiction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Two statements by one key: evidence by itself."""

    first: Any
    first_signature: Signature
    second: Any
    second_signature: Signature

    @property
    def name(self) -> str:
        if isinstance(self.first, WorkCommitment):
            return f"commitments-{_place(self.first)}"  # a quorum may have judged the file, too
        if isinstance(self.first, Verdict):
            return f"verdicts-{self.first.work.hex()[:16]}-{self.first_signature.hex()[:8]}"
        kind = "table" if isinstance(self.first, Earnings) else "root"
        return f"{kind}-{self.first.epoch}-{self.first.number}-{self.first_signature.hex()[:8]}"

    @property
    def action(self) -> str:
        if isinstance(self.first, WorkCommitment):
            return f"slash {self.first.node} by its own signatures"
        what = {Verdict: "verdicts", Earnings: "tables"}.get(type(self.first), "root")
        return f"slash a validator by its own {what}"

    def call(self, contracts: Contracts) -> TransactionCall:
        pair = self.first, self.first_signature, self.second, self.second_signature
        if isinstance(self.first, WorkCommitment):
            return contracts.evidence(*pair)
        if isinstance(self.first, Verdict):
            return contracts.verdict_evidence(self.first.pool, self.first.work, *pair)
        return contracts.tally_evidence(*pair)


class CommitmentContradiction(Contradiction, frozen=True, tag="commitments"):
    """Two commitments of one node for the same place."""

    first: WorkCommitment
    second: WorkCommitment


class VerdictContradiction(Contradiction, frozen=True, tag="verdicts"):
    """Two verdicts of one validator on one work that differ in anything."""

    first: Verdict
    second: Verdict


class RootContradiction(Contradiction, frozen=True, tag="roots"):
    """Two roots of one validator and epoch with one number."""

    first: EpochRoot
    second: EpochRoot


class TableContradiction(Contradiction, frozen=True, tag="tables"):
    """Two tables of earnings of one validator and epoch with one number."""

    first: Earnings
    second: Earnings


class FalseLeaf(Contradiction, frozen=True, tag="leaf and verdict"):
    """A root with a work among its leaves, and a verdict against that by the same validator. proof: from the leaf
    to the root."""

    first: EpochRoot
    second: Verdict
    node: Address
    work: Word
    units: Annotated[int, msgspec.Meta(ge=1, lt=2**32)]
    proof: Annotated[tuple[Word, ...], msgspec.Meta(max_length=32)]

    def call(self, contracts: Contracts) -> TransactionCall:
        leaf = (self.node, self.work, self.units, list(self.proof))
        return contracts.leaf_evidence(self.first, self.first_signature, leaf, self.second, self.second_signature)


Case = FileCase | Contradiction
_KINDS = FileCase | CommitmentContradiction | VerdictContradiction | RootContradiction | TableContradiction | FalseLeaf


def unhex(text: str) -> bytes:
    """'0x..' as bytes."""
    return bytes.fromhex(text.removeprefix("0x"))


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
        plain = _from_text(msgspec.json.decode(raw, type=_Text))
        case: Case = msgspec.convert(plain, _KINDS, builtin_types=(bytes,))
        for statement in (case.commitment,) if isinstance(case, FileCase) else (case.first, case.second):
            struct_hash(statement)  # raises where a field is out of its range
    except (msgspec.DecodeError, IntellectError, ValueError, RecursionError) as error:
        remedy = "see docs/contracts-cli.md for the form of cases"
        raise CaseError(f"the case {path} cannot be used", str(error), remedy) from error
    return case


def write_case(path: Path, case: Case) -> None:
    """Blocking; complete or not at all."""
    plain = _to_text(msgspec.to_builtins(case, builtin_types=(bytes,)))
    write_whole(path, msgspec.json.format(msgspec.json.encode(plain), indent=2))


def _place(commitment: WorkCommitment) -> str:
    return f"{commitment.node.lower()}-{commitment.file_root.hex()[:16]}"


def _from_text(value: Any) -> Any:
    """Hashes and signatures as bytes, addresses with their checksum, the rest as it is."""
    if isinstance(value, dict):
        return {key: _from_text(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_from_text(each) for each in value]
    if not isinstance(value, str):
        return value
    return unhex(value) if _HEX.fullmatch(value) else parse_address(value) if _ADDRESS.fullmatch(value) else value


def _to_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_text(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_to_text(each) for each in value]
    return "0x" + value.hex() if isinstance(value, bytes) else value
