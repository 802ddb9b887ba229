"""Rounds of peers at a desk: loss on held-back text by method and form, beside one peer alone and data-parallel
training.

    python -m benchmarks.diloco                  three seeds, about twenty minutes on one core
    python -m benchmarks.diloco --quick          one seed, 8 rounds, fewer methods
    python -m benchmarks.diloco --replicas       only: 50 rounds applied by other processes, orders and threads
    python -m benchmarks.diloco --honest 1000    only: how many of so many honest contributions a validator refuses
    python -m benchmarks.diloco --links          only: what share of a round peers wait for each other's contributions
                                                 (root; about four minutes)
    python -m benchmarks.diloco --distances      only: how far apart two arithmetics come with the same steps
    python -m benchmarks.diloco --rollouts       only: examples/trainers.toml by several trainers and by one, as many
                                                 rollouts each, three seeds (about fifteen minutes on one quiet core)
    python -m benchmarks.diloco --swarms         only: the same by two trainers and by one, in live swarms of two
                                                 workers and two validators, three seeds (about twenty minutes)
    python -m benchmarks.diloco --churn          only: a hundred peers simulated, of which a fifth leaves in each of 100
                                                 rounds and as many come (benchmarks/simulation/rounds.py; about twenty
                                                 minutes on one quiet core)

The model is the byte-level one of examples/make_pretrain.py (131,776 parameters), the text Python's own modules, rows
of 64 tokens. Every method sees the same number of inner steps: data-parallel makes them with the tokens of all peers,
one peer alone with a quarter of the tokens. Bits are counted from the files that peers would send. `--apply` is what
the other processes do: from outer state 0 and the contributions' files alone to the last root.
"""

import argparse
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3

from benchmarks.command import SKIPPED, parser_of, save

PEERS = 4
BATCH = 256
RUN = """
name = "benchmark"
model = "model"
[pretraining]
sequence = 64
held_back = 256
learning_rate = 3e-3
warmup_steps = 20
decay_from = 0.5
[[pretraining.data]]
name = "modules"
file = "modules.jsonl"
[diloco]
inner_steps = 20
batch_tokens = 256
exchange = "float32"
stretch = 0
[recipe]
steps = 20
[evaluation]
every = 1000
"""
METHODS: dict[str, tuple[int, dict[str, Any]]] = {
    "averaging, float32": (PEERS, {}),
    "data-parallel": (1, {"batch_tokens": PEERS * BATCH}),
    "one peer alone": (1, {}),
    "averaging, int8": (PEERS, {"exchange": "int8"}),
    "averaging, int4": (PEERS, {"exchange": "int4"}),
    "averaging, sparse 64 of 4096": (PEERS, {"exchange": "sparse"}),
    "averaging, moments reset": (PEERS, {"inner_state": "reset"}),
    "averaging, 4 fragments": (PEERS, {"fragments": 4}),
    "outer 0.7, Nesterov 0.9": (PEERS, {"outer_rate": 0.7, "outer_momentum": 0.9}),
}
"""Name -> peers, and what differs in [diloco]."""
QUICK = ("averaging, float32", "data-parallel", "one peer alone", "averaging, int4")


def prepared(folder: Path, rounds: int = 20, seed: int = 0) -> None:
    from examples.make_pretrain import create_byte_model, kinds

    create_byte_model(folder / "model", seed=0)
    lines = (json.dumps({"text": text}) for text in kinds()["modules"])
    (folder / "modules.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "run.toml").write_text(RUN.replace("[recipe]\nsteps = 20", f"[recipe]\nsteps = {rounds}\nseed = {seed}"))


def trained(folder: Path, out: Path, peers: int, seed: int, rounds: int, *, keep: bool = False, **changes: Any) -> Any:
    """The last record of a run. keep: all contributions and outer states stay."""
    from node.run.file import compile_run, load_run_file
    from node.run.problems import place_files
    from node.training.pretrainer import Pretrainer
    from node.training.settings import TrainerSettings
    from node.training.spool import Spool
    from node.training.world import World

    file = load_run_file(folder / "run.toml")
    assert file.diloco
    rounds *= changes.get("fragments", 1)  # as many inner steps
    recipe = msgspec.structs.replace(file.recipe, steps=rounds, seed=seed)
    file = msgspec.structs.replace(file, recipe=recipe, diloco=msgspec.structs.replace(file.diloco, **changes))
    compiled = compile_run(folder / "run.toml", file, desk=True)
    place_files(compiled, out / "assets")
    spool = Spool(out / "spool")
    spool.prepare(compiled.encoded, out / "assets")
    spool.peers_path.write_text(str(peers))
    pretrainer = Pretrainer(spool, compiled.spec, TrainerSettings(), World())
    if keep:
        pretrainer._forget = lambda round_: None  # type: ignore[method-assign]
    pretrainer.train()
    return json.loads(spool.metrics_path(rounds).read_bytes())


def losses(folder: Path, methods: list[str], seeds: int, rounds: int) -> list[dict[str, Any]]:
    """One row per method, as they come; the seeds of all methods take turns."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in methods}
    for seed in range(seeds):
        for name in methods:
            peers, changes = METHODS[name]
            with tempfile.TemporaryDirectory(dir=folder) as out:
                started = time.monotonic()
                record = trained(folder, Path(out), peers, seed, rounds, **changes)
            found[name].append(record)
            bits = record["bits_per_parameter"] if peers > 1 else 0.0
            print(
                f"seed {seed}  {name:30} loss {record['eval_loss']:.4f}  {bits:7.3f} bits a parameter and round  "
                f"{time.monotonic() - started:.0f} s",
                flush=True,
            )
    first = [record["eval_loss"] for record in found[methods[0]]]
    rows = []
    for name in methods:
        values = [record["eval_loss"] for record in found[name]]
        ratios = [100 * (value / base - 1) for value, base in zip(values, first, strict=True)]
        rows.append(
            {
                "method": name,
                "loss": statistics.fmean(values),
                "losses": values,
                "percent": statistics.fmean(ratios),
                "percents": ratios,
                "bits": found[name][0]["bits_per_parameter"] if METHODS[name][0] > 1 else 0.0,
            }
        )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'method':30} {'bits':>8} {'loss':>8} {'beside the first':>17}   of each seed")
    for row in rows:
        each = "  ".join(f"{one:+.1f}" for one in row["percents"])
        print(f"{row['method']:30} {row['bits']:8.3f} {row['loss']:8.4f} {row['percent']:+15.1f} %   {each}")


def replicas(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """For each form: whether other processes come to the same root in every round."""
    rows = []
    for exchange in ("float32", "int8", "int4", "sparse"):
        with tempfile.TemporaryDirectory(dir=folder) as text:
            out, changes = (
                Path(text),
                {"exchange": exchange, "outer_rate": 0.7, "outer_momentum": 0.5, "inner_steps": 2},
            )
            trained(folder, out, PEERS, 0, rounds, keep=True, **changes)
            given = [json.loads((out / "spool/out" / f"step-{i:06d}.json").read_bytes()) for i in range(rounds + 1)]
            roots = [record["outer_root"] for record in given]
            others = [_other(out, rounds, order, threads) for order, threads in ((1, 1), (2, 2), (3, 16))]
        equal = [sum(a == b for a, b in zip(roots, other, strict=True)) for other in others]
        rows.append({"exchange": exchange, "rounds": rounds, "equal": equal})
        print(
            f"{exchange:8} roots equal of {rounds + 1}, in three other processes (1, 2, 16 threads): {equal}",
            flush=True,
        )
    return rows


def _other(out: Path, rounds: int, order: int, threads: int) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.diloco", "--apply", str(out), "--rounds", str(rounds)]
    environment = {**os.environ} | {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "MKL", "OPENBLAS")}
    done = subprocess.run(
        [*command, "--seeds", str(order)], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def applied(out: Path, rounds: int, order: int) -> list[str]:
    """Roots of all rounds, from outer state 0 and contributions that arrive in an order of their own."""
    from node.training.outer import OuterStateFile, apply_round
    from protocol.contribution import Expected, decode_contribution
    from protocol.exchange import form_of
    from protocol.rounds import chosen
    from protocol.run import decode_run

    run = decode_run((out / "spool/run.json").read_bytes(), desk=True)
    assert run.diloco
    folder, rules, source = out / "spool/rounds", run.diloco, random.Random(order)
    state, roots = OuterStateFile(folder / "outer-000000.safetensors"), list[str]()
    with tempfile.TemporaryDirectory() as own:
        for round_ in range(rounds):
            roots.append(state.root.hex())
            paths = sorted((folder / f"{round_:06d}").glob("*.inc"))
            source.shuffle(paths)
            shapes = {name: shape for name, shape in state.shapes.items() if not name.startswith("momentum/")}
            given = {}
            for path in paths:
                data = path.read_bytes()
                root = data[data.index(b"run_root") + 10 :][:32]
                expected = Expected(root, {round_: state.root}, PEERS, 1 << 30, 64)
                given[blake3(data).digest()] = decode_contribution(data, shapes, form_of(rules), expected)
            ids = chosen({one: one for one in given}, rules.max_contributions, state.root)
            target = Path(own) / f"{round_}.safetensors"
            apply_round(state, [given[one] for one in ids], rules, target)
            state = OuterStateFile(target)
    return [*roots, state.root.hex()]


def honest(folder: Path, count: int) -> dict[str, Any]:
    """What a validator says of honest contributions. Every tenth is replayed: in the same arithmetic, with other
    micro-batches (float32 sums in another order), with two threads. Half of the steps sold as all is the control for
    the distances."""
    import torch

    from node.training.jobs import Check, Train
    from node.training.outer import OuterStateFile, apply_round

    names = ("the same", "other micro-batches", "two threads")
    makers = {name: _peer(folder, folder / name, **ARITHMETICS[name][0]) for name in names}
    first, refused, distances = (
        makers["the same"],
        dict[str, int](),
        {name: list[float]() for name in [*makers, "half"]},
    )
    replicas, done, round_ = first._rules.max_contributions, 0, 0
    first._started()
    while done < count:
        found = [first._do(Train(round_, replica_id, 4e9)) for replica_id in range(min(replicas, count - done))]
        paths = [one["path"] for one in found]
        for path in paths:
            others = tuple(other for other in paths if other != path)
            _count(refused, first._run, first._do(Check(round_, path, others)))
            if done % 10 == 0:
                for name, peer in makers.items():
                    _lend(first, peer, round_)
                    torch.set_num_threads(peer._settings.threads)
                    seen = peer._do(Check(round_, path, (), replay=True))
                    torch.set_num_threads(1)
                    _count(refused, peer._run, seen)
                    distances[name].append(seen["distance"])
                half = _half_of(first, Path(path), round_)
                distances["half"].append(first._do(Check(round_, str(half), (), replay=True))["distance"])
                most = ", ".join(f"{name} {max(all_):.2g}" for name, all_ in distances.items() if name != "half")
                # Said as it goes on: who ends it before its end has what there was.
                print(
                    f"{done + 1} contributions in round {round_}, {len(distances['half'])} of them replayed: refused "
                    f"{refused or 0}; distance at most {most}; half of the steps at least {min(distances['half']):.2g}",
                    flush=True,
                )
            done += 1
        outer = OuterStateFile(first._outer_path(round_))
        kept = [first._decoded(Path(path), outer) for path in paths[:PEERS]]
        apply_round(outer, kept, first._rules, first._outer_path(round_ + 1))
        round_ += 1
    spread = {
        name: {"least": min(all_), "median": statistics.median(all_), "most": max(all_), "replays": len(all_)}
        for name, all_ in distances.items()
    }
    for name, row in spread.items():
        print(f"distance, {name:22} {row['least']:.3g} to {row['most']:.3g}, median {row['median']:.3g}")
    return {"contributions": done, "refused": refused, "distances": spread}


def links(
    *, parameters: float, compute: float, mbit: float, rtt: float, peers: int, rounds: int
) -> list[dict[str, Any]]:
    """Two of `peers` peers in two network namespaces, with a link of their own between them; each fetches as many
    contributions in every round as there are others, by the product's blob exchange, and hands over as many.

    compute: seconds of inner_steps, which are slept. With fragments what a round sent is fetched while the next round's
    steps are made. Not counted: verdicts and cuts.
    """
    from benchmarks.long_links import MBIT, ROOT, Way, pair
    from protocol.exchange import bits_per_number, form_of
    from protocol.pretraining import Diloco

    rows, forms = [], ("float32", "int8", "int4", "sparse")
    with pair(ROOT, Way(mbit * MBIT, rtt / 2000, 0, 1), Way(mbit * MBIT, rtt / 2000, 0, 2), "reno") as both:
        sides = (both.source, both.taker), (both.taker, both.source)
        for exchange, fragments in ((form, parts) for form in forms for parts in (1, 4)):
            bits = bits_per_number(form_of(Diloco(exchange=exchange)), {"whole chunks": (4096, 256)})  # type: ignore[arg-type]
            size, shares, seconds = round(bits * parameters / 8 / fragments), list[float](), list[float]()
            under_way: list[Any] = []
            for round_ in range(rounds * fragments):
                began = time.monotonic()
                time.sleep(compute / fragments)
                waited = time.monotonic()
                if fragments == 1:
                    under_way = _begun(sides, size, peers, len(rows) * 10_000 + round_)
                came = [side.hear() for side in under_way for _ in range(peers - 1)]
                if any(got != size for _, got in came):
                    raise SystemExit("a contribution did not come whole")
                if came:
                    seconds.append(time.monotonic() - waited)
                    shares.append(seconds[-1] / (time.monotonic() - began))
                under_way = [] if fragments == 1 else _begun(sides, size, peers, len(rows) * 10_000 + round_)
            for side in under_way * (peers - 1):
                side.hear()
            least = (peers - 1) * size / (mbit * MBIT)
            row = {"exchange": exchange, "fragments": fragments, "bytes": size, "bytes_of_all": (peers - 1) * size,
                   "least_seconds": least, "round_seconds": compute / fragments, "waits": shares,
                   "seconds": seconds}  # fmt: skip
            rows.append(row)
            each = ", ".join(f"{100 * one:.1f}" for one in shares)
            print(
                f"{exchange:8} fragments {fragments}: communication {100 * statistics.median(shares):.1f} % of a round "
                f"({each}); {size:,} bytes each way take {least:.2f} s of the line at least, computing "
                f"{compute / fragments:.2f} s",
                flush=True,
            )
    plain = next(row for row in rows if row["fragments"] == 1)
    carried = plain["bytes_of_all"] / statistics.median(plain["seconds"]) / MBIT
    print(f"float32 came with {carried:.0f} of {mbit:.0f} Mbit/s: far less means that the machine was too busy")
    return rows


def _begun(sides: Any, size: int, peers: int, round_: int) -> list[Any]:
    """Both sides fetch what the other made; their answers are to be heard."""
    roots = [
        (taker, [source.ask(["make", size, 100 * round_ + 10 * place + at]) for at in range(peers - 1)])
        for place, (source, taker) in enumerate(sides)
    ]
    for taker, several in roots:
        for root in several:
            taker.tell(["fetch", root, 600])
    return [taker for taker, _ in roots]


ARITHMETICS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "the same": ({}, {}),
    "other micro-batches": ({"micro_batch_tokens": 64}, {}),
    "two threads": ({"threads": 2}, {}),
    "another processor": ({}, {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}),
    "bfloat16": ({"dtype": "bfloat16"}, {}),
}
"""Name -> the learner's settings, and what the libraries read from the environment: which instructions they use."""
STEPS_AND_RATES = ((10, 3e-3), (30, 1e-3), (30, 3e-3), (30, 1e-2), (100, 3e-3))
"""Inner steps of a round, and the learning rate."""


def distances(folder: Path, seeds: int, rounds: int) -> list[dict[str, Any]]:
    """Of honest contributions from their replays, as the judge of another arithmetic sees them; beside half of the
    steps sold as all, and other rows."""
    from node.training.jobs import Train
    from node.training.outer import OuterStateFile, apply_round

    rows = []
    for seed in range(seeds):
        for exchange, (steps, rate) in [("int4", one) for one in STEPS_AND_RATES] + [("float32", (30, 3e-3))]:
            peers = 2 + 2 * (seed % 2)
            (folder / "run.toml").write_text(
                RUN.replace("3e-3", str(rate)).replace("[recipe]", f"[recipe]\nseed={seed}")
            )
            with tempfile.TemporaryDirectory(dir=folder) as text:
                out, kind = Path(text), {"inner_steps": steps, "exchange": exchange}
                first, kept = _peer(folder, out / "first", kind), list[tuple[int, str]]()
                first._started()
                found: dict[str, list[float]] = {"half of the steps": [], "other rows": []}
                for round_ in range(rounds):
                    paths = [first._do(Train(round_, replica_id, 4e9))["path"] for replica_id in range(peers)]
                    outer = OuterStateFile(first._outer_path(round_))
                    made = [first._decoded(Path(path), outer) for path in paths]
                    found["other rows"].append(_apart(made[0], made[1]))
                    half = first._decoded(_half_of(first, Path(paths[0]), round_), outer)
                    found["half of the steps"].append(_apart(made[0], half))
                    apply_round(outer, made, first._rules, first._outer_path(round_ + 1))
                    kept += [(round_, path) for path in paths[:2]]
                for name in ARITHMETICS:
                    found[name] = _elsewhere(folder, out, name, kind, kept)
            row = {"seed": seed, "peers": peers, "steps": steps, "rate": rate, "exchange": exchange, "distances": found}
            rows.append(row)
            said = ", ".join(f"{name} {max(all_):.2g}" for name, all_ in found.items() if name in ARITHMETICS)
            least = ", ".join(f"{name} {min(all_):.2g}" for name, all_ in found.items() if name not in ARITHMETICS)
            print(
                f"seed {seed} peers {peers} H {steps} rate {rate:g} {exchange}: at most {said}; at least {least}",
                flush=True,
            )
    return rows


def _apart(one: Any, other: Any) -> float:
    """The distance of two contributions, as a share of the first."""
    error = sum(float(np.square(one.tensor(name) - other.tensor(name), dtype=np.float64).sum()) for name in one.shapes)
    return (error / sum(float(np.square(one.tensor(name), dtype=np.float64).sum()) for name in one.shapes)) ** 0.5


def _elsewhere(folder: Path, out: Path, name: str, kind: dict[str, Any], made: list[tuple[int, str]]) -> list[float]:
    """Distances of replays by a process with another arithmetic."""
    order = json.dumps([str(folder), str(out), name, kind, made])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.diloco", "--elsewhere", order],
        env={**os.environ, **ARITHMETICS[name][1]},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


def replayed(folder: str, out: str, name: str, kind: dict[str, Any], made: list[tuple[int, str]]) -> list[float]:
    """What the other process does."""
    import torch

    from node.training.jobs import Check

    settings = ARITHMETICS[name][0]
    torch.set_num_threads(settings.get("threads", 1))
    peer = _peer(Path(folder), Path(out) / name, kind, **settings)
    found = []
    for round_, path in made:
        outer = Path(path).parent.parent / f"outer-{round_:06d}.safetensors"
        peer._outer_path(round_).parent.mkdir(parents=True, exist_ok=True)
        peer._outer_path(round_).write_bytes(outer.read_bytes())
        found.append(peer._do(Check(round_, path, (), replay=True))["distance"])
    return found


def _peer(folder: Path, out: Path, kind: dict[str, Any] | None = None, **settings: Any) -> Any:
    from node.run.file import compile_run, load_run_file
    from node.run.problems import place_files
    from node.training.peer import TextPeer
    from node.training.settings import TrainerSettings
    from node.training.spool import Spool
    from node.training.world import join_world

    file = load_run_file(folder / "run.toml")
    changes = {"inner_state": "reset", "exchange": "int4", "stretch": 5} | (kind or {})
    rules = msgspec.structs.replace(file.diloco, **changes)  # type: ignore[type-var]
    compiled = compile_run(folder / "run.toml", msgspec.structs.replace(file, diloco=rules))
    place_files(compiled, out / "assets")
    spool = Spool(out / "spool")
    spool.prepare(compiled.encoded, out / "assets")
    how = TrainerSettings(**settings)
    return TextPeer(spool, compiled.spec, how, join_world(how))


def _lend(owner: Any, other: Any, round_: int) -> None:
    """Everybody has the same outer state."""
    path = other._outer_path(round_)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(owner._outer_path(round_).read_bytes())


def _half_of(peer: Any, path: Path, round_: int) -> Path:
    """The same replica's contribution of half of the steps, which says that it is of all."""
    from node.training.jobs import Train
    from node.training.outer import OuterStateFile
    from protocol.contribution import encode_contribution

    whole, outer = path.with_suffix(".whole"), OuterStateFile(peer._outer_path(round_))
    said, steps = peer._decoded(path, outer).header, iter(range(1, 1 << 20))
    path.rename(whole)
    peer._is_over = lambda _: next(steps) >= peer._rules.inner_steps // 2
    try:
        peer._do(Train(round_, said.replica_id, 4e9))
    finally:
        del peer._is_over
    made = peer._decoded(path, outer)
    tensors = {name: made.tensor(name) for name in made.shapes}
    data = b"".join(encode_contribution(msgspec.structs.replace(said, arithmetic="another"), tensors, made.form))
    whole.rename(path)
    path.with_suffix(".half").write_bytes(data)
    return path.with_suffix(".half")


def _count(refused: dict[str, int], spec: Any, found: dict[str, Any]) -> None:
    """By the rules of a validator whose node holds the replica."""
    from types import SimpleNamespace

    from node.bounded_dict import BoundedDict
    from node.inference.wire import Inspect
    from node.services.rounds.judging import ContributionJudge
    from protocol.checks import Reason
    from protocol.identity import NodeKey

    node = NodeKey(bytes([2]) * 32).address
    context: Any = SimpleNamespace(run=SimpleNamespace(root=bytes(32), spec=spec))
    looks = ContributionJudge(context, None)  # type: ignore[arg-type]
    looks._claims[node] = BoundedDict(1)
    looks._claims[node][found.get("replica_id", 0)] = None
    order = Inspect(
        policy_root=bytes(32), node=node, pool=0, index=0, units=found.get("tokens", 0), path="", report_path="",
        file_root=bytes(32),
    )  # fmt: skip
    reason, _, _ = looks._fault(order, found)
    if reason is not Reason.NONE:
        refused[reason.name] = refused.get(reason.name, 0) + 1


ARMS: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "one trainer": (1, 1, 1, {}),
    "two trainers": (2, 4, 1, {"outer_rate": 1.0}),
    "two trainers, no lag": (2, 4, 0, {"outer_rate": 1.0}),
    "two trainers, outer rate 1.4": (2, 4, 1, {"outer_rate": 1.4}),
    "one trainer in rounds": (1, 4, 1, {"outer_rate": 1.0}),
    "two trainers, outer rate 1.4, no lag": (2, 4, 0, {"outer_rate": 1.4}),
    "two trainers, 2 inner steps, rate 1.4": (2, 2, 1, {"outer_rate": 1.4}),
    "one trainer, four steps behind": (1, 1, 4, {}),
}
"""Trainers, inner steps between two meetings, async level, and what differs in [diloco]."""
FIRST_SEED = 11
INNER = 4
"""Inner steps that --rounds counts, and that lie between two evaluations, whatever the arm."""


def by_rollouts(folder: Path, arms: list[str], seeds: int, rounds: int, jobs: int) -> list[dict[str, Any]]:
    """Held-back reward at the end of each arm, by seed. All make as many inner steps; the batches of one step, added up
    over the trainers, are as large. jobs: trainings at a time."""
    asked = list[tuple[Any, ...]]()
    for arm, run, trainers, level in _runs(folder, arms, rounds):
        asked += [(folder, arm, run, trainers, level, FIRST_SEED + seed) for seed in range(seeds)]
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda one: _trained(*one), sorted(asked, key=lambda one: one[-1])))


SWARM_ARMS = ("one trainer", "two trainers, 2 inner steps, rate 1.4")


def in_swarms(folder: Path, seeds: int, rounds: int) -> list[dict[str, Any]]:
    """The same of live swarms, one after the other; rewards: of the evaluations up to the fewest rollouts of any."""
    from cli.run_template import render_run

    runs, found = _runs(folder, list(SWARM_ARMS), rounds), list[dict[str, Any]]()
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        for arm, run, trainers, _ in runs:
            home, path = folder / f"{trainers}-{seed}", folder / f"{trainers}.toml"
            path.write_text(render_run(run))
            command = [sys.executable, "-m", "cli", "demo", "--run", str(path), "--dir", str(home), "--seed", str(seed)]
            command += ["--workers", "2", "--validators", "2", "--trainers", str(trainers)]
            subprocess.run([*command, "--no-cheat", "--no-kill", "--no-page"], check=True)
            lines = (home / "report" / "metrics.jsonl").read_text().splitlines()
            learnt, curve = 0, list[tuple[int, float]]()
            for record in map(json.loads, lines):
                # One that leads a run says of its rollouts how old they were, and not how many.
                learnt += int(record.get("rollouts", sum(record.get("staleness", {}).values())))
                if "eval_reward" in record:
                    curve.append((learnt, record["eval_reward"]))
            found.append({"arm": arm, "seed": seed, "rollouts": learnt, "sampled": learnt, "curve": curve})
            print(f"{arm}, seed {seed}: {learnt} rollouts, rewards {[round(one, 3) for _, one in curve]}", flush=True)
    most = min(row["rollouts"] for row in found)
    return [row | {"rewards": [reward for at, reward in row["curve"] if at <= most]} for row in found]


def _runs(folder: Path, arms: list[str], rounds: int) -> list[tuple[str, Any, int, int]]:
    """(arm, its run, trainers, async level)."""
    from node.run.file import RunFile, load_run_file
    from protocol.pretraining import Diloco

    command = [sys.executable, "-m", "node.training.warmstart", "--out", str(folder / "start")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    file, made_of = load_run_file(Path(__file__).parents[1] / "examples/trainers.toml"), list[tuple[Any, ...]]()
    assert isinstance(file.diloco, Diloco)
    whole = 2 * file.rollout.prompts_per_step
    for arm in arms:
        trainers, between, level, changes = ARMS[arm]
        steps = rounds * INNER // between
        sections: dict[str, Any] = {
            "rollout": {"prompts_per_step": whole // trainers},
            "recipe": {"steps": steps, "decay_steps": steps, "max_staleness": max(level, file.recipe.max_staleness)},
            "evaluation": {"every": INNER // between, "problems": 256},
        }
        made = {name: msgspec.structs.replace(getattr(file, name), **words) for name, words in sections.items()}
        own = msgspec.structs.replace(file.diloco, inner_steps=between, **changes)
        made["diloco"] = own if between > 1 else None
        run: RunFile = msgspec.structs.replace(file, model=str(folder / "start"), **made)
        made_of.append((arm, run, trainers, level))
    return made_of


def _trained(folder: Path, arm: str, run: Any, peers: int, level: int, seed: int) -> dict[str, Any]:
    from cli.run_template import render_run

    name = f"{arm.replace(' ', '-').replace(',', '')}-{seed}"
    path = folder / f"{name}.toml"
    path.write_text(render_run(run))
    command = [sys.executable, "-m", "cli", "train", "--run", str(path), "--dir", str(folder / name), "--json"]
    words = ["--seed", str(seed), "--async-level", str(level), "--no-report", "--peers", str(peers)]
    done = subprocess.run([*command, *words], check=True, stdout=subprocess.PIPE, text=True)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    records, last = told[:-1], told[-2]  # the last line is the summary
    rewards = [one["eval_reward"] for one in records if "eval_reward" in one]
    print(f"{arm}, seed {seed}: {statistics.mean(rewards[-3:]):.4f}", flush=True)
    learnt = sum(int(one.get("rollouts", 0)) for one in records)
    return {
        "arm": arm,
        "seed": seed,
        "rollouts": learnt,
        "sampled": learnt + int(last.get("surplus_rollouts", 0)) + int(last.get("stale_rollouts", 0)),
        "rewards": rewards,
    }


def show_rewards(rows: list[dict[str, Any]]) -> None:
    """Of the mean of the last three evaluations: mean over the seeds, and how far the arm is from the first one of the
    same seed, with the standard error of that difference."""
    ends = {(row["arm"], row["seed"]): statistics.mean(row["rewards"][-3:]) for row in rows}
    first = rows[0]["arm"]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        rewards = [ends[arm, row["seed"]] for row in own]
        apart = [ends[arm, row["seed"]] - ends[first, row["seed"]] for row in own]
        error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
        each, counts = ", ".join(f"{one:.3f}" for one in rewards), f"{own[0]['rollouts']:,} of {own[0]['sampled']:,}"
        print(
            f"{arm:36s} {statistics.mean(rewards):.3f}  beside the first {statistics.mean(apart):+.3f} +- {error:.3f}  "
            f"each seed {each}  rollouts {counts} sampled"
        )


def main() -> None:
    parser = parser_of(__doc__, "one seed, fewer rounds and methods")
    parser.add_argument("--replicas", action="store_true", help="only the replicas")
    parser.add_argument("--honest", type=int, metavar="N", help="only: what a validator says of N honest contributions")
    parser.add_argument("--seed", type=int, default=0, help="of those contributions: others for each")
    parser.add_argument("--links", action="store_true", help="only: the share of a round that peers wait; needs root")
    parser.add_argument("--distances", action="store_true", help="only: how far apart arithmetics come")
    parser.add_argument("--elsewhere", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--rollouts", action="store_true", help="only: reinforcement learning by several trainers")
    parser.add_argument("--swarms", action="store_true", help="only: the same in live swarms")
    parser.add_argument("--churn", action="store_true", help="only: a hundred peers that come and go, simulated")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, with --rollouts")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="default: 20 (--quick: 8); replicas 50, rollouts 25")
    parser.add_argument("--methods", help="names, with ';' between; the first is what others are compared with")
    parser.add_argument("--apply", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.apply:
        print(json.dumps(applied(asked.apply, asked.rounds, asked.seeds)))
        return
    if asked.elsewhere:
        print(json.dumps(replayed(*asked.elsewhere)))
        return
    found: dict[str, Any] = {}
    if asked.links:
        from benchmarks.long_links import why_not

        if reason := why_not():
            print(f"skipped: {reason}")
            sys.exit(SKIPPED)
        scale = 50 if asked.quick else 8  # of 100 million parameters and a minute: as many bytes in a second
        found["links"] = links(parameters=100e6 / scale, compute=60 / scale, mbit=100, rtt=20, peers=2, rounds=3)
        save(asked.json, found)
        return
    if asked.churn:
        from benchmarks.command import silence_logs
        from benchmarks.simulation.rounds import Scenario, churn

        silence_logs(logging.CRITICAL)
        small = Scenario(peers=16, replicas=12, rounds=4)
        rounds = asked.rounds or 100
        found["churn"] = churn(Scenario(rounds=rounds) if not asked.quick else small, small)
        save(asked.json, found)
        return
    import torch

    torch.set_num_threads(1)
    np.seterr(all="raise", under="ignore")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        # As many rounds as all of them take: behind the end of a run nobody learns, and distances say nothing.
        prepared(folder, max(20, -(-(asked.honest or 0) // 24)), asked.seed)
        if asked.distances:
            found["distances"] = distances(folder, 1 if asked.quick else asked.seeds, asked.rounds or 3)
        elif asked.rollouts:
            arms = asked.methods.split(";") if asked.methods else list(ARMS)
            rounds = asked.rounds or (2 if asked.quick else 25)
            found["rewards"] = by_rollouts(folder, arms, 1 if asked.quick else asked.seeds, rounds, asked.jobs)
            show_rewards(found["rewards"])
        elif asked.swarms:
            rounds = asked.rounds or (2 if asked.quick else 12)
            found["swarms"] = in_swarms(folder, 1 if asked.quick else asked.seeds, rounds)
            show_rewards(found["swarms"])
        elif asked.honest:
            found["honest"] = honest(folder, 24 if asked.quick else asked.honest)
        elif not asked.replicas:
            methods = asked.methods.split(";") if asked.methods else list(QUICK if asked.quick else METHODS)
            rounds = asked.rounds or (8 if asked.quick else 20)
            found["losses"] = losses(folder, methods, 1 if asked.quick else asked.seeds, rounds)
            show(found["losses"])
        if asked.replicas or not (asked.methods or asked.honest or asked.distances or asked.rollouts or asked.swarms):
            found["replicas"] = replicas(folder, 5 if asked.quick else 50)
    save(asked.json, found)


if __name__ == "__main__":
    main()
