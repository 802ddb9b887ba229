import msgspec
import pytest
from eth_abi.abi import encode as abi_encode
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_hash.auto import keccak
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey, address_from_bytes
from protocol.statements import (
    _FIELDS,
    Attestation,
    Domain,
    Earnings,
    EpochRoot,
    Invitation,
    NodeRegistration,
    Rechecked,
    Statement,
    Ticket,
    Verdict,
    WorkCommitment,
    digest,
    sign,
    signer_of,
    struct_hash,
    type_string,
    work_id,
)

KEY = NodeKey(b"\x05" * 32)
DOMAIN = Domain(84532, KEY.address)
STATEMENTS: list[Statement] = [
    WorkCommitment(3, KEY.address, b"\x01" * 32, 7, b"\x02" * 32, 640, 41),
    Verdict(3, KEY.address, b"\x01" * 32, 7, b"\x02" * 32, 640, 2, 5, 41, b"\x03" * 32),
    Rechecked(3, KEY.address, b"\x01" * 32, 7, b"\x02" * 32, 640, 0, 0, 41, b"\x03" * 32),
    EpochRoot(3, 41, 1_800_000_000, b"\x04" * 32, 640, b"\x06" * 32),
    Earnings(3, 41, 1_700_000_000, b"\x05" * 32, 12_345, b"\x06" * 32),
    NodeRegistration(KEY.address, KEY.address, 4, 1, 1_800_000_000),
    Invitation(3, KEY.address, 2, 1_800_000_000),
    Ticket(3, KEY.address),
    Attestation(3, KEY.address, 4, 1_799_000_000, 1_800_000_000),
]
ADDRESSES = st.binary(min_size=20, max_size=20).map(address_from_bytes)
ROOTS = st.binary(min_size=32, max_size=32)


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


COMMITMENTS = st.builds(
    WorkCommitment,
    pool=numbers(256),
    node=ADDRESSES,
    policy_root=ROOTS,
    index=numbers(64),
    file_root=ROOTS,
    units=numbers(32),
    epoch=numbers(64),
)


def judged(c: WorkCommitment, outcome: int, reason: int) -> Verdict:
    return Verdict(c.pool, c.node, c.policy_root, c.index, c.file_root, c.units, outcome, reason, c.epoch)


def values_of(statement: Statement) -> list[object]:
    """What is signed, in the order of the type string."""
    return [getattr(statement, name) for name, _, _ in _FIELDS[type(statement)]]


def abi_hash(statement: Statement) -> bytes:
    """The struct hash by eth-abi, from the type string alone."""
    kind = type_string(type(statement))
    types = [field.split(" ")[0] for field in kind.partition("(")[2][:-1].split(",")]
    values = values_of(statement)
    return keccak(abi_encode(["bytes32", *types], [keccak(kind.encode()), *values]))


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: type(s).__name__)
def test_wallets_sign_the_same_bytes(statement: Statement) -> None:
    name, _, fields = type_string(type(statement)).partition("(")
    members = [field.split(" ") for field in fields[:-1].split(",")]
    values = values_of(statement)
    message = encode_typed_data(
        full_message={
            "domain": {
                "name": "intellect-node",
                "version": "1",
                "chainId": DOMAIN.chain_id,
                "verifyingContract": DOMAIN.contract,
            },
            "primaryType": name,
            "types": {
                "EIP712Domain": [
                    {"name": "name", "type": "string"},
                    {"name": "version", "type": "string"},
                    {"name": "chainId", "type": "uint256"},
                    {"name": "verifyingContract", "type": "address"},
                ],
                name: [{"type": kind, "name": field} for kind, field in members],
            },
            "message": {field: value for (_, field), value in zip(members, values, strict=True)},
        }
    )
    assert sign(KEY, DOMAIN, statement) == Account.sign_message(message, KEY.secret).signature


def test_a_statement_means_nothing_on_another_chain_or_contract() -> None:
    statement = STATEMENTS[0]
    signature = sign(KEY, DOMAIN, statement)
    assert signer_of(DOMAIN, statement, signature) == KEY.address
    assert signer_of(Domain(8453, DOMAIN.contract), statement, signature) != KEY.address
    assert signer_of(Domain(84532, NodeKey.generate().address), statement, signature) != KEY.address


@pytest.mark.parametrize(
    "statement",
    [
        WorkCommitment(3, KEY.address, b"\x01" * 31, 7, b"\x02" * 32, 640),
        WorkCommitment(3, KEY.address, b"\x01" * 32, -1, b"\x02" * 32, 640),
        WorkCommitment(3, KEY.address, b"\x01" * 32, 2**64, b"\x02" * 32, 640),
        WorkCommitment(3, KEY.address, b"\x01" * 32, 7, b"\x02" * 33, 640),
        WorkCommitment(3, KEY.address, b"\x01" * 32, 7, b"\x02" * 32, 2**32),
        WorkCommitment(2**256, KEY.address, b"\x01" * 32, 7, b"\x02" * 32, 640),
        WorkCommitment(3, Address("0x12"), b"\x01" * 32, 7, b"\x02" * 32, 640),
        WorkCommitment(3, Address(KEY.address.lower()), b"\x01" * 32, 7, b"\x02" * 32, 640),
        Verdict(3, KEY.address, b"\x01" * 32, 7, b"\x02" * 32, -1, 2, 5),
        Verdict(3, KEY.address, b"\x01" * 32, 7, b"\x02" * 32, 640, 256, 5),
        Verdict(3, KEY.address, b"\x01" * 32, 7, b"\x02" * 32, 640, 2, 5, 41, b"\x03" * 31),
        EpochRoot(3, -1, 1, b"\x04" * 32, 640, b"\x06" * 32),
        EpochRoot(3, 41, 2**64, b"\x04" * 32, 640, b"\x06" * 32),
        EpochRoot(3, 41, 1, b"\x04" * 32, 640, b"\x06" * 33),
        Earnings(3, 41, 1, b"\x05" * 32, 2**64, b"\x06" * 32),
    ],
)
def test_fields_out_of_range_cannot_be_signed(statement: Statement) -> None:
    with pytest.raises(ProtocolError):
        digest(DOMAIN, statement)
    if isinstance(statement, WorkCommitment):
        with pytest.raises(ProtocolError):
            work_id(statement)


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: type(s).__name__)
def test_statements_are_packed_as_eth_abi_packs_them(statement: Statement) -> None:
    assert struct_hash(statement) == abi_hash(statement)


@given(COMMITMENTS, numbers(8), numbers(8))
def test_a_commitment_and_the_verdicts_about_it_name_one_work(c: WorkCommitment, outcome: int, reason: int) -> None:
    verdict = judged(c, outcome, reason)
    assert work_id(c) == work_id(verdict) == struct_hash(c) == abi_hash(c)
    assert struct_hash(verdict) == abi_hash(verdict) != work_id(c)


@given(COMMITMENTS, COMMITMENTS, st.sampled_from(WorkCommitment.__struct_fields__))
def test_works_that_differ_in_anything_signed_have_different_names(
    c: WorkCommitment, other: WorkCommitment, field: str
) -> None:
    changed = msgspec.structs.replace(c, **{field: getattr(other, field)})
    assert (work_id(changed) == work_id(c)) == (changed == c)


def test_a_second_look_cannot_pass_for_a_verdict() -> None:
    """The same values under another type are another statement: none is evidence against the other."""
    verdict, again = STATEMENTS[1], STATEMENTS[2]
    assert isinstance(verdict, Verdict) and isinstance(again, Rechecked)
    same = Verdict(*msgspec.structs.astuple(again))
    assert struct_hash(same) != struct_hash(again) and work_id(same) == work_id(again) == work_id(verdict)
