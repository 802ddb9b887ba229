"""Every cheat and several lying validators in live swarms: real daemons, libp2p, contracts on a local chain.

    python -m benchmarks.live_attacks [--cheats a,b,..] [--liars a,b,..] [--validators 3] [--per-swarm 4]
                                      [--steps 8] [--seed 0] [--quick] [--json FILE] [--resume] [--work DIR]

Each swarm is a demo (`intellect-node demo --validators N --cheat .. --liar ..`) with a trainer, two honest workers and
several cheats at once, or with one validator that lies, is killed or freezes. What came of it is read from the nodes'
own journals (signed commitments and verdicts), from what they say of themselves, and from the chain's events.

Of a file: *rejected* if the quorum's last words refuse it; *agreement*: how many of those who spoke refused it. Files
that a stale cheat made while there was no older policy are honest and left out.
"""

import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import trio

from benchmarks.command import parser_of, save
from cli.demo.cast import DemoOptions, Scene, cast, cheats, chosen, liars, quorum_of
from cli.demo.prepare import MEASURED, OWN_RUN
from cli.demo.snapshot import DemoMember, Snapshot, SwarmRow
from cli.demo.story import run_demo
from cli.demo.view import PlainView
from cli.run_template import render_run
from node.chain.profile import read_profile
from node.preflight.engines import check_class
from node.run.file import load_run_file
from protocol.checks import reason_name
from protocol.messages import PolicyAnnounced, RolloutCommitted, Signed, VerdictIssued, VerdictRechecked, open_envelope
from protocol.statements import Domain, VerdictOutcome, work_id
from tests.cheats.catalogue import CHEATS

WORK = Path("live-attacks")
HONEST = 2
SIGNALS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}
TROUBLE_AT = 2
"""The step at which a validator is killed or frozen."""
BESIDE = ("own-problems", "int4")
"""The cheats that take part where a validator is the one who lies."""
LIMIT = 420.0
QUICK = ("int8", "garbage", "own-problems", "zip-bomb")


def main() -> None:
    parser = parser_of(__doc__, "four cheats, two liars")
    parser.add_argument("--cheats", default="all", help="separated by commas; 'none'")
    parser.add_argument("--liars", default="all", help=f"of {', '.join([*liars(), *SIGNALS])}; 'none'")
    parser.add_argument("--validators", type=int, default=3)
    parser.add_argument("--per-swarm", type=int, default=4, help="cheats that take part at the same time")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of start model, training and keys")
    parser.add_argument("--resume", action="store_true", help="play only what the JSON file does not have yet")
    parser.add_argument("--work", type=Path, default=WORK)
    a = parser.parse_args()
    names = _asked(a.cheats, list(cheats()), QUICK if a.quick else None)
    lies = _asked(a.liars, [*liars(), *SIGNALS], ("false-accuser", "killed") if a.quick else None)
    run = prepare(a.work, a.steps, a.seed)
    table: dict[str, Any] = {
        "seed": a.seed,
        "validators": a.validators,
        "quorum": quorum_of(a.validators),
        "cheats": [],
        "liars": [],
        "swarms": [],
    }
    if a.resume and a.json and a.json.exists():
        table = json.loads(a.json.read_text())
    played_before = {row["cheat"] for row in table["cheats"]}
    wanted = [name for name in chosen(names, cheats(), "cheat") if cheats()[name] not in played_before]
    swarms = [wanted[first : first + a.per_swarm] for first in range(0, len(wanted), a.per_swarm)]
    for number, some in enumerate(swarms, start=len(table["swarms"])):
        played = play(a.work / f"cheats-{number}", run["plain"], a.validators, some, seed=a.seed)
        table["cheats"] += [cheat_row(played, part) for part in played.cast if part.role == "worker" and part.cheat]
        table["swarms"].append(swarm_row(played))
        save(a.json, table)
    lies = [lie for lie in lies if lie not in {row["lie"] for row in table["liars"]}]
    for lie in lies:
        played = play(a.work / f"liar-{lie}", run["windows"], a.validators, BESIDE, lie, seed=a.seed)
        table["liars"].append(liar_row(played, lie) | swarm_row(played))
        save(a.json, table)
    print("\n" + cheats_table(table) + "\n\n" + liars_table(table))


# -- playing ---------------------------------------------------------------------------------------


@dataclass
class Played:
    """One swarm, after it was stopped. first_seen: a cheat's address -> wall clock when its slash was first told."""

    directory: Path
    cast: tuple[DemoMember, ...]
    last: Snapshot
    seconds: float
    finished: bool
    first_seen: dict[str, float] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def quorum(self) -> int:
        return self.last.quorum

    def address(self, name: str) -> str:
        return next(row.participant.address for row in self.last.rows if row.participant.name == name)


class Onlooker(PlainView):
    """A view that remembers the last moment, and sends a signal to a validator when its time has come."""

    def __init__(self, trouble: Callable[[Snapshot], None]) -> None:
        super().__init__(lambda text: print(f"  {text}", flush=True), every=15.0)
        self.last = Snapshot()
        self.first_seen: dict[str, float] = {}
        self._trouble = trouble

    def show(self, snapshot: Snapshot) -> None:
        self.last = snapshot
        for slash in snapshot.slashed:
            self.first_seen.setdefault(slash.node.lower(), time.time())
        self._trouble(snapshot)
        super().show(snapshot)


def prepare(work: Path, steps: int, seed: int = 0) -> dict[str, Path]:
    """The start model, taught once, and the demo's run with it: as it is, and with short audit windows."""
    work.mkdir(parents=True, exist_ok=True)
    model = (work / "model").resolve()
    if not model.exists():
        subprocess.run(
            [sys.executable, "-m", "node.training.warmstart", "--out", str(model), "--seed", str(seed)], check=True
        )
    run = load_run_file(OWN_RUN)
    recipe = msgspec.structs.replace(run.recipe, steps=steps, target_reward=None)
    run = msgspec.structs.replace(run, model=str(model), recipe=recipe)
    paths = {"plain": work / "plain.toml", "windows": work / "windows.toml"}
    paths["plain"].write_text(render_run(run))
    if trio.run(check_class, run.verification, "worker").level != "ok":  # the demo measures likewise
        subprocess.run([sys.executable, "-m", "cli", "calibrate", "--run", str(paths["plain"]), *MEASURED], check=True)
        run = load_run_file(paths["plain"])
    short = msgspec.structs.replace(run, audit=msgspec.structs.replace(run.audit, window=2))
    paths["windows"].write_text(render_run(short))
    return paths


def play(directory: Path, run: Path, validators: int, some: Sequence[str], lie: str = "", *, seed: int = 0) -> Played:
    """One swarm from its first process to its last."""
    print(f"\n{directory.name}: {', '.join(some)}", flush=True)
    lies = (lie,) if lie in liars() else ()
    options = DemoOptions(directory, HONEST, validators, tuple(some), lies, run_file=run, seed=seed)
    view = Onlooker(_trouble(lie, cast(options)))
    began, finished = time.monotonic(), False

    async def story() -> None:
        nonlocal finished
        with trio.move_on_after(LIMIT):
            await run_demo(options, view)
            finished = True

    trio.run(story)
    events = directory / "report" / "events.jsonl"
    rows = [json.loads(line) for line in events.read_text().splitlines()] if finished else []
    return Played(directory, cast(options), view.last, time.monotonic() - began, finished, view.first_seen, rows)


def _trouble(lie: str, parts: Iterable[DemoMember]) -> Callable[[Snapshot], None]:
    """Kills or freezes the last validator, with its engine, once the run is under way."""
    victim = [one.name for one in parts if one.role == "validator"][-1]
    hit: list[int] = []

    def watch(snapshot: Snapshot) -> None:
        row = next((row for row in snapshot.rows if row.participant.name == victim), None)
        if lie in SIGNALS and not hit and snapshot.step >= TROUBLE_AT and row and row.process.pid:
            hit.append(row.process.pid)
            os.killpg(row.process.pid, SIGNALS[lie])
            print(f"  - {victim} was {lie} at step {snapshot.step}", flush=True)

    return watch


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """A committed file. words: validator -> its last word; signed: how many of its rejections a contract could see."""

    root: bytes
    step: int
    made_at: float
    units: int
    own_state: str
    words: dict[str, VerdictIssued | VerdictRechecked]

    @property
    def refusing(self) -> list[VerdictIssued | VerdictRechecked]:
        return [one for one in self.words.values() if one.verdict.outcome != VerdictOutcome.ACCEPT]

    def fate(self, quorum: int) -> str:
        """rejected, accepted or undecided, by the last words of those who spoke."""
        against = len(self.refusing)
        if against >= quorum:
            return "rejected"
        return "accepted" if len(self.words) - against >= quorum else "undecided"


def files_of(played: Played, worker: str, judges: Iterable[str]) -> list[File]:
    """What a worker committed to, oldest first, and what each of the judges signed about it."""
    scene = Scene(played.directory.resolve())
    steps = {
        one.message.policy_root: one.message.step
        for one in _said(scene, "trainer", "policy")
        if isinstance(one.message, PolicyAnnounced)
    }
    words: dict[bytes, dict[str, VerdictIssued | VerdictRechecked]] = {}
    for judge in judges:
        for kind in ("verdict", "recheck"):
            for one in _said(scene, judge, kind):
                assert isinstance(one.message, VerdictIssued | VerdictRechecked)
                words.setdefault(work_id(one.message.verdict), {})[judge] = one.message
    query = "SELECT root, made_at, state FROM files"
    states = {root: (made_at, state) for root, made_at, state in _rows(scene, worker, query)}
    found: list[File] = []
    for one in _said(scene, worker, "commitment"):
        assert isinstance(one.message, RolloutCommitted)
        c = one.message.commitment
        made_at, state = states[c.file_root]
        found.append(
            File(c.file_root, steps.get(c.policy_root, -1), made_at, c.units, state, words.get(work_id(c), {}))
        )
    return sorted(found, key=lambda file: file.made_at)


def _said(scene: Scene, name: str, kind: str) -> list[Signed]:
    """The envelopes that a node journaled before it let anybody hear them."""
    profile = read_profile(scene.home / "devnet" / "network.toml")
    domain, pool = Domain(profile.chain_id, profile.contracts.swarm), int(scene.pool_file.read_text())
    rows = _rows(scene, name, "SELECT raw FROM said WHERE kind = ?", kind)
    return [open_envelope(domain, pool, bytes(raw)) for (raw,) in rows]


def _rows(scene: Scene, name: str, query: str, *values: object) -> list[tuple[Any, ...]]:
    with sqlite3.connect(scene.state_dir(name) / "journal.sqlite") as journal:
        return journal.execute(query, values).fetchall()


def _judges(played: Played, *, honest: bool) -> list[str]:
    return [one.name for one in played.cast if one.role == "validator" and not (honest and one.cheat)]


# -- telling ---------------------------------------------------------------------------------------


def cheat_row(played: Played, part: DemoMember) -> dict[str, Any]:
    """What became of one cheat."""
    assert part.cheat
    name = cheats()[part.cheat]
    files = [one for one in files_of(played, part.name, _judges(played, honest=True)) if _is_dishonest(one, name)]
    fates = Counter(one.fate(played.quorum) for one in files)
    rejected = [one for one in files if one.fate(played.quorum) == "rejected"]
    agreement = Counter(f"{len(one.refusing)}/{len(one.words)}" for one in rejected)
    reasons = Counter(reason_name(word.verdict.reason) for one in rejected for word in one.refusing)
    address = played.address(part.name)
    slash = next((e for e in played.events if e["event"] == "Slashed" and e["node"] == address), None)
    told = played.first_seen.get(address.lower())
    return {
        "cheat": name,
        "committed": len(files),
        "rejected": fates["rejected"],
        "accepted": fates["accepted"],
        "undecided": fates["undecided"],
        "reasons": dict(reasons),
        "agreement": dict(agreement),
        "slashed": slash is not None or told is not None,
        "slashed_tokens": int(slash["amount_wei"]) / 1e18 if slash else None,
        "seconds_to_slash": round(told - files[0].made_at, 1) if told and files else None,
        "files_until_slash": sum(one.made_at <= told for one in files) if told else None,
    }


def _is_dishonest(file: File, name: str) -> bool:
    return file.step >= 1 or not CHEATS[name].older


def swarm_row(played: Played) -> dict[str, Any]:
    """What honest people made of it."""
    honest = [one for one in played.cast if not one.cheat]
    files = [
        file
        for one in honest
        if one.role == "worker"
        for file in files_of(played, one.name, _judges(played, honest=True))
    ]
    addresses = {played.address(one.name) for one in honest}
    quarantined = {one.validator for one in played.last.quarantined}
    taken = [event for event in played.events if event["event"] == "Slashed" and event["node"] in addresses]
    return {
        "swarm": played.directory.name,
        "finished": played.finished,
        "steps": played.last.step,
        "seconds": round(played.seconds),
        "honest_files": len(files),
        "honest_accepted": sum(file.fate(played.quorum) == "accepted" for file in files),
        "honest_rejected": sum(file.fate(played.quorum) == "rejected" for file in files),
        "honest_counted_rejected": sum(file.own_state == "rejected" for file in files),
        "honest_stakes_touched": len(taken) + len({one.lower() for one in addresses} & set(played.first_seen)),
        "honest_validators_quarantined": len(quarantined & addresses),
        "disputes": dict(played.last.disputes),
        "restarts": sum(row.process.restarts for row in played.last.rows),
    }


def liar_row(played: Played, lie: str) -> dict[str, Any]:
    """What became of a validator that lied or fell."""
    row: SwarmRow = played.last.validators[0 if lie in liars() else -1]
    doubt = played.last.disbelief_in(row.participant)
    said = _said(Scene(played.directory.resolve()), row.participant.name, "verdict")
    cheats_ = [one for one in played.cast if one.role == "worker" and one.cheat]
    rows = [cheat_row(played, one) for one in cheats_]
    return {
        "lie": lie,
        "verdicts": len(said),
        "quarantined_by": doubt.by if doubt else 0,
        "of": sum(not one.cheat for one in played.cast),
        "why": doubt.why if doubt else "",
        "cheats_rejected": sum(one["rejected"] for one in rows),
        "cheats_accepted": sum(one["accepted"] for one in rows),
        "cheats_slashed": sum(one["slashed"] for one in rows),
    }


def cheats_table(table: dict[str, Any]) -> str:
    """As in the docs."""
    n = table["validators"]
    lines = [
        f"| cheat | files judged | rejected | how many of {n} refused | reasons | stake taken after |",
        "|---|---|---|---|---|---|",
    ]
    for row in table["cheats"]:
        judged = row["rejected"] + row["accepted"]
        agreement = ", ".join(f"{count} x {which}" for which, count in sorted(row["agreement"].items(), reverse=True))
        reasons = ", ".join(sorted(row["reasons"]))
        fate = f"{row['files_until_slash']} files, {row['seconds_to_slash']:.0f} s" if row["slashed"] else "-"
        lines.append(f"| {row['cheat']} | {judged} | {row['rejected']} | {agreement} | {reasons} | {fate} |")
    swarms = table.get("swarms", [])
    lines.append(
        f"\nHonest workers in these {len(swarms)} swarms: {sum(s['honest_accepted'] for s in swarms)} files accepted,"
        f" {sum(s['honest_rejected'] for s in swarms)} rejected,"
        f" {sum(s['honest_stakes_touched'] for s in swarms)} stakes touched,"
        f" {sum(s['honest_validators_quarantined'] for s in swarms)} honest validators quarantined;"
        f" {sum(s['disputes'].get('raised', 0) for s in swarms)} disputes,"
        f" {sum(s['disputes'].get('open', 0) for s in swarms)} of them open at the end;"
        f" {_median(s['seconds'] for s in swarms)} s a swarm (median)."
    )
    return "\n".join(lines)


def liars_table(table: dict[str, Any]) -> str:
    """As in the docs."""
    lines = [
        "| one validator | its verdicts | not believed by | disputes | honest files accepted / rejected"
        " | honest stakes touched | cheats' files rejected / accepted, stakes taken | steps |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table["liars"]:
        lines.append(
            f"| {row['lie']} | {row['verdicts']} | {row['quarantined_by']} of {row['of']} honest nodes"
            f" | {row['disputes'].get('raised', 0)} ({row['disputes'].get('open', 0)} open)"
            f" | {row['honest_accepted']} / {row['honest_rejected']} | {row['honest_stakes_touched']}"
            f" | {row['cheats_rejected']} / {row['cheats_accepted']}, {row['cheats_slashed']} | {row['steps']} |"
        )
    return "\n".join(lines)


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.median(known) if known else 0


def _asked(text: str, known: Sequence[str], quick: Sequence[str] | None) -> list[str]:
    if text == "none":
        return []
    if text == "all":
        return list(quick or known)
    return [word.strip() for word in text.split(",") if word.strip()]


if __name__ == "__main__":
    main()
