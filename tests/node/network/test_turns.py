"""Who writes next, and how much at once: by the order of frames and on a clock of the test's own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID

from node.network.lanes import LOOK_SECONDS, PathWatch
from node.network.sockets import Tcp
from node.network.turns import TURN_SECONDS, LinePace, Turns
from node.network.yamux import DATA, HEADER, MAX_WRITE, YamuxSession

HOLD_SECONDS = 2.0
FRESH = 2
NEAR = 0.001
LEAST_TURN = 4 * 1024
NEWS_TURNS = 4

TURN = 1000


class Gate:
    """A connection that takes one write each time it is told to."""

    is_initiator = True

    def __init__(self) -> None:
        self.frames: list[tuple[int, int]] = []
        self.may = trio.Semaphore(0)

    async def read_ready(self) -> list[bytes]:
        await trio.sleep_forever()
        return []

    async def write(self, data: bytes) -> None:
        await self.may.acquire()
        while data:
            _, kind, _, number, length = HEADER.unpack_from(data)
            if kind == DATA:
                self.frames.append((number, length))
            data = data[HEADER.size + (length if kind == DATA else 0) :]

    async def close(self) -> None:
        self.may = trio.Semaphore(10**6)


@asynccontextmanager
async def gated() -> AsyncIterator[tuple[YamuxSession, Gate, Any, Any]]:
    """A session whose turns are TURN bytes, with a stream for news and one for bulk."""
    gate = Gate()
    session = YamuxSession(gate, ID(b"somebody"))  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.start)
        gate.may.release()
        gate.may.release()
        news, bulk = await session.open_stream(), await session.open_stream()
        session.pace.turn = TURN
        yield session, gate, news, bulk
        nursery.cancel_scope.cancel()


async def let(gate: Gate, writes: int) -> None:
    for _ in range(writes):
        gate.may.release()
        await trio.testing.wait_all_tasks_blocked()


async def test_news_goes_before_the_rest_of_a_piece() -> None:
    async with gated() as (_, gate, news, bulk), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bulk.write(bytes(3 * TURN), bulk=True))
        await trio.testing.wait_all_tasks_blocked()
        assert not news.write_now(b"x" * 10)  # the turn is taken: its task waits for the next one
        nursery.start_soon(news.write, b"x" * 10)
        await trio.testing.wait_all_tasks_blocked()
        await let(gate, 4)
    assert gate.frames == [(3, TURN), (1, 10), (3, TURN), (3, TURN)]


async def test_pings_and_window_updates_go_before_pieces() -> None:
    async with gated() as (session, gate, _, bulk), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bulk.write(bytes(4 * TURN), bulk=True))
        await trio.testing.wait_all_tasks_blocked()
        written: list[int] = []

        async def control() -> None:
            await session.send_control(1, 0, 3, 5)
            written.append(len(gate.frames))

        nursery.start_soon(control)
        await trio.testing.wait_all_tasks_blocked()
        await let(gate, 5)
    assert written == [1] and len(gate.frames) == 4


async def test_pieces_are_not_starved_by_endless_news() -> None:
    async with gated() as (_, gate, news, bulk), trio.open_nursery() as nursery:
        nursery.start_soon(lambda: bulk.write(bytes(3 * TURN), bulk=True))
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3 * NEWS_TURNS):
            nursery.start_soon(news.write, bytes(TURN))
        await trio.testing.wait_all_tasks_blocked()
        await let(gate, 3 * NEWS_TURNS + 3)
    expected = ([3] + [1] * NEWS_TURNS) * 3
    assert [number for number, _ in gate.frames] == expected


async def test_several_pieces_take_turns() -> None:
    async with gated() as (session, gate, _, bulk), trio.open_nursery() as nursery:
        gate.may.release()
        other = await session.open_stream()
        for stream in (bulk, other):
            nursery.start_soon(lambda stream=stream: stream.write(bytes(3 * TURN), bulk=True))
            await trio.testing.wait_all_tasks_blocked()
        await let(gate, 6)
    assert [number for number, _ in gate.frames] == [3, 5, 3, 5, 3, 5]


async def test_a_waiter_that_is_cancelled_loses_nobody_elses_turn() -> None:
    turns, order = Turns(), list[str]()

    async def wait(name: str, scope: trio.CancelScope) -> None:
        with scope:
            await turns.enter(bulk=name == "bulk")
            order.append(name)
            turns.leave(1, TURN, bulk=name == "bulk")

    scopes = {name: trio.CancelScope() for name in ("gone", "late", "news", "bulk")}
    await turns.enter(bulk=False)
    async with trio.open_nursery() as nursery:
        for name, scope in scopes.items():
            nursery.start_soon(wait, name, scope)
            await trio.testing.wait_all_tasks_blocked()
        scopes["gone"].cancel()
        await trio.testing.wait_all_tasks_blocked()
        turns.leave(1, TURN, bulk=False)  # to the one that is cancelled before it runs
        scopes["late"].cancel()
    assert [name for name in order if name != "late"] == ["news", "bulk"] and not turns.held


def test_a_turn_lasts_as_long_on_a_slow_line_as_on_a_fast_one() -> None:
    for rate in (125_000.0, 500_000.0, 2_500_000.0):
        pace, now = LinePace(65_536, MAX_WRITE), 0.0
        for _ in range(200):
            pace.begins(now)
            pace.full(now)
            now += pace.turn / rate
            pace.took(pace.turn, now)
        assert pace.turn == pytest.approx(max(LEAST_TURN, rate * TURN_SECONDS), rel=0.3)


def test_a_line_that_is_never_full_and_one_that_rests_are_not_taken_for_slow_ones() -> None:
    pace, now = LinePace(65_536, MAX_WRITE), 0.0
    for _ in range(500):
        pace.begins(now)
        now += 0.001
        pace.took(pace.turn, now)
    assert pace.turn == MAX_WRITE
    for _ in range(20):  # a little, once a second
        now += 1.0
        pace.begins(now)
        pace.full(now)
        pace.took(100, now)
    assert pace.turn == MAX_WRITE


def looks(watch: PathWatch, rtt: float, lost: float, count: int, least: float = 0.1) -> list[bool]:
    found, sent = [], 0
    for _ in range(count):
        sent += 100
        found.append(watch.look([Tcp("reno", rtt, 0.005, least, sent, int(sent * lost))]))
    return found


def test_a_path_that_loses_beside_a_short_round_trip_gets_lanes_and_a_full_line_none() -> None:
    assert looks(PathWatch(), 0.105, 0.02, 10)[-1] and not any(looks(PathWatch(), 0.105, 0.02, 10)[:FRESH])
    assert not any(looks(PathWatch(), 0.18, 0.02, 50))
    assert not any(looks(PathWatch(), 0.105, 0.0, 50))
    assert looks(PathWatch(), 0.003, 0.02, 50, least=0.002)[-1]
    assert not any(looks(PathWatch(), 0.003, 0.02, 50, least=NEAR / 2))  # a loopback that has no processor
    overshoot = PathWatch()
    looks(overshoot, 0.19, 0.3, 2)
    assert not any(looks(overshoot, 0.1, 0.3, int(HOLD_SECONDS / LOOK_SECONDS) - 1))


def test_what_one_window_lost_is_one_event() -> None:
    burst = PathWatch()  # two looks, both within one round trip of 300 ms
    told = [burst.look([Tcp("reno", 0.31, 0.005, 0.3, 100 * n, min(20 * n, 60))]) for n in range(30)]
    assert not any(told)
    assert any(burst.look([Tcp("reno", 0.31, 0.005, 0.3, 3000 + 100 * n, 60 + n)]) for n in range(10))


def test_a_lost_acknowledgement_is_no_queue_and_more_lanes_follow_fresh_loss_only() -> None:
    def path(sent: int, *rtts: tuple[float, float]) -> list[Tcp]:
        return [Tcp("reno", rtt, varies, 0.3, sent, sent // 20) for rtt, varies in rtts]

    watch = PathWatch()
    for sent in range(0, 700, 100):
        lossy = watch.look(path(sent, (0.42, 0.08), (0.31, 0.01), (0.32, 0.02)))
    assert lossy and watch.step == 12  # each carries little at 300 ms
    watch.opens()
    assert not watch.look(path(700, (0.31, 0.01), (0.31, 0.01)))
    assert not any(watch.look(path(sent, (0.41, 0.01), (0.42, 0.02))) for sent in range(800, 3300, 100))
