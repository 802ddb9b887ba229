"""EIP-712 statements: what a key signs so that a contract may be shown it.

Knows type strings, digests and signatures. What the statements mean is decided by
`checks.py` (validators) and by the Swarm contract.
"""

from enum import IntEnum
from typing import TypeVar

import msgspec
from eth_abi.abi import encode as abi_encode
from eth_hash.auto import keccak

from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey, recover

_DOMAIN_TYPE = b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"


class Outcome(IntEnum):
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
        words = [keccak(_DOMAIN_TYPE), keccak(b"intellect-node"), keccak(b"1"), self.chain_id, self.contract]
        return keccak(abi_encode(["bytes32", "bytes32", "bytes32", "uint256", "address"], words))


class WorkCommitment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's promise: submission `index` for this policy is exactly this file.

    policy_root, file_root: 32 bytes; units: output tokens.
    """

    pool: int
    node: Address
    policy_root: bytes
    index: int
    file_root: bytes
    units: int


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A validator's judgement of one commitment, all of whose fields it repeats.

    outcome: Outcome; reason: checks.Reason.
    """

    pool: int
    node: Address
    policy_root: bytes
    index: int
    file_root: bytes
    units: int
    outcome: int
    reason: int


class NodeRegistration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node's consent to work for a provider. deadline: unix seconds."""

    provider: Address
    node: Address
    units: int
    nonce: int
    deadline: int


class Invitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A manager lets a node into an invited pool. deadline: unix seconds."""

    pool: int
    node: Address
    deadline: int


class Attestation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A validator found a node to be of this size. until: unix seconds; units 0 takes an earlier one back."""

    pool: int
    node: Address
    units: int
    until: int


class EpochVerdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A validator refuses a whole epoch's commitment. root: the first 20 bytes of the committed root."""

    pool: int
    node: Address
    epoch: int
    root: bytes
    reason: int


Statement = WorkCommitment | Verdict | NodeRegistration | Invitation | Attestation | EpochVerdict
S = TypeVar("S", WorkCommitment, Verdict, NodeRegistration, Invitation, Attestation, EpochVerdict)

# field name here -> (name in Solidity, type); the order is the order of the type string
_FIELDS: dict[type[Statement], list[tuple[str, str, str]]] = {
    WorkCommitment: [
        ("pool", "pool", "uint256"),
        ("node", "node", "address"),
        ("policy_root", "policyRoot", "bytes32"),
        ("index", "index", "uint64"),
        ("file_root", "fileRoot", "bytes32"),
        ("units", "units", "uint32"),
    ],
    Verdict: [
        ("pool", "pool", "uint256"),
        ("node", "node", "address"),
        ("policy_root", "policyRoot", "bytes32"),
        ("index", "index", "uint64"),
        ("file_root", "fileRoot", "bytes32"),
        ("units", "units", "uint32"),
        ("outcome", "outcome", "uint8"),
        ("reason", "reason", "uint8"),
    ],
    NodeRegistration: [
        ("provider", "provider", "address"),
        ("node", "node", "address"),
        ("units", "units", "uint32"),
        ("nonce", "nonce", "uint256"),
        ("deadline", "deadline", "uint256"),
    ],
    Invitation: [
        ("pool", "pool", "uint256"),
        ("node", "node", "address"),
        ("deadline", "deadline", "uint256"),
    ],
    Attestation: [
        ("pool", "pool", "uint256"),
        ("node", "node", "address"),
        ("units", "units", "uint32"),
        ("until", "until", "uint64"),
    ],
    EpochVerdict: [
        ("pool", "pool", "uint256"),
        ("node", "node", "address"),
        ("epoch", "epoch", "uint64"),
        ("root", "root", "bytes20"),
        ("reason", "reason", "uint8"),
    ],
}


def type_string(kind: type[Statement]) -> str:
    """The EIP-712 type string, e.g. 'Verdict(uint256 pool,address node,...)'."""
    return f"{kind.__name__}({','.join(f'{abi} {name}' for _, name, abi in _FIELDS[kind])})"


def digest(domain: Domain, statement: Statement) -> bytes:
    """The 32-byte EIP-712 digest; raises ProtocolError if a field is out of its type's range."""
    fields = _FIELDS[type(statement)]
    kinds = ["bytes32", *(abi for _, _, abi in fields)]
    values = [keccak(type_string(type(statement)).encode()), *(getattr(statement, name) for name, _, _ in fields)]
    _check_words(statement)
    try:
        encoded = abi_encode(kinds, values)
    except Exception as error:  # eth-abi raises several unrelated types for values out of range
        raise ProtocolError("unusable statement", f"a field of {type(statement).__name__} is out of range") from error
    return keccak(b"\x19\x01" + domain.separator() + keccak(encoded))


def sign(key: NodeKey, domain: Domain, statement: Statement) -> bytes:
    """65-byte signature of `statement` under `domain`."""
    return key.sign_hash(digest(domain, statement))


def signer_of(domain: Domain, statement: Statement, signature: bytes) -> Address:
    """Who signed; raises InvalidSignature or ProtocolError."""
    return recover(digest(domain, statement), signature)


_WORDS = {"policy_root": 32, "file_root": 32, "root": 20}


def _check_words(statement: Statement) -> None:
    """eth-abi pads what is too short; a hash has one length."""
    for name, size in _WORDS.items():
        word = getattr(statement, name, None)
        if word is not None and len(word) != size:
            raise ProtocolError("unusable statement", f"{name} has {len(word)} bytes instead of {size}")
