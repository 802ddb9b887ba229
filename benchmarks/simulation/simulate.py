"""One scenario, from beginning to end, under a virtual clock. The same seed gives the same swarm.

One computer plays everybody, so what is the same for everybody is computed once: parsing, signatures, hashes.

Each is a pure function of a message's bytes: a node that checked for itself would find the same. And who is alive: the
many that read one host's table are told what it said in this second. In force only inside `computed_once`, and only for
the modules of this process. A table of who said what would be shorter, but a second truth: it could let through what a
node refuses.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import trio
from trio._core import _run
from trio.testing import MockClock

from benchmarks.simulation.fetching import fetch_seconds
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.swarm import Swarm
from node.services.judging import fetching
from node.swarm import ballots, board, jury, lotbook, register
from protocol import disputes
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.liveness import Members

REMEMBERED = 65_536


@contextmanager
def computed_once() -> Iterator[None]:
    """Inside, boards, juries and registers share the results of pure functions."""
    parse, authenticate = _once(board.parse_envelope), _once(board.authenticate)
    names = _once(jury.work_id)
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (board, "parse_envelope", parse),
        (board, "authenticate", authenticate),
        (board, "open_envelope", lambda domain, pool, raw: authenticate(domain, parse(pool, raw))),
        (board, "signer_of", _once(board.signer_of)),
        (board, "_name", _once(board._name)),
        *((module, "work_id", names) for module in (ballots, disputes, fetching, jury, lotbook, register)),
        (ballots, "compare", _once(ballots.compare)),
        (register, "slot_of", _once(register.slot_of)),
        (Members, "live", _once_a_second(Members.live)),
    ]
    patches = [patch.object(module, name, function) for module, name, function in replaced]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


def _once_a_second(live: Callable[[Members, float, str | None], list[Address]]) -> Callable[..., list[Address]]:
    told: WeakKeyDictionary[Members, dict[str | None, tuple[float, list[Address]]]] = WeakKeyDictionary()

    def remembered(table: Members, now: float, role: str | None = None) -> list[Address]:
        at, found = told.setdefault(table, {}).get(role, (-1.0, []))
        if not at <= now < at + 1.0:
            at, found = told[table][role] = now, live(table, now, role)
        return found

    return remembered


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The results of the last REMEMBERED calls; refusals are results, too."""

    @lru_cache(REMEMBERED)
    def found(*given: Any) -> tuple[Any, ProtocolError | None]:
        try:
            return function(*given), None
        except ProtocolError as error:
            return None, error

    def shared(*given: Any) -> Any:
        result, error = found(*given)
        if error is not None:
            raise error
        return result

    return shared


def simulate(scenario: Scenario) -> Swarm:
    """Run it. trio shuffles whom it wakes first, so its random numbers are seeded, too."""
    if scenario.policy_seconds is not None:
        fetch = [scenario.policy_seconds]
    else:
        fetch = fetch_seconds(scenario.nodes - 1, scenario.policy_bytes, scenario.seed)
    swarms: list[Swarm] = []

    async def live() -> None:
        swarm = Swarm(scenario, fetch)
        swarms.append(swarm)
        await swarm.run()

    scheduler: Any = _run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    random.seed(scenario.seed)
    scheduler._r.seed(scenario.seed)
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    try:
        with computed_once():
            trio.run(live, clock=MockClock(autojump_threshold=0))
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before
    return swarms[0]
