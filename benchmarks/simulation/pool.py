"""A pool of the planned rule: what looking costs, what a cheat poisons and gains, what honest members pay.

    python -m benchmarks.simulation.pool [--workers 1000] [--floor 0.02] [--liars 0.1]     a day of mixed liars
    python -m benchmarks.simulation.pool --turn 0.1 [--share 1]     so many trusted workers cheat from one policy on
    python -m benchmarks.simulation.pool --wide [--shares 1 0.1 0.02] [--thief SHARE REFUSED]     what each cheat gains
    python -m benchmarks.simulation.pool --honest     bad calibrations, newcomers, the last minute of a day

Also: [--groups 8] [--policies 288] [--seeds 3] [--seed 7] [--ring 3] [--clears 1] [--cut 10] [--no-alarm]
[--capacity H100] [--run FILE.toml] [--days 14] [--quick] [--json].

The rule is `rule.py`. What a look finds is drawn from the tables of a calibrated run (`evidence.py`), refused by the
product's thresholds and remembered by its sequential test. Derived, not measured: an H100 takes 21 s for a look at a
group (32B, 16 samples of 8,192 tokens), and a policy lasts 300 s.

Liars, a fifth each: `blatant`, garbage from the first group on; `identity`, the same, with a new name after each
refusal; `sleeper`, trusted, from some policy on tokens of its own choice; `thief`, int8 weights in all groups, which no
cut refuses (0 of 4 files of a bf16 model in docs/attacks/workers.md, so only the sequential test finds it); `sipper`,
trusted, garbage in 2 % of its groups. The learner's own pass sets garbage aside, and nothing else.

`gain`: over a liar's life in the pool, what it was paid and what it saved, beside the pay of honest work for as long. A
life ends with suspicion, which takes the pay of that day. What a group saves is an upper bound: all of it where nothing
is computed, half and three quarters with weights of half and a quarter of the bytes, a tenth with old weights.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

from benchmarks.command import parser_of, tell
from benchmarks.simulation.evidence import HONEST, LIBRARY, Looks
from benchmarks.simulation.rule import Alarm, Rule
from protocol.decision import SuspicionLevel, WorkerRecord, after, standing

RUN = Path("examples/smollm.toml")
"""A trained model of 135 million parameters: its tables leave more cheats below the thresholds than the demo's do."""
LOOK_SECONDS, POLICY_SECONDS, DAY = 21.0, 300.0, 288
FALSE = 2e-5
"""Refusals of an honest group: five thresholds that 4 of 10^6 honest files may pass each (docs/verification.md)."""
GARBAGE, OTHER_DRAW, INT8 = "garbage", "other-draw", "int8"
SAVES = {GARBAGE: 1.0, OTHER_DRAW: 1.0, INT8: 0.5, "fp8": 0.5, "int4": 0.75, "stale-1": 0.1, "stale-4": 0.1}
"""Of a group's pay, at most; sampling otherwise saves nothing."""
SHARES = (1.0, 0.1, 0.02)
LIVES = 20
"""Workers of each cheat and share whose gain is the mean."""


class Kind(msgspec.Struct, frozen=True):
    """A way to work. table: of the run, by which its cheated groups look; share: of groups that are cheated; refused:
    chance that a look at one is refused, None: as the thresholds say; anew: begins again under another name once it is
    found; seen: the learner's own pass sets its cheated groups aside."""

    name: str
    table: str
    share: float = 1.0
    refused: float | None = None
    anew: bool = False

    @property
    def below(self) -> bool:
        """No threshold refuses it, so a look does not keep it out of a batch either."""
        return self.refused == 0.0

    @property
    def seen(self) -> bool:
        return self.table == GARBAGE

    @property
    def saves(self) -> float:
        return SAVES.get(self.table, 0.0)


HONESTLY = Kind(HONEST, HONEST, 0.0)
LIARS = (
    Kind("blatant", GARBAGE),
    Kind("identity", GARBAGE, anew=True),
    Kind("sleeper", OTHER_DRAW),
    Kind("thief", INT8, refused=0.0),
    Kind("sipper", GARBAGE, 0.02),
)


class Pool:
    """Workers, policy after policy. kinds: of each worker; fresh: who has no record yet, everybody else is trusted;
    floor: None as the rule says; capacity: looks of a policy, None: as many as are asked."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        fresh: Sequence[bool],
        looks: Looks,
        rule: Rule,
        *,
        seed: int,
        groups: int = 8,
        floor: float | None = None,
        capacity: float | None = None,
    ) -> None:
        many = len(kinds)
        self.kinds, self.rule, self.groups, self.looks = list(kinds), rule, groups, looks
        self.random = np.random.default_rng(seed)
        self.floor = rule.floor(many * groups) if floor is None else floor
        self.alarm, self.capacity, self.policy, self.false = Alarm(rule), capacity, 0, FALSE
        settled = max(rule.trusted + 1.0, self.floor * groups / (1 - rule.kept))
        self.clean = np.where(fresh, 0.0, settled)
        self.whole = np.where(fresh, rule.whole, 0)
        self.clean_since = np.zeros(many, int)
        self.records: list[WorkerRecord] = [WorkerRecord()] * many
        self.out = np.zeros(many, bool)
        self.share = np.array([kind.share for kind in kinds])
        self.wakes = np.zeros(many, int)
        """The policy from which each cheats."""
        self.seen = np.array([kind.seen for kind in kinds])
        self.below = np.array([kind.below for kind in kinds])
        self.anew = np.array([kind.anew for kind in kinds])
        self.units, self.looked, self.refused = np.zeros(many), np.zeros(many, int), np.zeros(many, int)
        self.paid, self.saved, self.lived = np.zeros(many), np.zeros(many), np.zeros(many)
        self.looks_until = np.zeros(many, int)
        self.worst_day = 0.0
        self.blind = np.zeros(many)
        """For each worker: the chance that who looks at a group of its lies, and finds nothing wrong with it."""
        self.caught = np.zeros(many, int)
        """In this policy: groups that such a one let pass and a second look found."""
        self.found = np.zeros(many, bool)
        """In this policy: whose files were refused."""
        self.rows: list[dict[str, float]] = []

    def turn(self, share: float, kind: Kind) -> None:
        """So many of the trusted, honest ones cheat from now on."""
        honest = [at for at, one in enumerate(self.kinds) if one is HONESTLY]
        for at in self.random.permutation(honest)[: round(share * len(honest))].tolist():
            self.kinds[at], self.share[at], self.seen[at], self.below[at] = kind, kind.share, kind.seen, kind.below

    def run(self, policies: int) -> "Pool":
        for _ in range(policies):
            self.step()
        return self

    def step(self) -> None:
        rule, active = self.rule, ~self.out
        floor = min(1.0, self.floor * self.alarm.factor)
        trusted = active & (self.whole <= 0) & (self.clean >= rule.trusted)
        looked = np.where(active, self.random.binomial(self.groups, rule.share(self.clean, self.whole, floor)), 0)
        if self.capacity is not None:
            looked = self._within(looked, self.capacity)
        awake = active & (self.wakes <= self.policy)
        bad = np.where(awake, self.random.binomial(self.groups, self.share), 0)
        looked_bad = self.random.hypergeometric(bad, self.groups - bad, looked)
        again = int(self.random.binomial(looked, rule.again).sum())
        self.caught[:], refused = 0, np.zeros(len(looked), int)
        suspect = np.zeros(len(looked), bool)
        for at in np.flatnonzero(looked).tolist():
            refused[at], suspect[at] = self._look(at, int(looked[at]), int(looked_bad[at]))
        self.found = refused > 0
        fallen = trusted & self.found
        self.alarm.heard(self.policy, int(fallen.sum()), int((trusted & (looked > 0)).sum()))
        in_order = (looked > 0) & (refused == 0)
        before = 0 if self.alarm.since in (None, self.policy) else self.clean_since
        self.clean_since = np.where(refused > 0, 0, before + looked * in_order)
        whole = self.alarm.trains_whole(self.whole, self.clean_since)
        takes = active & (refused == 0) & ~suspect
        poison = np.where(takes, np.where(whole, bad, looked_bad), 0) * ~self.seen
        trained = np.where(takes, np.where(whole, self.groups, looked), 0) - np.where(takes & self.seen, bad * whole, 0)
        self._remember(looked, in_order)
        self._count(active, takes, bad, looked, refused)
        self._leave(suspect)
        self.rows.append(
            {
                "H100": (looked.sum() + again) * LOOK_SECONDS / POLICY_SECONDS,
                "poison": float(poison[~self.below].sum() / max(trained.sum(), 1)),
                "below": float(poison[self.below].sum() / max(trained.sum(), 1)),
                "batch": float(trained.sum() / max(self.groups * active.sum(), 1)),
                "alarm": float(self.alarm.since is not None),
                "fallen": float(fallen.sum()),
            }
        )
        self.policy += 1
        if self.policy % DAY == 0:
            self.settle()

    def _within(self, looked: np.ndarray, capacity: float) -> np.ndarray:
        """As many as there is power for: those of known workers first, then newcomers', whole files in turn."""
        order = np.lexsort((self.random.random(len(looked)), self.whole > 0))
        return np.where((np.cumsum(looked[order]) <= capacity)[np.argsort(order)], looked, 0)

    def _look(self, at: int, looked: int, bad: int) -> tuple[int, bool]:
        """(groups of a file that are refused, whether its worker is suspected from now on)."""
        kind, drawn = self.kinds[at], self.random.integers(LIBRARY, size=looked).tolist()
        if bad and self.blind[at]:
            hidden = int(self.random.binomial(bad, self.blind[at]))
            self.caught[at] = self.random.binomial(hidden, self.rule.again * (1 - self.blind.mean()))
            looked, bad = looked - hidden, bad - hidden
            if not looked:
                return int(self.caught[at]), False
        honest = self.looks.of(HONEST)
        cheated = [self.looks.of(kind.table)[one] for one in drawn[:bad]]
        seen = cheated + [honest[one] for one in drawn[bad:]]
        refused = int(self.random.binomial(looked - bad, self.false))
        if kind.refused is not None:
            refused += int(self.random.binomial(bad, kind.refused))
        elif bad:
            found = sum(self.looks.refused([one]) for one in cheated)
            refused += max(found, int(self.looks.refused(seen)))
        refused += int(self.caught[at])
        self.records[at] = after(self.records[at], self.looks.evidence(seen), self.looks.spec)
        return refused, standing(self.records[at], self.looks.spec).level >= SuspicionLevel.SUSPECT

    def _remember(self, looked: np.ndarray, in_order: np.ndarray) -> None:
        self.clean = np.where(self.found, 0.0, (self.clean + looked * in_order) * self.rule.kept)
        self.whole = np.where(self.found, self.rule.whole, np.maximum(self.whole - looked * in_order, 0))

    def _count(self, active: np.ndarray, takes: np.ndarray, bad: np.ndarray, looked: np.ndarray, refused: Any) -> None:
        self.units += self.groups * takes
        self.lived += self.groups * active
        self.saved += bad * np.array([kind.saves for kind in self.kinds])
        self.looked += looked
        self.looks_until += looked
        self.refused += refused

    def _leave(self, suspect: np.ndarray) -> None:
        """Who is suspected is out with what it has earned in this day; who has names enough is back with a new one."""
        for at in np.flatnonzero(suspect | (self.found & self.anew)).tolist():
            self.units[at] = self.looked[at] = self.refused[at] = 0
            if self.anew[at]:
                self.begin(at, self.kinds[at])
            else:
                self.out[at] = True

    def begin(self, at: int, kind: Kind) -> None:
        """Somebody new takes this place."""
        self.kinds[at], self.share[at], self.anew[at] = kind, kind.share, kind.anew
        self.seen[at], self.below[at] = kind.seen, kind.below
        self.records[at], self.clean[at], self.whole[at] = WorkerRecord(), 0.0, self.rule.whole
        self.clean_since[at], self.out[at] = 0, False

    def settle(self) -> None:
        """A day is paid."""
        honest = np.array([kind is HONESTLY for kind in self.kinds]) & (self.units > 0)
        paid = self.rule.paid(self.units, self.refused, self.looked)
        if honest.any():
            self.worst_day = max(self.worst_day, float((1 - paid / np.maximum(self.units, 1))[honest].max()))
        self.paid += paid
        self.units[:], self.looked[:], self.refused[:] = 0, 0, 0

    def column(self, name: str) -> np.ndarray:
        return np.array([row[name] for row in self.rows])

    def gains(self) -> dict[str, float]:
        """By kind: see the module."""
        found: dict[str, float] = {}
        for name in dict.fromkeys(kind.name for kind in self.kinds):
            mine = np.array([kind.name == name for kind in self.kinds])
            found[name] = float((self.paid + self.saved)[mine].sum() / max(self.lived[mine].sum(), 1) - 1)
        return found


def mixed(looks: Looks, asked: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A day of honest workers and five kinds of liars."""
    many = asked["workers"]
    liars = [LIARS[at % len(LIARS)] for at in range(round(asked["liars"] * many))]
    fresh = [kind.name not in ("sleeper", "sipper") for kind in liars]
    kinds = liars + [HONESTLY] * (many - len(liars))
    pool = _pool(kinds, fresh + [False] * (many - len(liars)), looks, asked, seed)
    sleepers = [at for at, kind in enumerate(liars) if kind.name == "sleeper"]
    pool.wakes[sleepers] = pool.random.integers(asked["policies"], size=len(sleepers))
    pool.run(asked["policies"])
    pool.settle()
    gains = pool.gains()
    return {**_told(pool), "honest loses": -gains.pop(HONEST), "worst honest day loses": pool.worst_day, "gains": gains}


def turned(looks: Looks, asked: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """So many trusted workers cheat from the fourth policy on, in a share of their groups, in a way that the thresholds
    refuse always and the learner never sees."""
    pool = _pool([HONESTLY] * asked["workers"], [False] * asked["workers"], looks, asked, seed).run(3)
    pool.turn(asked["turn"], Kind("turned", OTHER_DRAW, asked["share"]))
    pool.run(asked["policies"])
    left = sum(kind is not HONESTLY and not gone for kind, gone in zip(pool.kinds, pool.out, strict=True))
    return {**_told(pool), "turned and not suspected in the end": left}


def _pool(kinds: Sequence[Kind], fresh: Sequence[bool], looks: Looks, asked: Mapping[str, Any], seed: int) -> Pool:
    most = float("inf") if asked["no_alarm"] else asked["ring"]
    rule = msgspec.structs.replace(Rule(), ring=most, clears=asked["clears"], cut=asked["cut"])
    capacity = asked["capacity"] and asked["capacity"] * POLICY_SECONDS / LOOK_SECONDS
    return Pool(kinds, fresh, looks, rule, seed=seed, groups=asked["groups"], floor=asked["floor"], capacity=capacity)


def _told(pool: Pool) -> dict[str, Any]:
    used, batch = pool.column("H100"), pool.column("batch")
    return {
        "floor": pool.floor,
        "H100 of looks, mean": float(used.mean()),
        "H100, most": float(used.max()),
        "worst batch, poisoned": float(pool.column("poison").max()),
        "worst batch, of what no threshold refuses": float(pool.column("below").max()),
        "smallest batch": float(batch.min()),
        "batches below half": int((batch < 0.5).sum()),
        "policies with the alarm": int(pool.column("alarm").sum()),
    }


def wide(looks: Looks, asked: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Each calibrated cheat at each share, LIVES workers of each, in a pool that is otherwise honest."""
    catalogue = [Kind(name, name, share) for name in looks.ways for share in asked["shares"]]
    catalogue += [Kind("thief", INT8, share, refused=0.0) for share in asked["shares"]]
    if asked["thief"]:
        share, refused = asked["thief"]
        catalogue = [Kind("thief", INT8, share, refused=refused)]
    kinds = [msgspec.structs.replace(kind, name=f"{kind.name} in {kind.share:.0%}") for kind in catalogue]
    alone = {**asked, "floor": asked["floor"] or Rule().floor(1000 * asked["groups"]), "no_alarm": True}
    workers = [kind for kind in kinds for _ in range(LIVES)]
    pool = _pool(workers, [True] * len(workers), looks, alone, seed).run(DAY * asked["days"])
    pool.settle()
    gains, rows = pool.gains(), dict[str, Any]()
    for kind in kinds:
        mine = np.array([one is kind for one in pool.kinds])
        until = pool.looks_until[mine & pool.out].tolist()
        rows[kind.name] = {
            "refused": looks.chance(kind.table) if kind.refused is None else kind.refused,
            "gain": gains[kind.name],
            "suspected": len(until) / LIVES,
            "after looked-at groups": median(until) if until else None,
        }
    return {"days": asked["days"], "rows": rows}


def honest(looks: Looks, asked: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """What befalls a pool without liars."""
    many = asked["workers"]
    found: dict[str, Any] = {}
    for name, chance, lasting in (("every look refused", 1.0, 3), ("one look in twenty refused", 0.05, 12)):
        for least in (None, asked["capacity"]):
            pool = _pool([HONESTLY] * many, [False] * many, looks, {**asked, "capacity": least}, seed).run(1)
            pool.false = chance
            pool.run(lasting)
            pool.false = FALSE
            pool.run(asked["policies"])
            batch = pool.column("batch")[1 + lasting :]
            found[f"{name} for {lasting} policies" + (f", {least:g} H100" if least else "")] = {
                **_told(pool),
                "half a batch again after, policies": int(np.argmax(batch >= 0.5)) if (batch >= 0.5).any() else None,
                "whole again after": int(np.argmax(batch >= 0.99)) if (batch >= 0.99).any() else None,
            }
    for least in (None, asked["capacity"]):
        pool = _pool(
            [HONESTLY] * (many + 1000), [False] * many + [True] * 1000, looks, {**asked, "capacity": least}, seed
        )
        pool.floor = pool.rule.floor(many * asked["groups"]) if asked["floor"] is None else asked["floor"]
        pool.run(asked["policies"])
        tried = pool.column("batch") >= 0.99
        found["as many newcomers at once" + (f", {least:g} H100" if least else "")] = {
            **_told(pool),
            "all tried after, policies": int(np.argmax(tried)) if tried.any() else None,
        }
    rule, floor = Rule(), asked["floor"] or Rule().floor(many * asked["groups"])
    looked = max(1, round(floor * asked["groups"] * DAY))
    lost = 1 - rule.paid(np.array([1.0]), np.array([1]), np.array([looked]))[0]
    found["refused in the last minute of its day"] = {
        "looks a day": looked,
        "of the day is lost": float(lost),
        "happens to one worker every, days": 1 / (FALSE * looked),
        "lost in the mean": float(lost * FALSE * looked),
    }
    return found


def main() -> None:
    parser = _parser()
    asked = vars(parser.parse_args())
    if asked.pop("quick"):
        asked |= {"workers": 100, "policies": 24, "seeds": 1, "days": 1}
    looks, began = Looks(asked.pop("run")), time.process_time()
    plays = [
        name for name, wanted in (("wide", asked["wide"] or asked["thief"]), ("honest", asked["honest"])) if wanted
    ]
    play = {"wide": wide, "honest": honest}[plays[0]] if plays else turned if asked["turn"] else mixed
    told: dict[str, Any] = {"play": play.__name__, "asked": asked, "seeds": {}}
    for seed in range(asked["seed"], asked["seed"] + (1 if plays else asked["seeds"])):
        told["seeds"][seed] = play(looks, asked, seed)
        tell(f"seed {seed}: {time.process_time() - began:.0f} s of CPU")
        if not asked["json"]:
            print(f"seed {seed}")
            show(told["seeds"][seed])
    if asked["json"]:
        print(json.dumps(told))


def show(rows: Mapping[str, Any], depth: int = 1) -> None:
    for name, value in rows.items():
        if isinstance(value, Mapping):
            print(f"{'  ' * depth}{name}")
            show(value, depth + 1)
        else:
            text = f"{value:.4g}" if isinstance(value, float) else value
            print(f"{'  ' * depth}{name:{44 - 2 * depth}} {'-' if value is None else text}")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__, "100 workers, 24 policies, one seed", "line")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=8, help="of a worker and policy")
    parser.add_argument("--floor", type=float, help="share of trusted workers' groups that is looked at")
    parser.add_argument("--liars", type=float, default=0.0, help="share of the workers, of five kinds")
    parser.add_argument("--turn", type=float, help="share of the trusted workers that cheats from one policy on")
    parser.add_argument("--share", type=float, default=1.0, help="of the groups of who turned")
    parser.add_argument("--wide", action="store_true", help="each calibrated cheat at three shares")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of the groups, in --wide")
    parser.add_argument("--thief", type=float, nargs=2, metavar=("SHARE", "REFUSED"), help="one cheat alone")
    parser.add_argument("--honest", action="store_true", help="what befalls a pool without liars")
    parser.add_argument("--policies", type=int, default=DAY)
    parser.add_argument("--days", type=int, default=14, help="of --wide")
    parser.add_argument("--ring", type=int, default=3, help="trusted workers refused that ring the alarm")
    parser.add_argument("--clears", type=int, default=1, help="clean looks since the alarm that let a worker train")
    parser.add_argument("--cut", type=float, default=10.0, help="of a day's pay per refused share; 0: a file at a time")
    parser.add_argument("--no-alarm", action="store_true")
    parser.add_argument("--capacity", type=float, help="H100 that there are for looks")
    parser.add_argument("--run", type=Path, default=RUN, help="whose calibrated tables say what a look finds")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    return parser


if __name__ == "__main__":
    main()
