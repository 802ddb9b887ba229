"""What the world's nodes compute alike is computed once: eight of them read the same bytes, and a cell's fork reads
what the run without a liar has read.

Pure functions only, each of what is signed, and by the very bytes. Nobody who is given a value changes it: they are
frozen, or copied by whoever asks.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch

from node.inference.wire import Inspect
from node.services.training import values
from node.swarm import board
from protocol import disputes
from tests.attacks.validators import court


def _once(of: Callable[..., Any]) -> Callable[..., Any]:
    """By what equals; what cannot be told apart so, or raises, is computed each time."""
    return lru_cache(maxsize=1 << 16)(of)


def _once_each(of: Callable[..., Any], objects: int) -> Callable[..., Any]:
    """By which things the first `objects` arguments are: they hold what costs as much to compare as to compute."""
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def asked(*given: Any) -> Any:
        key = (*map(id, given[:objects]), *given[objects:])
        if key not in known:
            known[key] = of(*given), given  # which keeps them, and their places
        return known[key][0]

    return asked


_REPORT = court.ReportingEngine.report
_reports: dict[tuple[Any, ...], Any] = {}


def _report(engine: Any, order: Inspect, groups: Any) -> Any:
    key = order.file_root, order.policy_root, tuple(groups), engine.noise
    if key not in _reports:
        _reports[key] = _REPORT(engine, order, groups)
    return _reports[key]


_PLACES: list[tuple[Any, str, Callable[..., Any]]] = [
    (court, "truth", _once(court.truth)),
    (court.ReportingEngine, "report", _report),
    (court, "encode_report", _once_each(court.encode_report, 1)),
    (values, "decode_report", _once(values.decode_report)),
    (values, "report_fault", _once_each(values.report_fault, 2)),
    (disputes, "group_means", _once_each(disputes.group_means, 1)),
    (board, "parse_envelope", _once(board.parse_envelope)),
]


@contextmanager
def remembering() -> Iterator[None]:
    with ExitStack() as held:
        for place, name, once in _PLACES:
            held.enter_context(patch.object(place, name, once))
        yield
