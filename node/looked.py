"""For processes without an event loop: looks again and again for what no event tells them. Imports nothing heavy."""

import math
import time
from collections.abc import Callable


def looked(so: Callable[[], object], pause: float, seconds: float = math.inf) -> bool:
    """Whether it is so within `seconds`, looked at so many seconds after each other; at once and at the end, too.
    Blocking."""
    until = time.monotonic() + seconds
    while not so():
        if time.monotonic() >= until:
            return False
        time.sleep(pause)
    return True
