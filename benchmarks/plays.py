"""What a play of dishonest nodes does to a live run: each beside an honest run of the same seed.

    python -m benchmarks.plays [--plays far-steps,..] [--seeds 0,1,2] [--steps 24] [--quick] [--json FILE] [--resume]
                               [--work DIR]

Each run is a demo: real daemons, libp2p, contracts on a local chain. Read are the curve of the run (mean held-back
reward over the first and the last evaluations), policies, files, pay, and from every honest node's log whom it does
not believe, mutes, or would slash. The exit code is 1 where that is somebody honest, or a run did not come to its end.

With each play stands how far its last evaluations are from those of the honest run beside it, and at the end how far
apart honest runs of different seeds are: what is less than that is no effect. After 24 steps that is two to five
hundredths of a reward of .6, so `--steps 150` is needed to tell 2 %.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import msgspec
import trio

from benchmarks.command import parser_of, save
from benchmarks.live_attacks import prepare
from cli.demo.cast import DemoOptions, Scene, cast
from cli.demo.snapshot import Snapshot
from cli.demo.story import run_demo
from cli.demo.view import PlainView

WORK = Path("plays")
LIMIT, LIMIT_A_STEP = 600.0, 25.0
"""Seconds of a run, at most: for its start, and for each step of two busy cores."""


class Play(msgspec.Struct, frozen=True):
    """leader: how a trainer cheats, of two; liars: of so many validators."""

    leader: str | None = None
    liars: tuple[str, ...] = ()
    validators: int = 1

    @property
    def control(self) -> "Play":
        """The same swarm, all honest."""
        return Play(validators=self.validators)


PLAYS = {
    "far-steps": Play("far-steps"),
    "former-far-steps": Play("former-far-steps"),
    "framing-standby": Play("framing-standby"),
    "dismissed": Play("dismissed"),
    "old-disputer": Play(liars=("old-disputer", "old-disputer"), validators=5),
}
TOLD = {
    "validator.quarantined": "validator",
    "trainer.distrusted": "trainer",
    "member.muted": "node",
    "slash.carried": "node",
}
"""Lines of a node's log that name somebody, and under what."""


class Onlooker(PlainView):
    def __init__(self) -> None:
        super().__init__(lambda text: print(f"  {text}", file=sys.stderr, flush=True), every=20.0)
        self.last = Snapshot()

    def show(self, snapshot: Snapshot) -> None:
        self.last = snapshot
        super().show(snapshot)


def perform(directory: Path, run: Path, play: Play, seed: int, steps: int) -> dict[str, Any]:
    """One demo, from its first process to its last, and what came of it."""
    trainers = 1 if play.validators > 1 else 2
    options = DemoOptions(
        directory, 2, play.validators, (), play.liars, steps, seed, run, trainers=trainers, leader=play.leader,
        kills=False,
    )  # fmt: skip
    view, found = Onlooker(), dict[str, Any]()

    async def story() -> None:
        with trio.move_on_after(LIMIT + LIMIT_A_STEP * steps):
            found.update(await run_demo(options, view))

    trio.run(story)
    people = {row.participant.address.lower(): row.participant for row in view.last.rows}
    honest = {one.name for one in people.values() if not one.cheat}
    heard, said = told(options, people)
    against = [f"{how} by {by}: {whom}" for (how, by, whom), _ in heard.items() if by in honest and whom in honest]
    slashed = [people[one.node.lower()].name for one in view.last.slashed if one.node.lower() in people]
    members = found.get("members", [])
    return {
        "done": view.last.done,
        "curve": [round(reward, 4) for _, reward in view.last.rewards],
        "first": found.get("reward_first"),
        "last": found.get("reward_last"),
        "policies": view.last.step,
        "accepted": found.get("verdicts", {}).get("accepted"),
        "rejected": found.get("verdicts", {}).get("rejected"),
        "seconds": found.get("seconds"),
        "paid": {one["name"]: round(int(one["paid_wei"]) / 1e18, 1) for one in members},
        "owed": {one["name"]: round(int(one["owed_wei"]) / 1e18, 1) for one in members},
        "disputes": found.get("disputes"),
        "told": dict(Counter(f"{how}: {whom}" for how, by, whom in heard if by in honest)),
        "slashed": slashed,
        "against_honest": against + [f"slashed: {one}" for one in slashed if one in honest],
        "said": said,
        "leads": [row.participant.name for row in view.last.rows if row.leads],
    }


def told(options: DemoOptions, people: dict[str, Any]) -> tuple[Counter[tuple[str, str, str]], int]:
    """(what, by whom, about whom) of all logs, and how many words an attacker noted that it said."""
    scene, found, said = Scene(options.directory.resolve()), Counter[tuple[str, str, str]](), 0
    for one in cast(options):
        for log in sorted(scene.state_dir(one.name).glob("logs/*")):
            for line in log.read_text(errors="replace").splitlines():
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                said += event.get("messages", 1) if event.get("event") == "attack.said" else 0
                if (field := TOLD.get(event.get("event", ""))) is not None:
                    named = people.get(str(event.get(field, "")).lower())
                    found[event["event"], one.name, named.name if named else str(event.get(field))] += 1
    return found, said


def main() -> None:
    parser = parser_of(__doc__, "one play, one seed")
    parser.add_argument("--plays", default=",".join(PLAYS), help="separated by commas")
    parser.add_argument("--seeds", default="0,1,2", help="separated by commas")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--resume", action="store_true", help="play only what the JSON file does not have yet")
    parser.add_argument("--work", type=Path, default=WORK)
    a = parser.parse_args()
    names = list(PLAYS)[:1] if a.quick else a.plays.split(",")
    seeds = [0] if a.quick else [int(one) for one in a.seeds.split(",")]
    run = prepare(a.work, a.steps)["plain"]
    table: dict[str, Any] = json.loads(a.json.read_text()) if a.resume and a.json and a.json.exists() else {}
    for seed in seeds:
        for name in names:
            play = PLAYS[name]
            for title, one in ((f"honest-{play.validators}", play.control), (name, play)):
                key = f"{title}/{seed}"
                if key not in table:
                    print(f"{key}", file=sys.stderr, flush=True)
                    table[key] = perform(a.work / f"{title}-{seed}", run, one, seed, a.steps)
                    save(a.json, table)
            print(row(name, seed, table[f"{name}/{seed}"], table[f"honest-{play.validators}/{seed}"]), flush=True)
    for line in spread(table):
        print(line, flush=True)
    sys.exit(any(one["against_honest"] or not one["done"] for one in table.values()))


def spread(table: dict[str, Any]) -> list[str]:
    """How far apart honest runs of different seeds come out."""
    lasts: dict[str, list[float]] = {}
    for key, one in table.items():
        if key.startswith("honest-") and one["last"] is not None:
            lasts.setdefault(key.split("/")[0], []).append(one["last"])
    return [
        f"{name}: {mean(found):.4f} after the last step, standard deviation {stdev(found):.4f} of {len(found)} seeds"
        for name, found in lasts.items()
        if len(found) > 1
    ]


def row(name: str, seed: int, found: dict[str, Any], honest: dict[str, Any]) -> str:
    """As in the docs."""

    def part(one: dict[str, Any]) -> str:
        return f"{one['first']} -> {one['last']}, {one['policies']} policies, {one['accepted']} files"

    whole = found["last"] is not None and honest["last"]
    apart = f"{100 * (found['last'] / honest['last'] - 1):+.1f} %" if whole else "-"
    harm = "; ".join(found["against_honest"]) or "nobody"
    about = ", ".join(sorted(found["told"])) or "-"
    return f"| {name} {seed} | {found['said']} words | {part(found)} | {part(honest)} | {apart} | {about} | {harm} |"


if __name__ == "__main__":
    main()
