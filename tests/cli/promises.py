"""What a sentence that asks for consent says, held against what the chain then has.

Reads each amount of tokens, account, run, number of units, pool, case, epoch, term and time that the sentence names.
The chain has it if a log of the command's transactions says so, or a parameter of the contracts, or what is known
afterwards of the pool or the case that the logs are about.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from cli.output import duration, ether
from contracts.bindings import Addresses, ChainEvent, parse_log, raw_log

AMOUNT = re.compile(r"(\d[\d,]*(?:\.\d+)?) (?:new test |more )?tokens")
RATE = re.compile(r"at (\d[\d,]*(?:\.\d+)?) per (\d+) units")
RUN = re.compile(r"\brun ([0-9a-f]{16})\b")
ACCOUNT = re.compile(r"0x[0-9a-f]{40}", re.IGNORECASE)
NUMBER = re.compile(r"(pool|case|epoch|term|policy) (\d+)|(?<!per )(?<!\d)(\d[\d,]*) unit(?:\(s\)|s?\b)")
SPAN = re.compile(
    r"(?:in|within|after|for|now|lasts|counts) (\d+ d \d\d h|\d+ h \d\d min|\d+ min \d\d s|\d+ days|[\d.]+ h)"
)


class Seen(msgspec.Struct, frozen=True):
    """What the chain has: numbers (wei, units, seconds, numbers of things), accounts, roots in hex, and when that was.
    about: the pools and cases that the logs name, as ("pool", number)."""

    numbers: frozenset[int]
    accounts: frozenset[str]
    now: int
    about: frozenset[tuple[str, int]]
    roots: frozenset[str]

    def spans(self) -> set[str]:
        """How the sentences tell a time: one that is a parameter, or until a second that a log names. They were said
        some seconds before the block that they are held against."""
        found: set[str] = set()
        left = {number - self.now + before for number in self.numbers for before in range(10)}
        for seconds in left | self.numbers:
            if 0 < seconds < 400 * 86_400:
                found |= {duration(seconds), f"{seconds / 3600:g} h", f"{seconds // 86_400} days"}
        return found


def seen(receipts: Iterable[dict[str, Any]], addresses: Addresses, now: int) -> Seen:
    """receipts: of the command's transactions, as an endpoint gives them."""
    numbers, accounts, roots, about = set[int](), set[str](), set[str](), set[tuple[str, int]]()
    for receipt in receipts:
        accounts.add(receipt["from"].lower())
        for entry in receipt["logs"]:
            log = raw_log(entry)
            event = parse_log(log, addresses)
            if event is not None:
                _collect(event, numbers, accounts, roots)
                about |= {("pool", getattr(event, "pool", 0)), ("case", getattr(event, "case_id", 0))}
            elif log.address == addresses.token:
                accounts |= {"0x" + topic[12:].hex() for topic in log.topics[1:]}
                numbers.add(int.from_bytes(log.data))
    named = frozenset((kind, number) for kind, number in about if number)
    return Seen(frozenset(numbers), frozenset(accounts), now, named, frozenset(roots))


def _collect(value: Any, numbers: set[int], accounts: set[str], roots: set[str]) -> None:
    if isinstance(value, msgspec.Struct):
        skip = ChainEvent.__struct_fields__ if isinstance(value, ChainEvent) else ()
        for name in value.__struct_fields__:
            if name not in skip:
                _collect(getattr(value, name), numbers, accounts, roots)
    elif isinstance(value, tuple):
        numbers.add(len(value))
        for each in value:
            _collect(each, numbers, accounts, roots)
    elif isinstance(value, bytes):
        roots.add(value.hex())
    elif isinstance(value, int):
        numbers.add(value)
    elif isinstance(value, str) and ACCOUNT.fullmatch(value):
        accounts.add(value.lower())


def leaves(told: Any) -> Iterator[Any]:
    """All that stands somewhere in a JSON-ready answer."""
    if isinstance(told, dict | list):
        for each in told.values() if isinstance(told, dict) else told:
            yield from leaves(each)
    else:
        yield told


def unkept(says: str, has: Seen) -> list[str]:
    """What the sentence names and the chain has not."""
    amounts = {ether(number) for number in has.numbers}
    lost = [f"{one} tokens" for one in AMOUNT.findall(says) if one not in amounts]
    lost += [one for one in ACCOUNT.findall(says) if one.lower() not in has.accounts]
    lost += [f"run {one}" for one in RUN.findall(says) if not any(root.startswith(one) for root in has.roots)]
    rates = RATE.findall(says)
    lost += [f"{rate} per {per}" for rate, per in rates if rate not in {ether(n * int(per)) for n in has.numbers}]
    for match in NUMBER.finditer(says):
        number = int((match[2] or match[3]).replace(",", ""))
        if number not in has.numbers:
            lost.append(match[0])
    return lost + [span for span in SPAN.findall(says) if span not in has.spans()]
