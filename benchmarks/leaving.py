"""Is a node that is away at night, or leaves in mid-window, paid and told all that it made, to the wei?

    python -m benchmarks.leaving [--nights 3] [--live DIR [--killed]] [--quick] [--json FILE]

In memory, with Base's times (epochs of an hour, a window of a day) and under a virtual clock: certifying, paying,
settling, leaving, bringing and tabling are the product's; the chain checks what the contract checks. One worker makes a
file an hour from eight to eight and is stopped for the night, while another one works on and tables are posted hour by
hour; of each fifth file no quorum ever hears. Then one leaves in mid-window when it is paid, one at once (the control),
and one never comes back. Printed is what was made and certified, what the chain paid, and what the node tells.

--live plays the same in a demo's swarm on this machine, with epochs of 10 s and windows of 20 s: a worker of its own
joins, is stopped for 40 s as often, and leaves with --when-paid; with --killed after its daemon was killed. The printed
way back to the stake is typed as it was printed. What its provider has then is what it was paid.
"""

import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import trio
import trio.testing

from benchmarks.command import parser_of, save, silence_logs, tell
from benchmarks.watching import Demo
from cli.api import get_status, socket_of
from cli.demo.cast import Scene
from cli.errors import CommandError
from node.state.reader import StateFiles
from node.status_schema import DaemonStatus
from node.swarm.message_store import MessageStore
from protocol.identity import Address, parse_address
from tests.node.services.earners import PRICE, Node, World, inline, provider_of

HOUR, DAY = 3600, 86_400
SLOW: dict[str, Any] = {"round_seconds": 900.0, "pauses": ((900.0, 900.0), (900.0, 900.0))}
"""A quarter of an epoch: the figures do not depend on it, and the play takes seconds."""
NIGHT_LIVE, WORK_LIVE = 40.0, 25.0
LIVE_PRICE = 10**15
"""wei, as a demo's pool pays for a unit."""
PROGRAM = [sys.executable, "-m", "cli"]


class Play:
    """One world, and one worker of which it is about."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.dice, self.world = random.Random(seed), World(folder, epoch=HOUR, window=DAY, **SLOW)
        self.world.gossip.age = MessageStore().max_age
        self.worker, self.other = self.world.workers[0], self.world.workers[2]
        self.made = self.certified = self.number = 0

    async def keep(self, node: Node) -> None:
        """Its service manager."""
        while True:
            if node.wanted:
                await node.live()
            await trio.sleep(60)

    async def begin(self, nursery: trio.Nursery) -> None:
        for node in [*self.world.validators, self.worker, self.other]:
            nursery.start_soon(self.keep, node)
        await trio.sleep(120)

    def stop(self) -> None:
        self.worker.wanted = False
        self.worker.stop()

    def work(self) -> None:
        """An hour's files; of each fifth one validator alone hears."""
        self.world.make(self.other, self.dice.randint(1, 1000))
        if self.worker.lives and not self.worker.manager.leaving.is_set():
            self.number += 1
            units, heard = self.dice.randint(1, 1000), self.number % 5 != 0
            self.world.make(self.worker, units, None if heard else self.world.validators[:1])
            self.made, self.certified = self.made + units, self.certified + units * heard

    def told(self, name: str, **more: Any) -> dict[str, Any]:
        own = self.worker.key.address
        pay = self.worker.claimer.status()["pay"]
        units = {key: getattr(pay.units, key) for key in pay.units.__struct_fields__}
        waits = sum(units[key] for key in ("made", "accepted", "certified", "in_table"))
        paid = self.world.paid().get(own, 0)
        sums = units["claimed"] + units["missed"] + units["unclear"] + waits
        return {
            "play": name,
            "made": self.made,
            "certified": self.certified,
            "paid": paid,
            "told_paid": units["claimed"],
            "told_missed": units["missed"],
            "told_unclear": units["unclear"],
            "told_waiting": waits,
            "paid_wei": str(self.world.chain.received[provider_of(own)]),
            "told_wei": pay.paid_wei,
            "equal": sums == self.made
            and units["claimed"] == paid
            and int(pay.paid_wei) == self.world.chain.received[provider_of(own)] == paid * PRICE,
        } | more


async def nights(folder: Path, count: int) -> list[dict[str, Any]]:
    play, rows = Play(folder, 1), list[dict[str, Any]]()
    async with trio.open_nursery() as nursery:
        await play.begin(nursery)
        for day in range(count + 1):
            play.worker.wanted = True
            await trio.sleep(600)
            if day:
                rows.append(play.told(f"after night {day}"))
            for _ in range(12):
                play.work()
                await trio.sleep(HOUR)
            if day < count:
                play.stop()
                for _ in range(12):
                    play.work()
                    await trio.sleep(HOUR)
        await trio.sleep(48 * HOUR)
        rows.append(play.told(f"{count} nights, and all is paid", tables=len(play.world.chain.posts)))
        nursery.cancel_scope.cancel()
    return rows


async def leaving(folder: Path, how: str) -> dict[str, Any]:
    """how: when paid, killed (the same, and killed each two hours), now, or away: it is never seen again."""
    play = Play(folder, 2)
    async with trio.open_nursery() as nursery:
        await play.begin(nursery)
        for _ in range(30):
            play.work()
            await trio.sleep(HOUR)
        play.work()
        await trio.sleep(HOUR / 2)
        began = trio.current_time()
        if how in ("when paid", "killed"):
            await play.worker.leaving.leave()
            while play.worker.wanted:
                await trio.sleep(2 * HOUR)
                if how == "killed" and play.worker.lives:
                    play.worker.stop()
        else:
            play.stop()
            await trio.sleep(1)  # it makes nothing more
            play.world.gone |= {play.worker.key.address} if how == "now" else set()
        hours = (trio.current_time() - began) / HOUR
        last = play.told(f"leaves: {how}", hours=round(hours))
        # The others work on, and claim for it: a day after it has left, or a week after it was heard.
        for _ in range(60 if how != "away" else 9 * 24):
            play.work()
            await trio.sleep(HOUR)
        own = play.worker.key.address
        found = last | {"paid": play.world.paid().get(own, 0)}
        found["brought"] = sum(node.bringing.brought for node in play.world.validators)
        found["lost"] = found["certified"] - found["paid"]
        nursery.cancel_scope.cancel()
    return found


def played(play: Any, *arguments: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder, patch("trio.to_thread.run_sync", inline):
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(play, Path(folder), *arguments, clock=clock)


# live


def live(directory: Path, nights: int, *, killed: bool) -> dict[str, Any]:
    """In a demo's swarm; by the commands alone."""
    with Demo(directory, "--workers", "2", "--steps", "4000") as demo:
        demo.until(lambda: (status := demo.status("worker-1")) and status.work and status.work.files_accepted > 2)
        scene = Scene(directory)
        network = ["--network", str(scene.home / "devnet" / "network.toml")]
        os.environ["INTELLECT_NODE_HOME"] = str(directory / "guest")  # keys and outboxes of this play's commands
        state = directory.with_name(directory.name + "-guest")
        place = ["--state-dir", str(state)]
        pool = ["--pool", scene.pool_file.read_text(encoding="ascii").strip()]
        join = [*PROGRAM, "join", "--role", "worker", *place, *network, *pool]
        for night in range(nights):
            _work(join, state, WORK_LIVE)
            tell(f"night {night + 1}")
            _cli("stop", *place)
            time.sleep(NIGHT_LIVE)
        daemon = _work(join, state, WORK_LIVE)
        waiting = _waiting(state)
        if killed:
            tell("its daemon is killed")
            daemon.kill()  # the guardian, and the daemon with it
            daemon.wait()
        tell("it leaves in mid-window")
        began = time.monotonic()
        left = _cli("leave", "--when-paid", *place)
        seconds = round(time.monotonic() - began)
        back = next(line for line in left.splitlines() if "node retire" in line)
        _cli(*shlex.split(back)[1:], "--yes")
        node = shlex.split(back)[4]
        rewards = json.loads(_cli("contract", "rewards", node, *network, "--json"))
        works = json.loads(_cli("contributions", *place, "--limit", "10000", "--json"))["contributions"]
        joins = _joins(json.loads(_cli("contract", "events", *pool, *network, "--json")), node)
        owner = rewards["claims"][0]["provider"]
        provider = json.loads(_cli("contract", "provider", "show", owner, *network, "--json"))
    made = [row for row in works if row["verdict"] != "rejected"]
    accepted = sum(row["units"] for row in made if row["verdict"] == "accepted")
    paid, told = sum(one["units"] for one in rewards["claims"]), _told(state, parse_address(node))
    # Accepted is what it heard; a quorum may have named more.
    found = {"made": sum(row["units"] for row in made), "accepted": accepted, "told": told, "paid": paid}
    return {
        "play": f"live: {nights} nights, then {'killed, and ' if killed else ''}left when paid",
        **found,
        "joins": joins,
        "paid_wei": rewards["paid_wei"],
        "balance_wei": provider["token_wei"],
        "waited_for": waiting,
        "seconds": seconds,
        "unbonding_wei": provider["unbonding_wei"],
        "equal": told["claimed"] == paid >= accepted
        and sum(told.values()) == found["made"]
        and int(provider["token_wei"]) == int(rewards["paid_wei"]) == paid * LIVE_PRICE,
    }


def _joins(told: dict[str, Any], node: str) -> int:
    """How often it told the chain that it is there, whoever stopped and started it."""
    return sum(one["event"] == "Joined" and one["node"] == node for one in told["events"])


def _work(join: list[str], state: Path, seconds: float) -> "subprocess.Popen[bytes]":
    """A daemon that has worked so long."""
    with state.with_suffix(".log").open("ab") as log:
        daemon = subprocess.Popen(join, stdout=log, stderr=log, env={**os.environ})
    limit = time.monotonic() + 300
    accepted, began = -1, 0.0
    while time.monotonic() < limit and not (began and time.monotonic() - began > seconds):
        status = _status(state)
        found = status.work.files_accepted if status and status.work else -1
        accepted = found if accepted < 0 else accepted
        if found > accepted and not began:
            began = time.monotonic()
        if daemon.poll() is not None:
            raise SystemExit(f"the worker ended with {daemon.returncode}: {state.with_suffix('.log')}")
        time.sleep(0.5)
    return daemon


def _told(state: Path, node: Address) -> dict[str, int]:
    """What its journal tells, in units, once its daemon has ended."""
    files = StateFiles(state)
    pay = files.pay()
    if pay is None:
        raise SystemExit(f"nothing is known of its pay in {state}")
    sums = files.sums(node, pay.through, pay.line, pay.quorum)
    waits = sums.made + sums.accepted + sum(sums.certified.values())
    unclear = sums.unclear + sums.unread
    return {"claimed": pay.claimed, "owed": pay.line - pay.claimed, "missed": sums.missed} | {
        "unclear": unclear,
        "waiting": waits,
    }


def _waiting(state: Path) -> int:
    """Units that are made and not claimed."""
    status = _status(state)
    if status is None or status.pay is None:
        return 0
    units = status.pay.units
    return units.made + units.accepted + units.certified + units.in_table + units.owed


def _status(state: Path) -> DaemonStatus | None:
    try:
        return get_status(socket_of(state))
    except CommandError:
        return None


def _cli(*arguments: str) -> str:
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    parser = parser_of(__doc__, "one night, and two ways of leaving")
    parser.add_argument("--nights", type=int, default=3)
    parser.add_argument("--live", type=Path, metavar="DIR", help="play it in a demo's swarm there instead")
    parser.add_argument("--killed", action="store_true", help="with --live: its daemon is killed before it leaves")
    a = parser.parse_args()
    silence_logs()
    count = 1 if a.quick else a.nights
    if a.live:
        rows = [live(a.live.absolute(), count, killed=a.killed)]
    else:
        rows = played(nights, count)
        rows += [
            played(leaving, how)
            for how in (("when paid", "now") if a.quick else ("when paid", "killed", "now", "away"))
        ]
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    save(a.json, rows)
    if not all(row["equal"] for row in rows):
        sys.exit("what is told is not what was made and paid")


if __name__ == "__main__":
    main()
