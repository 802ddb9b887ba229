"""Rounds at a desk, from top to bottom: several peers in one process (or one group of ranks), and pre-training.

Each round every seat begins at the same outer state, makes its inner steps and writes its contribution; then all that
is in is added in the order of the contributions' ids, which makes the next outer state. Everything goes over the files
that a swarm's peers would exchange. What an inner step learns from is text here, and rollouts in node.training.seats.
Below the spool (node.training.spool):

    peers                                  how many there are
    rounds/outer-000012.safetensors        the outer state that round 12 begins with, float32
    rounds/000012/seat-3.inc               a contribution; its presence means that the seat has done the round
    rounds/000012/seat-3.json              what its training said
    rounds/000012/own-3.safetensors        its optimisers, what it carries over, and its copy of the model where a round
                                           exchanges a fragment, as the round left them

Killed at any time, it goes on with the seat that was at work, and the same numbers come out.
"""

import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import torch
from blake3 import blake3

from node.hardware.cpu import look
from node.inference.settings import hardware
from node.inference.start_weights import StartWeights
from node.inference.torch_engine import build_model
from node.state.files import mapped, whole_file, write_whole
from node.training.errors import TrainingError
from node.training.image import stream_image
from node.training.inner import Inner, InnerLearner, Tensors
from node.training.length import without_length
from node.training.outer import MOMENTUM, StateFile, Take, apply_round, outer_shapes, state_file, write_state
from node.training.performance import measured
from node.training.settings import TrainerSettings
from node.training.sharding import without_memory
from node.training.spool import Spool
from node.training.text import TextData
from node.training.world import World, compute_dtype
from protocol.blobs import describe
from protocol.contribution import Contribution, ContributionHeader, decode_contribution, encode_header, expected_of
from protocol.exchange import F32, form_of
from protocol.policy import policy_root
from protocol.pretraining import peers_rule
from protocol.rounds import chosen, fragment, state_root, too_large
from protocol.run import RunSpec

CARRIED = "carried/"
"""Before the names of what a peer has not sent yet, among its own tensors."""
COPY = "copy/"
"""Before the names of its own copy of the model, where a round exchanges a fragment: weights as the round left them; of
what the round before sent, whose outcome the round's steps do not see yet, by how much these steps changed it."""
_PEER = "intellect-node desk peer v1"


class RoundTrainer:
    """One run on one spool. Who derives from it says what an inner step is."""

    _learner: Inner
    _batch = 0
    """Rollouts of an inner step; 0 where it learns from text."""

    def __init__(self, spool: Spool, run: RunSpec, settings: TrainerSettings, world: World) -> None:
        if run.diloco is None:
            raise ValueError("a run without [diloco]")
        self._spool, self._run, self._settings, self._world = spool, run, settings, world
        self._rules, self._form = run.diloco, form_of(run.diloco)
        self._root = blake3(without_length(run)).digest()
        self._seconds: dict[str, float] = {}

    def _new_model(self) -> Any:
        with without_memory(self._world):
            return build_model(self._spool.assets / "model")

    def _inner_step(self, round_: int, seat: int, number: int) -> dict[str, Any]:
        """Make an inner step of a seat with the learner; its metrics, `loss` and `grad_norm` among them."""
        raise NotImplementedError

    def _batches(self, round_: int, seat: int, count: int) -> tuple[bytes, ...]:
        """Roots of the manifests of a seat's first inner steps, where batches have some."""
        return ()

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
        was whole before is still there, and it goes on from that."""
        try:
            self._train()
        except OSError as error:
            raise TrainingError(
                "pre-training cannot write its files",
                f"{error.filename or self._spool.root}: {error.strerror or error}",
                "free space there, or see who may write; then go on with --resume",
            ) from error

    def _train(self) -> None:
        peers, round_ = peers_of(self._spool, self._run), self._start()
        while round_ < self._run.recipe.steps:
            self._seconds = {}
            with self._timed("step"):
                for seat in range(peers):
                    self._contribute(round_, seat)
                metrics = self._close(round_, peers)
            round_ += 1
            self._publish(round_, metrics)
            self._forget(round_)

    # From where

    def _start(self) -> int:
        """The newest round that is published and whose outer state is here; or the start model's, as round 0."""
        # The first rank has the word: other machines have no policies. One more, so that nothing negative is sent.
        newest = int.from_bytes(self._world.share((self._spool.newest_step() + 1).to_bytes(8, "little")), "little")
        if newest:
            StateFile(self._outer_path(newest - 1)).check()
            return newest - 1
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

    # A seat's round

    def _contribute(
        self, round_: int, seat: int, until: float = math.inf, *, fresh: bool = False, most: int | None = None
    ) -> None:
        """Train from the outer state for inner_steps (or at most `most` of them), or until the time is over, and write
        what came of it; nothing if that is there already. fresh: the seat leaves what its last round left it."""
        if self._here(self._seat_path(round_, seat)):
            return
        before = None if fresh else self._own(round_, seat)
        header, steps = self._steps(round_, seat, before, until, most)
        with self._timed("exchange"):
            paths = self._seat_path(round_, seat), self._own_path(round_, seat)
            if self._world.first:
                # Before the contribution, whose presence ends the round of this seat.
                write_whole(paths[0].with_suffix(".json"), json.dumps(self._said(steps)).encode())
            self._write(header, before, *paths)

    def _steps(
        self, round_: int, seat: int, before: StateFile | None, until: float = math.inf, most: int | None = None
    ) -> tuple[ContributionHeader, list[dict[str, Any]]]:
        """Make a seat's steps of a round with the learner. (what their contribution says, but for the seat's own state
        afterwards; metrics of each). before: the seat's own state, None where it begins; most: steps."""
        learner, rules = self._learner, self._rules
        outer = StateFile(self._outer_path(rules.begins_at(round_)))
        learner.load(self._beginning(outer, before, round_))
        learner.begin(before.tensor if before and rules.inner_state == "kept" else None)
        steps, digests = list[dict[str, Any]](), list[bytes]()
        with self._timed("inner"):
            for number in range(rules.round_steps if most is None else most):
                step = round_ * rules.round_steps + number
                if number and self._is_over(until):
                    break
                if rules.stretch and number % rules.stretch == 0:
                    digests.append(learner.digest(step))
                steps.append(self._inner_step(round_, seat, number))
        header = ContributionHeader(
            self._root,
            round_,
            outer.root,
            seat,
            len(steps) * (self._batch or rules.batch_tokens),
            steps[0]["loss"],
            steps[-1]["loss"],
            # The second root is of what the seat keeps afterwards: `_write` fills it in.
            (blob_root(before.path) if before else state_root(round_, ()), bytes(32)),
            tuple(digests),
            self.arithmetic,
            self._batches(round_, seat, len(steps)),
        )
        return header, steps

    def _said(self, steps: list[dict[str, Any]]) -> dict[str, Any]:
        """Of a seat's steps, for the round's record."""
        norms = [one["grad_norm"] for one in steps]
        return {
            "loss": float(np.mean([one["loss"] for one in steps])),
            "loss_last": steps[-1]["loss"],
            "grad_norm": float(np.mean(norms)),
            "grad_norm_max": max(norms),
        }

    def _beginning(self, outer: StateFile, before: StateFile | None, round_: int) -> Tensors:
        """The weights with which a seat's steps of a round begin: the outer state; with fragments its own copy of what
        is not exchanged yet, and the outcome of what is, changed as much as it was meanwhile."""
        if before is None or self._rules.fragments == 1:
            return outer.tensor
        changed = frozenset(self._sent(round_ - 2))

        def tensor(name: str) -> F32:
            own = before.tensor(COPY + name)
            return outer.tensor(name) + own if name in changed else own

        return tensor

    def _sent(self, round_: int) -> list[str]:
        """The tensors that a round exchanges."""
        return fragment(self._learner.shapes, round_, self._rules.fragments)

    def _shapes_of(self, round_: int) -> dict[str, tuple[int, ...]]:
        """Of a contribution."""
        return {name: self._learner.shapes[name] for name in self._sent(round_)}

    def _is_over(self, until: float) -> bool:
        """Whether a time is over by the first rank's clock: all ranks make the same steps."""
        return until < math.inf and self._world.share(bytes([time.time() > until])) == b"\1"

    def _own(self, round_: int, seat: int) -> StateFile | None:
        """What the seat's last round left of it; None if it begins, or keeps nothing."""
        path = self._own_path(round_ - 1, seat)
        return StateFile(path) if path.exists() else None

    def _write(self, header: ContributionHeader, before: StateFile | None, path: Path, own: Path) -> None:
        """What the seat keeps for itself, and its contribution. Tensor by tensor; all ranks take part in gathering."""
        learner = self._learner
        if self._world.first:
            with whole_file(path) as file:
                file.write(encode_header(header))
                # Inside the block: what the seat keeps is whole before the contribution has its name.
                root = self._write_tensors(header, before, own, file)
                whole = msgspec.structs.replace(header, inner=(header.inner[0], root))
                file.seek(0)
                file.write(encode_header(whole))  # of the same length: only a root is another
        else:
            # As many tensors, and in the order, as the first rank gathers in `_write_tensors`: all take part in each.
            copies = learner.weights() if self._rules.fragments > 1 else ()
            for _ in chain(learner.weights(), copies, learner.own_tensors() if self._kept else ()):
                continue
        self._world.share(b"\0")

    def _own_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what a seat keeps for itself from one round to the next."""
        learner, rules = self._learner, self._rules
        shapes = learner.own_shapes() if self._kept else {}
        shapes |= {CARRIED + name: shape for name, shape in learner.shapes.items()} if rules.carries_over else {}
        return shapes | ({COPY + name: shape for name, shape in learner.shapes.items()} if rules.fragments > 1 else {})

    def _write_tensors(self, header: ContributionHeader, before: StateFile | None, own: Path, file: BinaryIO) -> bytes:
        """The contribution's tensors into `file`, the seat's own into theirs; the root of these."""
        learner, carries, shapes = self._learner, self._rules.carries_over, self._own_shapes()
        outer = StateFile(self._outer_path(self._rules.begins_at(header.round)))
        sent = frozenset(self._sent(header.round))
        if not shapes:
            for name, values in learner.weights():
                file.write(self._form.encode(outer.tensor(name).reshape(-1) - values))
            return state_root(header.round + 1, ())
        with state_file(own, header.round + 1, shapes) as (take, _):
            for name, values in learner.weights():  # "carried/" stands before all other names, and then "copy/"
                left = before.tensor(CARRIED + name).reshape(-1) if before and carries else np.zeros_like(values)
                if name in sent:
                    difference = outer.tensor(name).reshape(-1) - values
                    if before and carries:
                        difference += np.float32(self._rules.feedback) * left
                    data = self._form.encode(difference)
                    file.write(data)
                    left = difference - self._form.decode(data, difference.size) if carries else left
                if carries:
                    take(CARRIED + name, left)
            if self._rules.fragments > 1:
                self._take_copy(header.round, self._beginning(outer, before, header.round), take)
            for name, values in learner.own_tensors() if self._kept else ():
                take(name, values)
        return blob_root(own)

    def _take_copy(self, round_: int, beginning: Tensors, take: Take) -> None:
        """The seat's copy of the model, into its own state."""
        changed = frozenset(self._sent(round_ - 1))
        for name, values in self._learner.weights():
            take(COPY + name, values - beginning(name).reshape(-1) if name in changed else values)

    @property
    def _kept(self) -> bool:
        """Whether the optimisers' moments outlive a round."""
        return self._rules.inner_state == "kept"

    # The end of a round

    def _decoded(self, path: Path, outer: StateFile, round_: int | None = None) -> Contribution:
        """Of steps that began at an outer state; round_: None for that state's own. Raises ContributionError."""
        round_ = outer.round if round_ is None else round_
        expected = expected_of(self._rules, self._root, {round_: outer.root}, self._batch)
        return decode_contribution(mapped(path), self._shapes_of(round_), self._form, expected)

    def _close(self, round_: int, peers: int) -> dict[str, Any]:
        """Add what is in to the outer state, which makes the next one; metrics of the round."""
        metrics: dict[str, Any] = {}
        if self._world.first:
            with self._timed("apply"):
                metrics = self._apply(round_, peers)
        self._world.share(b"\0")
        return metrics

    def _apply(self, round_: int, peers: int) -> dict[str, Any]:
        outer, rules = StateFile(self._outer_path(round_)), self._rules
        paths = [self._seat_path(round_, seat) for seat in range(peers)]
        begun = StateFile(self._outer_path(rules.begins_at(round_)))
        found = {blake3(mapped(path)).digest(): self._decoded(path, begun, round_) for path in paths}
        norms = {one: contribution.check() for one, contribution in found.items()}
        refused = too_large(norms)
        authors = {
            one: blake3(each.header.seat.to_bytes(4, "little"), derive_key_context=_PEER).digest()
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
        """What each seat's training said."""
        paths = [self._seat_path(round_, seat).with_suffix(".json") for seat in range(peers)]
        return [json.loads(path.read_bytes()) for path in paths]

    # Policies out

    def _publish(self, round_: int, metrics: dict[str, Any]) -> None:
        """Evaluate the outer state, then its bf16 image, then metrics: their presence makes the round complete."""
        outer = StateFile(self._outer_path(round_))
        self._learner.load(outer.tensor)
        if round_ % self._run.evaluation.every == 0 or round_ == self._run.recipe.steps:
            with self._timed("evaluate"):
                metrics |= self._evaluate()
        with self._timed("publish"):
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

    # Places

    @property
    def _rounds(self) -> Path:
        return self._spool.root / "rounds"

    def _outer_path(self, round_: int) -> Path:
        return self._rounds / f"outer-{round_:06d}.safetensors"

    def _seat_path(self, round_: int, seat: int) -> Path:
        return self._rounds / f"{round_:06d}" / f"seat-{seat}.inc"

    def _own_path(self, round_: int, seat: int) -> Path:
        return self._rounds / f"{round_:06d}" / f"own-{seat}.safetensors"

    def _here(self, path: Path) -> bool:
        """Whether the first rank sees a file: all ranks do the same."""
        return self._world.share(bytes([path.exists()])) == b"\1"

    @property
    def arithmetic(self) -> str:
        """As a header names it: whatever the last bits of a contribution depend on. Whoever names the same and comes to
        other bits loses its stake, so the processor's model is part of it: libraries choose kernels by vendor and
        cache, too."""
        s, device = self._settings, self._world.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{hardware('cpu')} {look().name}"
        kind = f"{compute_dtype(s, device)} {'sharded' if self._world.mesh else 'plain'} x{self._world.size}"
        return f"{name} {kind} {s.micro_batch_tokens} {s.logit_cells} threads {s.threads} torch {torch.__version__}"

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started


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
        self._learner = InnerLearner(self._new_model(), run, self._data.end, settings, world)
        if self._rules.fragments > len(self._learner.shapes):
            why = f"the model has {len(self._learner.shapes)} tensors"
            raise TrainingError(f"diloco.fragments = {self._rules.fragments} leaves rounds nothing", why, "give fewer")

    def _inner_step(self, round_: int, seat: int, number: int) -> dict[str, Any]:
        step = round_ * self._rules.round_steps + number
        loss, norm = self._learner.step(self._data.rows(seat, step), step)
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
    assert run.diloco  # noqa: S101 - the caller's
    peers = int(spool.peers_path.read_text()) if spool.peers_path.exists() else 1
    if why := peers_rule(peers, run.diloco):
        raise TrainingError(f"{peers} peers cannot train this run", why, "give another number of --peers")
    return peers


def _started(start: StartWeights, name: str) -> F32:
    """A tensor of round 0: the start model's, or no momentum yet."""
    values = start[name.removeprefix(MOMENTUM)].float().numpy()
    return np.zeros_like(values) if name.startswith(MOMENTUM) else values


def blob_root(path: Path) -> bytes:
    """By which others can fetch a file."""
    return describe(mapped(path)).root


def _mean(told: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([one[name] for one in told]))
