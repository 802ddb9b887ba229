"""What time it is, for everything that decides: given from outside, so that simulations bring their own."""

import time
from collections.abc import Callable

import msgspec
import trio

Seconds = Callable[[], float]


class Clock(msgspec.Struct, frozen=True):
    """monotonic: seconds since some moment, for how long something took or may take; wall: unix seconds, for what is
    shown, signed or compared with the chain."""

    monotonic: Seconds = trio.current_time
    wall: Seconds = time.time
