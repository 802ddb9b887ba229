"""Lots: which groups of a file a validator must recompute. Unpredictable before, unique, provable after.

For every audit window a validator has one secret. Its hash and a rate stand in the validator's heartbeats before the
window's first policy exists; the secret is revealed when files of the window can no longer be committed. Group g of a
file is drawn if the g-th word of BLAKE3(secret | work id) falls below the rate. Nobody can know a lot before the
secret, the validator cannot choose it after the file, and with the revealed secret everybody can repeat it.
"""

from collections.abc import Iterable

import msgspec
from blake3 import blake3

from protocol.audit import RATE_ONE
from protocol.identity import Address, NodeKey, address_bytes
from protocol.statements import Domain

SECRET_BYTES = 32
# A bitmap of as many groups is 8 KiB, which still fits a gossip message.
MAX_GROUPS = 65_536
_LOT = "intellect-node lot v1"
_FILE = "intellect-node file lot v1"
_STEP = "intellect-node step lot v1"
_MASTER = "intellect-node lot master v1"
_OF_WINDOW = "intellect-node lot secret v1"
_PLEDGE = "intellect-node lot pledge v1"


class LotPledge(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A validator's promise for one window. hash: of its secret; rate: of RATE_ONE, the least it draws with; steps: the
    same for the trainer's steps, 0 without the memory to replay one."""

    window: int
    hash: bytes
    rate: int
    steps: int = 0

    def well_formed(self) -> bool:
        rates = 0 <= self.rate <= RATE_ONE and 0 <= self.steps <= RATE_ONE
        return self.window >= 0 and len(self.hash) == 32 and rates


def lot_master(key: NodeKey, domain: Domain, pool: int) -> bytes:
    """A validator's master secret in a pool, 32 bytes: the same at every start, and nobody's without its key."""
    place = domain.separator() + pool.to_bytes(32, "little")
    # ECDSA's nonce follows from key and message (RFC 6979), so the signature is one for ever. It is never told.
    signature = key.sign_hash(blake3(place, derive_key_context=_MASTER).digest())
    return blake3(signature, derive_key_context=_MASTER).digest()


def window_secret(master: bytes, pool: int, window: int) -> bytes:
    """The secret of one window, from a validator's own master secret (32 bytes, never told)."""
    place = pool.to_bytes(32, "little") + window.to_bytes(8, "little")
    return blake3(master + place, derive_key_context=_OF_WINDOW).digest()


def secret_hash(secret: bytes, validator: Address, pool: int, window: int) -> bytes:
    """What is pledged: binds the secret to its owner, pool and window, so that nobody can pledge another's."""
    # The owner is hashed in, or a validator could repeat another's pledge and reveal that one's secret as its own.
    place = address_bytes(validator) + pool.to_bytes(32, "little") + window.to_bytes(8, "little")
    return blake3(secret + place, derive_key_context=_PLEDGE).digest()


def drawn_groups(secret: bytes, work: bytes, groups: int, rate: int) -> tuple[int, ...]:
    """The groups of a file of `groups` groups that a validator with this secret recomputes, ascending. work: its id.

    A higher rate draws a superset: words of 64 bits are compared with rate / RATE_ONE of their range.
    """
    if not 0 <= groups <= MAX_GROUPS or not 0 <= rate <= RATE_ONE:
        raise ValueError(f"{groups} groups at rate {rate} is out of range")
    # One stream for all groups: the lot of a file is fixed at once, and cannot be drawn group by group until it suits.
    words = blake3(secret + work, derive_key_context=_LOT).digest(8 * groups)
    # Whole numbers only: with floats two machines could differ at the border, and one would call the other a liar.
    limit = rate * (2**64 // RATE_ONE)
    return tuple(g for g in range(groups) if int.from_bytes(words[8 * g : 8 * g + 8], "little") < limit)


def draws_file(secret: bytes, work: bytes, share: float) -> bool:
    """Whether the validator with this secret looks at a file at all. work: its id; share: of all files, 0 to 1."""
    word = blake3(secret + work, derive_key_context=_FILE).digest(8)
    return share >= 1.0 or int.from_bytes(word, "little") < share * 2**64


def draws_step(secret: bytes, statement: bytes, rate: int) -> bool:
    """Whether the validator with this secret audits a step of the trainer. statement: hash of what was stated about it,
    which nobody knows before it is signed; rate: as pledged, of RATE_ONE."""
    word = blake3(secret + statement, derive_key_context=_STEP).digest(8)
    return int.from_bytes(word, "little") < rate * (2**64 // RATE_ONE)


def pack_groups(chosen: Iterable[int], groups: int) -> bytes:
    """A set of groups as a bitmap of ceil(groups / 8) bytes, lowest bit first."""
    bits = bytearray(-(-groups // 8))
    for group in chosen:
        if not 0 <= group < groups:
            raise ValueError(f"group {group} of {groups}")
        bits[group // 8] |= 1 << group % 8
    return bytes(bits)


def unpack_groups(bitmap: bytes, groups: int) -> tuple[int, ...] | None:
    """The groups of a bitmap, ascending; None if it has another length or bits beyond the last group."""
    if len(bitmap) != -(-groups // 8):
        return None
    chosen = tuple(group for group in range(8 * len(bitmap)) if bitmap[group // 8] >> group % 8 & 1)
    # Stray bits behind the last group would give one set two encodings, so two verdicts that say the same.
    return chosen if not chosen or chosen[-1] < groups else None


def broken_promise(
    pledge: LotPledge,
    secret: bytes,
    validator: Address,
    pool: int,
    work: bytes,
    groups: int,
    checked: bytes,
    rate: int,
) -> str | None:
    """What is wrong with a verdict in the light of the revealed secret; None if the lot was kept.

    checked: bitmap of the groups that the verdict says were recomputed. Checking more than the lot is no fault.
    """
    if secret_hash(secret, validator, pool, pledge.window) != pledge.hash:
        return "the secret is not the pledged one"
    # Pledged is the least: who draws more does more work than promised, which hurts nobody.
    if rate < pledge.rate:
        return f"drawn with rate {rate}, pledged were {pledge.rate}"
    said = unpack_groups(checked, groups)
    if said is None:
        return "its list of groups has another length than the file"
    # A lot that was drawn and not looked at is the fault, whatever the verdict says of the groups that were.
    missing = set(drawn_groups(secret, work, groups, min(rate, RATE_ONE))) - set(said)
    return f"{len(missing)} drawn groups were not recomputed" if missing else None
