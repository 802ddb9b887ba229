"""The page: its size, its first paint with 5 and with 1,000 nodes, how many events it takes, what it costs the daemon.

    python -m benchmarks.page [--nodes 5 1000] [--visits 5] [--seconds 10] [--quick] [--json]

Needs Chromium or Chrome. The swarm is made up (tests/swarms.py); status page, streams, listener and browser are real.
A node looks at its status once a second; for events per second it looks ever faster until the page falls behind. The
daemon's loop is held by each part of a look: its CPU seconds are dependable on a busy machine, times are not.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from node.services.jury import Counting
from node.status import StatusPage
from node.swarm.contributions import Contribution
from node.web.host import bind
from node.web.listener import Listener
from node.web.page import page as page_module
from node.web.page.assets import load_assets
from node.web.page.model import Model
from node.web.page.page import Page
from protocol.identity import Address
from protocol.messages import Heartbeat
from scripts.browser import find_browser
from tests.chromium import Chromium, open_tab
from tests.node.test_roles import crew_of, workplace
from tests.swarms import PACE, address, status

DONE = object()
READY = "document.getElementById('glance')?.children.length === 5"
PACES = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Seconds between two looks, tried one after another."""
BEHIND = 0.5
"""Seconds that a page may be behind and still count as keeping up."""
LIMIT = 0.010
"""Seconds that nothing may hold the daemon's loop for."""


class Swarm:
    """A status that moves as time passes; in a `hurry`, with every look."""

    def __init__(self, nodes: int, hurry: bool = False) -> None:
        self._nodes, self._hurry = nodes, hurry
        self._began = time.monotonic()
        self.looks = 0

    def status(self) -> dict[str, Any]:
        self.looks += 1
        at = time.monotonic() - self._began
        step = self.looks if self._hurry else int(at / PACE)
        return status(members=self._nodes, step=100 + step, total=100_000, at=at)


@asynccontextmanager
async def serving(swarm: Swarm) -> AsyncIterator[str]:
    listener = Listener(bind("127.0.0.1:0", "the page", "--page"))
    with tempfile.TemporaryDirectory() as folder:
        async with trio.open_nursery() as nursery:
            listener.mount(await nursery.start(Page(swarm.status, Path(folder)).run))
            await nursery.start(listener.run)
            yield listener.place
            nursery.cancel_scope.cancel()


def sizes() -> dict[str, Any]:
    """Bytes of all that a first visit loads before its data."""
    assets = load_assets()
    packed = sum(len(asset.packed) for asset in assets)
    return {"files": len(assets), "bytes": sum(len(asset.body) for asset in assets), "gzip_bytes": packed}


async def paints(browser: Chromium, nodes: int, visits: int) -> dict[str, float]:
    """Milliseconds from the navigation: to the first contentful paint, and to the page drawn with its data; medians."""
    first: list[float] = []
    drawn: list[float] = []
    async with serving(Swarm(nodes)) as place:
        for _ in range(visits):
            async with open_tab(browser) as tab:
                await tab.size(1280, 900)
                await tab.ask("Network.setCacheDisabled", cacheDisabled=True)
                await tab.go(f"http://{place}/")
                await tab.until(READY)
                await tab.until("performance.getEntriesByName('first-contentful-paint').length")
                first.append(await tab.look("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
                drawn.append(await tab.look("performance.getEntriesByName('drawn')[0].startTime"))
    return {"first_paint_ms": round(statistics.median(first), 1), "drawn_ms": round(statistics.median(drawn), 1)}


async def fastest(browser: Chromium, nodes: int, seconds: float) -> dict[str, Any]:
    """The most events a second with which a page keeps up."""
    kept: dict[str, Any] = {}
    usual = page_module.SEEN
    for pace in PACES:
        page_module.SEEN = pace
        try:
            told = await events(browser, nodes, seconds)
        except (TimeoutError, trio.TooSlowError):
            break
        finally:
            page_module.SEEN = usual
        if kept and told["steps_behind"] > 1 + BEHIND * told["looks_per_second"]:
            break
        kept = told
    return kept


async def events(browser: Chromium, nodes: int, seconds: float) -> dict[str, Any]:
    """How many events a second a page takes from a node that looks at its status at the pace of the moment."""
    swarm = Swarm(nodes, hurry=True)
    async with serving(swarm) as place, open_tab(browser) as tab:
        await tab.size(1280, 900)
        await tab.go(f"http://{place}/")
        await tab.until(READY)
        before, looks, began = await tab.look("[heard, drawn]"), swarm.looks, time.monotonic()
        await trio.sleep(seconds)
        shown, heard, drawn = await tab.look("[Number(document.title.split(' ')[0].replaceAll(',', '')), heard, drawn]")
        took = time.monotonic() - began
    return {
        "events_per_second": round((heard - before[0]) / took, 1),
        "pictures_per_second": round((drawn - before[1]) / took, 1),
        "looks_per_second": round((swarm.looks - looks) / took, 1),
        "steps_behind": 100 + swarm.looks - shown,
    }


async def traffic(nodes: int, seconds: float) -> dict[str, Any]:
    """Bytes of the first message, and per minute after it, to one viewer."""
    async with serving(Swarm(nodes)) as place:
        host, _, port = place.rpartition(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(b"GET /events HTTP/1.0\r\nhost: localhost\r\n\r\n")
            first = await received(stream, 2.0)
            later = await received(stream, seconds)
    return {"first_bytes": first, "bytes_per_minute": round(later / seconds * 60)}


async def received(stream: trio.SocketStream, seconds: float) -> int:
    count = 0
    with trio.move_on_after(seconds):
        while got := await stream.receive_some(1 << 16):
            count += len(got)
    return count


async def blocking(nodes: int, rounds: int) -> dict[str, Any]:
    """Milliseconds for which the daemon's loop is held, by part: the longest of `rounds`, in CPU time."""
    parts: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with workplace("trainer", Path(folder)) as place:
            crew = await crew_of(place)
            page = StatusPage(crew)
            page.connect(place.member)
            page.work_for(place.station)
            fill(place.member.membership.table, nodes)
            counting: Any = next(one for one in crew.services if isinstance(one, Counting))
            counting._contributions.members.update({address(n): Contribution(n, 0, n) for n in range(nodes)})
            gc.collect()  # what was imported and set up is not the page's
            for _ in range(rounds):
                timed(parts, "status", page.render)
    model = Model()
    swarm = Swarm(nodes, hurry=True)
    for _ in range(rounds):
        told = swarm.status()
        seen = model.feed.version
        absorbing = model.absorb(told, time.time())
        while timed(parts, "a part of a look", lambda absorbing=absorbing: next(absorbing, DONE)) is not DONE:
            continue
        timed(parts, "changes", lambda seen=seen: model.feed.since(seen))
        timed(parts, "everything", lambda: model.feed.since(0))
    return {name: {"median_ms": ms(statistics.median(all)), "longest_ms": ms(max(all))} for name, all in parts.items()}


def timed(parts: dict[str, list[float]], name: str, work: Callable[[], object]) -> object:
    began = time.thread_time()
    told = work()
    parts.setdefault(name, []).append(time.thread_time() - began)
    return told


def ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


def fill(table: Any, nodes: int) -> None:
    """A real table of members that have all been heard of."""
    for number in range(nodes):
        member = Address(address(number))
        table.admit(member)
        beat = Heartbeat(
            pool=4,
            boot=0,
            count=1,
            at=1,
            role="worker",
            state="working",
            contact="",
            policy_step=7,
            interval=50.0,
            rate=4000.0,
        )
        table.beat(member, beat, trio.current_time())


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"size": sizes(), "nodes": {}}
    with tempfile.TemporaryDirectory() as folder:
        browser = Chromium(str(find_browser()), Path(folder))
        try:
            for nodes in options.nodes:
                result["nodes"][nodes] = {
                    **await paints(browser, nodes, options.visits),
                    **await traffic(nodes, options.seconds),
                    "blocking": await blocking(nodes, options.rounds),
                    "fastest": await fastest(browser, nodes, options.seconds),
                }
        finally:
            browser.stop()
    return result


def show(result: dict[str, Any]) -> None:
    size = result["size"]
    print(f"size: {size['files']} files, {size['bytes']:,} bytes, {size['gzip_bytes']:,} gzipped")
    for nodes, told in result["nodes"].items():
        print(f"\n{nodes} nodes")
        print(f"  first paint {told['first_paint_ms']} ms, drawn with its data {told['drawn_ms']} ms")
        print(f"  first message {told['first_bytes']:,} bytes, then {told['bytes_per_minute']:,} a minute and viewer")
        fast = told["fastest"]
        print(
            f"  keeps up with {fast['events_per_second']} events/s ({fast['looks_per_second']} looks,"
            f" {fast['pictures_per_second']} pictures a second)"
        )
        longest = max(told["blocking"].items(), key=lambda part: part[1]["longest_ms"])
        print(f"  the daemon's loop is held for {longest[1]['longest_ms']} ms at most ({longest[0]})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[5, 1000])
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="two visits, three seconds")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    if options.quick:
        options.visits, options.seconds, options.rounds = 2, 3.0, 20
    if find_browser() is None:
        parser.error("no Chromium or Chrome here: see scripts/browser.py")
    result = trio.run(measure, options)
    show(result)
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
