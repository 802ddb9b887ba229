"""When a member sends what keeps its membership and brings its pay, and what it pays for gas then. Pure.

Both are sent once a week, by the chain's clock alone: a start, a crash or a machine that was off brings neither back a
second time. Times are unix seconds of the chain, fees wei per gas.
"""

import msgspec

from protocol.identity import Address, address_bytes

DAY, WEEK = 86_400, 7 * 86_400
LEASE_SECONDS = 8 * DAY
"""Of a pool, unless its owner says otherwise: a renewal a week, and a day in hand."""


def margin(lease: int) -> int:
    """Seconds before the end of a lease from which on it is renewed."""
    # Who is off for so long in just these hours still comes in time; who is off for longer joins anew when it is back,
    # by the same transaction, and has lost nothing: it has made nothing meanwhile.
    # The last part of a lease, in which it is renewed: of eight days one. Seconds of a short lease that this is at
    # least: a transaction needs some blocks.
    return max(lease // 8, min(lease // 2, 60))


def renewal_due(until: int, lease: int) -> int:
    """From when on a lease that ends then is renewed."""
    return until - margin(lease)


def look_every(lease: int) -> float:
    """Seconds between two looks whether it is time: clocks of machines stand still while these sleep."""
    return min(3600.0, margin(lease) / 8)  # eight looks fall into the margin at least


def slot_began(node: Address, at: int) -> int:
    """When the week of a node's claims began in which this second is. Each node has a day and an hour of its own, so
    that a pool whose members joined together does not claim in one block."""
    offset = int.from_bytes(address_bytes(node)) % WEEK
    return (at - offset) // WEEK * WEEK + offset


class Patience(msgspec.Struct, frozen=True):
    """What is due, and need not be in a block before `deadline`."""

    due: int
    deadline: int

    def most(self, usual: int, cap: int, now: float) -> int:
        """What may be paid now: twice what is usual when it becomes due, from the middle on whatever the owner allows,
        and in between by equal factors in equal times. So a price that is a hundred times as high for an hour is waited
        out, and one that stays is paid while there is time for it."""
        middle, low = (self.due + self.deadline) / 2, min(2 * usual, cap)  # twice the usual price is paid at once
        if now >= middle or low <= 0:
            return cap
        share = max(now - self.due, 0.0) / (middle - self.due)
        return int(low * (cap / low) ** share)
