"""Room for blobs, images and logs in the state directory, and whether it can be written."""

import os
import tempfile
from pathlib import Path

from node.logs import LOG_BYTES, LOG_FILES
from node.preflight.finding import Finding, failure, ok, warning
from node.state.directory import MIN_FREE_BYTES

GIB = 2**30


def check_disk(directory: Path, quota: int, image: int = 0) -> Finding:
    """quota: bytes that the blob store may take; image: bytes of a policy, 0 if unknown. Blocking, for a moment."""
    place = _nearest(directory)
    try:
        with tempfile.NamedTemporaryFile(dir=place):
            pass
        disk = os.statvfs(place)
    except OSError as error:
        return failure("disk", f"{place} cannot be written: {error.strerror}", "choose another --state-dir, or mend it")
    stored = sum(file.stat().st_size for file in directory.glob("blobs/complete/*") if file.is_file())
    return judge_disk(disk.f_bavail * disk.f_frsize, stored, quota, image, place)


def judge_disk(free: int, stored: int, quota: int, image: int, place: Path) -> Finding:
    """free: bytes that this user may still write; stored: bytes of blobs that are there. Pure."""
    logs = LOG_BYTES * (LOG_FILES + 1)
    most, least = max(quota - stored, 0) + 3 * image + logs, MIN_FREE_BYTES + 4 * image
    data = {"free_bytes": free, "wanted_bytes": most, "needed_bytes": least, "path": str(place)}
    if free < least:
        what = f"{_gib(free)} are free in {place}, at least {_gib(least)} are needed"
        return failure("disk", what, "free some space, or use --state-dir on another disk", **data)
    if free < most:
        what = f"{_gib(free)} are free in {place}; with a full store of {_gib(quota)} it would be {_gib(most)}"
        room = max(free - logs - 3 * image - MIN_FREE_BYTES, MIN_FREE_BYTES) // 2**20 * 2**20
        return warning("disk", what, f"set INTELLECT_NODE_STORE_QUOTA={room} (bytes), or make room", **data)
    return ok("disk", f"{_gib(free)} free in {place}", **data)


def _nearest(directory: Path) -> Path:
    """The directory, or the nearest one above it that is there."""
    return next(place for place in (directory, *directory.absolute().parents) if place.is_dir())


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
