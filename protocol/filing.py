"""What a node shows on chain where no table came: its lines under validators' roots of one epoch (`Payroll.file`).

A root counts under the bench that sat when its epoch began. Of each of its seats the roots of an epoch add up, and the
least of a quorum's sums is filed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from protocol.identity import Address
from protocol.messages import EpochRootSigned, of_kind, open_envelope
from protocol.statements import Domain, EpochRoot

MOST_LINES = 96
"""Of one epoch, and of one transaction: 100 KB, below what nodes of a chain hand on."""


class Seated(msgspec.Struct, frozen=True):
    """A bench. number: in the order in which they took office, from 1; since: unix seconds."""

    number: int
    since: int
    threshold: int
    validators: tuple[Address, ...]


class RootLine(msgspec.Struct, frozen=True):
    """A node's line under a signed root. seat: the signer's place on its bench; proof: from the line to the root."""

    seat: int
    root: EpochRoot
    signature: bytes
    units: int
    proof: tuple[bytes, ...]


class Filing(msgspec.Struct, frozen=True):
    """A node's lines of one epoch, by seat, then by the root's number; bench: its number."""

    epoch: int
    bench: int
    threshold: int
    validators: tuple[Address, ...]
    lines: tuple[RootLine, ...]

    @property
    def units(self) -> int:
        """As the contract counts them."""
        sums = dict[int, int]()
        for line in self.lines:
            sums[line.seat] = sums.get(line.seat, 0) + line.units
        return min(sums.values()) if len(sums) >= self.threshold else 0


def read_line(domain: Domain, pool: int, raw: bytes, units: int, proof: tuple[bytes, ...]) -> tuple[Address, RootLine]:
    """Who signed the root in an envelope, and a node's line under it, of no seat yet. Raises ProtocolError."""
    signed = of_kind(open_envelope(domain, pool, raw), EpochRootSigned)
    return signed.author, RootLine(0, signed.message.statement, signed.message.signature, units, proof)


def filings_of(
    lines: Iterable[tuple[Address, RootLine]], benches: Sequence[Seated], began: Callable[[int], int]
) -> list[Filing]:
    """The best of each epoch that a quorum of its bench named. began: the first second of an epoch, unix."""
    named: dict[int, dict[Address, list[RootLine]]] = {}
    for author, line in lines:
        named.setdefault(line.root.epoch, {}).setdefault(author, []).append(line)
    found: list[Filing] = []
    for epoch in sorted(named):
        bench = bench_at(benches, began(epoch))
        filing = best_filing(epoch, bench, named[epoch]) if bench else None
        if filing is not None:
            found.append(filing)
    return found


def bench_at(benches: Sequence[Seated], began: int) -> Seated | None:
    """Who sat in that second."""
    return max((one for one in benches if one.since <= began), key=lambda one: one.number, default=None)


def best_filing(epoch: int, bench: Seated, named: Mapping[Address, Sequence[RootLine]]) -> Filing | None:
    """Of those on the bench that named most; None where they are no quorum. named: lines by who signed their roots, no
    two of one number; their seats are set here."""
    # So a quorum's lines fit one transaction, however many roots each of them has signed. The largest lines stay.
    most = max(MOST_LINES // bench.threshold, 1)
    kept: list[tuple[int, int, list[RootLine]]] = []
    for seat, validator in enumerate(bench.validators):
        lines = sorted(named.get(validator, ()), key=lambda line: -line.units)[:most]
        if lines:
            kept.append((sum(line.units for line in lines), seat, lines))
    best = sorted(kept, key=lambda each: (-each[0], each[1]))[: bench.threshold]
    if len(best) < bench.threshold:
        return None
    lines = [
        msgspec.structs.replace(line, seat=seat)
        for _, seat, own in sorted(best, key=lambda each: each[1])
        for line in sorted(own, key=lambda line: line.root.number)
    ]
    return Filing(epoch, bench.number, bench.threshold, bench.validators, tuple(lines))


def in_turn(filings: Sequence[Filing]) -> list[Filing]:
    """As many of the first ones as one transaction carries; at least one of some."""
    found: list[Filing] = []
    for filing in filings:
        if found and sum(len(one.lines) for one in (*found, filing)) > MOST_LINES:
            break
        found.append(filing)
    return found
