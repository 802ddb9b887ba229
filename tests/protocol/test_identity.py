from collections import OrderedDict
from contextlib import suppress
from typing import Any

import pytest
from coincurve import PublicKey
from eth_account import Account
from hypothesis import given
from hypothesis import strategies as st

from protocol import identity
from protocol.errors import InvalidIdentity, InvalidSignature
from protocol.identity import (
    NodeKey,
    address_bytes,
    address_from_bytes,
    address_of_peer,
    parse_address,
    recover,
)

CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def test_the_address_is_the_one_that_ethereum_gives_the_key() -> None:
    key = NodeKey(bytes(31) + b"\x01")
    assert key.address == "0x7E5F4552091A69125d5DfCb7b8C2659029395Bdf"  # the well-known address of secret 1
    assert key.address == Account.from_key(key.secret).address


def test_the_address_follows_from_the_peer_id_alone() -> None:
    key = NodeKey.generate()
    assert key.peer_id.startswith("16Uiu2HA")
    assert address_of_peer(key.peer_id) == key.address


@pytest.mark.parametrize(
    "peer_id", ["", "16Uiu2HA", "12D3KooWGRUfxa3s1nhRcRyYaRtj6JqC1Ew7PL3R4nJrJcGiUQ1j", "0OIl", "1" * 100]
)
def test_a_peer_id_of_another_kind_is_refused(peer_id: str) -> None:
    with pytest.raises(InvalidIdentity):
        address_of_peer(peer_id)


@given(st.binary(min_size=20, max_size=20))
def test_addresses_round_trip_through_bytes(raw: bytes) -> None:
    assert address_bytes(address_from_bytes(raw)) == raw


def test_a_mistyped_checksum_is_noticed() -> None:
    good = NodeKey.generate().address
    flipped = good[:2] + good[2:].swapcase()
    assert parse_address(good.lower()) == good
    if flipped != good and any(c.isalpha() for c in good[2:]):
        with pytest.raises(InvalidIdentity):
            parse_address(flipped)


@given(st.binary(min_size=32, max_size=32))
def test_a_signature_names_its_signer(digest: bytes) -> None:
    key = NodeKey(b"\x07" * 32)
    assert recover(digest, key.sign_hash(digest)) == key.address


def test_the_mirror_image_of_a_signature_is_refused() -> None:
    digest = bytes(range(32))
    signature = NodeKey.generate().sign_hash(digest)
    high_s = CURVE_ORDER - int.from_bytes(signature[32:64])
    mirrored = signature[:32] + high_s.to_bytes(32) + bytes([55 - signature[64]])
    with pytest.raises(InvalidSignature):
        recover(digest, mirrored)


@given(st.binary(max_size=70))
def test_arbitrary_bytes_are_no_signature_or_somebody_elses(signature: bytes) -> None:
    key = NodeKey(b"\x09" * 32)
    try:
        assert recover(bytes(32), signature) != key.address
    except InvalidSignature:
        pass


def test_a_key_never_shows_its_secret() -> None:
    key = NodeKey.generate()
    assert key.secret.hex() not in repr(key)


def test_what_was_checked_or_made_here_costs_no_second_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, digest = NodeKey(b"\x07" * 32), b"\x05" * 32
    monkeypatch.setattr(identity, "_signers", OrderedDict())
    monkeypatch.setattr(identity, "KNOWN_SIGNATURES", 2)
    checks: list[bytes] = []

    class Counting(PublicKey):
        @classmethod
        def from_signature_and_message(cls, serialized: bytes, message: bytes, **named: Any) -> Any:
            checks.append(message)
            return super().from_signature_and_message(serialized, message, **named)

    monkeypatch.setattr(identity, "PublicKey", Counting)
    signature = key.sign_hash(digest)
    assert recover(digest, signature) == key.address and not checks  # its own
    forged = bytes([signature[0] ^ 1]) + signature[1:]
    for case in ((b"\x06" * 32, signature), (digest, forged)):
        before = len(checks)
        with suppress(InvalidSignature):
            assert recover(*case) != key.address
        assert len(checks) == before + 1
    for number in range(2):
        key.sign_hash(bytes([number]) * 32)
    before = len(checks)
    for _ in range(2):
        assert recover(digest, signature) == key.address
    assert len(checks) == before + 1  # forgotten for newer ones, checked and known again
