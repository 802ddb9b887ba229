"""Attacks that name what is not the attacker's, in live swarms, each beside a swarm without it.

    python -m benchmarks.live_register [--only NAME,NAME+NAME] [--steps 12] [--validators N] [--limit 90] [--json FILE]

Each swarm is a demo with a trainer, two honest workers, one or three validators and one dishonest node
(`tests/cheats/nodes.py`): real daemons, libp2p, contracts on a local chain. Its control is the same swarm with a
member that only listens in the attacker's place, played in the same run of this program: on a machine that others use,
too, only the ratio means something.
Names joined by a plus attack the same swarm: what comes to no harm under all of them comes to none under each.
A swarm ends a few seconds after its last step, or at the limit.
"""

import argparse
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import trio

from benchmarks.command import parser_of, save
from benchmarks.live_attacks import HONEST, Onlooker, Played, files_of, prepare, swarm_row
from cli.demo.cast import DemoOptions, Scene, cast, chosen
from cli.demo.snapshot import Participant, Snapshot
from cli.demo.story import run_demo

WORK = Path("live-register")
SETTLE = 8.0
"""Seconds after the last step in which a stake may still be taken."""
START = 300.0
"""Seconds until there is a first policy."""


@dataclass(frozen=True, slots=True)
class Play:
    """validators: how many it takes; beside: cheats who take part with the attacker."""

    validators: int = 1
    beside: tuple[str, ...] = ()


PLAYS = {
    "copied-roots": Play(),
    "copied-roots-size-1": Play(),
    "copied-roots-real-policy": Play(),
    "own-problems": Play(validators=3),  # a cheat by itself, which a decoy is compared with
    "decoy": Play(validators=3),
    "decoy-accomplice": Play(validators=3, beside=("own-problems",)),
    "units-fork": Play(validators=3),
    "silencing": Play(validators=3),
    "commitment-spam": Play(),
    "index-spam": Play(),
    "policy-echo": Play(),
}


def main() -> None:
    parser = parser_of(__doc__, "copied roots and its control, three steps, 20 s each")
    parser.add_argument("--only", default=",".join(PLAYS), help="separated by commas; a+b: in one swarm")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--validators", type=int, help="default: 1 or 3, as the attack needs")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds for one swarm, from its first policy")
    parser.add_argument("--work", type=Path, default=WORK)
    a = parser.parse_args()
    if a.quick:
        a.only, a.steps, a.limit = "copied-roots", 3, 20.0
    run = prepare(a.work, a.steps)["plain"]
    rows: list[dict[str, Any]] = []
    controls: dict[int, dict[str, Any]] = {}
    for swarm in a.only.split(","):
        names = chosen(swarm.split("+"), dict.fromkeys(PLAYS, ""), "attack")
        plays = [PLAYS[name] for name in names]
        validators = a.validators or max(play.validators for play in plays)
        if validators not in controls:
            controls[validators] = _played(a, run, f"control-{validators}", validators, ("idle",))
            rows.append(controls[validators])
        beside = {cheat for play in plays for cheat in play.beside}
        row = _played(a, run, swarm, validators, (*beside, *names))
        rows.append(row | {"beside_control": _ratio(row, controls[validators])})
        save(a.json, rows)
    print("\n" + table(rows))


def _played(a: argparse.Namespace, run: Path, name: str, validators: int, cheats: tuple[str, ...]) -> dict[str, Any]:
    """One swarm, from its first process to its last, and what came of it."""
    print(f"\n{name}: {validators} validators", flush=True)
    options = DemoOptions(a.work / name, HONEST, validators, cheats, run_file=run)
    began = time.monotonic()
    scope = trio.CancelScope()

    def end_in_time(snapshot: Snapshot) -> None:
        seconds = SETTLE if snapshot.done else a.limit if snapshot.rewards else START
        scope.deadline = min(scope.deadline, trio.current_time() + seconds)

    view = Onlooker(end_in_time)

    async def story() -> None:
        with scope:
            await run_demo(options, view)

    trio.run(story)
    played = Played(
        options.directory, cast(options), view.last, time.monotonic() - began, view.last.done, view.first_seen
    )
    row = swarm_row(played) | _speed(view.last) | {"validators": validators}
    return row | {"cheats": [_cheat(played, one) for one in played.cast if one.cheat]}


def _speed(last: Snapshot) -> dict[str, Any]:
    seconds = last.training_seconds
    return {"steps_per_second": round(last.step / seconds, 3) if seconds else 0.0}


def _ratio(row: dict[str, Any], control: dict[str, Any]) -> float:
    return round(row["steps_per_second"] / control["steps_per_second"], 2) if control["steps_per_second"] else 0.0


def _cheat(played: Played, part: Participant) -> dict[str, Any]:
    """What an attacker said, and what became of its stake."""
    address = played.address(part.name).lower()
    said = list(_said(Scene(played.directory.resolve()), part.name))
    files = files_of(played, part.name, [one.name for one in played.cast if one.role == "validator"])
    began = min([*(at for at, _ in said), *(file.made_at for file in files)], default=None)
    slash = next((one for one in played.last.slashed if one.node.lower() == address), None)
    told = played.first_seen.get(address)
    return {
        "name": part.cheat,
        "messages": sum(count for _, count in said),
        "files": len(files),
        "stake_taken": int(slash.amount_wei) / 1e18 if slash else 0.0,
        "reason": slash.reason if slash else None,
        "seconds_to_slash": round(told - began, 1) if told and began else None,
    }


def _said(scene: Scene, name: str) -> Iterator[tuple[float, int]]:
    """(seconds since the epoch, messages) of everything that an attacker noted in its own log."""
    logs: Iterable[Path] = sorted((scene.state_dir(name) / "logs").glob("daemon.jsonl*"))
    for path in logs:
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "attack.said":
                yield datetime.fromisoformat(event["timestamp"]).timestamp(), event["messages"]


def table(rows: list[dict[str, Any]]) -> str:
    """As in the docs."""
    lines = [
        "| swarm | steps, per second | beside its control | honest files accepted / refused"
        " | honest validators quarantined, stakes touched | disputes | attacker: said | its stake |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        said = "; ".join(f"{one['messages']} messages, {one['files']} files" for one in row["cheats"]) or "-"
        stakes = "; ".join(_fate(one) for one in row["cheats"]) or "-"
        ratio = row.get("beside_control", "-")
        lines.append(
            f"| {row['swarm']} ({row['validators']}) | {row['steps']}, {row['steps_per_second']:.2f} | {ratio}"
            f" | {row['honest_accepted']} / {row['honest_rejected']}"
            f" | {row['honest_validators_quarantined']}, {row['honest_stakes_touched']}"
            f" | {row['disputes'].get('raised', 0)} | {said} | {stakes} |"
        )
    return "\n".join(lines)


def _fate(cheat: dict[str, Any]) -> str:
    if not cheat["stake_taken"]:
        return f"{cheat['name']}: kept"
    return f"{cheat['name']}: {cheat['stake_taken']:g} taken after {cheat['seconds_to_slash']} s ({cheat['reason']})"


if __name__ == "__main__":
    main()
