"""Several transfers in one line, for people. Pure."""

from collections.abc import Sequence

from node.blobs.transfer import Progress

UNITS = ((10**9, "GB"), (10**6, "MB"), (1000, "kB"), (1, "bytes"))


def describe(transfers: Sequence[Progress], members: int) -> str:
    """'38 of 120 MB from 3 members', or how many members are asked before anything has arrived."""
    total, done = sum(one.size for one in transfers), sum(one.done for one in transfers)
    givers = max((one.peers for one in transfers), default=0)
    if not done:
        return f"asking {_members(members)}"
    unit, name = _unit(total)
    return f"{done / unit:.{_digits(unit)}f} of {total / unit:.{_digits(unit)}f} {name} from {_members(max(givers, 1))}"


def fraction(transfers: Sequence[Progress]) -> float | None:
    """0 to 1 over all of them; None while no size is known."""
    total = sum(one.size for one in transfers)
    return sum(one.done for one in transfers) / total if total else None


def _members(count: int) -> str:
    return f"{count} member" if count == 1 else f"{count} members"


def _unit(size: int) -> tuple[int, str]:
    return next(
        (unit, name) for unit, name in ((10**9, "GB"), (10**6, "MB"), (1000, "kB"), (1, "bytes")) if size >= unit
    )


def _digits(unit: int) -> int:
    return 1 if unit == 10**9 else 0
