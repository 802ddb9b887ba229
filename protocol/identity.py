"""One key, three names: a node's secp256k1 key is its libp2p peer id and its Ethereum address.

Knows the encodings; knows nothing of key files, passwords or the network.
A peer id of a secp256k1 key is the identity multihash of its protobuf public key
(libp2p specs, peer-ids): 0x00 0x25 | 0x08 0x02 0x12 0x21 | 33 compressed bytes, in base58.
"""

from collections import OrderedDict
from functools import lru_cache
from threading import Lock
from typing import NewType

import base58
from coincurve import PrivateKey, PublicKey
from eth_hash.auto import keccak
from eth_utils.address import is_checksum_address, to_checksum_address

from protocol.errors import InvalidIdentity, InvalidSignature

Address = NewType("Address", str)
"""EIP-55 checksummed Ethereum address, '0x' and 40 hex digits."""
PeerId = NewType("PeerId", str)
"""libp2p peer id in base58, '16Uiu2HA...'."""

_PEER_ID_PREFIX = bytes.fromhex("0025") + bytes.fromhex("08021221")
KNOWN_SIGNATURES = 16_384
"""Of which the signer is remembered, 6 MB: the same bytes come again in what others hand on and show."""
_signers: OrderedDict[tuple[bytes, bytes], Address] = OrderedDict()
_signers_lock = Lock()


@lru_cache(maxsize=4096)
def parse_address(text: str) -> Address:
    """Return `text` as a checksummed address; raise InvalidIdentity if it is none.

    Remembered: a pool's history names the same few hundred again and again, and a checksum is a hash.
    """
    body = text[2:] if text[:2] in ("0x", "0X") else ""
    # Not int(text, 16): that takes underscores, blanks and digits of other scripts, too.
    if len(body) != 40 or any(c not in "0123456789abcdefABCDEF" for c in body):
        raise InvalidIdentity("not an Ethereum address", f"{text[:64]!r} is not 0x and 40 hex digits")
    # Of one case only, an address has no checksum to compare: EIP-55 asks for none then.
    mixed = body not in (body.lower(), body.upper())
    if mixed and not is_checksum_address(text):
        raise InvalidIdentity("not an Ethereum address", f"the checksum of {text} is wrong (a typing error?)")
    return Address(to_checksum_address(text))


@lru_cache(maxsize=4096)
def address_from_bytes(raw: bytes) -> Address:
    """raw: the 20 bytes of an address. Remembered, as `parse_address` is."""
    if len(raw) != 20:
        raise InvalidIdentity("not an Ethereum address", f"{len(raw)} bytes instead of 20")
    return Address(to_checksum_address(raw))


def address_bytes(address: Address) -> bytes:
    """The 20 bytes of an address."""
    return bytes.fromhex(address[2:])


def address_of_public_key(compressed: bytes) -> Address:
    """compressed: the 33-byte public key."""
    # The first byte says "uncompressed"; an Ethereum address is the hash of the 64 bytes behind it.
    return address_from_bytes(keccak(_public_key(compressed).format(compressed=False)[1:])[12:])


def peer_id_of_public_key(compressed: bytes) -> PeerId:
    """compressed: the 33-byte public key."""
    return PeerId(base58.b58encode(_PEER_ID_PREFIX + _public_key(compressed).format(compressed=True)).decode())


def address_of_peer(peer_id: str) -> Address:
    """The address that a secp256k1 peer id stands for; raises InvalidIdentity for any other kind."""
    # Decoding base58 takes time with the square of the length.
    if len(peer_id) > 64:
        raise InvalidIdentity("not a node's peer id", "too long")
    try:
        raw = base58.b58decode(peer_id)
    except ValueError as error:
        raise InvalidIdentity("not a node's peer id", f"{peer_id!r} is not base58") from error
    if len(raw) != len(_PEER_ID_PREFIX) + 33 or not raw.startswith(_PEER_ID_PREFIX):
        raise InvalidIdentity("not a node's peer id", f"{peer_id} does not hold a secp256k1 key")
    return address_of_public_key(raw[len(_PEER_ID_PREFIX) :])


def recover(digest: bytes, signature: bytes) -> Address:
    """The address whose key made `signature` (r | s | v with v in {27, 28}) over the 32-byte `digest`.

    Raises InvalidSignature for anything malformed, and for a high s, which would be a second
    valid encoding of the same signature. What was checked or made here a while ago costs no second look.
    """
    if (known := _signers.get((digest, signature))) is not None:
        return known
    if len(digest) != 32 or len(signature) != 65 or signature[64] not in (27, 28):
        raise InvalidSignature("bad signature", "not 65 bytes ending in 27 or 28")
    # Anybody can turn (r, s) into (r, -s): with both taken, a stranger could make a second message of somebody's words.
    curve_order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    if int.from_bytes(signature[32:64]) > curve_order // 2:
        raise InvalidSignature("bad signature", "s is in the upper half of the curve order")
    try:
        raw = signature[:64] + bytes([signature[64] - 27])
        key = PublicKey.from_signature_and_message(raw, digest, hasher=None)
    except (ValueError, Exception) as error:
        raise InvalidSignature("bad signature", "no public key fits it") from error
    signer = address_of_public_key(key.format(compressed=True))
    _remember(digest, signature, signer)
    return signer


def _remember(digest: bytes, signature: bytes, signer: Address) -> None:
    with _signers_lock:  # threads check signatures, too
        _signers[digest, signature] = signer
        if len(_signers) > KNOWN_SIGNATURES:
            _signers.popitem(last=False)


def _public_key(compressed: bytes) -> PublicKey:
    if len(compressed) != 33:
        raise InvalidIdentity("not a public key", f"{len(compressed)} bytes instead of 33")
    try:
        return PublicKey(compressed)
    except ValueError as error:
        raise InvalidIdentity("not a public key", "the point is not on the curve") from error


class NodeKey:
    """A secp256k1 secret with its three names. Its repr never shows the secret."""

    def __init__(self, secret: bytes) -> None:
        try:
            self._key = PrivateKey(secret)
        except ValueError as error:
            raise InvalidIdentity("not a private key", "not 32 bytes in the range of the curve") from error
        self.public_key: bytes = self._key.public_key.format(compressed=True)
        self.address: Address = address_of_public_key(self.public_key)
        self.peer_id: PeerId = peer_id_of_public_key(self.public_key)

    @classmethod
    def generate(cls) -> "NodeKey":
        return cls(PrivateKey().secret)

    @property
    def secret(self) -> bytes:
        return self._key.secret

    def sign_hash(self, digest: bytes) -> bytes:
        """Sign a 32-byte digest (RFC 6979, low s); returns 65 bytes r | s | v."""
        raw = self._key.sign_recoverable(digest, hasher=None)  # pyright: ignore[reportUnknownMemberType]
        signature = raw[:64] + bytes([raw[64] + 27])
        _remember(digest, signature, self.address)
        return signature

    def __repr__(self) -> str:
        return f"NodeKey({self.address})"
