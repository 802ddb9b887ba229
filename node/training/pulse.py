"""Machines that vanish: a rank that waits for one whose power is gone would wait for weeks, since nobody says so.

The first rank of each machine counts up in the store of the rendezvous and reads what the others count. Whoever has
heard nothing new from one of them for long enough ends itself; torchrun and the launcher do the rest. A killed process
needs none of this: its connections are closed by its system.
"""

import os
import threading
import time
from collections.abc import Callable

from torch._C._distributed_c10d import Store

from node.looked import looked
from node.training.program import tell

BEAT_SECONDS = 5.0
LOST_SECONDS = 120.0
"""Longer than a machine may be too busy for a thread of its own: it swaps, or hashes tens of GB."""


class Pulses:
    """Of the other machines, as far as they were heard. Times: seconds of one monotonic clock."""

    def __init__(self, machines: list[int], now: float) -> None:
        # One thread writes and another one reads. That needs no lock, since machines are neither added nor removed.
        self._heard = {machine: (-1, now) for machine in machines}

    def heard(self, machine: int, count: int, now: float) -> None:
        if count != self._heard[machine][0]:
            self._heard[machine] = (count, now)

    def silent(self, now: float) -> list[int]:
        """Those that have said nothing new for LOST_SECONDS."""
        return [machine for machine, (_, when) in self._heard.items() if now - when > LOST_SECONDS]


def keep_watch(open_store: Callable[[], Store], own: int, machines: int) -> None:
    """Count and listen in the background until this process ends. open_store: a connection of its own."""
    pulses = Pulses([machine for machine in range(machines) if machine != own], time.monotonic())

    def beat() -> None:
        try:
            _beat(open_store(), own, machines, pulses)
        except RuntimeError as error:  # torch's DistError: the store is gone, and so is machine 0, or will be
            tell({"event": "training.rendezvous_ended", "why": str(error)[:200]})

    def judge() -> None:
        looked(lambda: pulses.silent(time.monotonic()), BEAT_SECONDS)
        tell({"event": "training.machine_lost", "machines": pulses.silent(time.monotonic())})
        os._exit(1)

    # Two threads: a call to the store of a machine whose power is gone may not come back.
    for task in (beat, judge):
        threading.Thread(target=task, daemon=True).start()


def _beat(store: Store, own: int, machines: int, pulses: Pulses) -> None:
    count = 0
    while True:
        count += 1
        store.set(f"pulse/{own}", str(count))
        for machine in range(machines):
            # `get` would wait for a machine that has not counted yet.
            if machine != own and store.check([f"pulse/{machine}"]):
                pulses.heard(machine, int(store.get(f"pulse/{machine}")), time.monotonic())
        time.sleep(BEAT_SECONDS)
