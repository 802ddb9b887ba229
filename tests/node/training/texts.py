"""A run that pre-trains a tiny byte-level model on made-up text, laid out as the learner finds it."""

import json
from pathlib import Path
from typing import Any

import msgspec

from examples.make_pretrain import create_byte_model
from node.run.file import CompiledRun, compile_run
from node.run.problems import place_files
from node.training.spool import Spool

RUN = """
name = "texts"
model = "model"
[pretraining]
sequence = 16
held_back = 8
learning_rate = 5e-3
warmup_steps = 2
decay_from = 0.5
{text}
[[pretraining.data]]
name = "counting"
file = "counting.jsonl"
weight = 3
annealing = 1
[[pretraining.data]]
name = "letters"
file = "letters.txt"
[diloco]
inner_steps = {inner}
batch_tokens = 64
stretch = 2
max_contributions = 4
{rounds}
[recipe]
steps = {steps}
"""


def write_texts(folder: Path, *, text: str = "", rounds: str = "", steps: int = 3, inner: int = 4) -> Path:
    """The run file, beside its model and text. text, rounds: more lines of [pretraining] and [diloco]."""
    if not (folder / "model").exists():
        create_byte_model(folder / "model", seed=1, hidden=32, layers=1)
    lines = (json.dumps({"text": " ".join(str(i + j) for j in range(20))}) for i in range(200))
    (folder / "counting.jsonl").write_text("\n".join(lines))
    (folder / "letters.txt").write_text("abcdefghijklmnopqrstuvwxyz\n" * 100)
    (folder / "run.toml").write_text(RUN.format(text=text, rounds=rounds, steps=steps, inner=inner))
    return folder / "run.toml"


def compiled(folder: Path, **how: Any) -> CompiledRun:
    return compile_run(write_texts(folder, **how), desk=True)


def spool_of(run: CompiledRun, folder: Path, peers: int = 2) -> Spool:
    """A prepared spool below `folder`."""
    if not (folder / "assets").exists():
        place_files(run, folder / "assets")
    spool = Spool(folder / "spool")
    spool.prepare(run.encoded, folder / "assets")
    spool.peers_path.write_text(str(peers))
    return spool


def records(spool: Spool) -> list[dict[str, Any]]:
    """Those of all rounds, without what differs between two runs of the same."""
    found = []
    for step in range(spool.newest_step() + 1):
        record = msgspec.json.decode(spool.metrics_path(step).read_bytes(), type=dict[str, Any])
        found.append({name: value for name, value in record.items() if name not in ("seconds", "performance")})
    return found
