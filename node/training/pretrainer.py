"""Rounds at a desk, from top to bottom: several peers in one process (or one group of ranks), and pre-training.

Each round every replica begins at the same outer state, makes its inner steps and writes its contribution; then all
that is in is added in the order of the contributions' ids, which makes the next outer state. Everything goes over the
files that a swarm's peers would exchange. What an inner step learns from is text here, and rollouts in
node.training.replicas. Below the spool (node.training.spool):

    peers                                  how many there are
    rounds/outer-000012.safetensors        the outer state that round 12 begins with, float32
    rounds/000012/replica-3.inc               a contribution; its presence means that the replica has done the round
    rounds/000012/replica-3.json              what its training said
    rounds/000012/own-3.safetensors        its optimisers, what it carries over, and its copy of the model where a round
                                           exchanges a fragment, as the round left them

Killed at any time, it goes on with the replica that was at work, and the same numbers come out.
"""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from node.inference.start_weights import StartWeights
from node.state.files import mapped, whole_file, write_whole
from node.training.bells import ring
from node.training.contributing import Contributing, newest_of
from node.training.errors import TrainingError
from node.training.image import stream_image
from node.training.inner import InnerLearner
from node.training.memory import OutOfMemory, during
from node.training.outer import MOMENTUM, OuterStateFile, apply_round, outer_shapes, write_state
from node.training.performance import measured
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.text import TextData
from node.training.world import World
from protocol.exchange import F32
from protocol.policy import policy_root
from protocol.pretraining import peers_rule
from protocol.rounds import chosen, too_large
from protocol.run import RunSpec

_PEER = "intellect-node desk peer v1"


class RoundTrainer(Contributing):
    """Rounds of one run on one spool, all replicas in one process. Who derives from it says what they learn from."""

    def _rate(self, round_: int) -> float:
        """The learning rate at the end of a round."""
        raise NotImplementedError

    def _evaluate(self) -> dict[str, Any]:
        """What the learner's weights are worth; nothing where another process evaluates."""
        return {}

    def _length(self, metrics: dict[str, Any]) -> float:
        """Tokens of one sequence of a round, about."""
        raise NotImplementedError

    def train(self) -> None:
        """Work until the last round's outer state is published. Raises TrainingError, also where the disk is full: what
        was whole before is still there, and it goes on from that. SystemExit where smaller passes are to be tried."""
        try:
            with self._smaller_passes():
                self._train()
        except OSError as error:
            raise TrainingError(
                "pre-training cannot write its files",
                f"{error.filename or self._spool.root}: {error.strerror or error}",
                "free space there, or see who may write; then go on with --resume",
            ) from error

    @contextmanager
    def _smaller_passes(self) -> Iterator[None]:
        """Memory that runs out in a pass ends the process; the next one makes smaller ones."""
        try:
            yield
        except OutOfMemory as error:
            self._limit.begin_again(error, max(0, self._spool.newest_step()), self._learner.divisible)
            raise

    def _train(self) -> None:
        peers, round_ = peers_of(self._spool, self._run), self._start()
        while round_ < self._run.recipe.steps:
            self._seconds = {}
            with self._timed("step"):
                for replica_id in range(peers):
                    self._contribute(round_, replica_id)
                metrics = self._close(round_, peers)
            round_ += 1
            self._publish(round_, metrics)
            self._forget(round_)

    # From where

    def _start(self) -> int:
        """The newest round that is published and whose outer state is here; or the start model's, as round 0."""
        newest = newest_of(self._spool, self._world)
        if newest >= 0:
            OuterStateFile(self._outer_path(newest)).check()
            return newest
        self._begin()
        self._publish(0, {})
        return 0

    def _begin(self) -> None:
        """The start model, as the outer state of round 0."""
        start = StartWeights(self._spool.assets / "model")
        start.check(self._learner.parameters)
        if self._world.first:
            shapes = outer_shapes(self._learner.shapes, self._rules)
            write_state(self._outer_path(0), 0, shapes, ((name, _started(start, name)) for name in sorted(shapes)))
        self._world.share(b"\0")

    # The end of a round

    def _close(self, round_: int, peers: int) -> dict[str, Any]:
        """Add what is in to the outer state, which makes the next one; metrics of the round."""
        metrics: dict[str, Any] = {}
        if self._world.first:
            with self._timed("apply"):
                metrics = self._apply(round_, peers)
        self._world.share(b"\0")
        return metrics

    def _apply(self, round_: int, peers: int) -> dict[str, Any]:
        outer, rules = OuterStateFile(self._outer_path(round_)), self._rules
        paths = [self._contribution_path(round_, replica_id) for replica_id in range(peers)]
        begun = OuterStateFile(self._outer_path(rules.begins_at(round_)))
        found = {blake3(mapped(path)).digest(): self._decoded(path, begun, round_) for path in paths}
        norms = {one: contribution.check() for one, contribution in found.items()}
        refused = too_large(norms)
        authors = {
            one: blake3(each.header.replica_id.to_bytes(4, "little"), derive_key_context=_PEER).digest()
            for one, each in found.items()
            if one not in refused
        }
        ids = chosen(authors, rules.max_contributions, outer.root)
        root = apply_round(outer, [found[one] for one in ids], rules, self._outer_path(round_ + 1))
        told = self._told(round_, peers)
        largest = max(path.stat().st_size for path in paths)
        tokens = sum(found[one].header.tokens for one in ids)
        return {
            "loss": _mean(told, "loss"),
            "loss_last": _mean(told, "loss_last"),
            "grad_norm": _mean(told, "grad_norm"),
            "grad_norm_max": max(one["grad_norm_max"] for one in told),
            "tokens": tokens,
            "contributions": len(ids),
            "refused": len(refused),
            "contribution_bytes": largest,
            "bits_per_parameter": 8 * largest / sum(map(math.prod, self._learner.shapes.values())),
            "contribution_norm": float(np.mean(list(norms.values()))),
            "learning_rate": self._rate(round_),
            "inner_steps": (round_ + 1) * rules.round_steps,
            "updates": rules.round_steps,
            "outer_root": root.hex(),
        }

    def _told(self, round_: int, peers: int) -> list[dict[str, Any]]:
        """What each replica's training said."""
        paths = [self._contribution_path(round_, replica_id).with_suffix(".json") for replica_id in range(peers)]
        return [json.loads(path.read_bytes()) for path in paths]

    # Policies out

    def _publish(self, round_: int, metrics: dict[str, Any]) -> None:
        """Evaluate the outer state, then its bf16 image, then metrics: their presence makes the round complete."""
        outer = OuterStateFile(self._outer_path(round_))
        self._learner.load(outer.tensor)
        if round_ % self._run.evaluation.every == 0 or round_ == self._run.recipe.steps:
            with self._timed("evaluate"):
                metrics |= self._evaluate()
        with self._timed("publish"), during("publish", self._settings, round_):
            bf16 = ((name, torch.from_numpy(values).to(torch.bfloat16)) for name, values in self._learner.weights())
            # Gathering needs every rank, writing one.
            if not self._world.first:
                for _ in bf16:
                    continue
                return
            with whole_file(self._spool.policy_path(round_)) as file:
                image = stream_image(self._learner.shapes, bf16, file)
        fed, world = float(metrics.get("fed_tokens", metrics.get("tokens", 0.0))), self._world
        seconds = self._seconds.get("inner", 0.0) - self._seconds.get("wait", 0.0)
        peak, length = self._settings.peak_tflops, self._length(metrics)
        metrics |= {
            "step": round_,
            "seconds": {name: round(seconds, 4) for name, seconds in self._seconds.items()},
            "outer_root": outer.root.hex(),
            "policy_root": policy_root(round_, image.tensors).hex(),
            "image": image.digest,
            "computed_by": self.arithmetic,
            "performance": measured(self._learner.model, fed, length, seconds, world.device, world.size, peak),
        }
        write_whole(self._spool.metrics_path(round_), json.dumps(metrics, allow_nan=False).encode())
        ring(self._spool.root)

    def _forget(self, round_: int) -> None:
        """What neither a restart nor a look at the last round needs."""
        if not self._world.first:
            return
        for path in self._rounds.iterdir():
            name = path.name.removeprefix("outer-").removesuffix(".safetensors")
            if name.isdigit() and int(name) < round_ - 2:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif name.isdigit() and int(name) < round_ - 1:  # but for what the last round's steps began with
                for one in path.iterdir() if path.is_dir() else [path]:
                    one.unlink() if not one.name.startswith("own-") else None
            elif path.name.startswith("."):
                path.unlink()


class Pretrainer(RoundTrainer):
    """A run that learns from text."""

    _learner: InnerLearner

    def __init__(self, spool: Spool, run: RunSpec, settings: TrainerSettings, world: World) -> None:
        """Raises TrainingError, TextError."""
        if run.pretraining is None:
            raise ValueError("a run without [pretraining]")
        super().__init__(spool, run, settings, world)
        self._text = run.pretraining
        self._data = TextData(run, self._root, spool.assets)
        self._learner = InnerLearner(self._new_model(), run, self._data.end, self._settings, world)
        if self._rules.fragments > len(self._learner.shapes):
            why = f"the model has {len(self._learner.shapes)} tensors"
            raise TrainingError(f"diloco.fragments = {self._rules.fragments} leaves rounds nothing", why, "give fewer")

    def _inner_step(self, round_: int, replica_id: int, number: int) -> dict[str, Any]:
        step = round_ * self._rules.round_steps + number
        loss, norm = self._learner.step(self._data.rows(replica_id, step), step)
        return {"loss": loss, "grad_norm": norm}

    def _rate(self, round_: int) -> float:
        inner = self._rules.round_steps
        return self._text.rate((round_ + 1) * inner - 1, self._run.recipe.steps * inner)

    def _length(self, metrics: dict[str, Any]) -> float:
        return float(self._text.sequence)

    def _evaluate(self) -> dict[str, Any]:
        """Loss on held-back rows, nats per token: of each data set, and of all by their share of the mix."""
        losses = [self._learner.loss(self._data.held_back(part)) for part in range(len(self._data.names))]
        weights = self._text.weights(annealing=False)
        loss = float(np.average(losses, weights=weights))
        return {
            "eval_loss": loss,
            # math.exp raises OverflowError above 709.
            "perplexity": math.exp(min(loss, 700.0)),
            "eval_loss_by_data": dict(zip(self._data.names, losses, strict=True)),
        }


def peers_of(spool: Spool, run: RunSpec) -> int:
    """Raises TrainingError."""
    assert run.diloco  # the caller's
    peers = int(spool.peers_path.read_text()) if spool.peers_path.exists() else 1
    if why := peers_rule(peers, run.diloco):
        raise TrainingError(f"{peers} peers cannot train this run", why, "give another number of --peers")
    return peers


def _started(start: StartWeights, name: str) -> F32:
    """A tensor of round 0: the start model's, or no momentum yet."""
    values = start[name.removeprefix(MOMENTUM)].float().numpy()
    return np.zeros_like(values) if name.startswith(MOMENTUM) else values


def _mean(told: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([one[name] for one in told]))
