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
from node.services.judging import peer_audit
from node.services.training import values
from node.swarm import audit_lots, board, disputes, seals, vote_set
from protocol import disputes as verdicts
from protocol import statements
from protocol.identity import Address, NodeKey
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


_SIGN = NodeKey.sign_hash
_signatures: dict[tuple[Address, bytes], bytes] = {}


def _signed(key: NodeKey, digest: bytes) -> bytes:
    """Whoever signs remembers whose it is."""
    if (key.address, digest) not in _signatures:
        _signatures[key.address, digest] = _SIGN(key, digest)
    return _signatures[key.address, digest]


_PLACES: list[tuple[Any, str, Callable[..., Any]]] = [
    (court, "truth", _once(court.truth)),
    (court.ReportingEngine, "report", _report),
    (court, "encode_report", _once_each(court.encode_report, 1)),
    (values, "decode_report", _once(values.decode_report)),
    (values, "report_fault", _once_each(values.report_fault, 1)),
    (peer_audit, "read_report", _once(peer_audit.read_report)),
    (peer_audit, "rows_differ", _once_each(peer_audit.rows_differ, 2)),
    (verdicts, "group_means", _once(verdicts.group_means)),
    (disputes, "compare", _once(disputes.compare)),
    (vote_set, "values_complete", _once(vote_set.values_complete)),
    (seals, "seal_of", _once(seals.seal_of)),
    (audit_lots, "broken_promise", _once(audit_lots.broken_promise)),
    (audit_lots, "unpack_groups", _once(audit_lots.unpack_groups)),
    (board, "parse_envelope", _once(board.parse_envelope)),
    (board, "authenticate", _once(board.authenticate)),
    (NodeKey, "sign_hash", _signed),
    (statements, "digest", _once(statements.digest)),
]


@contextmanager
def remembering() -> Iterator[None]:
    with ExitStack() as held:
        for place, name, once in _PLACES:
            held.enter_context(patch.object(place, name, once))
        yield
