"""Units that several rooms count in, and numbers as people read them."""

from protocol.upkeep import DAY as DAY

GIB = 1 << 30
TOKEN = 10**18
"""The smallest parts of one: of a pool's token, and of the chain's coin."""


def size_of(count: int) -> str:
    """Of so many bytes: '1.19 GB', '12 MB', '3 kB', '999 bytes'."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        # What rounds up to the next unit is written in that one: 1 GB, not 1e+03 MB.
        if (rounded := float(f"{count:.3g}")) >= 10**power:
            # :g would write 1234 as 1.23e+03.
            return f"{rounded / 10**power:.10g} {unit}"
    return f"{count} bytes"
