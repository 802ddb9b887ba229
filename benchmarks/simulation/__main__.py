"""A swarm of a thousand nodes for an hour, in minutes: what it says, what it costs each node, what faults do to it.

    python -m benchmarks.simulation [--nodes 1000] [--hours 1] [--churn 0.1] [--partition 600] [--cheats 0.1]
        [--idle 0] [--ghosts 0] [--slow 0] [--files-per-step N] [--file-seconds S]
        [--group-seconds 0.05] [--validators 4] [--full 16] [--policy-seconds 10] [--no-work] [--quick]
        [--json] [--picture FILE.png] [--seed 7]

What is the product's own code, what a model, and what is shared between the simulated nodes stands in
`benchmarks/simulation/__init__.py`. --no-work: members only talk, for 10,000 of them.
"""

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np

from benchmarks.command import parser_of, run_seeded, silence_logs
from benchmarks.simulation import EPOCH
from benchmarks.simulation.fetching import fetch_seconds
from benchmarks.simulation.scenario import Scenario
from benchmarks.simulation.seats import Seat
from benchmarks.simulation.swarm import Swarm
from node.swarm import audit_lots, board, catchup, disputes, ownwords, register, seals, vote_set, works
from protocol import disputes as conflicts
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.liveness import MemberTable


def draw(swarm: Swarm, path: Path) -> None:
    """A PNG of four curves over swarm time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), sharex=True)
    batches = swarm.learning.batches if swarm.learning else []
    minutes = [batch.at / 60 for batch in batches]
    stages = ("commit", "verify", "fetch", "queue")
    parts = [[batch.stages.get(stage, 0.0) for batch in batches] for stage in stages]
    if batches:
        axes[0][0].stackplot(minutes, parts, labels=stages)
        axes[0][0].legend(loc="upper right", fontsize=8)
    axes[0][0].set_title("from policy to batch, s")
    axes[0][1].plot(minutes, [_mean_age(batch.staleness) for batch in batches], marker=".")
    axes[0][1].set_title("staleness of a batch, steps")
    axes[1][0].plot([at / 60 for at, _ in swarm.waiting], [many for _, many in swarm.waiting])
    axes[1][0].set_title("workers that hear nobody and wait")
    busy = swarm.ether.busy
    axes[1][1].plot([number * EPOCH / 60 for number in range(len(busy))], [100 * load for load in busy])
    axes[1][1].set_title("CPU of one node for messages, % of a core")
    for axis in axes.flat:
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if swarm.cut:
            axis.axvspan(swarm.cut[0] / 60, swarm.cut[1] / 60, alpha=0.15, color="grey")
    for axis in axes[1]:
        axis.set_xlabel("minutes of swarm time")
    figure.suptitle(
        f"{swarm.scenario.nodes} nodes, churn {swarm.scenario.churn:.0%} an hour, "
        f"{swarm.scenario.cheats:.0%} cheats; grey: a third is cut off"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def _mean_age(staleness: dict[int, int]) -> float:
    return sum(age * count for age, count in staleness.items()) / max(sum(staleness.values()), 1)


def main() -> None:
    asked = vars(_parser().parse_args())
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of addresses are walked: the same order every time
        again = [sys.executable, "-m", "benchmarks.simulation", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - ourselves

    from benchmarks.simulation.scenario import Scenario

    silence_logs(logging.CRITICAL)
    as_json, picture, no_work, file_seconds = map(asked.pop, ("json", "picture", "no_work", "file_seconds"))
    if asked.pop("quick"):
        asked |= {"nodes": 60, "hours": 0.2, "partition": 120.0, "full": 12, "learner_seconds": 90.0}
    if file_seconds:
        asked["file_seconds"] = ((1.0, file_seconds),)
    scenario = Scenario(work=not no_work, **asked)
    began, spent = time.monotonic(), time.process_time()
    swarm = simulate(scenario)
    found = described(swarm)
    found["this computer"] = {
        "seconds": round(time.monotonic() - began),
        "CPU seconds": round(time.process_time() - spent),
        "nodes with everything of their own": len(swarm.seats),
    }
    print(f"{scenario.nodes} nodes for {scenario.hours:g} h of swarm time\n")
    print(table(found))
    if picture:
        draw(swarm, picture)
    if as_json:
        print(json.dumps({"nodes": scenario.nodes, "hours": scenario.hours, **found}))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, "60 nodes, 12 minutes", "line")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=1.0, help="of swarm time")
    parser.add_argument("--churn", type=float, default=0.1, help="share that leaves and comes in an hour")
    parser.add_argument("--partition", type=float, default=600.0, help="seconds for which a third is cut off")
    parser.add_argument("--cheats", type=float, default=0.1, help="share of the workers")
    parser.add_argument("--idle", type=float, default=0.0, help="share of the workers that live and make nothing")
    parser.add_argument("--ghosts", type=int, default=0, help="members on chain that never speak")
    parser.add_argument("--slow", type=float, default=0.0, help="share of the nodes on a slow uplink")
    parser.add_argument("--files-per-step", type=int, help="default: one for each of nine in ten workers")
    parser.add_argument("--file-seconds", type=float, help="of every worker; default: three classes of machines")
    parser.add_argument("--group-seconds", type=float, default=0.05, help="of a validator's engine")
    parser.add_argument("--validators", type=int, default=4, help="of the nodes")
    parser.add_argument("--full", type=int, default=16, help="nodes that have everything of their own")
    parser.add_argument("--policy-seconds", type=float, help="a policy's way; default: the exchange is simulated")
    parser.add_argument("--learner-seconds", type=float, default=240.0, help="per step")
    parser.add_argument("--no-work", action="store_true", help="members only talk")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--picture", type=Path, help="where to draw it (PNG)")
    return parser


Row = dict[str, Any]


def described(swarm: Swarm) -> dict[str, Row]:
    """Section -> name -> value. Per node and second where nothing else is said."""
    found = {"members": _members(swarm), "gossip": _gossip(swarm), "catching up": _catching_up(swarm)}
    found["exchange"] = _exchange(swarm)
    if swarm.learning is not None:
        found |= {"training": _training(swarm), "cheats": _cheats(swarm)}
    if swarm.cut is not None:
        found["partition"] = _partition(swarm)
    return found


def _members(swarm: Swarm) -> Row:
    known = [one.members for one in swarm.newcomers if one.members is not None]
    policy = [one.policy for one in swarm.newcomers if one.policy is not None]
    return {
        "at the end": len(swarm.nodes),
        "came": swarm.came,
        "went": swarm.went,
        "all known to all after, s": swarm.all_live,
        "newcomers looked at": len(swarm.newcomers),
        "a newcomer knows 95 % after, s": _median(known),
        "and holds a policy after, s": _median(policy),
        "heartbeat every, s": _interval(swarm),
        "dead but listed as living": _ghosts(swarm),
    }


def _interval(swarm: Swarm) -> float:
    return round(max(one.beat.interval for one in swarm.hosts[0].membership.table.all() if one.beat), 1)


def _ghosts(swarm: Swarm) -> float:
    """Share of those that a node takes for living, the mean over all that have a table."""
    now = swarm.scenario.seconds
    shares: list[float] = []
    for seat in swarm.seats:
        live = seat.membership.table.live(now)
        shares.append(sum(one not in swarm.nodes for one in live) / max(len(live), 1))
    return round(fmean(shares), 4)


def _gossip(swarm: Swarm) -> Row:
    ether, seconds = swarm.ether, swarm.scenario.seconds
    there = ether.heard[: swarm.scenario.nodes]
    stayed = there >= np.median(there) / 2
    heard = float(there[stayed].mean())
    delays = sorted(ether.delays) or [0.0]
    kinds = _kinds(swarm.hosts[0])
    return {
        "messages": round(heard / seconds, 2),
        **{f"  of them {kind}": round(count / seconds, 2) for kind, count in kinds.most_common(4)},
        "copies of each (from gossip.py)": ether.costs.copies,
        "kB in": round(float(ether.bytes_in[: len(there)][stayed].mean()) / seconds / 1e3, 1),
        "kB of IHAVE": round(ether.bytes_ihave / seconds / 1e3, 1),
        "delay, median, ms": round(1000 * delays[len(delays) // 2]),
        "delay, 99 %, ms": round(1000 * delays[int(0.99 * len(delays))]),
        "CPU, % of a core": round(100 * fmean(ether.busy[1:] or [0.0]), 1),
        "lost, %": round(100 * ether.lost / max(ether.offered, 1), 2),
    }


def _kinds(seat: Seat) -> Counter[str]:
    counts = seat.context.board.counts
    return Counter({kind: count for kind, count in counts.items() if kind[0].isupper()})


def _catching_up(swarm: Swarm) -> Row:
    """Of the nodes that have a board."""
    ether, seats = swarm.ether, swarm.seats
    everybody = swarm.scenario.seconds * max(len(seats), 1)
    boards = [seat.context.board for seat in seats]
    return {
        "requests": round(ether.asked["requests"] / everybody, 2),
        "kB": round(ether.asked["bytes"] / everybody / 1e3, 1),
        "messages that gossip had not brought": sum(board.counts["caught_up"] for board in boards),
        "kept on a board": round(fmean(len(board._message_store) for board in boards)),
        "kB kept": round(fmean(_bytes_kept(seat) for seat in seats) / 1e3),
        "works known": round(fmean(len(seat.context.state.register._works) for seat in seats)),
        "muted members": sum(board.counts["muted"] for board in boards),
    }


def _bytes_kept(seat: Seat) -> int:
    return sum(len(one.signed.raw) for one in seat.context.board._message_store._kept.values())


def _training(swarm: Swarm) -> Row:
    learning = swarm.learning
    assert learning is not None
    batches = learning.batches
    ages: Counter[int] = Counter()
    for batch in batches:
        ages.update(batch.staleness)
    groups = sum(ages.values())
    made = sum(node.worker.works.done.units for node in swarm.nodes.values() if node.worker) // 64_000
    used = {stage for batch in batches for stage in batch.stages}
    journey = {stage: fmean(b.stages[stage] for b in batches if stage in b.stages) for stage in used}
    times = [batch.at for batch in batches]
    return {
        "steps": learning.step,
        "seconds per step": _median([b - a for a, b in zip(times, times[1:], strict=False)]),
        "longest without a batch, s": round(max((b - a for a, b in zip(times, times[1:], strict=False)), default=0)),
        "from policy to batch, s": round(sum(journey.values()), 1),
        **{f"  {stage}": round(journey[stage], 1) for stage in ("commit", "verify", "fetch", "queue") if stage in used},
        "staleness, mean": round(sum(age * n for age, n in ages.items()) / max(groups, 1), 2),
        **{f"  {age} steps, %": round(100 * ages[age] / groups, 1) for age in sorted(ages)},
        "groups too old": learning.dropped,
        "groups waiting": learning.waiting,
        "files made": made,
        "files decided a minute": _decided(swarm),
        "groups recomputed, %": _recomputed(swarm),
        "groups trained on, of all made, %": round(100 * groups / max(8 * made, 1), 1),
    }


def _decided(swarm: Swarm) -> float:
    """Files of which a quorum has spoken, by the trainer's votes, a minute from the first to the last."""
    vote_set = swarm.seats[0].context.state.vote_set
    heard = sorted(case.heard for case in vote_set._cases.values() if len(case.votes) >= swarm.rules.quorum)
    return round(60 * len(heard) / max(heard[-1] - heard[0], 1.0), 1) if heard else 0.0


def _exchange(swarm: Swarm) -> Row:
    scenario = swarm.scenario
    return {
        "a policy's patch, MB": None if scenario.policy_seconds is not None else scenario.policy_bytes / 1e6,
        "with a node after, s, median": round(median(swarm.fetch), 1),
        "with everybody after, s": round(max(swarm.fetch), 1),
    }


def _recomputed(swarm: Swarm) -> float | None:
    """Share of the groups that at least one validator put through the model."""
    lots, jury = [], swarm.seats[0].context.jury
    for window in range(jury.state.lots.last_full_window() + 1):
        lots += jury.state.lots.powers(window)
    groups = sum(row.groups for row in lots)
    return round(100 * sum(row.checked for row in lots) / groups, 1) if groups else None


def _cheats(swarm: Swarm) -> Row:
    learning = swarm.learning
    assert learning is not None
    began = swarm.truth.began
    blatant = [node for node in began if swarm.kinds.get(node) == "blatant"]
    took = [at - began[node] for node, at in swarm.slashed.items() if node in began]
    counts: Counter[str] = Counter()
    for validator in swarm.validators:
        counts.update(validator.outcomes)
    return {
        "that cheated blatantly": len(blatant),
        "of them slashed": sum(node in swarm.slashed for node in blatant),
        "slashed after their first file, s": _median(took),
        "that cheated subtly": len(began) - len(blatant),
        "honest ones slashed": sum(not swarm.kinds.get(node) for node in swarm.slashed),
        "verdicts": counts["accepted"] + counts["rejected"],
        "  of them rejections": counts["rejected"],
        "files that validators skipped": counts["skipped"],
        "cheated groups trained on": sum(batch.cheated for batch in learning.batches),
        "validators quarantined": len(swarm.seats[0].context.state.disputes.quarantined),
    }


def _partition(swarm: Swarm) -> Row:
    assert swarm.cut is not None
    began, ended = swarm.cut
    inside = [(at, many) for at, many in swarm.waiting if began <= at <= ended]
    after = [at for at, many in swarm.waiting if at > ended and many == 0]
    batches = swarm.learning.batches if swarm.learning else []
    return {
        "seconds": round(ended - began),
        "workers cut off that wait, most": max((many for _, many in inside), default=0),
        "first of them waits after, s": next((round(at - began) for at, many in inside if many), None),
        "newest policy known again after, s": None if swarm.healed is None else round(swarm.healed, 1),
        "nobody waits any more after, s": round(min(after) - ended) if after else None,
        "batches meanwhile": sum(began <= batch.at <= ended for batch in batches),
    }


def _median(values: list[float]) -> float | None:
    return round(median(values), 1) if values else None


def table(found: dict[str, Row]) -> str:
    """As text."""
    lines: list[str] = []
    for section, rows in found.items():
        lines.append(f"\n{section}")
        lines += [f"  {name:42} {'-' if value is None else value}" for name, value in rows.items()]
    return "\n".join(lines).lstrip()


# One scenario, from beginning to end, under a virtual clock. The same seed gives the same swarm.
# One computer plays everybody, so what is the same for everybody is computed once: parsing, signatures, hashes.
# Each is a pure function of a message's bytes: a node that checked for itself would find the same. And who is alive:
# the many that read one host's table are told what it said in this second. In force only inside `computed_once`, and
# only for the modules of this process. A table of who said what would be shorter, but a second truth: it could let
# through what a node refuses.
REMEMBERED = 65_536


@contextmanager
def computed_once() -> Iterator[None]:
    """Inside, boards, juries and registers share the results of pure functions."""
    parse, authenticate = _once(board.parse_envelope), _once(board.authenticate)
    name, of_work = _once(catchup.name_of), _once(works.work_id)
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (board, "parse_envelope", parse),
        (board, "authenticate", authenticate),
        (board, "open_envelope", lambda domain, pool, raw: authenticate(domain, parse(pool, raw))),
        (board, "signer_of", _once(board.signer_of)),
        *((module, "name_of", name) for module in (board, catchup)),
        *(
            (module, "work_id", of_work)
            for module in (vote_set, conflicts, audit_lots, ownwords, register, seals, works)
        ),
        (disputes, "compare", _once(disputes.compare)),
        (register, "slot_of", _once(register.slot_of)),
        (MemberTable, "live", _once_a_second(MemberTable.live)),
    ]
    with ExitStack() as stack:
        for module, name, function in replaced:
            stack.enter_context(patch.object(module, name, function))
        yield


def _once_a_second(live: Callable[[MemberTable, float, str | None], list[Address]]) -> Callable[..., list[Address]]:
    told: WeakKeyDictionary[MemberTable, dict[str | None, tuple[float, list[Address]]]] = WeakKeyDictionary()

    def remembered(table: MemberTable, now: float, role: str | None = None) -> list[Address]:
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
    """Run it."""
    if scenario.policy_seconds is not None:
        fetch = [scenario.policy_seconds]
    else:
        fetch = fetch_seconds(scenario.nodes - 1, scenario.policy_bytes, scenario.seed)
    swarms: list[Swarm] = []

    async def live() -> None:
        swarm = Swarm(scenario, fetch)
        swarms.append(swarm)
        await swarm.run()

    deterministic(scenario.seed, live)
    return swarms[0]


def deterministic(seed: int, live: Callable[[], Awaitable[object]]) -> None:
    """Run it, the same for each seed, with what is computed once."""
    with computed_once():
        run_seeded(seed, live)


if __name__ == "__main__":
    main()
