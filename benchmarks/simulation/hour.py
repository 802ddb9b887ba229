"""An hour of ten thousand workers and a hundred validators by the planned rules, heard by nodes of the product.

    python -m benchmarks.simulation.hour [--workers 10000] [--validators 100] [--policies 12] [--liars 0.1] [--turn 0.1]
        [--lying 0.1] [--churn 0.1] [--partition 600] [--seed 7] [--quick] [--json]

Every policy all workers are played by the rule of looking (`pool.py`), with five kinds of liars from the start, a tenth
of the trusted ones that turns at the seventh policy, and shards and committees drawn by the day's beacon
(`committees.py`). Lying validators let cheats pass where it is theirs to look, accept everything, and each of them once
accuses somebody honest.

What a node of each role does with the words is the product's own: its board with every signature and budget, its books
(register, ballots, seals, disputes, closing by age), under a virtual clock. One worker hears its shard, one validator
its seven. A trainer hears all: for the first `--trainer-minutes`, which give its CPU and what a work takes in its
books. All words are signed by keys of their own. A third of everybody is cut off in the middle; its words come when it
is back, by catching up. Heartbeats are those of validators, one a minute: what else there is of them `committees.py`
counts.

Not the product's, since it is not built: committees. Its quorum is five, its bench all validators, so it decides a work
as soon as five of its committee have spoken alike. A dispute asks for more than half of that bench, which a grand
committee is not: what it would say is counted, not heard.
"""

import heapq
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3

from benchmarks.command import parser_of, silence_logs, tell
from benchmarks.simulation.committees import (
    COMMITTEE,
    DECIDE,
    DOMAIN,
    GRAND,
    GRAND_DECIDE,
    LOOKED,
    POOL,
    Spoken,
    beat,
    commitment,
    committees,
    grand,
    sayings,
    shard_of,
    spoken,
    verdict,
)
from benchmarks.simulation.evidence import Looks
from benchmarks.simulation.pool import HONESTLY, LIARS, LOOK_SECONDS, OTHER_DRAW, POLICY_SECONDS, RUN, Kind, Pool
from benchmarks.simulation.rule import Rule
from node.swarm.board import Board
from node.swarm.counts import COUNTS
from node.swarm.membership import Membership
from node.swarm.pool_state import Passed, PoolState, WordHeard
from protocol.audit import AuditSpec
from protocol.identity import Address, NodeKey
from protocol.manifest import PolicyStatement
from protocol.messages import PolicyAnnounced, Signed, seal
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec
from protocol.statements import WorkCommitment, sign, work_id
from tests.node.swarm.pools import weight

GROUPS = 8
START = 1_800_000_000.0
MINUTE, CUT_OFF = 60.0, 1 / 3


def run_spec(workers: int) -> RunSpec:
    return RunSpec(
        name="hour",
        environment=EnvironmentSpec(name="sort"),
        rollout=RolloutSpec(group_size=16, prompts_per_step=GROUPS * min(workers, 8_192), prompts_per_file=GROUPS),
        recipe=Recipe(max_staleness=4, steps=10_000),
        audit=AuditSpec(window=10_000, verdict_seconds=120.0),
    )


def key_of(name: str) -> NodeKey:
    return NodeKey(blake3(name.encode()).digest())


class Deaf:
    """A network on which nobody is."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: None


class Node:
    """One node of the product: board and books, without sockets. Its clock is whoever hands it words."""

    def __init__(self, name: str, leader: Address, judges: tuple[Address, ...], run: RunSpec) -> None:
        self.now, self.cpu, self.heard = 100.0, 0.0, 0
        self.bytes = 0
        wire: Any = Deaf()
        own, clock = key_of(name), lambda: self.now
        self.membership = Membership(own.address, wire, leader, judges, clock, quorum=min(DECIDE, len(judges)))
        for one in (own.address, leader, *judges):
            self.membership.joined(one, "")
        self.board = Board(wire, own, DOMAIN, POOL, self.membership, clock, lambda: START + self.now)
        self.state = PoolState(self.membership, run, POOL, self.board.opened, clock)
        self._words = self.board.subscribe(*COUNTS)

    def hear(self, at: float, author: Address, raw: bytes, *, late: bool) -> None:
        """Straight from its author, or (late) from whoever kept it, when this node catches up."""
        self.now = max(self.now, 100.0 + at)
        began = time.thread_time()
        (self.board._handed if late else self.board._accept)(author, raw)
        while self._words.statistics().current_buffer_used:
            signed: Signed[Any] = self._words.receive_nowait()
            self.state.apply(WordHeard(signed))
            if type(signed.message).__name__ == "Heartbeat":
                self.membership.table.beat(signed.author, signed.message, self.now)
        self.cpu += time.thread_time() - began
        self.heard += 1
        self.bytes += len(raw)

    def passed(self, at: float) -> None:
        self.now = max(self.now, 100.0 + at)
        self.state.apply(Passed())


class Hour:
    """One play. asked: the options."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked, many, judges = asked, asked["workers"], asked["validators"]
        self.random = random.Random(asked["seed"])
        self.beacon = blake3(b"beacon %d" % asked["seed"]).digest()
        self.bench = [key_of(f"validator {number}") for number in range(judges)]
        self.lying = set(self.random.sample(range(judges), round(asked["lying"] * judges)))
        self.shards = judges if judges > COMMITTEE else 1
        self.committees = committees(self.beacon, judges, self.shards)
        self.workers = [key_of(f"worker {number}") for number in range(many)]
        self.shard = np.array([shard_of(self.beacon, one.address, self.shards) for one in self.workers])
        liars = [LIARS[at % len(LIARS)] for at in range(round(asked["liars"] * many))]
        fresh = [kind.name not in ("sleeper", "sipper") for kind in liars] + [False] * (many - len(liars))
        rule = msgspec.structs.replace(Rule(), ring=asked["ring"])
        self.pool = Pool(liars + [HONESTLY] * (many - len(liars)), fresh, Looks(RUN), rule, seed=asked["seed"])
        self.pool.wakes[[at for at, one in enumerate(liars) if one.name == "sleeper"]] = asked["policies"] // 2
        hidden = np.array([sum(one in self.lying for one in seats) / len(seats) for seats in self.committees])
        self.hidden = hidden
        self.leader = key_of("leader")
        addresses = tuple(one.address for one in self.bench)
        self.nodes = {
            name: Node(name, self.leader.address, addresses, run_spec(many))
            for name in ("worker", "validator", "trainer")
        }
        own = next(at for at in range(judges) if at not in self.lying)
        self.hears = {
            "worker": {0},
            "validator": {at for at, seats in enumerate(self.committees) if own in seats} | {0},
            "trainer": set(range(self.shards)),
        }
        for name, node in self.nodes.items():
            for at in np.flatnonzero(np.isin(self.shard, list(self.hears[name]))).tolist():
                node.membership.joined(self.workers[at].address, "")
        self.cut = {one for one in range(many + judges) if self.random.random() < CUT_OFF}
        middle = asked["policies"] * POLICY_SECONDS / 2
        self.apart = (middle, middle + asked["partition"])
        self.counts: Counter[str] = Counter()
        self.truth: dict[bytes, bool] = {}
        self.steps = count()
        self.parent = bytes(32)
        self.late: list[tuple[float, int, str, Address, bytes, bool]] = []

    def play(self) -> dict[str, Any]:
        began = time.process_time()
        for policy in range(self.asked["policies"]):
            self._policy(policy)
            tell(f"policy {policy + 1} of {self.asked['policies']}, {time.process_time() - began:.0f} s of CPU")
        end = self.asked["policies"] * POLICY_SECONDS
        self._deliver([], end + self.asked["partition"] + 600.0)
        return self._found(time.process_time() - began)

    # a policy

    def _policy(self, policy: int) -> None:
        if policy:
            self._churn()
        if policy == self.asked["policies"] // 2 and self.asked["turn"]:
            self.pool.turn(self.asked["turn"], Kind("turned", OTHER_DRAW))
        self.pool.blind = self.hidden[self.shard]
        self.pool.step()
        self._committees(policy)
        at = policy * POLICY_SECONDS
        root = blake3(b"policy %d" % policy).digest()
        words = [*self._announced(at, policy, root), *self._beats(at), *self._works(at, root)]
        self._deliver(words, at + POLICY_SECONDS)
        for node in self.nodes.values():
            node.passed(at + POLICY_SECONDS)

    def _churn(self) -> None:
        """Some leave, and as many come who have no record."""
        share = self.asked["churn"] * POLICY_SECONDS / 3600
        for at in np.flatnonzero(self.pool.random.random(len(self.workers)) < share).tolist():
            self.workers[at] = key_of(f"newcomer {next(self.steps)}")
            self.shard[at] = shard_of(self.beacon, self.workers[at].address, self.shards)
            self.pool.begin(at, HONESTLY if self.pool.kinds[at] is HONESTLY else LIARS[1])
            for name, node in self.nodes.items():
                if int(self.shard[at]) in self.hears[name]:
                    node.membership.joined(self.workers[at].address, "")
            self.counts["came and went"] += 1

    def _committees(self, policy: int) -> None:
        """What refusals, and objections to them, make others look at."""
        lies = np.array([sum(one in self.lying for one in seats) for seats in self.committees])[self.shard]
        size = np.array([len(seats) for seats in self.committees])[self.shard]
        found = self.pool.found
        self.counts["files refused"] += int(found.sum())
        self.counts["looks of the rest of a committee at what one refused"] += int((size - 1)[found].sum())
        split = np.flatnonzero(found & ((size - lies < DECIDE) | (self.pool.caught > 0))).tolist()
        self.counts["of them only a second look found"] += int((self.pool.caught > 0).sum())
        slanders = [one for one in self.lying if one % self.asked["policies"] == policy]
        for at in [*split, *slanders]:
            panel = grand(self.beacon, b"objection %d %d" % (policy, at), len(self.bench))
            lying = sum(one in self.lying for one in panel)
            self.counts["objections"] += 1
            self.counts["looks of grand committees"] += len(panel)
            decide = math.ceil(len(panel) * GRAND_DECIDE / GRAND)
            self.counts["grand committees that liars could block"] += len(panel) - lying < decide
        bad = (self.pool.blind >= 1.0) & ~self.pool.out & (self.pool.share > 0)
        self.counts["files of liars before seven liars"] += int(bad.sum())

    def _announced(self, at: float, step: int, root: bytes) -> Iterator[tuple[float, int, Address, bytes]]:
        statement = PolicyStatement(POOL, 0, step, 0, self.parent, root, bytes(32), root)
        word = sign(self.leader, DOMAIN, statement.commitment(self.leader.address))
        said = PolicyAnnounced(pool=POOL, statement=statement, signature=word, manifest_root=bytes(32), manifest_size=1)
        self.parent = root
        yield at, -1, self.leader.address, seal(self.leader, DOMAIN, said)

    def _beats(self, at: float) -> Iterator[tuple[float, int, Address, bytes]]:
        for minute in range(int(POLICY_SECONDS / MINUTE)):
            for key in self.bench:
                now = at + MINUTE * (minute + self.random.random())
                stamp = int(1000 * (START + now))
                said = msgspec.structs.replace(beat("validator"), count=stamp, at=stamp, interval=MINUTE)
                yield now, -1, key.address, seal(key, DOMAIN, said)

    def _works(self, at: float, root: bytes) -> Iterator[tuple[float, int, Address, bytes]]:
        """What is said of the files that some node of ours hears: (when, shard, author, envelope)."""
        heard = set.union(*(shards for name, shards in self.hears.items() if name != "trainer" or self._is_trained(at)))
        said: dict[tuple[int, int], list[Spoken]] = {}
        for worker in np.flatnonzero(np.isin(self.shard, list(heard)) & ~self.pool.out).tolist():
            key, shard = self.workers[worker], int(self.shard[worker])
            made = commitment(key, root, blake3(root + key.address.encode()).digest())
            when = at + self.random.uniform(5.0, POLICY_SECONDS - 10.0)
            self.truth[work_id(made.commitment)] = bool(self.pool.found[worker])
            yield when, shard, key.address, seal(key, DOMAIN, made)
            for place, judge in enumerate(self.committees[shard]):
                hears = self._heard_at(when, worker, len(self.workers) + judge)
                one = self._verdict(worker, judge, made.commitment)
                words = spoken(self.bench[judge], one, hears + self.random.uniform(*LOOKED), place)
                said.setdefault((shard, judge), []).extend(words)
        for (shard, judge), words in said.items():
            key = self.bench[judge]
            for when, message in sayings(words):
                yield when, shard, key.address, seal(key, DOMAIN, message)

    def _is_trained(self, at: float) -> bool:
        return at < self.asked["trainer_minutes"] * MINUTE

    def _verdict(self, worker: int, judge: int, of: WorkCommitment) -> Any:
        """Who is honest finds what there is to find, once one of them has: all look at what one refuses."""
        accept = judge in self.lying or not self.pool.found[worker]
        return verdict(self.bench[judge], of, GROUPS, (self.random.randrange(GROUPS),), accept=accept)

    # who hears what, and when

    def _heard_at(self, when: float, author: int, ear: int) -> float:
        first, last = self.apart
        parted = (author in self.cut) != (ear in self.cut)
        return last if parted and first <= when < last else when

    def _deliver(self, words: list[tuple[float, int, Address, bytes]], until: float) -> None:
        """To our nodes, in the order in which they come; what would come later waits."""
        numbers = {key.address: at for at, key in enumerate([*self.workers, *self.bench])}
        for when, shard, author, raw in words:
            place = numbers.get(author, -1)
            comes = self._heard_at(when, place, -1)
            for name, shards in self.hears.items():
                awake = name != "trainer" or self._is_trained(when)
                if (shard < 0 or shard in shards) and awake:
                    heapq.heappush(self.late, (comes, next(self.steps), name, author, raw, comes > when))
        while self.late and self.late[0][0] <= until:
            when, _, name, author, raw, late = heapq.heappop(self.late)
            self.nodes[name].hear(when, author, raw, late=late)

    # what came of it

    def _found(self, spent: float) -> dict[str, Any]:
        used, batch = self.pool.column("H100"), self.pool.column("batch")
        policies = self.asked["policies"]
        extra = (self.counts["looks of the rest of a committee at what one refused"]
                 + self.counts["looks of grand committees"])  # fmt: skip
        return {
            "rule": {
                "H100 of drawn looks, mean": float(used.mean()),
                "most": float(used.max()),
                "H100 of looks at what was refused or objected to": extra * LOOK_SECONDS / POLICY_SECONDS / policies,
                "worst batch, poisoned": float(self.pool.column("poison").max()),
                "worst batch, of what no cut refuses": float(self.pool.column("below").max()),
                "smallest batch": float(batch.min()),
                "policies with the alarm": int(self.pool.column("alarm").sum()),
                "liars and turned ones left": sum(
                    kind is not HONESTLY and not out for kind, out in zip(self.pool.kinds, self.pool.out, strict=True)
                ),
            },
            "committees": dict(self.counts),
            **{name: self._node(name) for name in self.nodes},
            "this computer": {"CPU seconds": round(spent)},
        }

    def _node(self, name: str) -> dict[str, Any]:
        node = self.nodes[name]
        register, ballots = node.state.register, node.state.vote_set
        states: Counter[str] = Counter()
        for id in list(register._works):
            states[f"{'refused' if self.truth[id] else 'good'} works {ballots.state(id).value}"] += 1
        works = len(register._works)
        kept = weight([node.state]) + sum(len(one.signed.raw) for one in node.board._message_store._kept.values())
        seconds = self.asked["policies"] * POLICY_SECONDS
        seconds = min(seconds, self.asked["trainer_minutes"] * MINUTE) if name == "trainer" else seconds
        return {
            "shards": len(self.hears[name]),
            "messages heard a second": round(node.heard / seconds, 1),
            "kB a second": round(node.bytes / seconds / 1e3, 1),
            "CPU of board and books, % of a core": round(100 * node.cpu / seconds, 2),
            "works in the books": works,
            "kB of books": round(kept / 1e3),
            "kB a work": round(kept / 1e3 / max(works, 1), 2),
            "muted or refused": node.board.counts["muted"] + node.board.counts["refused"],
            **{name: many for name, many in node.board.counts.items() if name.startswith(("refused.", "over_budget."))},
            **dict(states),
        }


def main() -> None:
    parser = parser_of(__doc__, "100 workers, 10 validators, four policies", "line")
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--validators", type=int, default=100)
    parser.add_argument("--policies", type=int, default=12)
    parser.add_argument("--liars", type=float, default=0.1)
    parser.add_argument("--turn", type=float, default=0.1)
    parser.add_argument("--lying", type=float, default=0.1, help="share of the validators")
    parser.add_argument("--churn", type=float, default=0.1, help="an hour")
    parser.add_argument("--partition", type=float, default=600.0, help="seconds in the middle")
    parser.add_argument("--trainer-minutes", type=float, default=5.0)
    parser.add_argument("--ring", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    asked = vars(parser.parse_args())
    as_json = asked.pop("json")
    if asked.pop("quick"):
        asked |= {"workers": 100, "validators": 10, "policies": 4}
    silence_logs()
    found = Hour(asked).play()
    if as_json:
        print(json.dumps({"asked": asked, **found}))
        return
    print(f"seed {asked['seed']}")
    for section, rows in found.items():
        print(section)
        for name, value in rows.items():
            print(f"  {name:56} {f'{value:.4g}' if isinstance(value, float) else value}")


if __name__ == "__main__":
    main()
