"""Waits that end together."""

from typing import Any

import pytest
import trio

from node.changes import Bell, about, every


async def test_looks_that_began_at_different_moments_soon_end_in_the_same_turns(autojump_clock: Any) -> None:
    ended: list[list[float]] = [[] for _ in range(6)]
    async with trio.open_nursery() as nursery:
        for place, times in enumerate(ended):
            await trio.sleep(0.23)
            nursery.start_soon(every, 1.0 if place % 2 else 2.0, lambda times=times: times.append(trio.current_time()))
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    instants = {at for times in ended for at in times[1:]}
    assert len(instants) <= 2 * 22, "two moments a second, however many look"
    # Each keeps its pace: it drifts by nothing, and its first wait is off by a quarter of a second at most.
    for place, times in enumerate(ended):
        pace = 1.0 if place % 2 else 2.0
        assert abs(times[1] - times[0] - pace) <= 0.25
        assert {late - soon for soon, late in zip(times[1:], times[2:], strict=False)} == {pace}


async def test_short_waits_are_exact_and_a_bell_ends_any(autojump_clock: Any) -> None:
    await trio.sleep(0.13)
    for seconds in (0.0, 0.05, 0.7):
        assert about(seconds) == trio.current_time() + seconds
    assert about(-1.0) == trio.current_time() and about(float("inf")) == float("inf")
    bell = Bell()
    bell.ring()
    before = trio.current_time()
    await bell.wait(5.0)
    assert trio.current_time() == before
    await bell.wait(5.0)
    assert trio.current_time() - before == pytest.approx(5.0, abs=0.25)
