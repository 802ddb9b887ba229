"""What people type, as values: tokens, addresses, hashes, times. Errors are three lines with exit code 2."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from cli.errors import USAGE, CommandError
from node.units import TOKEN
from protocol.errors import UNREADABLE, IntellectError

if TYPE_CHECKING:
    from protocol.identity import Address

MAX_TOKENS = 10**10
"""A stake, a reward and a slash are 96 bits of wei."""
MAX_POOL = MAX_UNITS = MAX_LENGTH = 2**32 - 1
"""As wide as the contracts' fields: what is larger is refused here, in words."""
MAX_EPOCH = MAX_CASE = 2**63 - 1
MAX_TOTAL = 2**56 - 1
"""What a pool's escrow can hold, in units."""
MAX_SECONDS = 10**11
"""Beyond any date that people mean, within what the contracts hold."""
MAX_BYTES = 64 * 1024
"""Of a file that a command reads whole."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Moment = Callable[[int], int]
"""From the chain's time to the second that was meant: '+7d' counts from there, everything else does not."""


def wei(text: str) -> int:
    """'0.5' tokens as wei, exactly."""
    try:
        # Decimal, not float: 0.1 tokens are to be 10^17 wei exactly.
        amount = Decimal(text)
        # The size first: as a whole number 1e999999 takes minutes.
        exact = amount.is_finite() and 0 <= amount <= MAX_TOKENS and amount * TOKEN == int(amount * TOKEN)
    except (InvalidOperation, ValueError, OverflowError):
        exact, amount = False, Decimal(0)
    if not exact:
        raise CommandError(
            f"{text[:40]!r} is no amount of tokens",
            f"it must be 0 to {MAX_TOKENS:,} with at most 18 digits after the point",
            "give a number like 100 or 0.5",
            USAGE,
        )
    return int(amount * TOKEN)


def address(text: str) -> "Address":
    """An EIP-55 address; all-lower-case is taken as well."""
    from protocol.errors import ProtocolError
    from protocol.identity import parse_address

    try:
        return parse_address(text)
    except ProtocolError as error:
        raise CommandError(f"{text[:60]!r} is no address", error.why, "give 0x and 40 hex digits", USAGE) from None


def word(text: str) -> bytes:
    """32 bytes in hex, with or without 0x."""
    if not re.fullmatch("(0x)?[0-9a-fA-F]{64}", text):
        raise CommandError(f"{text[:80]!r} is no hash", "it must be 32 bytes", "give 64 hex digits", USAGE)
    return bytes.fromhex(text.removeprefix("0x"))


def seconds(text: str) -> int:
    """'90', '10m', '24h' or '7d' in seconds."""
    match = re.fullmatch(r"([0-9]{1,10})([smhd]?)", text)
    length = int(match[1]) * _UNITS.get(match[2], 1) if match else MAX_LENGTH + 1
    if length > MAX_LENGTH:
        why = f"it must be a whole number, and at most {MAX_LENGTH} seconds"
        raise CommandError(f"{text[:40]!r} is no length of time", why, "give e.g. 90, 10m, 24h or 7d", USAGE)
    return length


def moment(text: str) -> Moment:
    """A point in time: '+7d' from the chain's now, '2026-12-01', '2026-12-01 10:30' (UTC if nothing else is said), or
    unix seconds."""
    if text.startswith("+"):
        later = seconds(text[1:])
        return lambda now: now + later
    try:
        # Nine digits or more: eight of them are a date without dashes.
        if re.fullmatch(r"[0-9]{9,11}", text):
            when = int(text)
        else:
            # So that a time can be copied as our commands print it.
            given = datetime.fromisoformat(text.removesuffix(" UTC"))
            when = int((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        when = -1
    if not 0 < when < MAX_SECONDS:
        raise CommandError(
            f"{text[:40]!r} is no point in time",
            "it must be a date, unix seconds, or + and a length of time",
            "give e.g. +7d, 2026-12-01, '2026-12-01 10:30' (UTC) or 1796000000",
            USAGE,
        )
    return lambda _: when


def eth(amount: int) -> str:
    """Wei of the chain's coin for people: enough digits to see a layer-2 fee."""
    whole = Decimal(amount) / TOKEN
    return f"{whole:.12f}".rstrip("0").rstrip(".") or "0"


def time_option(help: str) -> Any:
    return typer.Option(parser=seconds, metavar="TIME", help=help)


def tokens_option(help: str) -> Any:
    return typer.Option(parser=wei, metavar="TOKENS", help=help)


def when_option(help: str) -> Any:
    return typer.Option(parser=moment, metavar="WHEN", help=help)


def address_option(help: str) -> Any:
    return typer.Option(parser=address, metavar="ADDRESS", help=help)


def read_json(path: Path, kind: Any, what: str, remedy: str) -> Any:
    """A small file as a struct, strictly. what: said of a file of another form, such as "is no consent"."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise msgspec.DecodeError(f"it has more than {MAX_BYTES} bytes")
        return msgspec.json.decode(raw, type=kind)
    except OSError as error:
        raise CommandError(f"cannot read {path}", error.strerror or str(error), "check the path", USAGE) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} {what}", str(error), remedy, USAGE) from None


def usual_quorum(validators: int) -> int:
    """Verdicts that decide where nothing is said: a majority, once one liar can be outvoted."""
    return validators // 2 + 1 if validators >= 3 else 1


def address_of(key: str | None) -> Any:
    """A keystore tells its address without its password."""
    from cli.keyring import key_file

    try:
        told = msgspec.json.decode(key_file(key or "").read_bytes())
        return address("0x" + str(told["address"]).removeprefix("0x"))
    except (OSError, KeyError, TypeError, *UNREADABLE, IntellectError):
        return None
