"""EIP-712 statements: what a key signs so that a contract may be shown it.

Knows type strings, digests and signatures. What the statements mean is decided by
`checks.py` (validators) and by the Swarm contract.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache, partial
from typing import Any

import msgspec
from eth_hash.auto import keccak

from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey, address_bytes, parse_address, recover

DOMAIN_TYPE = b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"


class VerdictOutcome(IntEnum):
    """What a validator says of a file."""

    ACCEPT = 0
    REJECT = 1
    """the file earns nothing; the stake stays"""
    SLASH = 2
    """an objective fault: with a quorum the stake is taken"""


class Domain(msgspec.Struct, frozen=True):
    """The EIP-712 domain: statements of one chain and one Swarm contract mean nothing elsewhere."""

    chain_id: int
    contract: Address

    def separator(self) -> bytes:
        """The 32-byte domain separator; raises ProtocolError if chain_id or contract is none."""
        return _separator(self.chain_id, self.contract)


class WorkCommitment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's promise: submission `index` for this policy is exactly this file.

    policy_root, file_root: 32 bytes; units: output tokens; epoch: the pool's, in which it counts: since the commitment
    names it, a work counts in exactly one epoch, and nobody needs a memory for that.
    """

    pool: int
    node: Address
    policy_root: bytes
    index: int
    file_root: bytes
    units: int
    epoch: int = 0

    @property
    def work(self) -> bytes:
        """The work's id, 32 bytes."""
        return work_id(self)


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A validator's one word about a commitment, all of whose fields it repeats; a contract sees the work's id only.

    outcome: Outcome; reason: checks.Reason; values: 32 bytes, the hash of everything else that the verdict says
    (`messages.values_hash`), so that two verdicts which differ in anything are two statements.
    """

    pool: int
    node: Address
    policy_root: bytes
    index: int
    file_root: bytes
    units: int
    outcome: int
    reason: int
    epoch: int = 0
    values: bytes = bytes(32)

    @property
    def work(self) -> bytes:
        """The judged work's id, 32 bytes."""
        return work_id(self)


class Rechecked(Verdict, frozen=True):
    """What a validator found when it looked again inside an open dispute. It may differ from its verdict: a type of its
    own, so that nobody can show the two as a contradiction."""


class EpochRoot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A validator's one word on all works of an epoch that count, those that it has not named before: for ever.

    number: rises, and no two of one validator and epoch are alike; root: of the Merkle tree over its leaves
    (`earnings.Leaf`); total: of their units; blob: of the file that names theirs. Beside another one of that number, or
    with a leaf beside a word of the same key against the work, it costs the stake.
    """

    pool: int
    epoch: int
    number: int
    root: bytes
    total: int
    blob: bytes


class Earnings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table of what every node can be paid of everything through `epoch`.

    number: rises, and no two of one validator and epoch are alike: who signs something else takes another one, or it
    costs the stake; root: of its Merkle tree (`table.py`); total: of all nodes, in units, since the pool began; blob:
    of the file that names those of its lines (`table.Head` without what it rests on)."""

    pool: int
    epoch: int
    number: int
    root: bytes
    total: int
    blob: bytes


class NodeRegistration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node's consent to work for a provider. deadline: unix seconds."""

    provider: Address
    node: Address
    units: int
    nonce: int
    deadline: int


class Invitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A manager lets `places` nodes into a pool by invitation. invitee: a node, its provider, or a key that signs a
    Ticket for each of them; deadline: unix seconds."""

    pool: int
    invitee: Address
    places: int
    deadline: int


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who was invited hands a place on to this node."""

    pool: int
    node: Address


class Attestation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A validator found a node to be of this size. made_at, until: unix seconds; a later one ends all that were made
    before it, sent or not; units 0 takes them back.
    """

    pool: int
    node: Address
    units: int
    made_at: int
    until: int


class TermSilent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A validator does not hear the trainer that holds the chair. until: the end of its lease, unix seconds: who has
    held since then is not meant; step: the newest policy that it knows, from which is counted what the next term may
    take back."""

    pool: int
    term: int
    until: int
    step: int


Statement = (
    WorkCommitment
    | Verdict
    | Rechecked
    | EpochRoot
    | Earnings
    | NodeRegistration
    | Invitation
    | Ticket
    | Attestation
    | TermSilent
)

_JUDGEMENT = "uint256 pool,bytes32 work,uint8 outcome,uint8 reason,bytes32 values"
_TALLY = "uint256 pool,uint64 epoch,uint64 number,bytes32 root,uint64 total,bytes32 blob"
_MEMBERS: dict[type[Statement], str] = {
    WorkCommitment: (
        "uint256 pool,address node,bytes32 policyRoot,uint64 index,bytes32 fileRoot,uint32 units,uint64 epoch"
    ),
    # The same members under two names: the type's name is hashed, so one can never be shown as the other.
    Verdict: _JUDGEMENT,
    Rechecked: _JUDGEMENT,
    EpochRoot: _TALLY,
    Earnings: _TALLY,
    NodeRegistration: "address provider,address node,uint32 units,uint256 nonce,uint256 deadline",
    Invitation: "uint256 pool,address invitee,uint32 places,uint64 deadline",
    Ticket: "uint256 pool,address node",
    Attestation: "uint256 pool,address node,uint32 units,uint64 madeAt,uint64 until",
    TermSilent: "uint256 pool,uint32 term,uint64 until,uint64 step",
}
"""As the type string has them, in its order. A field here has the same name, its words apart by underscores."""


def _field(member: str) -> tuple[str, str, str]:
    """'uint64 madeAt' -> ('made_at', 'madeAt', 'uint64')."""
    abi, _, name = member.partition(" ")
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name), name, abi


_FIELDS = {kind: [_field(member) for member in members.split(",")] for kind, members in _MEMBERS.items()}
"""(field name here, name in Solidity, type) of each."""


def type_string(kind: type[Statement]) -> str:
    """The EIP-712 type string, e.g. 'Verdict(uint256 pool,address node,...)'."""
    return f"{kind.__name__}({_MEMBERS[kind]})"


def struct_hash(statement: Statement) -> bytes:
    """EIP-712's hashStruct, 32 bytes, of no domain; raises ProtocolError if a field is out of its type's range."""
    return _hash_as(type(statement), statement)


def work_id(statement: WorkCommitment | Verdict) -> bytes:
    """What names one piece of work: everything that was signed, units included.

    The struct hash of the commitment, 32 bytes, the same whether asked of it or of a verdict about it; in the
    contracts `Statements.hashCommitment`. Raises ProtocolError if a field of the commitment is out of its type's range.
    """
    return _hash_as(WorkCommitment, statement)


def digest(domain: Domain, statement: Statement) -> bytes:
    """The 32-byte EIP-712 digest; raises ProtocolError if a field is out of its type's range."""
    # EIP-191 keeps 0x19 free of transactions: a key that signs statements cannot be made to sign a payment.
    return keccak(b"\x19\x01" + domain.separator() + struct_hash(statement))


def sign(key: NodeKey, domain: Domain, statement: Statement) -> bytes:
    """65-byte signature of `statement` under `domain`."""
    return key.sign_hash(digest(domain, statement))


def signer_of(domain: Domain, statement: Statement, signature: bytes) -> Address:
    """Who signed; raises InvalidSignature or ProtocolError."""
    return recover(digest(domain, statement), signature)


def is_signed_by(author: Address, domain: Domain, statement: Statement, signature: bytes) -> bool:
    """Whether a signature is one, and whose it is said to be."""
    try:
        return signer_of(domain, statement, signature) == author
    except ProtocolError:
        return False


def _hash_as(kind: type[Statement], statement: Statement) -> bytes:
    """The hash of the struct `kind` with the values that `statement` has under its names; each is one 32-byte word."""
    return _hash_of(kind, tuple([getattr(statement, name) for name, _ in _ENCODERS[kind]]))


@lru_cache(maxsize=8192)
def _hash_of(kind: type[Statement], values: tuple[Any, ...]) -> bytes:
    """Remembered, 5 MB: registers, votes and journals ask for the names of the same works again and again."""
    words = [encode(name, value) for (name, encode), value in zip(_ENCODERS[kind], values, strict=True)]
    return keccak(_TYPE_HASHES[kind] + b"".join(words))


# One chain and contract for a node's whole life; some more in tests and tools.
@lru_cache(maxsize=16)
def _separator(chain_id: int, contract: Address) -> bytes:
    # Name and version as the contract has them; another word here, and no signature of any node fits.
    words = [keccak(DOMAIN_TYPE), keccak(b"intellect-node"), keccak(b"1")]
    place = [_uint(32, "chain_id", chain_id), _address("contract", parse_address(contract))]
    return keccak(b"".join([*words, *place]))


def _uint(size: int, name: str, value: int) -> bytes:
    """size: bytes of the type."""
    try:
        # Numbers and addresses stand at the right of their word, bytes32 fill it: as `abi.encode` does.
        return value.to_bytes(size).rjust(32, b"\0")
    except OverflowError as error:
        raise ProtocolError("unusable statement", f"{name} is not in 0..2**{8 * size}-1") from error


def _bytes(size: int, name: str, value: bytes) -> bytes:
    """A hash has one length: what is shorter is not padded to it."""
    if len(value) != size:
        raise ProtocolError("unusable statement", f"{name} has {len(value)} bytes instead of {size}")
    return value.ljust(32, b"\0")


@lru_cache(maxsize=4096)
def _address(name: str, value: Address) -> bytes:
    """Only the checksummed spelling: two spellings would be two statements with one hash."""
    if parse_address(value) != value:
        raise ProtocolError("unusable statement", f"{name} is not spelled with its checksum")
    return address_bytes(value).rjust(32, b"\0")


_WORDS: dict[str, Callable[[str, Any], bytes]] = {
    "uint256": partial(_uint, 32),
    "uint64": partial(_uint, 8),
    "uint32": partial(_uint, 4),
    "uint8": partial(_uint, 1),
    "bytes32": partial(_bytes, 32),
    "address": _address,
}
_ENCODERS = {kind: [(name, _WORDS[abi]) for name, _, abi in fields] for kind, fields in _FIELDS.items()}
_TYPE_HASHES = {kind: keccak(type_string(kind).encode()) for kind in _FIELDS}
