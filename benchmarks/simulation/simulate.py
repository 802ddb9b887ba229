"""One scenario, from beginning to end, under a virtual clock. The same seed gives the same swarm."""

import random
from typing import Any

import trio
from trio._core import _run
from trio.testing import MockClock

from benchmarks.simulation.fetching import fetch_seconds
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.shared import computed_once
from benchmarks.simulation.swarm import Swarm


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
