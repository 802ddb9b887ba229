"""This machine's clock against the chain's and the peers'. Pure: times are unix seconds."""

from collections.abc import Sequence
from statistics import median

from node.preflight.finding import Finding, failure, ok, warning
from protocol.liveness import AHEAD

SLACK = 15.0
"""Seconds that a clock may be off: blocks come in steps, and messages take a moment."""
STALE = 120.0
"""Seconds without a block after which a chain stands still, or this clock is ahead of it."""
HOPELESS = 300.0
"""Seconds behind at which certificates, leases and epochs are no longer understood."""
REMEDY = "let the system keep its time: timedatectl set-ntp true (or your system's NTP service)"


def against_chain(newest_block: float, now: float, *, rehearsal: bool = False) -> Finding:
    """newest_block: its timestamp; rehearsal: of a local chain, whose clock anybody may have moved."""
    ahead = now - newest_block
    data = {"chain_seconds_behind": round(ahead, 1)}
    if ahead < -SLACK:
        tell = failure if ahead < -HOPELESS and not rehearsal else warning
        return tell("clock", f"the newest block is {-ahead:.0f} s in this machine's future", REMEDY, **data)
    if ahead > STALE:
        what = f"the newest block is {ahead:.0f} s old: the RPC lags, the chain stands still, or this clock is ahead"
        return warning("clock", what, f"compare with https://time.is; {REMEDY}; or use another RPC", **data)
    return ok("clock", f"within {abs(ahead):.0f} s of the newest block", **data)


def against_peers(offsets: Sequence[float]) -> Finding | None:
    """offsets: this clock minus each peer's, seconds; None where nobody is heard."""
    if not offsets:
        return None
    off = median(offsets)
    data = {"peers": len(offsets), "median_seconds_ahead": round(off, 1)}
    way = "ahead of" if off > 0 else "behind"
    what = f"this clock is {abs(off):.0f} s {way} most of {len(offsets)} peers'"
    if off > AHEAD:
        return failure("clock", f"{what}: they do not believe what it says", REMEDY, **data)
    if abs(off) > SLACK:
        return warning("clock", what, REMEDY, **data)
    return ok("clock", f"agrees with {len(offsets)} peers' within {abs(off):.1f} s", **data)
