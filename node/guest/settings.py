"""[guest] of config.toml: when a node may work on its owner's machine, and how much of it it may take. Pure.

All mistakes are told at once, each by its name. What is not set costs nothing and limits nothing.
"""

import math
import re
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from node.errors import ConfigError
from node.guest.hours import Hours
from node.guest.rest import PATIENCE

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
SPANS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
LONGEST = 366 * 86_400.0
"""Seconds of the longest pause."""
NAMES = {
    "hours": "when it may work: 22:00-07:00, or a list of such, with days before it: mon-fri 22:00-07:00",
    "time_zone": "whose clock that is, Europe/Berlin; default: this machine's",
    "only_idle": "true: only while nobody else uses the machine, and not on battery",
    "idle_minutes": "minutes that it must have been left alone for, 5",
    "patience": "how long what is under way may last when a rest begins, 60s",
    "cores": "processors that all of it may use",
    "gpu_memory": "of each GPU, 12 GiB",
    "gpu_watts": "the power limit that each GPU must have been given",
    "disk": "for everything in the state directory, 50 GB",
    "upload": "a second, 2 MB",
}


class GuestSettings(msgspec.Struct, frozen=True):
    """Bytes and seconds; 0: no limit. gpu_watts: that the owner has set, of each GPU."""

    hours: Hours = Hours()
    only_idle: bool = False
    idle_minutes: float = 5.0
    patience: float = PATIENCE
    cores: int = 0
    gpu_memory: int = 0
    gpu_watts: float = 0.0
    disk: int = 0
    upload: int = 0

    @property
    def rests(self) -> bool:
        """Whether it may have to rest without being told."""
        return bool(self.hours.spans) or self.only_idle


def read_guest(values: Mapping[str, Any]) -> GuestSettings:
    """Raises ConfigError with all mistakes."""
    wrong: list[str] = []
    found: dict[str, Any] = {}

    def take(name: str, read: Any) -> None:
        if name in values:
            try:
                found[name] = read(values[name])
            except ValueError as error:
                wrong.append(f"{name}: {error}")

    wrong += [f"{name}: there is no such setting, but {', '.join(NAMES)}" for name in values if name not in NAMES]
    take("time_zone", _zone)
    zone = found.pop("time_zone", None)
    take("hours", lambda value: Hours.parse(_texts(value), zone))
    take("only_idle", _flag)
    take("idle_minutes", lambda value: _number(value, 0, 24 * 60))
    take("patience", lambda value: seconds_of(value, most=86_400.0))
    take("cores", lambda value: _whole(value, 1, 4096))
    take("gpu_watts", lambda value: _number(value, 1, 10_000))
    for name in ("gpu_memory", "disk"):
        take(name, bytes_of)
    take("upload", _upload)
    if "time_zone" in values and "hours" not in values:
        wrong.append("time_zone: there are no hours that it could be of")
    if "idle_minutes" in values and not values.get("only_idle"):
        wrong.append("idle_minutes: it says nothing without only_idle = true")
    if wrong:
        known = "; ".join(f"{name} ({what})" for name, what in NAMES.items())
        raise ConfigError("[guest] cannot be used", "; ".join(wrong), f"correct these lines of config.toml; {known}")
    return GuestSettings(**found)


def seconds_of(value: Any, most: float = LONGEST) -> float:
    """Of 90s, 15m, 2h, 1h30m, 3d, or a number of seconds. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, 0, most)
    parts = re.findall(r"(\d{1,9})([smhd])", value) if isinstance(value, str) else []
    if not parts or "".join(map("".join, parts)) != value:
        raise ValueError(f"{str(value)[:40]!r} is no span of time, such as 90s, 15m, 2h, 1h30m, 3d")
    return _number(float(sum(int(number) * SPANS[unit] for number, unit in parts)), 0, most)


def bytes_of(value: Any) -> int:
    """Of 12 GiB, 50GB, 1.5 MB, or a number of bytes. Raises ValueError."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?) ?([A-Za-z]{0,3})", text.strip()) if isinstance(text, str) else None
    if found is None or found[2].lower() not in UNITS:
        raise ValueError(f"{str(value)[:40]!r} is no size, such as 12 GiB, 50 GB, 2 MB")
    size = int(float(found[1]) * UNITS[found[2].lower()])
    if not 0 < size < 2**60:
        raise ValueError(f"{str(value)[:40]!r} is out of bounds: leave the line out for no limit")
    return size


def _upload(value: Any) -> int:
    rate = bytes_of(value.strip().removesuffix("/s") if isinstance(value, str) else value)
    # Bytes per second below which nobody could fetch a file of this node in time, and so none would be paid.
    least_upload = 1 << 14
    if rate < least_upload:
        raise ValueError(f"{rate} bytes a second are too few: {least_upload // 1024} KiB let others fetch its files")
    return rate


def _zone(value: Any) -> ZoneInfo:
    try:
        return ZoneInfo(value)
    # A name that leads out of the data base's directory is a ValueError, a directory in it an OSError.
    except (KeyError, ValueError, OSError, TypeError):
        raise ValueError(f"{str(value)[:40]!r} is no time zone, such as Europe/Berlin") from None


def _texts(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(one, str) for one in texts):
        raise ValueError("not a text, or a list of such")
    if len(texts) > 64:
        raise ValueError(f"{len(texts)} spans are too many: 64 at most")
    return list(texts)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{str(value)[:40]!r} is neither true nor false")
    return value


def _whole(value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{str(value)[:40]!r} is no whole number from {least} to {most}")
    return value


def _number(value: Any, least: float, most: float) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not least <= value <= most:
        raise ValueError(f"{str(value)[:40]!r} is no number from {least:g} to {most:g}")
    return float(value)
