"""Whether the code on chain is that of the checked-in artifacts, but for what a constructor fills in.

Immutables stand in the code as operands of PUSH32; in an artifact these are zeros. One question compares all contracts:
a call without a receiver runs its own data as a program, which copies each contract's code, writes zeros where its
immutables stand, and hashes it. `eth_getCode` would be a question and twenty kilobytes for each.

The token is any ERC-20, so it is only asked whether it is there.
"""

import re
from collections.abc import Mapping
from functools import cache

from eth_hash.auto import keccak

from contracts.bindings import Contracts, artifact
from protocol.identity import Address, address_bytes

IMMUTABLE = re.compile(b"\x7f" + bytes(32))
"""PUSH32 and its operand, before a constructor has run."""
BUFFER = 0x400
"""Where the program keeps code in memory: behind the answers."""
ANSWER = 64
"""Bytes of it for each contract: size and hash."""


@cache
def built(name: str) -> tuple[bytes, tuple[int, ...]]:
    """A contract's code as it is deployed, with zeros for immutables, and where these are."""
    code = bytes.fromhex(artifact(name)["deployedBytecode"].removeprefix("0x"))
    return code, tuple(found.start() + 1 for found in IMMUTABLE.finditer(code))


def is_ours(slot: str, code: bytes) -> bool:
    """Whether a contract has this program's code."""
    if slot == "token":
        return bool(code)
    wanted, places = built(Contracts.SLOTS[slot])
    masked = bytearray(code)
    for place in places:
        masked[place : place + 32] = bytes(len(masked[place : place + 32]))
    return bytes(masked) == wanted


def program(places: Mapping[str, Address]) -> bytes:
    """What to run on chain: it returns size and hash of the code of each."""
    parts = [_one(number, slot, address) for number, (slot, address) in enumerate(places.items())]
    return b"".join(parts) + _push(ANSWER * len(places)) + _push(0) + b"\xf3"  # RETURN


def _one(number: int, slot: str, address: Address) -> bytes:
    at, account = ANSWER * number, b"\x73" + address_bytes(address)  # PUSH20
    code = account + b"\x3b" + _push(at) + b"\x52"  # EXTCODESIZE, MSTORE
    if slot == "token":
        return code
    wanted, immutables = built(Contracts.SLOTS[slot])
    code += _push(len(wanted)) + _push(0) + _push(BUFFER) + account + b"\x3c"  # EXTCODECOPY
    code += b"".join(_push(0) + _push(BUFFER + place) + b"\x52" for place in immutables)
    return code + _push(len(wanted)) + _push(BUFFER) + b"\x20" + _push(at + 32) + b"\x52"  # KECCAK256, MSTORE


def _push(value: int) -> bytes:
    return b"\x62" + value.to_bytes(3, "big")  # PUSH3


def told(slots: Mapping[str, Address], answer: bytes) -> dict[str, bool | None]:
    """Of each slot: whether it has this program's code, None where there is none. Raises ValueError."""
    if len(answer) != ANSWER * len(slots):
        raise ValueError(f"{len(answer)} bytes are no answer to {len(slots)} codes of contracts")
    found: dict[str, bool | None] = {}
    for number, slot in enumerate(slots):
        size, digest = answer[ANSWER * number :][:32], answer[ANSWER * number + 32 :][:32]
        found[slot] = None if not any(size) else slot == "token" or (int.from_bytes(size), digest) == _expected(slot)
    return found


@cache
def _expected(slot: str) -> tuple[int, bytes]:
    code, _ = built(Contracts.SLOTS[slot])
    return len(code), keccak(code)


def look(contracts: Contracts) -> dict[str, bool | None]:
    """Of each contract: whether it has this program's code, None where there is none. Raises ValueError."""
    places = contracts.places()
    return told(places, bytes(contracts.web3.eth.call({"data": "0x" + program(places).hex()})))
