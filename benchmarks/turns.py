"""Rollouts of several turns, made and judged: honest files refused, forged ones caught, and what turns cost.

    python -m benchmarks.turns [--files 300] [--forged 20] [--json FILE]
    python -m benchmarks.turns --speed [--files 40]
    python -m benchmarks.turns --steps [--rollouts 128]

Files of two groups of four samples for `retry` with three tries, by a toy model after a warm start: float32 engines on
this machine's CPU on both sides, real `produce` and real `inspect` of every group. Each cheat of tests/cheats/turns.py
forges --forged files. --speed: seconds of CPU of producing and judging one file of 8 groups of 8 for `sort`, which
takes one turn, by the untaught model; the same command on an older commit says what turns cost those who take none.
--steps: seconds, by the clock, in which a package in the sandbox (`env new --kind multi-turn`) says something three
times in each of --rollouts rollouts: asked one by one, and all rollouts of a turn at once. No model answers.
"""

import argparse
import functools
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import torch

from node.environments.base import Environment, Segment
from node.environments.registry import load_environment
from node.inference.engines import torch_engine
from node.inference.inspect import inspect
from node.inference.produce import produce
from node.inference.session import Session
from node.inference.tokenizer import LocalTokenizer
from node.inference.wire import Inspect, Inspected, Produce, Produced
from node.training.warmstart import SORT_ALPHABET, create_model, warm_start
from protocol.checks import reason_name
from protocol.identity import NodeKey
from protocol.run import EnvironmentSpec, RolloutSpec, RunSpec, VerificationSpec
from protocol.statements import Outcome

ROOT, NODE = bytes(range(32)), NodeKey(b"\x07" * 32).address
TRIES = 3


def run_of(name: str, rollout: RolloutSpec, **args: int) -> RunSpec:
    environment = EnvironmentSpec(name=name, args={"digits": 3, "held_back": 64, **args})
    verification = VerificationSpec(toploc_k=32)
    return RunSpec(name="turns", environment=environment, rollout=rollout, verification=verification)


IN_TURNS = RolloutSpec(group_size=4, prompts_per_step=2, prompts_per_file=2, max_prompt_tokens=8, max_output_tokens=24)
IN_ONE = RolloutSpec(group_size=8, prompts_per_step=8, prompts_per_file=8, max_prompt_tokens=8, max_output_tokens=24)


def start_model(assets: Path, *, taught: bool) -> None:
    """A model that, if taught, sorts three digits now and then, so that rollouts of every length of turns occur."""
    torch.set_num_threads(1)
    model = create_model(assets / "model", SORT_ALPHABET, seed=7, hidden=64, layers=2)
    if not taught:
        return
    environment = load_environment(run_of("sort", IN_ONE).environment, assets, LocalTokenizer(assets / "model"))
    warm_start(assets / "model", model, environment, seed=0, target=0.1, check_every=10, max_steps=300)


def session_of(kind: type[Session], run: RunSpec, assets: Path) -> Session:
    session = kind(run, assets, torch_engine)
    session.keep(ROOT, str(assets / "model" / "model.safetensors"))
    return session


def made_by(session: Session, index: int, out: Path) -> tuple[Produce, Produced]:
    order = Produce(policy_root=ROOT, node=NODE, pool=1, index=index, out_path=str(out / "file"))
    return order, produce(session, order)


def judged(session: Session, index: int, made: Produced) -> Inspected:
    report = f"{made.path}.report"
    order = Inspect(
        policy_root=ROOT, node=NODE, pool=1, index=index, units=made.units, path=made.path, report_path=report
    )
    return inspect(session, order)


def honest(assets: Path, files: int) -> dict[str, Any]:
    """Honest files in the eyes of an honest validator."""
    from protocol.rollout import decode

    run = run_of("retry", IN_TURNS, tries=TRIES)
    worker, validator = session_of(Session, run, assets), session_of(Session, run, assets)
    refused: list[str] = []
    turns: Counter[int] = Counter()
    with tempfile.TemporaryDirectory() as place:
        for index in range(files):
            _, made = made_by(worker, index, Path(place))
            seen = judged(validator, index, made)
            rows = decode(Path(made.path).read_bytes(), run.rollout.samples_per_file).rows
            turns.update(len(row.segments) // 2 + 1 for row in rows)
            if seen.outcome != Outcome.ACCEPT or seen.unreplayed:
                refused.append(f"{index}: {reason_name(seen.reason)} {seen.detail}")
            show(f"honest files {index + 1}/{files}, {len(refused)} refused")
    return {"files": files, "refused": refused, "rollouts_by_turns": dict(sorted(turns.items()))}


def forged(assets: Path, files: int) -> dict[str, dict[str, Any]]:
    """Each cheat's files in the eyes of an honest validator."""
    from tests.cheats.catalogue import CHEATS

    run = run_of("retry", IN_TURNS, tries=TRIES)
    validator = session_of(Session, run, assets)
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        for name, cheat in ((name, cheat) for name, cheat in CHEATS.items() if cheat.turns):
            worker = session_of(cheat.session, run, assets)
            reasons: Counter[str] = Counter()
            for index in range(files):
                order = Produce(policy_root=ROOT, node=NODE, pool=1, index=index, out_path=f"{place}/file")
                seen = judged(validator, index, cheat.produce(worker, order))
                reasons[reason_name(seen.reason) if seen.outcome != Outcome.ACCEPT else "accepted"] += 1
            found[name] = {"files": files, "caught": files - reasons["accepted"], "reasons": dict(reasons)}
            show(f"{name}: {found[name]['caught']} of {files} caught")
    return found


def speed(assets: Path, files: int) -> dict[str, dict[str, float]]:
    """Seconds per file at one turn. The first few files are not counted."""
    session = session_of(Session, run_of("sort", IN_ONE), assets)
    seconds: dict[str, list[float]] = {"produce": [], "inspect": []}
    with tempfile.TemporaryDirectory() as place:
        for index in range(files + 5):
            started = time.process_time()
            _, made = made_by(session, index, Path(place))
            between = time.process_time()
            judged(session, index, made)
            if index >= 5:
                seconds["produce"].append(between - started)
                seconds["inspect"].append(time.process_time() - between)
    return {name: _spread(values) for name, values in seconds.items()}


def steps(place: Path, rollouts: int) -> dict[str, float]:
    """Seconds of all turns. Each way has an environment of its own, which remembers nothing of the other."""
    from node.environments.base import one_by_one
    from node.environments.package.archive import pack
    from node.environments.package.environment import Arguments, load
    from node.environments.package.templates import template
    from node.training.warmstart import write_config, write_tokenizer

    (place / "environments").mkdir()
    (place / "environments" / "guess.tar").write_bytes(
        pack({"environment.py": template("multi-turn", "guess").encode()})
    )
    alphabet = "".join(map(chr, range(32, 127)))
    write_tokenizer(place, alphabet)
    write_config(place, len(alphabet) + 2, hidden=64, layers=1)
    tokenizer, found = LocalTokenizer(place), dict[str, float]()
    for name in ("one by one", "at once"):
        environment = load(Arguments(), place, "guess", tokenizer)
        ask = environment.steps if name == "at once" else functools.partial(one_by_one, environment)
        found[name] = _seconds_of_steps(environment, ask, tokenizer, rollouts)
        environment.close()
        show(f"{name}: {found[name]:.2f} s")
    return found


def _seconds_of_steps(environment: Environment, ask: Any, tokenizer: LocalTokenizer, rollouts: int) -> float:
    """Every guess is another one, and too high."""
    problems = [environment.problem(number % environment.size) for number in range(rollouts)]
    transcripts: list[list[Segment]] = [[] for _ in problems]
    (end,) = tokenizer.eos
    started = time.monotonic()
    for turn in range(3):
        for number, transcript in enumerate(transcripts):
            guess = tokenizer.encode(str(100 + 3 * number + turn))
            transcript.append(Segment([*guess, end], sampled=True))
        for transcript, said in zip(transcripts, ask(problems, transcripts), strict=True):
            transcript.append(Segment(said, sampled=False))
    return time.monotonic() - started


def _spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"least": min(values), "quarter": low, "median": middle, "three_quarters": high}


def show(text: str) -> None:
    print(f"\r{text}", end="" if sys.stdout.isatty() else "\n", flush=True)


def _measured(assets: Path, given: argparse.Namespace) -> dict[str, Any]:
    if given.steps:
        return {"seconds": steps(assets, given.rollouts)}
    start_model(assets, taught=not given.speed)
    if given.speed:
        return {"seconds_cpu": speed(assets, given.files or 40)}
    return {"honest": honest(assets, given.files or 300), "forged": forged(assets, given.forged)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=0, help="honest files, or files to time (default 300, or 40)")
    parser.add_argument("--forged", type=int, default=20, help="files of each cheat")
    parser.add_argument("--speed", action="store_true", help="time files of one turn")
    parser.add_argument("--steps", action="store_true", help="time what a package says between turns")
    parser.add_argument("--rollouts", type=int, default=128, help="rollouts of --steps")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        result = _measured(Path(place), given)
    print(json.dumps(result))
    if given.json:
        given.json.write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
