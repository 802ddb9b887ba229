"""Links with a rate: one network namespace per node on a bridge, shaped by the kernel; or our own limits.

Needs root, `ip` and `tc` for the first; where they are missing the exchange's own upload and download limits stand in.
"""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

SUBNET = "10.213.77"
LATENCY_MS = 100
_serial = itertools.count()


class Link:
    """Where a node lives. prefix: what its command starts with; address: where it listens; mbit: up and down."""

    def __init__(self, prefix: Sequence[str], address: str, up: float, down: float, shaped: bool) -> None:
        self.prefix = tuple(prefix)
        self.address = address
        self.up = up
        self.down = down
        self.shaped = shaped


def can_shape() -> bool:
    """Whether this machine lets us make namespaces and shape them."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        return False
    name = f"swarm{os.getpid()}t"
    if not _try("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p"):
        return False
    shaped = _try("tc", "qdisc", "add", "dev", name, "root", "tbf", *_rate(100))
    made = _try("ip", "netns", "add", name)
    _try("ip", "netns", "del", name)
    _try("ip", "link", "del", name)
    return shaped and made


@contextmanager
def links(rates: Sequence[tuple[float, float]], *, shape: bool) -> Iterator[list[Link]]:
    """One link per (up, down) in Mbit/s. Everything that was made is removed at the end."""
    if not shape:
        yield [Link((), "127.0.0.1", up, down, shaped=False) for up, down in rates]
        return
    bridge = f"sw{os.getpid() % 10_000}x{next(_serial)}"
    with ExitStack() as stack:
        _do("ip", "link", "add", bridge, "type", "bridge")
        stack.callback(_try, "ip", "link", "del", bridge)
        _do("ip", "link", "set", bridge, "up")
        made = []
        for number, (up, down) in enumerate(rates):
            name = f"{bridge}n{number}"
            _do("ip", "netns", "add", name)
            stack.callback(_try, "ip", "netns", "del", name)
            stack.callback(_try, "ip", "link", "del", f"{name}o")  # a namespace takes its time to let go of it
            made.append(_join(bridge, name, number, up, down))
        yield made


def _join(bridge: str, name: str, number: int, up: float, down: float) -> Link:
    outer, inner = f"{name}o", f"{name}i"
    address = f"{SUBNET}.{number + 1}"
    _do("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
    _do("ip", "link", "set", outer, "master", bridge, "up")
    _do("ip", "link", "set", inner, "netns", name)
    inside = ("ip", "netns", "exec", name)
    _do(*inside, "ip", "addr", "add", f"{address}/24", "dev", inner)
    _do(*inside, "ip", "link", "set", inner, "up")
    _do(*inside, "ip", "link", "set", "lo", "up")
    _do(*inside, "tc", "qdisc", "add", "dev", inner, "root", "tbf", *_rate(up))
    _do("tc", "qdisc", "add", "dev", outer, "root", "tbf", *_rate(down))
    return Link(inside, address, up, down, shaped=True)


def _rate(mbit: float) -> tuple[str, ...]:
    burst = max(64_000, int(mbit * 1e6 / 8 / 25))
    return ("rate", f"{mbit:g}mbit", "burst", f"{burst}", "latency", f"{LATENCY_MS}ms")


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _try(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
