"""A busy bench by the product's own rule: whom it looks at, how late it comes, how soon the next policy is learnt.

    python -m benchmarks.simulation.looking [--hours 3] [--seeds 3] [--seed 7] [--quick] [--json]

Three validators with a quorum of two, so each looks at every file. What a validator pledges, which share of a file it
looks at, which groups its lot draws and what it remembers of a worker are `protocol.audit`, `protocol.lots` and
`protocol.decision`; what a look finds is `evidence.py`. Modelled: a worker makes a file of 8 groups in 300 s; an engine
takes as long for every group; a file is accepted once two have looked and nobody refused it, and trains with those
groups that two looked at, unless its policy is more than two old; a policy comes once as many groups as nine tenths of
a hundred workers make are there, 300 s after the last one at the soonest. Whoever has accepted what another one refuses
looks at all of it again.

Plays, the power of each validator in brackets, in the groups that a hundred workers make: `steady`, all hundred are
known; `start`, nobody is; `newcomers` (0.8), a thousand more come in an hour; `names` (0.5), ten of the hundred are
refused for garbage and come back with a new name, with files of eight groups and of one; `bad calibration` (0.5), every
look is refused for an hour, then none.
"""

import heapq
import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from benchmarks.command import parser_of, tell
from benchmarks.simulation.evidence import HONEST, LIBRARY, Looks
from benchmarks.simulation.pool import FALSE, GARBAGE, POLICY_SECONDS, RUN, show
from protocol.audit import AuditLoad, AuditSpec, as_rate, pledged_share, share_of_file, window_of
from protocol.decision import SuspicionLevel, WorkerRecord, after, standing
from protocol.lots import drawn_groups

VALIDATORS, QUORUM, STALENESS, CLOSED = 3, 2, 2, 16
MANY, FILLED, KNOWN = 100, 0.9, 1_000
HORIZON, SHOWN, HOUR = 60.0, 3.0, 3600.0
"""Seconds over which a validator counts what arrives, and from a quorum's seals to the verdicts."""


class Member(msgspec.Struct, eq=False):
    """cheats: all its groups are garbage, and it comes back with a new name once it is refused; joined: seconds;
    verified, records: by validator."""

    cheats: bool = False
    joined: float = 0.0
    verified: list[int] = []
    records: list[WorkerRecord] = []

    def anew(self, verified: int = 0) -> "Member":
        self.verified, self.records = [verified] * VALIDATORS, [WorkerRecord()] * VALIDATORS
        return self


class File(msgspec.Struct, eq=False):
    at: float
    member: Member
    id: bytes
    policy: int = -1
    looks: dict[int, tuple[int, ...]] = {}
    accepted: list[float] = []
    twice: set[int] = set()
    """Groups at which two have looked."""
    refused: float = float("inf")


class Bench:
    """power: of the groups of MANY workers that each validator can look at."""

    def __init__(self, members: list[Member], looks: Looks, *, seed: int, power: float, groups: int = 8) -> None:
        self.members, self.looks, self.groups, self.spec = members, looks, groups, AuditSpec()
        self.random = np.random.default_rng(seed)
        self.speed = power * groups * MANY / POLICY_SECONDS
        self.files: list[File] = []
        self.times: list[float] = []
        self.next, self.free = [0] * VALIDATORS, [0.0] * VALIDATORS
        self.pledges: dict[int, float] = {}
        self.told_of = 0
        self.ready: list[int] = []
        """The policies of groups that may train."""
        self.coming: list[tuple[float, int]] = []
        self.policies = [0.0]
        self.false, self.now, self.work, self.waits = FALSE, 0.0, 0, list[tuple[float, float]]()
        self._pledge()

    def run(self, hours: float) -> "Bench":
        end = self.now + hours * HOUR
        while self.now < end - 1:
            self._make()
            self.now += POLICY_SECONDS
            while (at := min(map(self._starts, range(VALIDATORS)))) < self.now:
                self._learn(at)
                self._take(min(range(VALIDATORS), key=self._starts), at)
            self._learn(self.now)
        return self

    def _make(self) -> None:
        """What everybody makes in the time of a policy."""
        here = [one for one in self.members if one.joined <= self.now]
        times = np.sort(self.random.random(len(here))) * POLICY_SECONDS + self.now
        for at, who in zip(times.tolist(), self.random.permutation(len(here)).tolist(), strict=True):
            self.files.append(File(at, here[who], self.random.bytes(32), -1, {}, [], set()))
            self.times.append(at)

    def _starts(self, validator: int) -> float:
        at = self.next[validator]
        return max(self.free[validator], self.times[at]) if at < len(self.files) else float("inf")

    def _learn(self, now: float) -> None:
        """Everything but looks, up to now: files that are told of, groups that may train, policies."""
        while True:
            made = self.times[self.told_of] if self.told_of < len(self.times) else float("inf")
            came = self.coming[0][0] if self.coming else float("inf")
            if min(made, came) > now:
                return
            if made <= came:
                self.files[self.told_of].policy = len(self.policies) - 1
                self.told_of += 1
            else:
                self.ready.append(heapq.heappop(self.coming)[1])
            wanted = round(FILLED * MANY * self.groups)
            at = max(min(made, came), self.policies[-1] + POLICY_SECONDS)
            if len(self.ready) >= wanted and at <= now:
                self.ready = [one for one in self.ready if len(self.policies) - one <= STALENESS]
                if len(self.ready) >= wanted:
                    self.ready = sorted(self.ready)[wanted:]
                    self.policies.append(at)
                    self._pledge()

    def _pledge(self) -> None:
        window = window_of(len(self.policies) - 1, self.spec)
        for one in (window, window + 1):
            if one not in self.pledges:
                load = self._load(0, self.policies[-1]) if self.files else None
                self.pledges[one] = pledged_share(load, self.groups * self.spec.window, self.spec)

    def _load(self, validator: int, now: float) -> AuditLoad:
        came = bisect_right(self.times, now)
        arriving = came - bisect_left(self.times, now - HORIZON)
        waiting = max(0, came - self.next[validator])
        return AuditLoad(
            arriving * self.groups / min(HORIZON, max(now, 1.0)), self.speed, waiting * self.groups / self.speed
        )

    def _take(self, validator: int, now: float) -> None:
        file = self.files[self.next[validator]]
        self.next[validator] += 1
        load, member = self._load(validator, now), file.member
        if len(self.policies) - 1 - file.policy >= CLOSED:
            return
        if not load.is_calm and len(file.accepted) >= QUORUM and sorted(file.accepted)[1] + SHOWN < now < file.refused:
            return
        self.waits.append((file.at, now - file.at))
        window, record = window_of(file.policy, self.spec), member.records[validator]
        suspect = standing(record, self.looks.spec).level >= SuspicionLevel.SUSPECT
        pledged = self.pledges[window]
        share = max(pledged, share_of_file(pledged, load, member.verified[validator], suspect, self.spec))
        secret = bytes([validator]) * 16 + window.to_bytes(16, "little")
        lot = drawn_groups(secret, file.id, self.groups, as_rate(share if now < file.refused else 1.0))
        self._look(validator, now, file, lot, suspect)

    def _look(self, validator: int, now: float, file: File, lot: tuple[int, ...], suspect: bool) -> None:
        member = file.member
        self.work += len(lot)
        self.free[validator] = done = now + len(lot) / self.speed
        kind = GARBAGE if member.cheats else HONEST
        if drawn := self.random.integers(LIBRARY, size=len(lot)).tolist():
            found = self.looks.evidence([self.looks.of(kind)[one] for one in drawn])
            member.records[validator] = after(member.records[validator], found, self.looks.spec)
        bad = bool(lot) and (member.cheats or self.random.random() < 1 - (1 - self.false) ** len(lot))
        new = {group for one in file.looks.values() for group in lot if group in one} - file.twice
        file.looks[validator] = lot
        if bad or suspect:
            member.verified[validator] = 0
            if file.refused == float("inf"):
                file.refused = done
                for other in file.looks.keys() - {validator}:
                    self.work += self.groups
                    self.free[other] = max(self.free[other], now) + self.groups / self.speed
            if member.cheats and member in self.members:
                self.members[self.members.index(member)] = Member(True, done).anew()
            return
        member.verified[validator] += len(lot)
        file.accepted.append(done)
        if file.refused == float("inf") and len(file.accepted) >= QUORUM:
            file.twice |= new
            for _ in new:
                heapq.heappush(self.coming, (done + SHOWN, file.policy))

    def told(self, since: float = 0.0) -> dict[str, Any]:
        """since: hours; what was made in the last ten minutes may still be looked at, and is left out."""
        first = since * HOUR
        mine = [file for file in self.files if first <= file.at < self.now - 2 * POLICY_SECONDS]
        cheated = [file for file in mine if file.member.cheats]
        good = [file for file in cheated if file.refused == float("inf") and len(file.accepted) >= QUORUM]
        later = [wait for at, wait in self.waits if at >= first]
        looks = sum(len(lot) for file in mine for lot in file.looks.values())
        return {
            "policies, of those that there is time for": sum(at > first for at in self.policies)
            / ((self.now - first) / POLICY_SECONDS),
            "looks, of all groups": looks / max(1, self.groups * len(mine)),
            "looked at in the middle and at most after, s": [float(np.median(later)), max(later)] if later else None,
            "waiting in the end, files": self.told_of - min(self.next),
            "cheated files that are paid": len(good) / len(cheated) if cheated else None,
        }


def plays(looks: Looks, hours: float, seed: int, newcomers: int) -> dict[str, Any]:
    def members(verified: int = KNOWN, many: int = MANY) -> list[Member]:
        return [Member().anew(verified) for _ in range(many)]

    found = dict[str, Any]()
    for name, verified in (("steady", KNOWN), ("start", 0)):
        for power in (0.8, 0.5, 0.2):
            bench = Bench(members(verified), looks, seed=seed, power=power)
            found[f"{name} ({power:g})"] = bench.run(hours).told()
    came = [Member(joined=at * HOUR / newcomers).anew() for at in range(newcomers)]
    found["newcomers"] = Bench(members() + came, looks, seed=seed, power=0.8).run(hours).told()
    for name, groups in (("names", 8), ("names, files of one group", 1)):
        liars = [Member(True).anew() for _ in range(MANY // 10)]
        bench = Bench(members(many=MANY - len(liars)) + liars, looks, seed=seed, power=0.5, groups=groups)
        found[name] = bench.run(hours).told(0.5)
    bench = Bench(members(), looks, seed=seed, power=0.5).run(0.5)
    bench.false = 1.0
    bench.run(1.0)
    bench.false = FALSE
    found["bad calibration, behind it"] = bench.run(hours).told(1.5)
    return found


def main() -> None:
    parser = parser_of(__doc__, "an hour, a tenth of the newcomers, one seed", "line")
    parser.add_argument("--hours", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    hours, seeds, newcomers = (1.0, 1, 100) if asked.quick else (asked.hours, asked.seeds, 1_000)
    looks, began, told = Looks(RUN), time.process_time(), dict[str, Mapping[str, Any]]()
    for seed in range(asked.seed, asked.seed + seeds):
        told[str(seed)] = plays(looks, hours, seed, newcomers)
        tell(f"seed {seed}: {time.process_time() - began:.0f} s of CPU")
        if not asked.json:
            print(f"seed {seed}")
            show(told[str(seed)])
    if asked.json:
        print(json.dumps(told))


if __name__ == "__main__":
    main()
