import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from protocol.errors import ProtocolError
from protocol.identity import NodeKey
from protocol.statements import (
    Domain,
    NodeRegistration,
    Statement,
    Verdict,
    WorkCommitment,
    digest,
    sign,
    signer_of,
    type_string,
)

KEY = NodeKey(b"\x05" * 32)
DOMAIN = Domain(84532, KEY.address)
STATEMENTS: list[Statement] = [
    WorkCommitment(3, KEY.address, b"\x01" * 32, 7, b"\x02" * 32, 640),
    Verdict(3, KEY.address, b"\x01" * 32, 7, b"\x02" * 32, 640, 2, 5),
    NodeRegistration(KEY.address, KEY.address, 4, 1, 1_800_000_000),
]


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda s: type(s).__name__)
def test_wallets_sign_the_same_bytes(statement: Statement) -> None:
    name, _, fields = type_string(type(statement)).partition("(")
    members = [field.split(" ") for field in fields[:-1].split(",")]
    values = [getattr(statement, field) for field in statement.__struct_fields__]
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
        WorkCommitment(3, KEY.address, b"\x01" * 32, 7, b"\x02" * 32, 2**32),
        Verdict(3, KEY.address, b"\x01" * 32, 7, b"\x02" * 32, 640, 256, 5),
    ],
)
def test_fields_out_of_range_cannot_be_signed(statement: Statement) -> None:
    with pytest.raises(ProtocolError):
        digest(DOMAIN, statement)
