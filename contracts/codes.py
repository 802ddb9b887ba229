"""Whether the code on chain is that of the checked-in artifacts, but for what a constructor fills in, and whether each
contract is tied to the others of this deployment.

Immutables stand in the code as operands of PUSH32; in an artifact these are zeros. One question compares all contracts:
a call without a receiver runs its own data as a program, which copies each contract's code, writes zeros where its
immutables stand, and hashes it; then it asks each contract for those that it is tied to. `eth_getCode` would be a
question and twenty kilobytes for each. Code without ties proves little: a profile may name somebody's own vault, with
the same code, beside a swarm that knows another one.

The token is any ERC-20, so it is only asked whether it is there.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

from eth_hash.auto import keccak

from contracts.bindings import Contracts, artifact
from protocol.identity import Address, address_bytes

IMMUTABLE = re.compile(b"\x7f" + bytes(32))
"""PUSH32 and its operand, before a constructor has run."""
BUFFER = 0x400
"""Where the program keeps code in memory: behind the answers."""
ANSWER = 64
"""Bytes of it for each contract: size and hash."""
TIES: dict[str, tuple[str, ...]] = {
    "vault": ("token", "swarm"),
    "swarm": ("token", "vault", "court", "payroll"),
    "court": ("swarm",),
    "payroll": ("token", "vault", "swarm", "court"),
    "chair": ("swarm", "court"),
}
"""What each contract knows of the others. Each of them is a view without arguments, of the same name."""


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


class Found(NamedTuple):
    """ours: of each contract, whether it has this program's code, None where there is none. astray: ties that lead out
    of the deployment, as `swarm.vault`."""

    ours: dict[str, bool | None]
    astray: tuple[str, ...] = ()


def program(places: Mapping[str, Address]) -> bytes:
    """What to run on chain: it returns size and hash of the code of each, and then a word for each tie."""
    parts = [_one(number, slot, address) for number, (slot, address) in enumerate(places.items())]
    first = ANSWER * len(places)
    ties = _ties(places)
    parts += [_tie(first + 32 * number, places[slot], other) for number, (slot, other) in enumerate(ties)]
    return b"".join(parts) + _push(first + 32 * len(ties)) + _push(0) + b"\xf3"  # RETURN


def _ties(places: Mapping[str, Address]) -> list[tuple[str, str]]:
    return [(slot, other) for slot in places for other in TIES.get(slot, ())]


def _one(number: int, slot: str, address: Address) -> bytes:
    at, account = ANSWER * number, b"\x73" + address_bytes(address)  # PUSH20
    code = account + b"\x3b" + _push(at) + b"\x52"  # EXTCODESIZE, MSTORE
    if slot == "token":
        return code
    wanted, immutables = built(Contracts.SLOTS[slot])
    code += _push(len(wanted)) + _push(0) + _push(BUFFER) + account + b"\x3c"  # EXTCODECOPY
    code += b"".join(_push(0) + _push(BUFFER + place) + b"\x52" for place in immutables)
    return code + _push(len(wanted)) + _push(BUFFER) + b"\x20" + _push(at + 32) + b"\x52"  # KECCAK256, MSTORE


def _tie(at: int, asked: Address, other: str) -> bytes:
    """at: where in memory the answer goes; zeros stay there where nothing answers."""
    code = b"\x63" + _selector(other) + b"\x60\xe0\x1b" + _push(BUFFER) + b"\x52"  # PUSH4, SHL by 224, MSTORE
    code += _push(32) + _push(at) + _push(4) + _push(BUFFER) + b"\x73" + address_bytes(asked)
    return code + b"\x5a\xfa\x50"  # GAS, STATICCALL, POP


def _selector(view: str) -> bytes:
    return keccak(f"{view}()".encode())[:4]


def _push(value: int) -> bytes:
    return b"\x62" + value.to_bytes(3, "big")  # PUSH3


def told(slots: Mapping[str, Address], answer: bytes) -> Found:
    """Raises ValueError."""
    ties, first = _ties(slots), ANSWER * len(slots)
    if len(answer) != first + 32 * len(ties):
        raise ValueError(f"{len(answer)} bytes are no answer to {len(slots)} codes of contracts")
    ours: dict[str, bool | None] = {}
    for number, slot in enumerate(slots):
        size, digest = answer[ANSWER * number :][:32], answer[ANSWER * number + 32 :][:32]
        ours[slot] = None if not any(size) else slot == "token" or (int.from_bytes(size), digest) == _expected(slot)
    words = [answer[first + 32 * number :][:32] for number in range(len(ties))]
    return Found(ours, _astray(slots, words))


def _astray(slots: Mapping[str, Address], words: Iterable[bytes]) -> tuple[str, ...]:
    pairs = zip(_ties(slots), words, strict=True)
    return tuple(f"{slot}.{other}" for (slot, other), word in pairs if word[-20:] != address_bytes(slots[other]))


@cache
def _expected(slot: str) -> tuple[int, bytes]:
    code, _ = built(Contracts.SLOTS[slot])
    return len(code), keccak(code)


def look(contracts: Contracts) -> Found:
    """In one question. Raises ValueError."""
    places = contracts.places()
    return told(places, bytes(contracts.eth.call({"data": "0x" + program(places).hex()})))


def questions(contracts: Contracts) -> list[Callable[[], bytes]]:
    """The same for an endpoint that runs no program: each code, then each tie."""
    places, ask = contracts.places(), contracts.eth.call
    ties = [partial(ask, {"to": places[slot], "data": "0x" + _selector(other).hex()}) for slot, other in _ties(places)]
    return [*(partial(contracts.code, address) for address in places.values()), *ties]


def answered(contracts: Contracts, answers: Sequence[bytes]) -> Found:
    """What the answers to `questions` come to."""
    places = contracts.places()
    ours = {slot: is_ours(slot, code) if code else None for slot, code in zip(places, answers, strict=False)}
    return Found(ours, _astray(places, map(bytes, answers[len(places) :])))
