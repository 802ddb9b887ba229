"""Supervised fine-tuning before a run: a model that answers as examples do, from which the run then starts.

One process on one device; the learner's passes and output head, so memory does not grow with vocabulary times length.
The same examples, seed and machine give the same model.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from node.inference.model_files import CONFIG, as_bf16, is_model_file
from node.inference.start_weights import StartWeights
from node.inference.torch_engine import bf16_bits, build_model, image_names
from node.training.batch import BatchRow
from node.training.errors import TrainingError
from node.training.micro_batch import packed
from node.training.packing import plan
from node.training.policy_model import PolicyModel
from node.training.settings import TrainerSettings
from protocol.policy import encode_image


@dataclass(frozen=True, slots=True)
class ImitationSettings:
    """batch: examples of a step; the learning rate falls to zero in a line."""

    steps: int
    batch: int
    learning_rate: float
    seed: int


def imitate(
    base: Path,
    examples: Sequence[tuple[list[int], list[int]]],
    imitation: ImitationSettings,
    settings: TrainerSettings,
    on_progress: Callable[[dict[str, Any]], None] = lambda record: None,
) -> tuple[Any, dict[str, float]]:
    """(the fp32 model, figures). examples: (prompt, answer with its end token). loss_first and loss_last: nats per
    token of answers that were not learnt from. Raises ModelError, TrainingError."""
    rows = [BatchRow(i, prompt, answer, [], 0.0, 0) for i, (prompt, answer) in enumerate(examples)]
    held_back = 20  # one example of so many is not learnt from, but measured on
    tested, taught = rows[::held_back], [row for i, row in enumerate(rows) if i % held_back]
    if not taught:
        why = f"there are {len(rows)} examples, and one in {held_back} is only measured on"
        raise TrainingError("nothing can be imitated", why, "give more examples")
    device = torch.device("cuda" if settings.device != "cpu" and torch.cuda.is_available() else "cpu")
    policy = PolicyModel(_started(base, device), 1.0, settings.logit_cells)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=imitation.learning_rate, weight_decay=0.0)
    figures = {"loss_first": _loss(policy, tested, settings, device)}
    for step, batch in enumerate(islice(_drawn(taught, imitation), imitation.steps)):
        for group in optimizer.param_groups:
            group["lr"] = imitation.learning_rate * (1 - step / imitation.steps)
        loss = _learn(policy, optimizer, batch, settings, device)
        on_progress({"step": step + 1, "loss": round(loss, 4)})
    return policy.model, figures | {"loss_last": _loss(policy, tested, settings, device)}


def write_model(base: Path, out: Path, model: Any) -> None:
    """A model directory whose weights are the canonical bf16 image; it appears whole."""
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in sorted(base.iterdir()):
        if path.is_file() and is_model_file(path):
            shutil.copyfile(path, partial / path.name)
    names = image_names(model)
    (partial / CONFIG).write_bytes(as_bf16((partial / CONFIG).read_bytes(), names))
    image = encode_image({name: bf16_bits(tensor.detach()) for name, tensor in names.items()})
    (partial / "model.safetensors").write_bytes(image)
    partial.rename(out)


def _started(base: Path, device: torch.device) -> Any:
    """The base's own weights, rounded as policy 0 would have them."""
    model = build_model(base, str(device))
    names, weights = image_names(model), StartWeights(base)
    weights.check(names)
    with torch.no_grad():
        for name, parameter in names.items():
            parameter.copy_(weights[name])
    return model


def _drawn(rows: Sequence[BatchRow], imitation: ImitationSettings) -> Iterator[list[BatchRow]]:
    """Batches without end; each example once before any is there again."""
    random = np.random.default_rng(imitation.seed)
    # `iter(int, 1)` never ends: int() is 0.
    turns = chain.from_iterable(random.permutation(len(rows)) for _ in iter(int, 1))
    while True:
        yield [rows[i] for i in islice(turns, imitation.batch)]


def _micro(rows: Sequence[BatchRow], settings: TrainerSettings) -> Iterator[list[BatchRow]]:
    for (chosen,) in plan(np.array([row.fed for row in rows]), settings.micro_batch_tokens):
        yield [rows[i] for i in chosen]


def _learn(
    policy: PolicyModel,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[BatchRow],
    settings: TrainerSettings,
    device: torch.device,
) -> float:
    """Every token of the answers counts the same; returns their mean loss, in nats."""
    optimizer.zero_grad(set_to_none=True)
    total, tokens = 0.0, sum(row.length for row in rows)
    for some in _micro(rows, settings):
        loss = -policy(packed(some, device))[0].sum() / tokens
        loss.backward()
        total += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    return total


@torch.no_grad()
def _loss(policy: PolicyModel, rows: Sequence[BatchRow], settings: TrainerSettings, device: torch.device) -> float:
    summed = sum(float(policy(packed(some, device))[0].sum()) for some in _micro(rows, settings))
    return -summed / sum(row.length for row in rows)
