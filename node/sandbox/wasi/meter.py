"""What a guest is given by measure: fuel, and the time and the randomness that follow from it.

Time is counted, not measured: a nanosecond for each unit of fuel, and sleeping takes none but advances the clock.
Randomness is one fixed stream.
"""

import hashlib

from wasmtime import Store

CALL_FUEL = 50_000
"""A function of the host takes as long as so many instructions of the guest, 7 us (benchmarks.sandbox at af57af2)."""
BYTE_FUEL = 4


class FuelMeter:
    """Of one guest's store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._slept = 0
        self._drawn = 0
        self._spent = 0
        self._given = 0

    def fill(self, fuel: int) -> None:
        """From now on the guest may use `fuel`."""
        # What calls before used stays in the clock: for a guest that remembers, time never goes back.
        self._spent += self.used if self._given else 0
        self._given = fuel
        self._store.set_fuel(fuel)

    @property
    def used(self) -> int:
        """Of the fuel that was last given."""
        return self._given - self._store.get_fuel()

    def charge(self, fuel: int) -> None:
        # What runs on our side costs the guest fuel, too: reading a megabyte for nothing would hold the host up unseen.
        self._store.set_fuel(max(self._store.get_fuel() - fuel, 0))

    @property
    def now(self) -> int:
        """Nanoseconds since 1970."""
        # One nanosecond for each unit of fuel: time passes, and it passes alike on every machine.
        # Nanoseconds since 1970 when the guest's clock begins.
        return (1_600_000_000 * 10**9) + self._spent + self.used + self._slept

    def sleep(self, nanoseconds: int) -> None:
        # Bounded: the clock is a number of 64 bits, and a guest may sleep for as long as it likes.
        # Nanoseconds that all sleeping together takes at most: three decades, so that the clock fits its 64 bits.
        self._slept = min(self._slept + max(nanoseconds, 0), 10**18)

    def random(self, size: int) -> bytes:
        self._drawn += 1
        # Known to everybody, and so the same for worker and validators. A package that wants secrets has none.
        return hashlib.shake_128(self._drawn.to_bytes(8, "little")).digest(size)

    def state(self) -> tuple[int, int, int]:
        """All that a later call could notice of it."""
        return self._spent + self.used, self._slept, self._drawn
