"""Starts in doubt under a virtual clock: how often a daemon that is alone takes itself for the second, how often a true
second one is found, how long both take, and what is signed twice.

    python -m benchmarks.continuity [--starts 600] [--doubles 30] [--upsets 10] [--quick] [--json FILE]

Each start is a swarm of its own (a trainer, three validators, two workers; boards, juries, journals, heartbeats and
continuity are the product's), with gossip that is late by up to 2 s a hop and loses up to a third, and with clocks that
were moved by 900 s before or after the restart in half of the cases. A worker is killed at any moment and its directory
is started in doubt; or, as a double, it lives on. Upsets strike a worker that goes on, for a minute: it is cut off from
everybody, or its clock jumps by 900 s; so often each.
"""

import random
import statistics
from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from benchmarks.command import parser_of, save, silence_logs
from tests.node.services.daemons import Daemon, Swarm, copied

LIVES, LONGEST = 14.0, 150.0
"""Seconds that the first one has worked when the second starts, at least; and until a start must have ended."""
UPSET = 60.0
"""Seconds that a cut and a wrong clock last."""
CLOCKS = (0.0, 0.0, 0.0, 900.0, -900.0, 250.0)


Upset = Callable[[Swarm, Daemon, bool], None]
"""Strikes, or ends."""


def _cut(swarm: Swarm, node: Daemon, strikes: bool) -> None:
    if strikes:
        swarm.hub.isolate(node.key.address)
    else:
        swarm.hub.heal()


def _jump(seconds: float) -> Upset:
    def strike(swarm: Swarm, node: Daemon, strikes: bool) -> None:
        node.error = seconds if strikes else 0.0

    return strike


UPSETS: dict[str, Upset] = {"cut off": _cut, "clock ahead": _jump(900.0), "clock behind": _jump(-900.0)}


def main() -> None:
    parser = parser_of(__doc__, "40 starts, 6 doubles")
    parser.add_argument("--starts", type=int, default=600)
    parser.add_argument("--doubles", type=int, default=30)
    parser.add_argument("--upsets", type=int, default=10)
    a = parser.parse_args()
    silence_logs()
    starts, doubles, upsets = (40, 6, 1) if a.quick else (a.starts, a.doubles, a.upsets)
    alone = [played(seed, double=False) for seed in range(starts)]
    both = [played(seed, double=True) for seed in range(doubles)]
    table = {
        "starts": starts,
        "false_alarms": sum(one["ended"] for one in alone),
        "never_opened": sum(one["opened"] is None and not one["ended"] for one in alone),
        "seconds": _spread([one["opened"] for one in alone if one["opened"] is not None]),
        "signed_twice": sum(one["rivals"] for one in [*alone, *both]),
        "doubles": doubles,
        "found": sum(one["ended"] for one in both),
        "first_ended": sum(one["first_ended"] for one in both),
        "seconds_to_end": _spread([one["took"] for one in both if one["ended"]]),
    }
    for name, upset in UPSETS.items():
        found = [upset_by(upset, seed) for seed in range(upsets)]
        table[name] = {
            "tries": upsets,
            "ended": sum(one["ended"] for one in found),
            "held": sum(one["holds"] for one in found),
            "signed_twice": sum(one["rivals"] for one in found),
            "seconds_to_the_next_file": _spread([one["next"] for one in found if one["next"] is not None]),
        }
    save(a.json, table)
    for name, value in table.items():
        print(f"{name:<16} {value}")


def played(seed: int, *, double: bool) -> dict[str, Any]:
    """One start."""
    draw = random.Random(seed)
    found: dict[str, Any] = {}

    async def play() -> None:
        async with trio.open_nursery() as nursery:
            swarm = Swarm(nursery, delay=draw.choice((0.05, 0.3, 2.0)), drop=draw.choice((0.0, 0.1, 0.33)), seed=seed)
            await swarm.begin()
            # A double's clock is another machine's, which is right: a node with a wrong one is refused at its join.
            clocks = (0.0, draw.uniform(-2, 2)) if double else (draw.choice(CLOCKS), draw.choice(CLOCKS))
            first = swarm.start(error=clocks[0])
            await trio.sleep(LIVES + draw.uniform(0, 6))
            backup = copied(first.journal)
            if not double:
                await trio.sleep(draw.choice((0.0, 3.0)))
                first.alive.cancel()
                await trio.sleep(draw.uniform(0.2, 5.0))
            second = swarm.start(backup, doubt="the state directory was copied", error=clocks[1])
            began = trio.current_time()
            while second.ended is None and second.opened_after is None and trio.current_time() - began < LONGEST:
                await trio.sleep(0.5)
            took = trio.current_time() - began
            await trio.sleep(20)  # what it signs from now on
            found.update(
                ended=second.ended is not None,
                opened=second.opened_after,
                took=took,
                rivals=len(swarm.rivals),
                first_ended=first.ended is not None,
            )
            nursery.cancel_scope.cancel()

    trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))
    return found


def upset_by(upset: Upset, seed: int) -> dict[str, Any]:
    """A worker that is struck while it works: the next file of it that a validator hears of, once all is well again."""
    draw = random.Random(seed)
    found: dict[str, Any] = {"next": None}

    async def play() -> None:
        async with trio.open_nursery() as nursery:
            swarm = Swarm(nursery, delay=draw.choice((0.05, 0.3, 2.0)), drop=draw.choice((0.0, 0.1, 0.33)), seed=seed)
            await swarm.begin()
            node = swarm.start()
            await trio.sleep(LIVES + draw.uniform(0, 6))
            upset(swarm, node, True)
            await trio.sleep(UPSET)
            upset(swarm, node, False)
            register, began = swarm.others[1].jury.state.register, trio.current_time()
            before = len(register.of(node.key.address))
            with trio.move_on_after(LONGEST):
                while len(register.of(node.key.address)) <= before:
                    await trio.sleep(0.5)
                found["next"] = trio.current_time() - began
            await trio.sleep(20)
            ended = node.ended is not None
            found.update(ended=ended, holds=node.continuity.holds, rivals=len(swarm.rivals))
            nursery.cancel_scope.cancel()

    trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))
    return found


def _spread(values: list[float]) -> list[float]:
    """Median, 95th percentile and the most, seconds."""
    if not values:
        return []
    ordered = sorted(values)
    return [round(one, 1) for one in (statistics.median(ordered), ordered[int(0.95 * (len(ordered) - 1))], ordered[-1])]


if __name__ == "__main__":
    main()
